# SPDX-License-Identifier: Apache-2.0
"""From a Loader's transforms, dtype and layout to pipeline text and options. Pure."""
from __future__ import annotations

import re
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Union

from .errors import InvalidError

DTYPES = ("uint8", "float32", "float16", "bfloat16")
LAYOUTS = ("NHWC", "NCHW")
_SECTIONS = {"ToDtype": "finish", "Normalize": "finish", "Layout": "finish", "RandomErasing": "batch", "MixUp": "batch", "CutMix": "batch"}

_NO_PYTHON = "Workers cannot run Python: your own goes into map=, on whole batches, here"

Op = Union[str, tuple[str, Mapping[str, Any]]]


class Recipe(NamedTuple):
    pipeline: str  # preset or text
    options: list[str]  # KEY=VALUE
    finish: bool  # the finish section runs here, on the CPU
    channels_first: bool  # uint8 images are shown as NCHW


def _op_text(op: Op) -> str:
    if isinstance(op, str):
        return op
    if not (isinstance(op, tuple) and len(op) == 2 and isinstance(op[0], str) and isinstance(op[1], Mapping)):
        raise InvalidError(f"transforms: {op!r}: an op is text, \"RandomResizedCrop(size=224)\", or (name, arguments). {_NO_PYTHON}")
    name, arguments = op
    return f"{name}({', '.join(f'{key}={value}' for key, value in arguments.items())})"


def _list_text(ops: Sequence[Op]) -> str:
    sections: dict[str, list[str]] = {"sample": [], "finish": [], "batch": []}
    for text in map(_op_text, ops):
        sections[_SECTIONS.get(text.split("(")[0].split("@")[0].strip(), "sample")].append(text)
    if not sections["sample"] or not sections["sample"][0].startswith("Decode"):
        sections["sample"].insert(0, "Decode")
    return " | ".join(f"{name}: {' '.join(texts)}" for name, texts in sections.items() if texts)


def as_text(transforms: Union[str, Sequence[Op]]) -> str:
    """A preset's name, or the pipeline's text."""
    if isinstance(transforms, str):
        return transforms
    if not isinstance(transforms, (list, tuple)):
        raise InvalidError(f"transforms={transforms!r}: must be a preset, pipeline text or a list of ops. {_NO_PYTHON}")
    return _list_text(transforms)


def has_mask(transforms: Union[str, Sequence[Op]], options: Optional[Mapping[str, Any]]) -> bool:
    """The pipeline makes the field mask already: by the op or by the option."""
    text = as_text(transforms)
    return "mask" in (options or {}) or re.search(r"\bMask\b", text) is not None


def make(transforms: Union[str, Sequence[Op]], options: Optional[Mapping[str, Any]], dtype: Any, layout: Optional[str]) -> Recipe:
    """None for dtype and layout: as the pipeline's finish section says. uint8 is what workers send, not normalised: the finish
    and batch sections do not run."""
    if dtype is not None:
        dtype = getattr(dtype, "__name__", str(dtype)).removeprefix("torch.")  # torch.float16, numpy.float16, numpy.dtype("float16")
    if dtype not in (None, *DTYPES):
        raise InvalidError(f"dtype={dtype!r}: must be None, {', '.join(map(repr, DTYPES))}")
    if layout not in (None, *LAYOUTS):
        raise InvalidError(f"layout={layout!r}: must be NHWC or NCHW")
    pipeline = as_text(transforms)
    if not isinstance(options, (Mapping, type(None))):
        raise InvalidError(f"options={options!r}: must be a dictionary, for instance {{'size': 128}}")
    pairs = [f"{key}={value}" for key, value in (options or {}).items()]
    if dtype == "uint8" and re.search(r"\bbatch\s*:\s*\w", pipeline):
        raise InvalidError("dtype='uint8': the batch ops (RandomErasing, MixUp, CutMix) work on floats")
    if dtype == "uint8":
        return Recipe(pipeline, pairs, False, layout == "NCHW")
    if dtype:
        pairs.append(f"dtype={dtype}")
    if layout:
        pairs.append(f"order={layout}")
    return Recipe(pipeline, pairs, True, False)
