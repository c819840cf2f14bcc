# SPDX-License-Identifier: Apache-2.0
"""Millrace for Python: ready minibatches from a cluster's idle CPUs.

    import millrace

    with millrace.Loader("host:7070", dataset="photos", batch_size=256, transforms="imagenet_train") as loader:
        for epoch in range(90):
            for images, labels in loader:
                ...
"""
from . import errors
from ._core import Array, cause_name
from ._core import version as __version__
from .batch import Batch, DictBatch, Ragged
from .errors import BadSampleError, Error, PermanentError, RetryableError
from .loader import Loader

__all__ = ["Array", "BadSampleError", "Batch", "DictBatch", "Error", "Loader", "PermanentError", "Ragged", "RetryableError", "cause_name",
           "errors"]
