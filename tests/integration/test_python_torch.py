# SPDX-License-Identifier: Apache-2.0
"""The Python package beside torch (Debian's, where it is installed): tensors without a copy, a forking DataLoader, two ranks on gloo, wrappers
that would cut a rank's batches once more."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import harness
from harness import Cluster, copy_photos, need_data

need_data("imagenet-mini")
PACKAGE = os.environ.get("MILLRACE_PYTHON", os.path.join(os.path.dirname(harness.BIN), "python"))
sys.path.insert(0, PACKAGE)
try:
    import millrace
    import torch
except ImportError as error:
    print(f"SKIPPED: {error} (python3-torch)")
    sys.exit(77)
COUNT = 23


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return index * index


class Wrapped(torch.utils.data.IterableDataset):
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        yield from self.loader


class IterableDatasetShard(torch.utils.data.IterableDataset):
    """As accelerate's and transformers': each process reads all and keeps its part."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        yield from self.dataset


RANK = """
import json, os, sys
sys.path.insert(0, os.environ["PACKAGE"])
import torch.distributed, millrace
torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
common = dict(dataset="photos", batch_size=4, tail="exact", options={"size": 32}, timeout=30, arrays="torch")
train, check = (millrace.Loader(sys.argv[3], job=job, **common) for job in ("train", "check"))
rows = [p for batch in train for p in memoryview(batch.positions)] + [100 + p for batch in check for p in memoryview(batch.positions)]
torch.distributed.barrier()
print(json.dumps([train.launch.source, train.launch.rank, rows]))
train.close(); check.close()
"""


class Torch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="millrace-torch-")
        os.chmod(cls.folder.name, 0o755)
        copy_photos(cls.folder.name, COUNT)
        cls.cluster = Cluster(cls.folder.name, 1).__enter__()
        cls.cluster.add("photos", cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__(None, None, None)
        cls.folder.cleanup()

    def loader(self, **changes):
        options = dict(dataset="photos", batch_size=4, tail="exact", options={"size": 32}, timeout=30, arrays="torch")
        options.update(changes)
        loader = millrace.Loader(self.cluster.address, **options)
        self.addCleanup(loader.close)
        return loader

    def test_tensors_are_the_slots(self):
        loader = self.loader(arrays=None)
        images, labels = next(iter(loader))
        tensor = torch.from_dlpack(images)
        self.assertEqual((tensor.data_ptr(), tuple(tensor.shape), tensor.dtype), (images.pointer, (4, 3, 32, 32), torch.float32))
        self.assertEqual(torch.frombuffer(labels, dtype=torch.int64).data_ptr(), labels.pointer)
        images, labels = next(iter(self.loader(dtype="uint8", layout="NCHW")))
        self.assertTrue(images.is_contiguous(memory_format=torch.channels_last))
        self.assertEqual(next(iter(self.loader(dtype="bfloat16")))[0].dtype, torch.bfloat16)
        self.assertEqual(next(iter(self.loader())).valid.dtype, torch.bool)
        kept = [(image.clone(), image) for image, _ in self.loader()]
        loader.close()
        self.assertTrue(all((copy == image).all() for copy, image in kept))

    def test_a_forking_data_loader_beside_an_open_loader(self):
        loader = self.loader()
        mine = iter(loader)
        next(mine)
        squares = [int(x) for batch in torch.utils.data.DataLoader(Squares(), batch_size=8, num_workers=2) for x in batch]
        self.assertEqual(squares, [i * i for i in range(40)])
        self.assertEqual(sum(len(labels) for _, labels in mine), COUNT - 4)

    def test_wrappers(self):
        plain = torch.utils.data.DataLoader(Wrapped(self.loader()), batch_size=None)
        self.assertEqual(sum(len(labels) for _, labels in plain), COUNT)
        with self.assertRaisesRegex(ValueError, "one of 2 worker processes of a torch DataLoader"):
            list(torch.utils.data.DataLoader(Wrapped(self.loader()), batch_size=None, num_workers=2))
        with self.assertRaisesRegex(ValueError, "IterableDatasetShard keeps one process's share"):
            list(torch.utils.data.DataLoader(IterableDatasetShard(Wrapped(self.loader())), batch_size=None))
        with self.assertRaisesRegex(TypeError, "do not wrap it"):
            list(torch.utils.data.DataLoader(self.loader()))

    def test_two_ranks_on_gloo(self):
        port = str(harness.free_port())
        ranks = [subprocess.Popen([sys.executable, "-c", RANK, port, str(rank), self.cluster.address], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, env=dict(os.environ, PACKAGE=PACKAGE)) for rank in range(2)]
        rows = []
        for rank, process in enumerate(ranks):
            out, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, err)
            source, number, part = json.loads(out)
            self.assertEqual((source, number), ("torch.distributed", rank))
            rows += part
        self.assertEqual(sorted(rows), list(range(COUNT)) + list(range(100, 100 + COUNT)))


if __name__ == "__main__":
    harness.main()
