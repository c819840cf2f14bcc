# SPDX-License-Identifier: Apache-2.0
"""What a Loader yields: a tuple for (image, label), a dictionary for other fields; both know where they are from."""
from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

from . import _core
from .errors import InvalidError

Array = _core.Array


class Ragged(NamedTuple):
    """A field whose rows have different lengths: row i is values[offsets[i]:offsets[i + 1]]."""

    values: Any  # 1 dimension, the rows end to end
    offsets: Any  # int64, rows + 1


class _About:
    """Beside the fields. A copy made by another library (type(batch)(...)) has none of it."""

    #: str: to go on behind this batch, with load_state_dict. Plain text.
    cursor: Optional[str] = None
    #: bool[rows]: False for padding, and for bad samples with on_error="skip" (label -100).
    valid: Any = None
    #: Rows of every field: the batch size; with tail="exact" maybe fewer, even 0.
    rows: int = 0
    #: Rows that are valid.
    valid_rows: int = 0
    #: The Loader's own, from 0.
    epoch: int = 0
    #: The stream's: what order and draws are made of.
    stream_epoch: int = 0
    #: 0 .. steps - 1 of this epoch, as this run sees it: a resumed epoch has fewer.
    step: int = 0
    steps: int = 0
    #: Arrays, whatever `arrays` says.
    #: int64[rows]: the row's position in the epoch; the item at that position; the item shown (another one where it is bad).
    positions: Any = None
    planned_items: Any = None  # not `items`, which is a dictionary's method
    used_items: Any = None
    #: uint64[rows]: XXH3 of the row as it was made.
    hashes: Any = None
    #: uint8[rows]: 0 ok, 1 substituted, 2 bad; why, for cause_name().
    status: Any = None
    causes: Any = None


class Batch(tuple[Any, ...], _About):
    """(images, labels)."""


class DictBatch(dict[str, Any], _About):
    """Field name -> array."""


def _numpy(array: Any) -> Any:
    import numpy
    return numpy.asarray(array)


def _torch(array: Any) -> Any:
    import torch
    if array.dtype == "bool":  # torch 1.13 knows none in DLPack
        return torch.frombuffer(array, dtype=torch.bool) if array.nbytes else torch.empty(array.shape, dtype=torch.bool)
    return torch.from_dlpack(array)


def _jax(array: Any) -> Any:
    import jax
    return jax.dlpack.from_dlpack(array)


def converter(arrays: Optional[str]) -> Callable[[Any], Any]:
    """From Array to what the user wants, without a copy."""
    known = {None: lambda array: array, "numpy": _numpy, "torch": _torch, "jax": _jax}
    if arrays not in known:
        raise InvalidError(f"arrays={arrays!r}: must be None, 'numpy', 'torch' or 'jax'")
    return known[arrays]


COLUMNS = ("positions", "planned_items", "used_items", "hashes", "valid", "status", "causes")


def make(parts: tuple[Any, ...], names: tuple[str, ...], convert: Callable[[Any], Any], channels_first: bool) -> Any:
    """A batch of what Job.next() gave. `names`: the fields wanted, in order; "index" is made here."""
    fields, columns = parts[0], dict(zip(COLUMNS, parts[1]))
    found = {}
    for name, value, *offsets in fields:
        if name == "image" and channels_first:
            value = value.channels_first()
        found[name] = Ragged(convert(value), convert(offsets[0])) if offsets else convert(value)
    if "index" in names:
        found["index"] = convert(columns["used_items"])
    batch: Any = Batch(found[name] for name in names) if names == ("image", "label") else DictBatch((name, found[name]) for name in names)
    batch.rows, batch.valid_rows, batch.epoch, batch.stream_epoch, batch.step, batch.steps, batch.cursor = parts[2:]
    for name, column in columns.items():
        setattr(batch, name, convert(column) if name == "valid" else column)
    return batch
