# SPDX-License-Identifier: Apache-2.0
"""Where a Loader's images and labels are to be: nothing here touches a GPU."""
from __future__ import annotations

import re
import sys
from typing import Any, NamedTuple, Optional

from . import _core
from .errors import InvalidError, UnsupportedError

_BACKENDS = {"cpu": 0, "host": 1, "cuda": 2}


class Device(NamedTuple):
    name: str  # as it was asked for
    backend: int  # of the extension
    ordinal: Optional[int]  # None: the current one

    @property
    def ingests(self) -> bool:
        """Batches go through a ring of a device's memory, or of its twin's."""
        return self.backend != 0


def parse(device: Any) -> Device:
    """Of None, text, or what prints like it (a torch.device)."""
    name = "cpu" if device is None else str(device)
    match = re.fullmatch(r"cuda(?::(\d{1,4}))?", name)
    if match is None and name not in ("cpu", "host"):
        raise InvalidError(f"device={name!r}: must be None, 'cpu', 'cuda', 'cuda:N' or 'host'")
    if match is None:
        return Device(name, _BACKENDS[name], 0)
    if not _core.has_cuda:
        raise UnsupportedError(f"device={name!r}: CUDA is not in this build of the package: it was built where no CUDA toolkit (nvcc) was found")
    return Device(name, _BACKENDS["cuda"], int(match[1]) if match[1] else None)


def ordinal(device: Device) -> int:
    """ "cuda" is torch's current device where torch has begun to use CUDA; else the first one. Torch is not imported for this."""
    if device.ordinal is not None:
        return device.ordinal
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return int(cuda.current_device()) if cuda is not None and cuda.is_initialized() else 0
