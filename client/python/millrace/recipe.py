# SPDX-License-Identifier: Apache-2.0
"""From a Loader's transforms, dtype and layout to pipeline text and options. Pure."""
from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Sequence, Union

from .errors import InvalidError

DTYPES = ("uint8", "float32", "float16", "bfloat16")
LAYOUTS = ("NHWC", "NCHW")
_FINISH = ("ToDtype", "Normalize", "Layout")

Op = Union[str, tuple[str, Mapping[str, Any]]]


class Recipe(NamedTuple):
    pipeline: str  # preset or text
    options: list[str]  # KEY=VALUE
    finish: bool  # the finish section runs here, on the CPU
    channels_first: bool  # uint8 images are shown as NCHW


def _op_text(op: Op) -> str:
    if isinstance(op, str):
        return op
    name, arguments = op
    return f"{name}({', '.join(f'{key}={value}' for key, value in arguments.items())})"


def _list_text(ops: Sequence[Op]) -> str:
    texts = [_op_text(op) for op in ops]
    finish = [text for text in texts if text.split("(")[0].split("@")[0].strip() in _FINISH]
    sample = [text for text in texts if text not in finish]
    if not sample or not sample[0].startswith("Decode"):
        sample.insert(0, "Decode")
    return "sample: " + " ".join(sample) + (" | finish: " + " ".join(finish) if finish else "")


def make(transforms: Union[str, Sequence[Op]], options: Optional[Mapping[str, Any]], dtype: Optional[str], layout: Optional[str]) -> Recipe:
    """None for dtype and layout: as the pipeline's finish section says. uint8 is what workers send, not normalised: the finish
    section does not run."""
    if dtype not in (None, *DTYPES):
        raise InvalidError(f"dtype={dtype!r}: must be one of {', '.join(DTYPES)}")
    if layout not in (None, *LAYOUTS):
        raise InvalidError(f"layout={layout!r}: must be NHWC or NCHW")
    pipeline = transforms if isinstance(transforms, str) else _list_text(transforms)
    pairs = [f"{key}={value}" for key, value in (options or {}).items()]
    if dtype == "uint8":
        return Recipe(pipeline, pairs, False, layout == "NCHW")
    if dtype:
        pairs.append(f"dtype={dtype}")
    if layout:
        pairs.append(f"order={layout}")
    return Recipe(pipeline, pairs, True, False)
