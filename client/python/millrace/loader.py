# SPDX-License-Identifier: Apache-2.0
"""millrace.Loader."""
from __future__ import annotations

import itertools
import numbers
import operator
import os
import sys
import weakref
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Union

from . import _core, batch as _batch, device as _device, launch, recipe, wrappers
from .errors import ClosedError, ConflictError, InvalidError

_SAMPLERS = {None: 0, True: 1, False: 2}
_JOINS = {"now": 0, "next": 1, "partial": 2}
_TAILS = {"drop": 0, "pad": 1, "exact": 2}
_FINISHES = {"auto": 0, "client": 1, "gpu": 2}
_ON_ERRORS = {"raise": 0, "skip": 1, "replace": 2}

_unnamed: dict[str, Iterator[int]] = {}  # dataset -> numbers of this process's Loaders over it
_open: "weakref.WeakValueDictionary[tuple[Optional[str], int], Loader]" = weakref.WeakValueDictionary()  # (job, rank) open in this process


def _choice(name: str, value: Any, known: Mapping[Any, int]) -> int:
    try:
        return known[value]
    except (KeyError, TypeError):
        raise InvalidError(f"{name}={value!r}: must be one of {', '.join(map(repr, known))}") from None


def _whole(name: str, value: Any, least: int, most: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidError(f"{name}={value!r}: must be a whole number") from None
    if not least <= number <= most:
        raise InvalidError(f"{name}={number}: must be {least} to {most}")
    return number


def _distributed() -> Any:
    """torch.distributed where it is initialised; it is not imported for this."""
    module = sys.modules.get("torch.distributed")
    return module if module and module.is_available() and module.is_initialized() else None


def _close_job(job: _core.Job) -> None:
    job.close()


class Loader:
    """Ready batches of a dataset that a Millrace server knows.

    Each ``iter()`` begins the next epoch; after ``load_state_dict`` the first one finishes the stored epoch; ``break`` abandons an
    epoch, and what was fetched ahead is cancelled; ``set_epoch(e)`` states which epoch is next, it never adds. All ranks
    have the same number of steps. Nothing is connected before the first of ``iter()``, ``len()``, ``classes``, ``stats()``.

    Args:
        server: "host:port"; None: $MILLRACE_SERVER, else 127.0.0.1:7070.
        dataset: name of a registered dataset.
        batch_size: rows per rank and step.
        shuffle: None: the transforms' own (imagenet_eval reads in order, imagenet_train shuffles).
        seed: of order and draws; None: the dataset version's own, so that jobs share their preparation.
        tail: "drop" (an epoch's last rows that fill no step are left out), "pad" (repeated rows, not valid), "exact" (short
            batches, even of 0 rows; for evaluation).
        rank, world_size: data-parallel place; None: the launcher's (torch.distributed, torchrun, Slurm, MPI).
        replicas: so many neighbours in rank get the same batches (tensor or pipeline parallel peers).
        job: what the processes of one training run have in common; None: the launcher's. Needed where several processes have none.
        transforms: a preset ("imagenet_train", "imagenet_eval"), pipeline text, or a list of ops, each text or (name, arguments).
        options: arguments of the transforms' ops, for instance {"size": 128} or {"keep_encoded": 200_000}.
        fields: names of what is wanted. ("image", "label") gives a tuple, others give a dictionary. "index" is the item shown; "mask", of a dataset
            that was added with masks, is cropped and flipped as the image and resized by NEAREST: uint8 [rows, height, width].
        views: of each sample, 1 to 8, each with draws of its own; with several, images are [rows, views, channels, height, width]. The first
            view is what ``views=1`` gives.
        device: where images and labels are: None or "cpu"; "cuda:N" (or a torch.device), an NVIDIA GPU, "cuda" being torch's current one where
            torch uses CUDA already, else the first; "host", the twin of a GPU in ordinary memory, to try a loop's path without one.
        finish: where floats are made and mixed for a GPU: "client" (this process's CPU), "gpu", or "auto": the first batches tell which is
            cheaper (``stats()["finish"]``). The bits are the same.
        dtype: of images: "uint8" (as sent, not normalised), "float32", "float16", "bfloat16", or torch's or numpy's type of that name; None: as the transforms say.
        layout: "NHWC" or "NCHW"; None: as the transforms say; of uint8, NHWC. uint8 in NCHW is a view of NHWC memory (torch's channels_last).
        on_error: of samples that cannot be decoded: "raise", "skip" (row not valid, label -100), "replace" (another sample, seeded).
        join: "now", "next" (wait for the stream's next epoch), "partial" (a short first epoch from where others are).
        weight: of this job beside others when there are not enough workers, 0.01 to 100: twice the weight, twice the rows.
        epochs: an ``iter()`` after so many is an error, and nothing is fetched beyond; None: no end.
        map: called with each batch; what it returns is yielded.
        arrays: None (Array), "numpy" (not of a GPU), "torch", "jax": what fields and ``.valid`` are. No copy.
        look_ahead: batches fetched ahead. Batches that are kept beyond look_ahead - 1 are handed over as copies (``stats()["copies"]``); on a
            device, beyond look_ahead, in memory of their own.
        timeout: seconds to wait for a batch, or for the job to begin; None: for ever.
        secret_file: of the cluster; None: $MILLRACE_SECRET_FILE.
        ledger: a file or folder to write down what was handed over, for ``millrace audit``.
        accept_new_bits: resume although no worker makes the same bits any more.

    Raises:
        InvalidError (a ValueError), UnsupportedError (a NotImplementedError: CUDA is not in this build): here. Others where the server is
        first needed; NotFoundError also for a GPU, or its driver, that is not there.
    """

    def __init__(self, server: Optional[str] = None, *, dataset: str, batch_size: int, shuffle: Optional[bool] = None,
                 seed: Optional[int] = None, tail: str = "drop", rank: Optional[int] = None, world_size: Optional[int] = None,
                 replicas: int = 1, job: Optional[str] = None, transforms: Union[str, Sequence[recipe.Op]] = "imagenet_train",
                 options: Optional[Mapping[str, Any]] = None, fields: Sequence[str] = ("image", "label"), views: int = 1,
                 device: Any = None, finish: str = "auto", dtype: Any = None, layout: Optional[str] = None, on_error: str = "raise", join: str = "now",
                 weight: float = 1.0, epochs: Optional[int] = None, map: Optional[Callable[[Any], Any]] = None, arrays: Optional[str] = None, look_ahead: int = 3,
                 timeout: Optional[float] = 120.0, secret_file: Optional[str] = None, ledger: Optional[str] = None,
                 accept_new_bits: bool = False) -> None:
        if not isinstance(dataset, str):
            raise InvalidError(f"dataset={dataset!r}: must be the name of a registered dataset")
        views, batch_size = _whole("views", views, 1, 8), _whole("batch_size", batch_size, 1, 65535)
        look_ahead = _whole("look_ahead", look_ahead, 1, 1024)
        if seed is not None:
            seed = _whole("seed", seed, 0, 2**64 - 1)
        if map is not None and not callable(map):
            raise InvalidError(f"map={map!r}: must be called with a batch")
        if not isinstance(weight, numbers.Real) or not 0.01 <= weight <= 100:
            raise InvalidError(f"weight={weight!r}: must be 0.01 to 100")
        replicas = _whole("replicas", replicas, 1, 2**31 - 1)
        if epochs is not None:
            epochs = _whole("epochs", epochs, 1, 2**31 - 1)
        if rank is not None:
            rank = _whole("rank", rank, 0, 2**31 - 1)
        if world_size is not None:
            world_size = _whole("world_size", world_size, 1, 2**31 - 1)
        if replicas > 1 and join != "now":
            raise InvalidError(f"join={join!r} with replicas: they might begin at different places; use join='now'")
        self._names = (fields,) if isinstance(fields, str) else tuple(fields)
        if "mask" in self._names and not recipe.has_mask(transforms, options):
            options = {**(options or {}), "mask": 0}
        if views > 1:
            options = {**(options or {}), "views": views}
        self._recipe = recipe.make(transforms, options, dtype, layout)
        if len(set(self._names)) != len(self._names) or not self._names:
            raise InvalidError(f"fields={self._names}: each once, and at least one")
        self._device = _device.parse(device)
        if self._device.ingests and "image" not in self._names:
            raise InvalidError(f"device={self._device.name!r}: brings images there, and fields={self._names} has none")
        where = _choice("finish", finish, _FINISHES)
        if finish == "gpu" and not self._device.name.startswith("cuda"):
            raise InvalidError(f"finish='gpu': device={self._device.name!r} is no GPU, batches are finished by this process")
        if self._device.name.startswith("cuda") and arrays == "numpy":
            raise InvalidError(f"arrays='numpy': an array of device={self._device.name!r} is in the GPU's memory; use 'torch' or 'jax'")
        self._convert = _batch.converter(arrays)
        self._map, self._timeout = map, -1.0 if timeout is None else float(timeout)
        number = next(_unnamed.setdefault(dataset, itertools.count()))
        self.launch = launch.identify(os.environ, rank, world_size, replicas, job, _distributed(), f".{dataset}.{number}")
        self._dataset, self._epochs = dataset, epochs
        self._options: dict[str, Any] = dict(
            server=server, secret_file=secret_file, dataset=dataset, batch=batch_size, job=self.launch.job, pipeline=self._recipe.pipeline,
            options=self._recipe.options, fields=self._wire_fields(), seed=seed, sampler=_choice("shuffle", shuffle, _SAMPLERS),
            join=_choice("join", join, _JOINS), tail=_choice("tail", tail, _TAILS), on_bad=_choice("on_error", on_error, _ON_ERRORS),
            rank=self.launch.rank, world=self.launch.world, epochs=epochs or 0, look_ahead=look_ahead, ledger=ledger,
            accept_new_bits=bool(accept_new_bits), apply_finish=self._recipe.finish, timeout=self._timeout, weight=float(weight),
            backend=self._device.backend, where=where)
        self._job: Optional[_core.Job] = None
        self._finalizer: Any = None
        self._info: dict[str, Any] = {}
        self._closed = False
        self._cursor: Optional[str] = None  # behind the batch handed over last; None: nothing was
        self._stated = 0  # by set_epoch, while there is no cursor
        self._begin = (0, 0)  # epoch and position of the next iter()
        self._active: Optional[weakref.ref[_Epoch]] = None  # the iterator of the epoch under way

    def _wire_fields(self) -> list[str]:
        names = [name for name in self._names if name != "index"]
        return names or ["label"]  # something must be sent

    # ---- the job ----

    def _need_job(self) -> _core.Job:
        """Opens it at the first time."""
        if self._closed:
            raise ClosedError("the Loader is closed")
        if self._job is None:
            key = (self.launch.job, self.launch.rank)
            if self.launch.job is not None and _open.get(key) is not None:
                raise InvalidError(f"job {self.launch.job!r} is open in this process already (rank {self.launch.rank}): give another job=, or "
                                   "close that Loader")
            self._job = _core.Job(**self._options, ordinal=_device.ordinal(self._device), resume=self._cursor)
            self._finalizer = weakref.finalize(self, _close_job, self._job)
            self._info = self._job.info()
            if self._begin == (0, 0):
                self._begin = _core.cursor_parts(self._info["cursor"])  # join="partial" begins within an epoch
            if self.launch.job is not None:
                _open[key] = self
        return self._job

    def _drop_job(self) -> None:
        if self._job is not None:
            self._finalizer.detach()
            self._job.close()
            self._job = None
            _open.pop((self.launch.job, self.launch.rank), None)

    def close(self) -> None:
        """Ends the job, in less than a second. Arrays stay valid. A closed Loader cannot be iterated."""
        self._closed = True
        self._drop_job()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    # ---- epochs ----

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on all ranks."""
        self._need_job()
        return int(self._info["steps"])

    def __iter__(self) -> "_Epoch":
        wrappers.refuse()
        job = self._need_job()
        self._stop_active()
        epoch, position = self._begin
        if self._epochs is not None and epoch >= self._epochs:
            raise InvalidError(f"epochs={self._epochs}: all of them are over")
        self._go_to(job, epoch, position)
        self._begin = (epoch + 1, 0)
        made = _Epoch(self, epoch)
        self._active = weakref.ref(made)
        return made

    def __getitem__(self, index: Any) -> Any:
        raise TypeError("a Loader is iterated, it has no items to pick: do not wrap it in a DataLoader")

    def _go_to(self, job: _core.Job, epoch: int, position: int) -> None:
        now = job.info()["cursor"]
        if _core.cursor_parts(now) == (epoch, position):
            return
        job.seek(self._cursor if position and self._cursor else _core.cursor_at(now, epoch))

    def _stop_active(self) -> None:
        current = self._active() if self._active else None
        if current is not None:
            current.stop()
        self._active = None

    def _abandon(self) -> None:
        """An iterator ended early: what is under way is for nobody."""
        self._active = None
        if self._job is not None and not self._closed and (self._epochs is None or self._begin[0] < self._epochs):
            self._go_to(self._job, *self._begin)

    def _take(self, epoch: "_Epoch") -> Any:
        parts = self._need_job().next(self._timeout)
        if parts is None:
            raise StopIteration
        made = _batch.make(parts, self._names, self._convert, self._recipe.channels_first)
        cursor = made.cursor
        if made.step + 1 >= made.steps:
            epoch.done = True
        if self._map:
            made = self._map(made)
        self._cursor = cursor  # a batch on which map failed was not handed over
        return made

    @property
    def epoch(self) -> int:
        """The epoch under way, else the one that the next iter() begins; from 0."""
        current = self._active() if self._active else None
        return self._begin[0] if current is None or current.over else current.epoch

    def set_epoch(self, epoch: int) -> None:
        """States which epoch the next iter() is. The one that a loaded state stands in goes on where it stood."""
        epoch = _whole("epoch", epoch, 0, 2**31 - 1 if self._epochs is None else self._epochs - 1)
        if epoch == self._begin[0]:
            return
        self._begin = (epoch, 0)
        self._stated = epoch
        if self._cursor is not None:
            self._cursor = _core.cursor_at(self._cursor, epoch)

    # ---- state ----

    def state_dict(self) -> dict[str, Any]:
        """Where the job is: behind the batch handed over last. JSON-able; the same on all ranks, and good for any number of them. A
        wrapper that fetches ahead saves a batch's ``.cursor`` instead: ``load_state_dict`` takes it, too."""
        if self._cursor is None and self._stated:
            self._cursor = _core.cursor_at(self._need_job().info()["cursor"], self._stated)
        return {"version": 1, "dataset": self._dataset, "cursor": self._cursor}

    def load_state_dict(self, state: Union[str, Mapping[str, Any]]) -> None:
        """The next iter() finishes the epoch of this state.

        Raises:
            CorruptError, InvalidError: not a state. ConflictError: of another dataset version, stream or bits; both are named. (Some of
            that only when the server is first needed.)
        """
        if isinstance(state, str):
            state = {"version": 1, "cursor": state}
        if state.get("version") != 1 or "cursor" not in state:
            raise InvalidError(f"not a state of a Loader: {state!r}")
        cursor = state["cursor"]
        begin = (0, 0) if cursor is None else _core.cursor_parts(cursor)
        if self._job is not None:
            self._seek_or_drop(self._job, _core.cursor_at(self._info["cursor"], 0) if cursor is None else cursor)
        self._stop_active()
        self._cursor, self._begin = cursor, begin

    def _seek_or_drop(self, job: _core.Job, cursor: str) -> None:
        try:
            job.seek(cursor)
        except ConflictError:
            if not self._options["accept_new_bits"]:
                raise
            self._drop_job()  # to be opened anew, there

    # ---- about it ----

    @property
    def classes(self) -> list[str]:
        """Names; a label is an index in it."""
        self._need_job()
        return list(self._info["classes"])

    @property
    def class_to_idx(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.classes)}

    @property
    def pipeline(self) -> str:
        """The canonical text of the transforms."""
        self._need_job()
        return str(self._info["pipeline"])

    @property
    def note(self) -> str:
        """What the job shares with others when it begins and, for a device, where batches are finished, and why: in words."""
        job = self._need_job()
        note = str(self._info["note"])
        return f"{note}; finish on {job.placement()['reason']}" if self._device.ingests else note

    def item(self, index: int) -> tuple[str, int, int]:
        """(path in the dataset, label, bytes) of an item."""
        return self._need_job().item(_whole("index", index, 0, 2**63 - 1), self._timeout)

    def stats(self) -> dict[str, Any]:
        """Counts since the job was opened: rows, batches, bytes, seconds stalled, batches ready now, substituted and skipped rows, requests;
        batches handed over in place (views) and as copies, and how many of those in place are held now. "finish": where batches are
        finished ("client" or "gpu"), for which device, whether that is decided, the reason in words, and for a GPU what a batch takes on either side."""
        job = self._need_job()
        return {**job.stats(), "finish": job.placement()}

    def __repr__(self) -> str:
        place = f", rank {self.launch.rank} of {self.launch.world}" if self.launch.world > 1 else ""
        return f"<millrace.Loader {self._dataset!r}, epoch {self.epoch}{place}{', closed' if self._closed else ''}>"


class _Epoch:
    """One epoch of a Loader, from where it stands."""

    def __init__(self, loader: Loader, epoch: int) -> None:
        self._loader: Optional[Loader] = loader
        self.epoch = epoch
        self.done = False  # its last batch was handed over
        self.over = False  # and that was told
        self.stopped = False

    def __iter__(self) -> "_Epoch":
        return self

    def __next__(self) -> Any:
        if self.stopped:
            raise InvalidError("another epoch of this Loader was begun, or a state loaded: this iterator is over")
        if self.done or self._loader is None:
            self.over, self._loader = True, None
            raise StopIteration
        return self._loader._take(self)

    def stop(self) -> None:
        """Another one takes its place."""
        self.stopped, self._loader = not self.done, None

    def __del__(self) -> None:
        if self.done or self._loader is None or sys.is_finalizing():
            return
        try:
            self._loader._abandon()
        except Exception:  # closed, forked, or the job is over: nothing to cancel
            pass
