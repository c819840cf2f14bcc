# SPDX-License-Identifier: Apache-2.0
"""`pip install` from the clone, beside what its users have from PyPI: numpy 2, torch with torchrun, accelerate, transformers, jax,
TensorFlow, grpcio, in one virtual environment without Debian's packages (8 GB while it runs). Skipped where PyPI is out of reach."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import harness
from harness import BIN, ROOT, Cluster, copy_photos, free_port, need_data

need_data("imagenet-mini")
COUNT, WANTED = 24, ("numpy>=2", "torch", "accelerate", "transformers", "jax", "tensorflow-cpu", "grpcio")

COMMON = """
import json, os, sys
def loader(**changes):
    import millrace
    options = dict(dataset="photos", batch_size=4, tail="exact", options={"size": 32}, timeout=60)
    return millrace.Loader(os.environ["MILLRACE_SERVER"], **{**options, **changes})
def rows():
    return sorted(p for batch in loader() for p in memoryview(batch.positions))
def call():
    import grpc
    check = grpc.insecure_channel(os.environ["MILLRACE_SERVER"]).unary_unary("/grpc.health.v1.Health/Check")
    assert check(b"", timeout=20) == b"\\x08\\x01"
def add():
    import tensorflow
    assert float(tensorflow.reduce_sum(tensorflow.ones([3]))) == 3
"""

# What Debian's torch is too old for: versioned capsules; bool.
ARRAYS = """
import jax, numpy, torch
images, labels = batch = next(iter(loader()))
assert int(numpy.__version__.split(".")[0]) >= 2
print(json.dumps({
    "of the slots": [images.pointer, labels.pointer, batch.valid.pointer],
    "numpy": [numpy.from_dlpack(a).ctypes.data for a in (images, labels, batch.valid)],
    "numpy.asarray": [numpy.asarray(a).ctypes.data for a in (images, labels, batch.valid)],
    "torch": [torch.from_dlpack(a).data_ptr() for a in (images, labels, batch.valid)],
    "jax": [jax.dlpack.from_dlpack(images).unsafe_buffer_pointer()]}))
for kind in ("numpy", "torch", "jax"):
    images, labels = batch = next(iter(loader(arrays=kind, tail="drop")))
    assert type(images).__module__.startswith(kind), type(images)
    assert tuple(images.shape) == (4, 3, 32, 32) and bool(batch.valid.all())
"""

ACCELERATED = """
import accelerate, torch
class Wrapped(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from loader(arrays="torch")
accelerator = accelerate.Accelerator(cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(dispatch_batches=DISPATCH))
torch.manual_seed(accelerator.process_index)  # DistributedDataParallel spreads rank 0's
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 64))
"""
ACCELERATE = ACCELERATED.replace("DISPATCH", "None") + """
batches = loader(arrays="torch")
net, optimizer, prepared = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.01), batches)
assert prepared is batches
seen = []
for images, labels in prepared:
    loss = torch.nn.functional.cross_entropy(net(images), labels % 64)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
for batch in prepared:
    seen += memoryview(batch.positions)
    right = accelerator.gather_for_metrics(batch[1])
print("told", json.dumps([batches.launch.source, accelerator.process_index, seen, float(sum(p.double().sum() for p in net.parameters()))]))
"""
DISPATCHED = ACCELERATED.replace("DISPATCH", "None") + """
list(accelerator.prepare(torch.utils.data.DataLoader(Wrapped(), batch_size=None)))
"""
SHARDED = ACCELERATED.replace("DISPATCH", "False") + """
list(accelerator.prepare(torch.utils.data.DataLoader(Wrapped(), batch_size=1, collate_fn=lambda batches: batches[0])))
"""
# The other classes that wrappers.py knows, as they are now; and one that keeps nothing to itself.
WRAPPERS = """
import torch, transformers.trainer_pt_utils
from torch.utils.data.datapipes.iter import IterableWrapper
class Wrapped(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from loader(arrays="torch")
for cut in (transformers.trainer_pt_utils.IterableDatasetShard(Wrapped(), batch_size=1), IterableWrapper(Wrapped(), deepcopy=False).sharding_filter()):
    try:
        list(cut)
        print("taken")
    except ValueError as error:
        print(error)
print(sum(len(labels) for _, labels in torch.utils.data.DataLoader(Wrapped(), batch_size=None)))
"""


def run(*command, code=0, **more):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL, **more)
    if (done.returncode != 0) != (code != 0):
        raise AssertionError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + (done.stderr if code else "")


class Peers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="millrace-peers-"))
        os.chmod(cls.folder, 0o755)
        photos = copy_photos(os.path.join(cls.folder, "photos"), COUNT)
        cls.bin = os.environ.get("MILLRACE_PEERS")  # an environment that is there already
        if not cls.bin:
            cls.bin = os.path.join(cls.folder, "venv", "bin")
            run("/usr/bin/python3", "-m", "venv", os.path.dirname(cls.bin))
            run(os.path.join(cls.bin, "pip"), "install", "--quiet", "--no-cache-dir", os.path.join(ROOT, "client", "python"), *WANTED)
        made = os.path.join(cls.folder, "made")
        run(os.path.join(BIN, "millrace-photos"), made, COUNT, 1)
        cls.cluster = cls.enterClassContext(Cluster(cls.folder, 1))
        cls.cluster.add("photos", photos)
        cls.cluster.add("made", made)
        cls.env = dict(os.environ, MILLRACE_SERVER=cls.cluster.address, PATH=BIN + ":" + os.environ["PATH"], TF_CPP_MIN_LOG_LEVEL="2",
                       CUDA_VISIBLE_DEVICES="", JAX_PLATFORMS="cpu")

    def run_python(self, code, *args):
        return run(os.path.join(self.bin, "python"), "-c", COMMON + code, *args, cwd=self.folder, env=self.env)

    def launched(self, code, expected=0):
        """What two processes of `accelerate launch` said."""
        path = os.path.join(self.folder, "script.py")
        with open(path, "w") as f:
            f.write(COMMON + code)
        return run(os.path.join(self.bin, "accelerate"), "launch", "--multi_gpu", "--num_processes", 2, "--num_machines", 1, "--mixed_precision", "no",
                   "--dynamo_backend", "no", "--main_process_ip", "127.0.0.1", "--main_process_port", free_port(), path, code=expected,
                   cwd=self.folder, env=self.env)

    def test_arrays_are_the_slots(self):
        found = json.loads(self.run_python(ARRAYS))
        slots = found.pop("of the slots")
        for name, pointers in found.items():
            self.assertEqual(pointers, slots[:len(pointers)], name)

    def test_grpc_in_three_copies(self):
        """TensorFlow's and grpcio's before and after ours."""
        for order in (("add", "call", "rows"), ("call", "rows", "add"), ("rows", "add", "call")):
            code = "".join(f"got = {name}()\nkept = got if '{name}' == 'rows' else kept\n" for name in order)
            self.assertEqual(json.loads(self.run_python("kept = None\n" + code + "add(), call()\nassert rows() == kept\nprint(kept)")),
                             list(range(COUNT)), order)

    def test_accelerate(self):
        """prepare() leaves a Loader as it is; each rank has its own batches, and the nets stay equal."""
        told = [json.loads(line[5:]) for line in self.launched(ACCELERATE).splitlines() if line.startswith("told ")]
        self.assertEqual(sorted(rank for _, rank, _, _ in told), [0, 1])
        self.assertEqual({source for source, _, _, _ in told}, {"torch.distributed"})
        self.assertEqual(sorted(p for _, _, seen, _ in told for p in seen), list(range(COUNT)))
        self.assertEqual([len(seen) for _, _, seen, _ in told], [COUNT // 2] * 2)
        self.assertEqual(told[0][3], told[1][3])

    def test_accelerate_would_cut_again(self):
        """In its default, one process reads and deals out; the other way, each keeps a share."""
        self.assertRegex(self.launched(DISPATCHED, 1), "DataLoaderDispatcher reads it in one process and deals it out to all, but a Loader gives each rank")
        self.assertRegex(self.launched(SHARDED, 1), "IterableDatasetShard keeps one process's share of it, but a Loader gives each rank its own")

    def test_other_wrappers(self):
        text = self.run_python(WRAPPERS)
        self.assertRegex(text, "(?s)^IterableDatasetShard keeps one process's share.*\nShardingFilterIterDataPipe keeps one worker's share.*\n24\n$")
        self.assertNotIn("taken", text)

    def test_torchrun(self):
        text = run(os.path.join(self.bin, "torchrun"), "--nproc_per_node", 2, "--master_addr", "127.0.0.1", "--master_port", free_port(),
                   os.path.join(ROOT, "examples", "ddp.py"), "--server", self.cluster.address, "--train", "made", "--valid", "made",
                   "--epochs", 2, "--batch-size", 4, cwd=self.folder, env=self.env)
        self.assertEqual([line.split(", loss")[0] for line in text.splitlines()], [f"epoch {e}: 2 ranks, 3 steps" for e in range(2)], text)

    def test_jax_loop(self):
        """To the accuracy that its first lines state."""
        text = run(os.path.join(self.bin, "python"), os.path.join(ROOT, "examples", "jax_loop.py"), "--reach", "0.6", cwd=self.folder,
                   env={name: value for name, value in self.env.items() if name != "MILLRACE_SERVER"})
        self.assertEqual(text.count("epoch "), 6, text)
        print(text.splitlines()[-1], file=sys.stderr)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        if shutil.disk_usage(scratch).free < 12 << 30:
            print("SKIPPED: less than 12 GB of disk")
            sys.exit(77)
        pip = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, "wheel"]
        if subprocess.run([sys.executable, *pip], capture_output=True).returncode:
            print("SKIPPED: PyPI cannot be reached")
            sys.exit(77)
    harness.main()
