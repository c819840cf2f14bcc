# SPDX-License-Identifier: Apache-2.0
"""Finds out who iterates a Loader, and refuses those who would cut a rank's batches once more."""
from __future__ import annotations

import sys
from types import FrameType
from typing import Optional

from .errors import InvalidError

# Class -> what it does to what it iterates.
_CUTTERS = {
    "IterableDatasetShard": "keeps one process's share of it",  # accelerate, transformers
    "DataLoaderDispatcher": "reads it in one process and deals it out to all",  # accelerate
    "ShardingFilterIterDataPipe": "keeps one worker's share of it",  # torchdata
    "_ShardingIterDataPipe": "keeps one worker's share of it",
}


def _cutter() -> Optional[str]:
    """By the names of the functions that called: looking into their variables would keep their arrays alive."""
    frame: Optional[FrameType] = sys._getframe(2)
    while frame is not None:
        kind = frame.f_code.co_qualname.split(".")[0]
        if kind in _CUTTERS:
            return kind
        frame = frame.f_back
    return None


def _worker_count() -> int:
    data = sys.modules.get("torch.utils.data")
    about = data.get_worker_info() if data else None
    return about.num_workers if about else 0


def refuse() -> None:
    """Called where an epoch begins."""
    workers = _worker_count()
    if workers:
        raise InvalidError(f"a Loader is iterated in one of {workers} worker processes of a torch DataLoader: each would get every batch "
                           "of this rank. Iterate it directly, or with num_workers=0: its batches are prepared on other machines")
    kind = _cutter()
    if kind:
        raise InvalidError(f"{kind} {_CUTTERS[kind]}, but a Loader gives each rank its own batches already: samples would be lost. "
                           "Iterate the Loader directly")
