# SPDX-License-Identifier: Apache-2.0
"""Batches on a device: the same bits as in ordinary memory, whatever the recipe; ring, streams and lifetimes. MILLRACE_TEST_DEVICE is "host"
(the twin of a GPU) or "cuda:N"; with MILLRACE_FAKE_CUDA=1 the driver is tests/support/fake_cuda.c. What a device has is read by DLPack, as a
framework does."""
import contextlib
import ctypes
import gc
import json
import os
import signal
import threading
import unittest

import numpy

import harness
import test_python
from test_python import COUNT, SIZE, told

millrace, errors = test_python.millrace, test_python.errors
DEVICE = os.environ.get("MILLRACE_TEST_DEVICE", "host")
CUDA = DEVICE.startswith("cuda")
FAKE = bool(os.environ.get("MILLRACE_FAKE_CUDA"))
PLACE = (2, int(DEVICE[5:])) if CUDA else (1, 0)


# ---- a consumer of DLPack ----

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("type", ctypes.c_int32), ("id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    pass


Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]
pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
rename = ctypes.pythonapi.PyCapsule_SetName
rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
USED = b"used_dltensor"


class Refused(Exception):
    """By CUDA."""


def ask(driver, name, *arguments):
    status = getattr(driver, name)(*arguments)
    if status:
        raise Refused(name, status)


@contextlib.contextmanager
def within_context(driver):
    context = ctypes.c_void_p()
    ask(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), PLACE[1])
    try:
        ask(driver, "cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            ask(driver, "cuCtxPopCurrent_v2", ctypes.byref(context))
    finally:
        ask(driver, "cuDevicePrimaryCtxRelease_v2", PLACE[1])


def read(place, bytes_, device):
    out = ctypes.create_string_buffer(max(bytes_, 1))
    if device[0] == 2:
        driver = ctypes.CDLL("libcuda.so.1")
        with within_context(driver):
            ask(driver, "cuMemcpyDtoH_v2", out, ctypes.c_uint64(place), ctypes.c_size_t(bytes_))
    elif bytes_:
        ctypes.memmove(out, place, bytes_)
    return out.raw[:bytes_]


class Taken:
    """What a framework makes of an array: it holds the memory until it is dropped, by the deleter."""

    def __init__(self, array, **how):
        capsule = array.__dlpack__(**how)
        self.managed = ctypes.cast(pointer_of(capsule, b"dltensor"), ctypes.POINTER(Managed))
        rename(capsule, USED)
        tensor = self.managed[0].tensor
        self.device, self.pointer = (tensor.type, tensor.id), tensor.data
        self.shape, self.strides = ([what[i] for i in range(tensor.ndim)] for what in (tensor.shape, tensor.strides))
        self.kind = (tensor.code, tensor.bits)

    def __len__(self):
        return int(numpy.prod(self.shape)) * self.kind[1] // 8

    def bytes(self):
        """In the order of its memory."""
        return read(self.pointer, len(self), self.device)

    def drop(self):
        self.managed[0].deleter(self.managed)


class Streams:
    """Streams of the device, and copies to pinned memory on them: a consumer's work that nobody has waited for."""

    def __init__(self, count):
        self.driver, self.all, self.memory = ctypes.CDLL("libcuda.so.1"), [], []
        self.within = within_context(self.driver)
        self.within.__enter__()
        for _ in range(count):
            stream = ctypes.c_void_p()
            self.ask("cuStreamCreate", ctypes.byref(stream), 1)
            self.all.append(stream.value)

    def ask(self, name, *arguments):
        ask(self.driver, name, *arguments)

    def copy(self, tensor, stream):
        """Of all its bytes: a buffer to be looked at after synchronize()."""
        place, count = ctypes.c_void_p(), len(tensor)
        self.ask("cuMemHostAlloc", ctypes.byref(place), ctypes.c_size_t(max(count, 1)), 0)
        self.memory.append(place)
        if count:
            self.ask("cuMemcpyDtoHAsync_v2", place, ctypes.c_uint64(tensor.pointer), ctypes.c_size_t(count), ctypes.c_void_p(stream))
        return (ctypes.c_char * count).from_address(place.value)

    def synchronize(self):
        for stream in self.all:
            self.ask("cuStreamSynchronize", ctypes.c_void_p(stream))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for place in self.memory:
            self.ask("cuMemFreeHost", place)
        for stream in self.all:
            self.ask("cuStreamDestroy_v2", ctypes.c_void_p(stream))
        self.within.__exit__(None, None, None)


def taken(array, **how):
    """(kind, shape, strides, bytes), and nothing is held."""
    tensor = Taken(array, **how)
    try:
        return tensor.kind, tensor.shape, tensor.strides, tensor.bytes()
    finally:
        tensor.drop()


class Device(test_python.Python):
    """With ordinary memory's tests, where they ask nothing of it that a GPU's has not."""

    test_no_copy_after_receiving = test_arrays_outlive_slots_and_loader = test_memory_is_flat = test_dlpack_kinds = None
    test_the_example_in_the_readme = test_grpcio_before_and_after = test_errors = test_fields = test_the_audit_knows_what_was_abandoned = None
    if CUDA:  # numpy.asarray of images
        test_epochs_are_those_of_cat = test_float_and_layout = test_batch_ops = test_bad_samples = test_map = None

    def loader(self, **changes):
        return super().loader(**{"device": DEVICE, **changes})

    def child(self, code, wait=True, **env):
        return super().child(f"options['device'] = {DEVICE!r}\n" + code, wait, **env)

    def same(self, epochs=2, **changes):
        """A loader of either kind gives the same; how many batches there were."""
        here, there = self.loader(**{**changes, "device": None, "finish": "auto"}), self.loader(**changes)
        count = 0
        for _ in range(epochs):
            for mine, its in zip(here, there, strict=True):
                self.assertEqual((told(mine), mine.cursor, mine.step, mine.steps, mine.rows, mine.valid_rows),
                                 (told(its), its.cursor, its.step, its.steps, its.rows, its.valid_rows))
                for ours, array in zip(mine, its, strict=True):
                    self.assertEqual(array.__dlpack_device__(), PLACE)
                    self.assertEqual(taken(ours), taken(array), changes)
                count += 1
        here.close()
        there.close()
        return count

    # ---- the same bits ----

    def test_same_bits_of_every_kind(self):
        for dtype in (None, "uint8", "float32", "float16", "bfloat16"):
            for layout in (None, "NHWC", "NCHW"):
                self.assertEqual(self.same(1, dtype=dtype, layout=layout), 8)

    def test_same_bits_of_batch_ops(self):
        plain = ["RandomResizedCrop(size=32)", "ToDtype", "Normalize"]
        for ops in (["MixUp"], ["CutMix"], [("RandomErasing", {"p": 0.7})], [("RandomErasing", {"p": 0.7}), "MixUp", "CutMix"]):
            for dtype in ("float32", "float16", "bfloat16"):
                self.same(1, transforms=plain + ops, dtype=dtype, options=None)

    def test_same_bits_of_views(self):
        for dtype in (None, "uint8", "bfloat16"):
            for layout in (None, "NHWC", "NCHW"):
                self.assertEqual(self.same(1, dtype=dtype, layout=layout, views=2), 8)
        drawn = ["RandomResizedCrop(size=32)", "ToDtype", "Normalize", ("RandomErasing", {"p": 0.7})]
        for ops in (drawn, drawn + ["MixUp"], drawn + ["CutMix"]):
            for finish in ("client", "gpu")[:1 + CUDA]:
                self.same(1, transforms=ops, dtype=None, options=None, views=3, finish=finish, fields=("image", "label"))
        images, _ = next(iter(self.loader(dtype=None, views=2)))
        self.assertEqual((images.shape, images.dtype), ((8, 2, 3, SIZE, SIZE), "float32"))

    def test_same_bits_of_every_tail(self):
        last = set()
        for tail, dtype in (("drop", None), ("pad", None), ("exact", None), ("exact", "uint8")):
            for rank, world, batch in ((0, 3, 8), (2, 3, 8), (0, 6, 10), (5, 6, 10)):  # of 61: of the last step exact leaves a part, one row, nothing
                common = dict(tail=tail, dtype=dtype, rank=rank, world_size=world, batch_size=batch)
                here, there = (self.loader(job=f"device-tail-{d}", device=d, **common) for d in (None, DEVICE))
                for mine, its in zip(here, there, strict=True):
                    self.assertEqual([told(mine), *map(taken, mine)], [told(its), *map(taken, its)])
                last.add((tail, mine.rows))
                here.close()
                there.close()
        self.assertIn(("exact", 0), last)
        self.assertIn(("exact", 1), last)

    def test_same_bits_where_a_sample_is_bad(self):
        for policy in ("skip", "replace"):
            self.assertEqual(self.same(1, dataset="trouble", shuffle=False, on_error=policy, dtype=None), 1)
        self.same(1, dataset="trouble", on_error="skip", transforms=["RandomResizedCrop(size=32)", "ToDtype", "Normalize", "MixUp"], options=None,
                  dtype=None)

    def test_same_bits_after_resuming(self):
        whole = [[taken(a) for a in batch] for batch in self.loader(dtype=None, device=None)]
        for at in (1, 4, 7):
            loader = self.loader(dtype=None)
            for _ in zip(range(at), loader):
                pass
            state = loader.state_dict()
            loader.load_state_dict(state)  # while the next batch is on the device already
            self.assertEqual([taken(a) for a in next(iter(loader))], whole[at])
            loader.close()
            later = self.loader(dtype=None)
            later.load_state_dict(state)
            self.assertEqual([[taken(a) for a in batch] for batch in later], whole[at:])

    def test_fields_besides(self):
        names = ("label", "index", "image", "encoded", "box")
        most = max(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(self.folder + "/photos") for f in fs)
        common = dict(fields=names, shuffle=False, transforms=["RandomResizedCrop(size=32)", ("Encoded", {"max_bytes": most})], options=None)
        here, there = self.loader(device=None, **common), self.loader(**common)
        kept = []
        for mine, its in zip(here, there, strict=True):
            self.assertEqual(list(its), list(names))
            for name in names:
                ours, arrays = ((v if isinstance(v, tuple) else (v,)) for v in (mine[name], its[name]))
                self.assertEqual([taken(a) for a in ours], [taken(a) for a in arrays])
                self.assertEqual(arrays[0].__dlpack_device__(), PLACE if name in ("image", "label") else (1, 0))
            kept.append((its["box"], its["encoded"], its.valid))  # they hold nothing of the device
        del its, arrays
        gc.collect()
        self.assertEqual((there.stats()["held"], there.stats()["copies"]), (0, 0))
        there.close()
        self.assertEqual(sum(len(box) for box, _, _ in kept), COUNT)

    def test_where_it_is_finished(self):
        plain = self.loader(device=None, dtype=None)
        self.assertEqual((plain.stats()["finish"]["where"], plain.stats()["finish"]["device"]), ("client", None))
        for finish in ("auto", "client") + ("gpu",) * CUDA:
            loader = self.loader(dtype=None, finish=finish, tail="drop")
            about = loader.stats()["finish"]
            self.assertEqual((about["where"], about["reason"]), (None, "no batch came yet"))
            self.assertEqual(self.same(2, dtype=None, finish=finish), 16)
            for _ in range(12):  # figures come in when the device has got there
                for batch in loader:
                    taken(batch[0])
                about = loader.stats()["finish"]
                if about["decided"]:
                    break
            self.assertIn(DEVICE, about["device"])
            self.assertTrue(about["decided"])
            self.assertIn(about["where"], ("client", "gpu") if CUDA and finish == "auto" else ("gpu",) if finish == "gpu" else ("client",))
            self.assertTrue(about["reason"].startswith(about["where"] + ": "), about)
            self.assertTrue(loader.note.endswith("; finish on " + about["reason"]), loader.note)
            if CUDA and finish == "auto":
                self.assertEqual((about["client"]["batches"], about["gpu"]["batches"]), (3, 3))

    # ---- lifetimes ----

    def test_a_loop_sees_the_ring_alone(self):
        loader, places = self.loader(), set()
        for _ in range(3):
            for images, labels in loader:
                places.add(images.pointer)
        self.assertEqual(len(places), 3)
        stats = loader.stats()
        self.assertEqual((stats["copies"], stats["views"], stats["held"]), (0, 24, 1))
        del images, labels
        self.assertEqual(loader.stats()["held"], 0)

    def test_whatever_is_kept_is_kept(self):
        """Everything of two epochs: by arrays, by capsules, by tensors; and the loader is closed."""
        want = [[taken(a) for a in batch] for loader in [self.loader(dtype=None, device=None)] for _ in range(2) for batch in loader]
        for look_ahead in (1, 2, 3, 5):
            loader = self.loader(dtype=None, look_ahead=look_ahead)
            kept = [list(batch) for _ in range(2) for batch in loader]
            stats = loader.stats()
            self.assertEqual((stats["held"], stats["views"], stats["copies"]), (look_ahead, look_ahead, 16 - look_ahead))
            self.assertEqual(len({batch[0].pointer for batch in kept}), 16)
            capsules = [batch[0].__dlpack__() for batch in kept[::3]]
            tensors = [[Taken(a) for a in batch] for batch in kept]
            loader.close()
            del loader, kept
            gc.collect()
            self.assertEqual([[(t.kind, t.shape, t.strides, t.bytes()) for t in batch] for batch in tensors], want)
            for batch in tensors:
                for tensor in batch:
                    tensor.drop()
            del capsules

    def test_what_is_given_back_is_used_again(self):
        loader = self.loader(dtype=None)
        iterator = iter(loader)
        first = next(iterator)
        place = first[0].pointer
        label = Taken(first[1])
        label.drop()
        tensor = Taken(first[0])
        before = tensor.bytes()
        del first, label
        others = [next(iterator)[0].pointer for _ in range(5)]  # dropped at once
        self.assertNotIn(place, others)
        self.assertEqual(tensor.bytes(), before)
        tensor.drop()
        self.assertIn(place, [next(iterator)[0].pointer for _ in range(2)] + [batch[0].pointer for batch in loader])

    @unittest.skipIf(CUDA, "torch would want a GPU")
    def test_torch(self):
        try:
            import torch
        except ImportError as error:
            self.skipTest(f"{error} (python3-torch)")
        want = [[numpy.array(a) for a in batch] for batch in self.loader(dtype=None, device=None)]
        loader, sums = self.loader(dtype=None, arrays="torch"), []
        for batch, (images, labels) in zip(loader, want):
            self.assertTrue((batch[0].numpy() == images).all() and (batch[1].numpy() == labels).all())
            self.assertEqual(batch.valid.dtype, torch.bool)
            sums.append(batch[0][:, 0].flatten(1))  # a view of a part: it holds the batch
        self.assertEqual(loader.stats()["held"], 3)
        self.assertEqual([s.sum().item() for s in sums], [torch.from_numpy(images[:, 0]).flatten(1).sum().item() for images, _ in want])
        del batch, sums
        self.assertEqual(loader.stats()["held"], 0)

    def test_memory_is_flat_on_a_device(self):
        loader = self.loader(batch_size=20, dtype=None)
        for epoch in range(30):
            for images, labels in loader:
                Taken(images).drop()
            if epoch == 10:
                gc.collect()
                before, files = test_python.resident_bytes(), len(os.listdir("/proc/self/fd"))
        gc.collect()
        self.assertLess(test_python.resident_bytes() - before, 4 << 20)
        self.assertEqual(len(os.listdir("/proc/self/fd")), files)

    def test_arrays_dropped_on_other_threads(self):
        loader = self.loader(dtype=None)
        want = [taken(images)[3] for images, _ in self.loader(dtype=None, device=None)]
        heap, stop, bad = [], threading.Event(), []

        def drop():
            while not stop.is_set() or heap:
                if heap:
                    step, tensor = heap.pop(0)
                    if tensor.bytes() != want[step]:
                        bad.append(step)
                    tensor.drop()
        thread = threading.Thread(target=drop)
        thread.start()
        for _ in range(6):
            loader.set_epoch(0)
            for batch in loader:
                heap.append((batch.step, Taken(batch[0])))
            del batch
        stop.set()
        thread.join(60)
        self.assertEqual(bad, [])
        gc.collect()
        self.assertEqual(loader.stats()["held"], 0)

    def test_a_break_gives_the_ring_back(self):
        loader = self.loader()
        for epoch in range(4):
            for images, labels in loader:
                break
        del images, labels
        self.assertEqual((loader.stats()["held"], loader.stats()["copies"]), (0, 0))

    def test_the_ledger_is_a_batch_ahead(self):
        ledger = os.path.join(self.folder, "device.ledger")
        loader = self.loader(ledger=ledger, job="device-ledger")
        for epoch, steps in ((0, 3), (1, 8), (2, 8)):
            loader.set_epoch(epoch)
            for _ in zip(range(steps), loader):
                pass
        loader.load_state_dict({"version": 1, "cursor": millrace._core.cursor_at(loader.state_dict()["cursor"], 2)})
        self.assertEqual(len(list(loader)), 8)
        loader.close()
        audit = json.loads(self.cluster.cli("audit", ledger, "--json").stdout)
        self.assertTrue(audit["proven"], audit["first_violations"])
        self.assertEqual([(e["epoch"], e["state"], e["again"]) for e in audit["epochs"]],
                         [(0, "abandoned", 0), (1, "complete", 0), (2, "complete", COUNT)])
        self.assertIn(audit["epochs"][0]["delivered"], (24, 32))

    def test_a_handler_that_closes(self):
        """While the thread that it interrupts waits for a batch; and, where that is no error, another one, too."""
        code = """
import signal, threading
loader = millrace.Loader(**{**options, 'seed': 78, 'device': DEVICE})
iterator = iter(loader)
said, others = [], []
def ask(into):
    try:
        list(iterator) if into is said else loader._job.next(30)
    except millrace.errors.ClosedError as error:
        into.append(str(error))
def handler(*_):
    time.sleep(0.3)  # the other thread looks for signals meanwhile
    loader.close()
signal.signal(signal.SIGALRM, handler)
for pid in PIDS: os.kill(pid, signal.SIGSTOP)
threads = [threading.Thread(target=ask, args=(others,)) for _ in range(DEVICE is None)]
for thread in threads: thread.start()
signal.setitimer(signal.ITIMER_REAL, 0.3)
ask(said)
for thread in threads: thread.join()
print(json.dumps([said, others]))
"""
        closed = "the Loader is closed"
        pids = [worker.popen.pid for worker in self.cluster.workers.values()]
        for device, others in ((DEVICE, []), (None, [closed])):
            with self.subTest(device=device):
                try:
                    self.assertEqual(self.child(f"DEVICE, PIDS = {device!r}, {pids}\n" + code), [[[closed], others]])
                finally:
                    for worker in self.cluster.workers.values():
                        worker.kill(signal.SIGCONT)

    # ---- rules of hand-over ----

    def test_where_an_array_says_it_is(self):
        images, labels = next(iter(self.loader(dtype=None)))
        self.assertEqual((images.__dlpack_device__(), labels.__dlpack_device__()), (PLACE, PLACE))
        self.assertIn('"dltensor_versioned"', repr(images.__dlpack__(max_version=(1, 1), dl_device=PLACE, copy=False)))
        for refused in (dict(dl_device=(2, 7)), dict(copy=True), dict(dl_device=(1, 0) if CUDA else (2, 0))):
            with self.assertRaises(BufferError):
                labels.__dlpack__(**refused)
        bad, good = ((0, -2), (None, 1, 2, -1)) if CUDA else ((0, 1, 2, -1, 4096), (None,))
        for stream in good:
            taken(labels, stream=stream)
        for stream in bad:
            with self.assertRaises(BufferError):
                labels.__dlpack__(stream=stream)
        if not CUDA:
            self.assertFalse(hasattr(images, "__cuda_array_interface__"))
            self.assertEqual(numpy.asarray(images).ctypes.data, images.pointer)
            return
        with self.assertRaises(BufferError):
            memoryview(images)
        about = labels.__cuda_array_interface__
        self.assertEqual(about, dict(shape=(8,), strides=(8,), typestr="<i8", data=(labels.pointer, False), version=3, stream=1))

    def test_what_numpy_cannot_have_it_is_told(self):
        """Not an array of one object."""
        arrays = [next(iter(self.loader(dtype="bfloat16", device=device)))[0] for device in (None, DEVICE)]
        for array in arrays + ([next(iter(self.loader()))[0]] if CUDA else []):
            with self.assertRaisesRegex(TypeError, "DLPack"):
                numpy.asarray(array)
        array = next(iter(self.loader(device=None)))[0]
        self.assertEqual(array.__array__().ctypes.data, array.pointer)
        self.assertEqual(array.__array__("float32").dtype, numpy.float32)

    def test_order_that_a_buffer_is_asked_for(self):
        get, give, buffer = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release, ctypes.create_string_buffer(80)
        get.argtypes, give.argtypes = [ctypes.py_object, ctypes.c_char_p, ctypes.c_int], [ctypes.c_char_p]
        images, labels = next(iter(self.loader(device=None)))
        in_c, in_fortran, in_any = 0x38, 0x58, 0x98
        for array, flags, good in ((images, in_c, True), (images, in_fortran, False), (images, in_any, True), (labels, in_fortran, True),
                                   (images.channels_first(), in_c, False), (images.channels_first(), in_fortran, False), (images.channels_first(), 0x18, True)):
            if good:
                get(array, buffer, flags)
                give(buffer)
                continue
            with self.assertRaises(BufferError):
                get(array, buffer, flags)

    @unittest.skipUnless(CUDA, "of streams")
    def test_streams(self):
        """Images are used on one stream, labels on another, images of every third batch on both; each array is dropped at once, with its work
        still to be done."""
        want = [[taken(a)[3] for a in batch] for batch in self.loader(dtype=None, device=None)]
        with Streams(2) as streams:
            copies = []
            for step, batch in enumerate(self.loader(dtype=None)):
                for kind, array in enumerate(batch):
                    for stream in streams.all if step % 3 == 0 else streams.all[kind:kind + 1]:
                        tensor = Taken(array, stream=stream)
                        copies.append((step, kind, streams.copy(tensor, stream)))
                        tensor.drop()
                del batch, array
            streams.synchronize()
            self.assertEqual([bytes(copy) == want[step][kind] for step, kind, copy in copies], [True] * len(copies))

    @unittest.skipUnless(CUDA, "of contexts")
    def test_no_context_on_another_device(self):
        code = """
import ctypes
loader = millrace.Loader(**options)
for images, labels in loader:
    images.__dlpack__()
driver, flags, active = ctypes.CDLL('libcuda.so.1'), ctypes.c_uint(), ctypes.c_int()
for device in (0, 1):
    assert driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) == 0
    print(active.value)
loader.close()
del images, labels
del loader
driver.cuDevicePrimaryCtxGetState(1, ctypes.byref(flags), ctypes.byref(active))
print(active.value)
"""
        self.assertEqual(self.child(code, RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29501")[:3], [0, 1, 0])

    def failing(self, call, lost, want):
        """A loader of whose calls of CUDA one fails. What it raised, and how many batches came; each that could be read was right."""
        loader = self.loader(dtype=None, look_ahead=2, finish=("auto", "gpu", "client")[call % 3])
        raised, kept, seen, iterator, batch, array = [], [], 0, None, None, None
        self.fake.fake_cuda_fail(call, lost)
        while seen < len(want) and len(raised) < 4:
            try:
                iterator = iterator or iter(loader)
                batch = next(iterator)
            except errors.Error as error:
                raised.append(type(error))
                continue
            for array, bytes_ in zip(batch, want[seen]):
                for _ in range(2):
                    try:
                        tensor = Taken(array)
                        kept.append(tensor)
                        self.assertEqual(tensor.bytes(), bytes_, (call, seen))
                        break
                    except (errors.InputOutputError, Refused):  # the call that fails was of the consumer; or all do
                        pass
            seen += 1
            while len(kept) > 6:  # three batches: one of them in memory of its own
                kept.pop(0).drop()
        del batch, array, iterator
        failed = self.fake.fake_cuda_failed()
        loader.close()
        for tensor in kept:
            tensor.drop()
        return failed, raised, seen

    @unittest.skipUnless(FAKE, "failures on demand")
    def test_any_call_may_fail(self):
        self.fake = ctypes.CDLL("libcuda.so.1")
        self.fake.fake_cuda_failed.restype = ctypes.c_bool
        want = [[taken(a)[3] for a in batch] for batch in self.loader(dtype=None, device=None)]
        gc.collect()
        live, told_of, call = self.fake.fake_cuda_live(), 0, 0
        while call < 2000:
            call += 1 if call < 60 else 7
            failed, raised, seen = self.failing(call, False, want)
            self.assertEqual(seen, len(want), (call, raised))  # whatever failed: the next call went on
            told_of += bool(raised)
            self.failing(call, True, want)
            gc.collect()
            self.assertEqual(self.fake.fake_cuda_live(), live, call)
            if not failed:
                break
        self.assertGreater(told_of, 20)

    def test_after_a_fork(self):
        loader = self.loader()
        images, labels = next(iter(loader))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                if CUDA:
                    try:
                        images.__dlpack__()
                    except errors.ClosedError:
                        code = 0
                else:
                    code = int(taken(labels)[1] != [8])
                del images, labels
                loader.close()
            finally:
                os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        self.assertEqual(taken(labels)[1], [8])

    def test_two_threads_at_one_loader(self):
        loader, seen, refused = self.loader(tail="drop"), [], []
        iterator = iter(loader)

        def ask():
            while True:
                try:
                    batch = next(iterator)
                    seen.append(batch.step)
                except StopIteration:
                    return
                except errors.BusyError:
                    refused.append(1)
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(sorted(set(seen)), list(range(7)))

    def test_seeking_beside_a_thread_that_asks(self):
        """Either is refused while the other goes on, and what is told meanwhile is of a moment."""
        code = """
import threading
from millrace.errors import BusyError
loader = millrace.Loader(**options)
job, start = (iter(loader), loader._job)[1], loader._job.info()['cursor']
end, most, bad = time.monotonic() + 2.5, 0, []
def again(what):
    while time.monotonic() < end and not bad:
        try:
            what()
        except BusyError:
            pass
        except BaseException as error:
            bad.append(repr(error))
def watch():
    held = job.stats()['held']
    if held > 3:
        bad.append(f'{held} held')
    millrace._core.cursor_parts(job.info()['cursor'])
threads = [threading.Thread(target=again, args=(what,)) for what in (lambda: job.next(5), lambda: job.seek(start), lambda: job.seek(start), watch)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([bad, job.stats()['held']]))
loader.close()
"""
        self.assertEqual(self.child(code), [[[], 0]])

    def test_what_is_refused(self):
        for words, changes in (("must be None, 'cpu'", dict(device="gpu")), ("brings images there", dict(fields=("label",))),
                               ("is no GPU", dict(device=None, finish="gpu")), ("is no GPU", dict(device="host", finish="gpu")), ("finish='fast'", dict(finish="fast"))):
            with self.assertRaisesRegex(errors.InvalidError, words):
                self.loader(**changes)
        if not millrace._core.has_cuda:
            with self.assertRaisesRegex(errors.UnsupportedError, "CUDA is not in this build"):
                self.loader(device="cuda:0")
        else:
            with self.assertRaisesRegex(errors.NotFoundError, "cuda:99: this machine has|no driver on this machine|cuda:99: "):
                len(self.loader(device="cuda:99"))
            with self.assertRaisesRegex(errors.InvalidError, "in the GPU's memory"):
                self.loader(device="cuda:0", arrays="numpy")

    @unittest.skipIf(FAKE, "the driver is linked")
    def test_importing_touches_no_driver(self):
        self.assertEqual(self.child("print(json.dumps('libcuda.so' in open('/proc/self/maps').read()))"), [False])


if __name__ == "__main__":
    harness.main()
