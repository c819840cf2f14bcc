# SPDX-License-Identifier: Apache-2.0
"""The extension: what the C client library does. Use millrace.Loader."""
from typing import Any, Optional, Sequence, final

version: str
has_cuda: bool  # this build brings batches to NVIDIA GPUs, where there are any

@final
class Array:
    """Values of a batch, in the memory they were received into or, on a GPU, finished in: no copy. DLPack; in ordinary memory the buffer
    protocol, too; on a GPU CUDA's array interface."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes."""
    @property
    def dtype(self) -> str:
        """numpy's name: uint8, int32, int64, uint64, float32, float16, bfloat16 (DLPack only), bool."""
    @property
    def ndim(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def pointer(self) -> int:
        """Address of the first value."""
    def channels_first(self) -> Array:
        """The NCHW view of an NHWC array: the same memory, other strides."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3. AttributeError: the array is not on a GPU, or of bfloat16."""
    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        """numpy's, of the same memory. TypeError: on a GPU, or of bfloat16."""
    def __dlpack__(self, *, stream: Optional[int] = None, max_version: Optional[tuple[int, int]] = None,
                   dl_device: Optional[tuple[int, int]] = None, copy: Optional[bool] = None) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]:
        """(1, 0): CPU. (2, N): CUDA device N."""

@final
class Lease: ...

@final
class Job:
    def __new__(cls, *, server: Optional[str], secret_file: Optional[str], dataset: str, batch: int, job: Optional[str],
                pipeline: str, options: Sequence[str], fields: Optional[Sequence[str]], seed: Optional[int], sampler: int, join: int,
                tail: int, on_bad: int, rank: int, world: int, epochs: int, look_ahead: int, resume: Optional[str],
                ledger: Optional[str], accept_new_bits: bool, apply_finish: bool, timeout: float,
                weight: float, backend: int, ordinal: int, where: int) -> Job: ...
    def next(self, timeout: float, /) -> Optional[tuple[Any, ...]]: ...
    def seek(self, cursor: str, /) -> None: ...
    def info(self) -> dict[str, Any]: ...
    def stats(self) -> dict[str, Any]: ...
    def placement(self) -> dict[str, Any]: ...
    def item(self, index: int, timeout: float, /) -> tuple[str, int, int]: ...
    def close(self) -> None: ...

def cursor_parts(cursor: str, /) -> tuple[int, int]: ...
def cursor_at(cursor: str, epoch: int, /) -> str: ...
def cause_name(cause: int, /) -> str: ...
