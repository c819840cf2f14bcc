# SPDX-License-Identifier: Apache-2.0
"""The Python package against a real server and workers: epochs, resuming, tails, policies, memory, copies. What comes is compared with
`millrace cat`, and after the close with the audit of ledgers."""
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import numpy

import harness
from harness import Cluster, copy_photos, need_data, wait_for

PACKAGE = os.environ.get("MILLRACE_PYTHON", os.path.join(os.path.dirname(harness.BIN), "python"))
if not os.path.exists(os.path.join(PACKAGE, "millrace", "_core.abi3.so")):
    print("SKIPPED: the Python package is not built (python3-dev)")
    sys.exit(77)
sys.path.insert(0, PACKAGE)
import millrace  # noqa: E402
from millrace import errors  # noqa: E402

MANY = need_data("imagenet-mini")
COUNT, SIZE = 61, 32  # prime; small rows
MEAN, STD = numpy.float32([.485, .456, .406]), numpy.float32([.229, .224, .225])


def resident_bytes():
    """Without the workers' memory that is mapped here: it is theirs, and grows in ours as it is read."""
    with open("/proc/self/status") as f:
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in f if line.startswith(("VmRSS", "RssShmem"))}
    return (kilobytes["VmRSS"] - kilobytes["RssShmem"]) * 1024


def told(batch):
    """What a batch is, to compare."""
    return numpy.asarray(batch.positions).tolist(), numpy.asarray(batch.hashes).tolist(), numpy.asarray(batch.valid).tolist()


class Python(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="millrace-python-")
        os.chmod(cls.folder, 0o755)
        photos, trouble = os.path.join(cls.folder, "photos"), os.path.join(cls.folder, "trouble")
        copy_photos(photos, COUNT)
        copy_photos(trouble, 7)
        label = sorted(os.listdir(trouble))[0]
        with open(os.path.join(trouble, label, "aaa.jpg"), "wb") as f:
            f.write(b"\xff\xd8\xff\xe0 no picture")
        cls.cluster = Cluster([cls.folder, MANY], 2).__enter__()
        cls.cluster.add("photos", photos)
        cls.cluster.add("trouble", trouble)
        cls.cats = [cls.cluster.cat("photos", f"epoch-{e}", "--epoch", e, "--option", f"size={SIZE}") for e in range(3)]

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__(None, None, None)
        shutil.rmtree(cls.folder, ignore_errors=True)

    def loader(self, **changes):
        options = dict(dataset="photos", batch_size=8, options={"size": SIZE}, tail="exact", dtype="uint8", timeout=30)
        options.update(changes)
        loader = millrace.Loader(self.cluster.address, **options)
        self.addCleanup(loader.close)
        return loader

    def child(self, code, wait=True, user=None, **env):
        """Runs a script that has `options` as this class's loaders."""
        head = f"import sys; sys.path.insert(0, {PACKAGE!r})\nimport json, os, time, millrace\n"
        head += f"options = dict(server={self.cluster.address!r}, dataset='photos', batch_size=8, options={{'size': {SIZE}}}, tail='exact', "
        head += "dtype='uint8', timeout=30)\n"
        process = subprocess.Popen([sys.executable, "-c", head + code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=dict(os.environ, **env), user=user, extra_groups=None if user is None else [])
        self.addCleanup(self.end, process)
        return self.result(process) if wait else process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def result(self, process):
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        return [json.loads(line) for line in out.splitlines()]

    # ---- epochs ----

    def test_epochs_are_those_of_cat(self):
        with self.loader() as loader:
            self.assertEqual(len(loader), 8)
            for epoch, cat in enumerate(self.cats):
                self.assertEqual(loader.epoch, epoch)
                at = 0
                for images, labels in loader:
                    rows = len(labels)
                    self.assertEqual(loader.epoch, epoch)
                    self.assertTrue((numpy.asarray(images) == cat.field("image")[at:at + rows]).all())
                    self.assertEqual(numpy.asarray(labels).tolist(), cat.field("label")[at:at + rows].tolist())
                    at += rows
                self.assertEqual(at, COUNT)
            self.assertEqual(loader.stats()["copies"], 0)

    def test_breaking_early_begins_the_next_epoch(self):
        loader, beginnings = self.loader(), []
        for epoch in range(3):
            for step, batch in enumerate(loader):
                if step == 0:
                    beginnings.append(numpy.asarray(batch.planned_items).tolist())
                positions = [r["position"] for r in self.cats[epoch].rows[8 * step:8 * step + 8]]
                self.assertEqual((batch.epoch, batch.step, numpy.asarray(batch.positions).tolist()), (epoch, step, positions))
                self.assertEqual([f"{h:016x}" for h in numpy.asarray(batch.hashes)],
                                 [r["hash"] for r in self.cats[epoch].rows[8 * step:8 * step + 8]])
                if step == 2:
                    break
        self.assertEqual(loader.epoch, 3)
        self.assertEqual(next(iter(loader)).epoch, 3)
        self.assertEqual(len({tuple(sorted(items)) for items in beginnings}), 3, beginnings)

    def test_breaking_early_cancels_on_the_workers(self):
        """What was asked for and has not been made is taken back, and never made."""
        self.cluster.add("many", MANY)
        cancelled, seed = self.cluster.metric("millrace_worker_cancelled_total"), 12345
        before = set(self.cluster.blocks_made())
        loader = self.loader(dataset="many", options=None, look_ahead=45, epochs=2, seed=seed)  # 8 rows a block
        blocks = len(loader)
        for _ in loader:
            break
        taken_back = wait_for("the workers' counters", lambda: self.cluster.metric("millrace_worker_cancelled_total") - cancelled)
        loader.close()
        made = len({block[2] for block in set(self.cluster.blocks_made()) - before if block[1] == 0})
        print(f"break: {made} of {blocks} blocks made, {taken_back:.0f} requests taken back", file=sys.stderr)
        self.assertLess(made, blocks)

    def test_set_epoch_states(self):
        loader = self.loader()
        for epoch in (0, 1, 1, 0, 2):
            loader.set_epoch(epoch)
            self.assertEqual([b.epoch for b in loader], [epoch] * 8)
        loader.set_epoch(1)
        self.assertEqual(millrace._core.cursor_parts(loader.state_dict()["cursor"]), (1, 0))
        self.assertEqual(next(iter(loader)).epoch, 1)

    def test_an_iterator_that_another_one_replaced(self):
        loader = self.loader(epochs=2)
        first = iter(loader)
        next(first)
        second = iter(loader)
        self.assertEqual(next(second).epoch, 1)
        with self.assertRaisesRegex(ValueError, "this iterator is over"):
            next(first)
        del second
        with self.assertRaisesRegex(ValueError, "epochs=2: all of them are over"):
            iter(loader)

    # ---- resuming ----

    def test_resuming_anywhere(self):
        whole = [told(b) for _ in range(2) for b in self.keep]
        for at in (0, 1, 4, 7, 8):
            loader = self.loader()
            for _, batch in zip(range(at), loader):
                pass
            state = json.loads(json.dumps(loader.state_dict()))
            if at:
                self.assertEqual(state["cursor"], batch.cursor)
            loader.close()
            later = self.loader()
            later.load_state_dict(state)
            self.assertEqual(later.epoch, at // 8)
            later.set_epoch(at // 8)  # as training loops do; it stands there already
            self.assertEqual([told(b) for b in later], whole[at:8] or whole[8:])
            self.assertEqual(later.epoch, at // 8 + 1)

    @property
    def keep(self):
        """One loader over the whole test run, an epoch at a time."""
        if not hasattr(self, "_keep"):
            self._keep = self.loader()
        return self._keep

    def test_saving_and_loading_twice_in_an_epoch(self):
        whole = [told(b) for b in self.loader()]
        loader, seen, state = self.loader(), [], None
        for begin, end in ((0, 3), (3, 5), (5, 8)):
            if state:
                loader.load_state_dict(state)
            for batch in loader:
                seen.append(told(batch))
                state = loader.state_dict()
                if len(seen) == end:
                    break
            loader.load_state_dict(state)  # also without need
            if begin == 0:  # and back, within the epoch
                first = loader.state_dict()
                self.assertEqual(told(next(iter(loader))), whole[3])
                loader.load_state_dict(first)
        self.assertEqual(seen, whole)

    def test_a_wrapper_that_fetches_ahead(self):
        whole, seen = [told(b) for b in self.loader()], []
        cursor = None
        for _ in range(8):
            loader = self.loader()
            if cursor:
                loader.load_state_dict(cursor)
            ahead = iter(loader)
            batch = next(ahead)
            next(ahead, None)  # it has this one already, and dies with it
            seen.append(told(batch))
            cursor = batch.cursor
            loader.close()
        self.assertEqual(seen, whole)

    def test_states_that_are_refused(self):
        loader = self.loader()
        next(iter(loader))
        state = loader.state_dict()
        with self.assertRaises(errors.CorruptError):
            loader.load_state_dict(dict(state, cursor=state["cursor"][:-3] + "000"))
        for bad in ({}, {"version": 2, "cursor": None}):
            with self.assertRaises(ValueError):
                loader.load_state_dict(bad)
        other = self.loader(seed=5)
        other.load_state_dict(state)
        with self.assertRaisesRegex(errors.ConflictError, "stream"):
            iter(other)
        with self.assertRaisesRegex(errors.ConflictError, "dataset version"):
            bad = self.loader(dataset="trouble", on_error="skip")
            len(bad)
            bad.load_state_dict(state)

    KILLED = """
loader = millrace.Loader(**options, job='killed')
batches = iter(loader)
for steps in range(int(os.environ['STEPS']) + 1):
    if steps:
        next(batches)
    with open(os.environ['STATE'] + '.new', 'w') as f:
        json.dump(loader.state_dict(), f)
    os.rename(f.name, os.environ['STATE'])
    print(steps, flush=True)
time.sleep(60)
"""

    def test_resuming_after_a_kill(self):
        whole = [told(b) for b in self.loader()]
        for at in (0, 1, 4, 7, 8):
            path = os.path.join(self.folder, f"state-{at}")
            process = self.child(self.KILLED, wait=False, STATE=path, STEPS=str(at))
            while int(process.stdout.readline()) < at:
                pass
            process.kill()
            process.wait()
            loader = self.loader(job="killed")
            with open(path) as f:
                loader.load_state_dict(json.load(f))
            self.assertEqual(loader.epoch, at // 8)
            if at < 8:
                self.assertEqual([told(b) for b in loader], whole[at:])
            else:
                self.assertEqual(next(iter(loader)).epoch, 1)
            loader.close()

    # ---- ranks ----

    def test_every_tail_with_eight_ranks(self):
        for tail, steps in (("drop", 1), ("pad", 2), ("exact", 2)):
            ranks = [self.loader(tail=tail, rank=r, world_size=8, job=f"tail-{tail}", batch_size=5) for r in range(8)]
            self.assertEqual({len(rank) for rank in ranks}, {steps})
            seen = []
            for batches in zip(*ranks):
                for batch in batches:
                    valid = numpy.asarray(batch.valid)
                    self.assertEqual(batch.valid_rows, int(valid.sum()))
                    self.assertEqual(len(batch[1]), 5 if tail != "exact" else batch.valid_rows)
                    seen += numpy.asarray(batch.positions)[valid].tolist()
                self.assertEqual(len({batch.cursor for batch in batches}), 1)
            self.assertEqual(sorted(seen), list(range(40 if tail == "drop" else COUNT)), tail)
            for rank in ranks:
                rank.close()

    RANK = """
loader = millrace.Loader(**{**options, **json.loads(os.environ['CHANGES'])})
state = os.environ.get('STATE')
if state:
    loader.load_state_dict(json.loads(state))
for step, batch in enumerate(loader):
    print(json.dumps([list(memoryview(batch.positions)), list(memoryview(batch.hashes))]))
    if step + 1 == int(os.environ['STEPS']):
        break
print(json.dumps(loader.state_dict()))
loader.close()
"""

    def run_world(self, world, state, steps, batch):
        """That many processes, as torchrun starts them; all rows, and the state."""
        env = dict(WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", TORCHELASTIC_RUN_ID="night", STEPS=str(steps),
                   STATE=json.dumps(state) if state else "", CHANGES=json.dumps(dict(batch_size=batch)))
        processes = [self.child(self.RANK, wait=False, RANK=str(rank), **env) for rank in range(world)]
        lines = [self.result(p) for p in processes]
        states = [one.pop() for one in lines]
        self.assertEqual([s["cursor"] for s in states], [states[0]["cursor"]] * world)
        return {p: h for one in lines for positions, hashes in one for p, h in zip(positions, hashes)}, states[0]

    def test_world_two_one_two(self):
        seen, state = {}, None
        for world, steps, batch in ((2, 2, 4), (1, 3, 5), (2, 100, 7)):
            rows, state = self.run_world(world, state, steps, batch)
            self.assertFalse(set(rows) & set(seen))
            seen.update(rows)
        self.assertEqual(seen, {r["position"]: int(r["hash"], 16) for r in self.cats[0].rows})
        self.assertEqual(millrace._core.cursor_parts(state["cursor"]), (1, 0))

    def test_replicas_get_the_same_and_the_audit_is_clean(self):
        ledgers = os.path.join(self.folder, "ledgers")
        os.mkdir(ledgers)
        mesh = [self.loader(rank=r, world_size=4, replicas=2, job="mesh", ledger=ledgers) for r in range(4)]
        for batches in zip(*mesh):
            self.assertEqual(told(batches[0]), told(batches[1]))
            self.assertEqual(told(batches[2]), told(batches[3]))
            self.assertFalse(set(told(batches[0])[0]) & set(told(batches[2])[0]))
        for loader in mesh:
            loader.close()
        audit = self.cluster.cli("audit", ledgers, "--complete", "--json")
        self.assertEqual(audit.returncode, 0, audit.stdout)

    def test_the_audit_knows_what_was_abandoned(self):
        ledger = os.path.join(self.folder, "breaks.ledger")
        loader = self.loader(ledger=ledger, job="breaks")
        for epoch, steps in ((0, 3), (1, 1), (1, 8), (4, 8)):  # back, and forwards
            loader.set_epoch(epoch)
            for _ in zip(range(steps), loader):
                pass
        loader.close()
        audit = json.loads(self.cluster.cli("audit", ledger, "--json").stdout)
        self.assertTrue(audit["proven"], audit["first_violations"])
        self.assertEqual([(e["epoch"], e["state"], e["delivered"], e["again"], e["abandoned"]) for e in audit["epochs"]],
                         [(0, "abandoned", 24, 0, 37), (1, "complete", COUNT, 8, 0), (4, "complete", COUNT, 0, 0)])

    def test_a_job_is_open_once_in_a_process(self):
        len(self.loader(job="once"))
        with self.assertRaisesRegex(ValueError, "'once' is open in this process"):
            len(self.loader(job="once"))

    # ---- rows ----

    def test_float_and_layout(self):
        cat = self.cats[0].field("image")[:8]
        exact = ((cat.astype(numpy.float32) / numpy.float32(255) - MEAN) / STD)
        cases = [(dict(dtype=None), exact.transpose(0, 3, 1, 2)), (dict(dtype="float32", layout="NHWC"), exact),
                 (dict(dtype="float16"), exact.astype(numpy.float16).transpose(0, 3, 1, 2)),
                 (dict(dtype="uint8", layout="NCHW"), cat.transpose(0, 3, 1, 2))]
        for changes, wanted in cases:
            images, _ = next(iter(self.loader(**changes)))
            got = numpy.asarray(images)
            self.assertEqual((got.dtype, got.shape), (wanted.dtype, wanted.shape))
            self.assertTrue((got == wanted).all(), changes)
        images, _ = next(iter(self.loader(dtype="bfloat16")))
        self.assertEqual(images.dtype, "bfloat16")
        with self.assertRaises(BufferError):
            memoryview(images)

    def test_batch_ops(self):
        """MixUp: with the row before, of the batch's rows; labels one-hot, mixed alike; the same again for whoever asks again."""
        plain = ["RandomResizedCrop(size=32)", "ToDtype", "Normalize"]
        want = [(numpy.array(i), numpy.array(l)) for i, l in self.loader(transforms=plain, dtype=None, options=None)]
        for _ in range(2):
            mixed = [(numpy.array(i), numpy.array(l)) for i, l in self.loader(transforms=plain + ["MixUp"], dtype=None, options=None)]
            self.assertEqual(len(mixed), len(want))
            for (image, label), (own, index) in zip(mixed, want):
                self.assertEqual((label.dtype, label.shape[0]), (numpy.float32, len(index)))
                hot = numpy.eye(label.shape[1], dtype=numpy.float32)[index]
                apart = numpy.flatnonzero(index != numpy.roll(index, 1))
                share = label[apart[0], index[apart[0]]] if len(apart) else numpy.float32(1)
                numpy.testing.assert_allclose(label, share * hot + (1 - share) * numpy.roll(hot, 1, 0), atol=1e-6)
                numpy.testing.assert_allclose(image, share * own + (1 - share) * numpy.roll(own, 1, 0), atol=1e-5)

    def test_fields(self):
        most = max(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(self.folder + "/photos") for f in fs)
        loader = self.loader(fields=("label", "index", "encoded", "box"), arrays="numpy", shuffle=False,
                             transforms=["RandomResizedCrop(size=32)", ("Encoded", {"max_bytes": most})], options=None)
        batch = next(iter(loader))
        self.assertEqual([name for name, _ in batch.items()], ["label", "index", "encoded", "box"])
        self.assertEqual(batch["index"].tolist(), list(range(8)))
        values, offsets = batch["encoded"]
        for i in range(8):
            name, label, size = loader.item(i)
            with open(os.path.join(self.folder, "photos", name), "rb") as f:
                self.assertEqual(values[offsets[i]:offsets[i + 1]].tobytes(), f.read())
            self.assertEqual((label, size), (batch["label"][i], offsets[i + 1] - offsets[i]))
        self.assertEqual(loader.classes, sorted(os.listdir(self.folder + "/photos")))
        self.assertEqual(loader.class_to_idx[loader.classes[2]], 2)
        self.assertIn("Encoded@1", loader.pipeline)
        with self.assertRaisesRegex(ValueError, "this pipeline makes image, label"):
            len(self.loader(fields=("depth",)))

    def test_bad_samples(self):
        common = dict(dataset="trouble", shuffle=False)
        with self.assertRaisesRegex(errors.BadSampleError, "trouble: item 0 .*aaa.jpg.* is bad") as caught:
            list(self.loader(**common))
        self.assertEqual(caught.exception.code, "bad_sample")
        skipped = next(iter(self.loader(on_error="skip", **common)))
        self.assertEqual((numpy.asarray(skipped.valid).tolist(), int(numpy.asarray(skipped[1])[0])), ([False] + [True] * 7, -100))
        self.assertNotEqual(millrace.cause_name(numpy.asarray(skipped.causes)[0]), "")
        loader = self.loader(on_error="replace", **common)
        replaced = next(iter(loader))
        self.assertEqual((replaced.valid_rows, numpy.asarray(replaced.status).tolist()), (8, [1] + [0] * 7))
        self.assertNotEqual(numpy.asarray(replaced.used_items)[0], 0)
        self.assertEqual(loader.stats()["substituted"], 1)

    def test_map(self):
        loader = self.loader(map=lambda batch: (batch.step, numpy.asarray(batch[1]).sum()))
        self.assertEqual([step for step, _ in loader], list(range(8)))

        def fail(batch):
            if batch.step == 2:
                raise RuntimeError("mine")
            return batch
        loader = self.loader(map=fail)
        with self.assertRaisesRegex(RuntimeError, "mine"):
            for batch in loader:
                pass
        self.assertEqual(loader.state_dict()["cursor"], batch.cursor)  # the one before

    # ---- memory ----

    def test_no_copy_after_receiving(self):
        loader, places = self.loader(look_ahead=3), set()
        for _ in range(4):
            for images, labels in loader:
                places.add(images.pointer)
                self.assertEqual(numpy.asarray(images).ctypes.data, images.pointer)
                self.assertEqual(numpy.from_dlpack(images).ctypes.data, images.pointer)
                self.assertEqual(numpy.frombuffer(labels, numpy.int64).ctypes.data, labels.pointer)
                self.assertEqual(numpy.asarray(images.channels_first()).ctypes.data, images.pointer)
        self.assertLessEqual(len(places), 4)  # the slots, again and again
        stats = loader.stats()
        self.assertEqual((stats["copies"], stats["views"]), (0, 32))
        del images, labels
        self.assertEqual(loader.stats()["held"], 0)

    def test_arrays_outlive_slots_and_loader(self):
        loader = self.loader(arrays="numpy")
        kept = list(loader)
        stats = loader.stats()
        self.assertEqual((stats["held"], stats["views"], stats["copies"]), (2, 2, 6))
        again = [numpy.from_dlpack(millrace_array) for millrace_array, _ in self.loader()]
        loader.close()
        gc.collect()
        whole = numpy.concatenate([images for images, _ in kept])
        self.assertTrue((whole == self.cats[0].field("image")).all())
        self.assertTrue((numpy.concatenate(again) == whole).all())
        self.assertEqual(numpy.concatenate([labels for _, labels in kept]).tolist(), self.cats[0].field("label").tolist())
        kept[0][0][:] = 0  # the consumer's to write

    def test_dlpack_kinds(self):
        images, labels = next(iter(self.loader()))
        self.assertEqual(images.__dlpack_device__(), (1, 0))
        self.assertIn('"dltensor"', repr(images.__dlpack__()))
        self.assertIn('"dltensor_versioned"', repr(images.__dlpack__(max_version=(1, 1), dl_device=(1, 0), copy=False)))
        for refused in (dict(stream=1), dict(dl_device=(2, 0)), dict(copy=True)):
            with self.assertRaises(BufferError):
                labels.__dlpack__(**refused)

    def test_memory_is_flat(self):
        epochs = 1000 if os.environ.get("MILLRACE_LONG") else 50
        loader = self.loader(batch_size=20, look_ahead=2)
        for epoch in range(epochs):
            for images, labels in loader:
                numpy.asarray(images)[0, 0, 0, 0]
            if epoch == epochs // 5:
                gc.collect()
                before, files = resident_bytes(), len(os.listdir("/proc/self/fd"))
        gc.collect()
        grown = resident_bytes() - before
        print(f"memory: {grown / 2**20:+.1f} MiB over {epochs - epochs // 5} epochs", file=sys.stderr)
        self.assertLess(grown, 4 << 20)
        self.assertEqual(len(os.listdir("/proc/self/fd")), files)

    # ---- processes ----

    def interrupted(self, code):
        process = self.child("print('[1]', flush=True)\nbegan = time.monotonic()\ntry:\n" + code +
                             "\nexcept KeyboardInterrupt:\n    print(time.monotonic())\n", wait=False)
        self.assertEqual(process.stdout.readline(), "[1]\n")
        time.sleep(0.3)  # well inside the wait; if it is not yet, the test is only easier
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        return self.result(process)[0] - began

    def test_ctrl_c(self):
        waits = [self.interrupted("    len(millrace.Loader(**{**options, 'server': '127.0.0.1:1', 'timeout': None}))")]
        for worker in self.cluster.workers.values():
            worker.kill(signal.SIGSTOP)
        try:
            waits.append(self.interrupted("    list(millrace.Loader(**{**options, 'timeout': None, 'seed': 77}))"))
        finally:
            for worker in self.cluster.workers.values():
                worker.kill(signal.SIGCONT)
        print(f"Ctrl-C: {', '.join(f'{wait:.3f} s' for wait in waits)} until KeyboardInterrupt", file=sys.stderr)
        self.assertLess(max(waits), 1)

    def test_waiting_for_a_server_that_is_not_there_is_told(self):
        with self.assertWarnsRegex(RuntimeWarning, "dataset photos.* does a millrace-server listen at 127.0.0.1:1[?]"):
            with self.assertRaisesRegex(TimeoutError, "server 127.0.0.1:1: .*refused"):
                len(millrace.Loader("127.0.0.1:1", dataset="photos", batch_size=4, timeout=6))

    def test_a_deadline_says_what_it_waited_for(self):
        """And other threads go on meanwhile."""
        loader, ticks, over = self.loader(timeout=0.3, job="deadline"), [], threading.Event()
        len(loader)
        threading.Thread(target=lambda: [ticks.append(time.monotonic()) for _ in iter(lambda: over.wait(0.001), True)]).start()
        for worker in self.cluster.workers.values():
            worker.kill(signal.SIGSTOP)
        try:
            with self.assertRaisesRegex(TimeoutError, "no batch within 0.3 s: . of 2 workers up|job deadline on dataset photos"):
                list(loader)
        finally:
            over.set()
            for worker in self.cluster.workers.values():
                worker.kill(signal.SIGCONT)
        self.assertGreater(len(ticks), 30)

    def test_a_forked_child(self):
        loader = self.loader()
        iterator = iter(loader)
        next(iterator)
        pid = os.fork()
        if pid == 0:
            try:
                for call in (lambda: next(iterator), loader.stats, lambda: iter(loader), lambda: len(millrace.Loader(dataset="x", batch_size=1))):
                    try:
                        call()
                        os._exit(1)
                    except errors.ClosedError as error:
                        if "parent" not in str(error):
                            os._exit(2)
                del iterator
                loader.close()
                os._exit(0)
            finally:
                os._exit(3)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        self.assertEqual(len(list(iterator)), 7)  # the parent's goes on

    @unittest.skipIf(os.geteuid(), "needs root, to be another user")
    def test_another_user_after_a_kill(self):
        """What a killed user leaves in shared places is in nobody's way."""
        for user in (None, 65534, None):
            first = self.child("for batch in millrace.Loader(**options):\n    print(batch.rows, flush=True)\ntime.sleep(60)\n", wait=False, user=user)
            self.assertEqual([first.stdout.readline() for _ in range(3)], ["8\n"] * 3)
            first.kill()
            first.wait()
        self.assertEqual(self.child("print(sum(b.rows for b in millrace.Loader(**options)))", user=65534), [COUNT])

    def test_grpcio_before_and_after(self):
        use = """
channel = grpc.insecure_channel(options['server'])
check = channel.unary_unary('/grpc.health.v1.Health/Check')
assert check(b'', timeout=10) == b'\\x08\\x01'
loader = millrace.Loader(**options)
rows = sum(b.rows for b in loader)
assert check(b'', timeout=10) == b'\\x08\\x01'
loader.close()
print(rows)
"""
        self.assertEqual(self.child("import grpc" + use), [COUNT])
        self.assertEqual(self.child("len(millrace.Loader(**options))\nimport grpc" + use), [COUNT])

    def test_the_example_in_the_readme(self):
        text = open(os.path.join(harness.ROOT, "README.md")).read().split("## Use it from Python")[1].split("\n## ")[0]
        lines = [line[4:] for line in text.splitlines() if line.startswith("    ") or not line]
        code = "\n".join(lines).replace("127.0.0.1:7070", self.cluster.address).replace("batch_size=64", "batch_size=16")
        names = {}
        exec(compile(code, "README.md", "exec"), names)
        self.assertEqual((names["images"].shape, names["epoch"]), ((16, 3, 224, 224), 1))

    def test_errors(self):
        with self.assertRaisesRegex(FileNotFoundError, "nothing") as caught:
            len(self.loader(dataset="nothing"))
        self.assertIsInstance(caught.exception, errors.PermanentError)
        self.assertEqual(caught.exception.code, "not_found")
        with self.assertRaisesRegex(ValueError, "no preset"):
            len(self.loader(transforms="imagenet_tran", options=None))
        loader = self.loader()
        loader.close()
        for call in (loader.stats, lambda: iter(loader), lambda: len(loader)):
            with self.assertRaises(errors.ClosedError):
                call()


if __name__ == "__main__":
    harness.main()
