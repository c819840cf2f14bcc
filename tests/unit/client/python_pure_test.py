# SPDX-License-Identifier: Apache-2.0
"""What of the Python package needs no server: which process is what, transforms as text, refusals, errors.

usage: python_pure_test.py PACKAGE_FOLDER
"""
import os
import re
import sys
import types
import unittest
import unittest.mock

sys.path.insert(0, sys.argv.pop(1))
import millrace  # noqa: E402
from millrace import batch, device, errors, launch, recipe, wrappers  # noqa: E402

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "node7", "MASTER_PORT": "29400", "TORCHELASTIC_RUN_ID": "night"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "991", "SLURM_STEP_ID": "2"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-a-77@1"}
DISTRIBUTED = types.SimpleNamespace(get_rank=lambda: 6, get_world_size=lambda: 16)

# environment, arguments -> rank, world, replica, job, source
GOOD = [
    ({}, {}, (0, 1, 0, None, "no launcher")),
    ({}, dict(job="mine"), (0, 1, 0, "mine", "no launcher")),
    (TORCHRUN, {}, (5, 8, 0, "night-node7:29400.d.0", "torchrun")),
    (TORCHRUN, dict(job="mine"), (5, 8, 0, "mine", "torchrun")),
    (TORCHRUN, dict(rank=1, world_size=2), (1, 2, 0, "night-node7:29400.d.0", "arguments")),
    (TORCHRUN, dict(rank=0, world_size=1), (0, 1, 0, None, "arguments")),
    (TORCHRUN, dict(distributed=DISTRIBUTED), (6, 16, 0, "night-node7:29400.d.0", "torch.distributed")),
    ({k: TORCHRUN[k] for k in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}, {}, (5, 8, 0, "run-node7:.d.0", "torchrun")),
    (SLURM, {}, (3, 4, 0, "slurm-991.2.d.0", "Slurm")),
    ({**SLURM, **TORCHRUN}, {}, (5, 8, 0, "slurm-991.2.d.0", "torchrun")),
    ({k: v for k, v in SLURM.items() if k != "SLURM_STEP_ID"}, {}, (0, 1, 0, None, "no launcher")),  # a batch script's own shell
    (OPENMPI, {}, (1, 2, 0, "mpi-prterun-a-77-1.d.0", "Open MPI")),
    ({**OPENMPI, **SLURM}, {}, (3, 4, 0, "slurm-991.2.d.0", "Slurm")),
    ({"PMI_RANK": "1", "PMI_SIZE": "3", "PMI_JOBID": "kvs_5"}, {}, (1, 3, 0, "mpi-kvs_5.d.0", "MPI")),
    ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "3"}, dict(job="x"), (1, 3, 0, "x", "MVAPICH")),
    ({"RANK": "1", "WORLD_SIZE": "2"}, {}, (0, 1, 0, None, "no launcher")),  # words that anybody may use
    (TORCHRUN, dict(replicas=2), (2, 4, 1, "night-node7:29400.d.0.replica1", "torchrun")),
    (TORCHRUN, dict(replicas=4), (1, 2, 1, "night-node7:29400.d.0.replica1", "torchrun")),
    (TORCHRUN, dict(replicas=8), (0, 1, 5, "night-node7:29400.d.0.replica5", "torchrun")),
    ({**SLURM, "SLURM_PROCID": "2"}, dict(replicas=2), (1, 2, 0, "slurm-991.2.d.0", "Slurm")),
    ({}, dict(rank=2, world_size=4, replicas=2, job="mesh"), (1, 2, 0, "mesh", "arguments")),
]
BAD = [
    ({}, dict(rank=1), "go together"),
    ({}, dict(world_size=2), "go together"),
    ({}, dict(rank=2, world_size=2, job="x"), "rank 2 of 2"),
    ({}, dict(rank=-1, world_size=2, job="x"), "rank -1 of 2"),
    ({}, dict(rank=0, world_size=2), "nothing names the job.*give job="),
    ({}, dict(distributed=DISTRIBUTED), "16 processes .torch.distributed., and nothing names"),
    ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "3"}, {}, "nothing names"),
    ({**TORCHRUN, "RANK": "five"}, {}, "RANK='five' is not a number"),
    ({**TORCHRUN, "WORLD_SIZE": "-8"}, {}, "WORLD_SIZE='-8'"),
    (TORCHRUN, dict(replicas=3), "no multiple of replicas=3"),
    (TORCHRUN, dict(replicas=0), "replicas=0: at least one"),
]

# transforms, options, dtype, layout -> pipeline, options, finish, channels first
RECIPES = [
    ((["CutMix(p=0.5)", ("CenterCrop", {"size": 8}), "ToDtype", "Normalize", ("RandomErasing", {})], None, None, None),
     ("sample: Decode CenterCrop(size=8) | finish: ToDtype Normalize | batch: CutMix(p=0.5) RandomErasing()", [], True, False)),
    (("imagenet_train", None, None, None), ("imagenet_train", [], True, False)),
    (("imagenet_eval", {"size": 64}, "float16", "NHWC"), ("imagenet_eval", ["size=64", "dtype=float16", "order=NHWC"], True, False)),
    (("imagenet_train", None, "uint8", None), ("imagenet_train", [], False, False)),
    (("imagenet_train", None, type("float16", (), {}), None), ("imagenet_train", ["dtype=float16"], True, False)),  # numpy's is such a class
    (("imagenet_train", None, "uint8", "NCHW"), ("imagenet_train", [], False, True)),
    ((["RandomResizedCrop(size=64)", "RandomHorizontalFlip"], None, None, None),
     ("sample: Decode RandomResizedCrop(size=64) RandomHorizontalFlip", [], True, False)),
    (([("CenterCrop", {"size": 8}), "ToDtype(dtype=float32)", "Normalize@1"], None, None, None),
     ("sample: Decode CenterCrop(size=8) | finish: ToDtype(dtype=float32) Normalize@1", [], True, False)),
    ((["Decode(exif=ignore)", "CenterCrop(size=8)"], None, None, None), ("sample: Decode(exif=ignore) CenterCrop(size=8)", [], True, False)),
]

# Arguments of a Loader that are refused before anything is connected.
REFUSED = [
    (dict(views=0), ValueError, "views=0"),
    (dict(views=9), ValueError, "views=9: must be 1 to 8"),
    (dict(device="tpu"), ValueError, "device='tpu': must be"),
    (dict(device="cuda:one"), ValueError, "device='cuda:one'"),
    (dict(device="host", fields=("label",)), ValueError, "has none"),
    (dict(finish="gpu"), ValueError, "finish='gpu': device='cpu' is no GPU"),
    (dict(batch_size=0), ValueError, "batch_size=0"),
    (dict(batch_size=65536), ValueError, "batch_size=65536: must be 1 to 65535"),
    (dict(batch_size=None), ValueError, "batch_size=None: must be a whole number"),
    (dict(batch_size=16.0), ValueError, "batch_size=16.0"),
    (dict(seed=-1), ValueError, "seed=-1: must be 0 to"),
    (dict(seed="x"), ValueError, "seed='x'"),
    (dict(dataset=None), ValueError, "dataset=None: must be the name"),
    (dict(map=3), ValueError, "map=3"),
    (dict(transforms=len), ValueError, "transforms=.*map="),
    (dict(transforms=[len]), ValueError, "len.*an op is text.*map="),
    (dict(options="size=3"), ValueError, "options='size=3': must be a dictionary"),
    (dict(look_ahead=0), ValueError, "look_ahead=0"),
    (dict(epochs=0), ValueError, "epochs=0"),
    (dict(shuffle="yes"), ValueError, "shuffle='yes'"),
    (dict(tail="keep"), ValueError, "tail='keep': must be one of 'drop', 'pad', 'exact'"),
    (dict(on_error="ignore"), ValueError, "on_error"),
    (dict(join="later"), ValueError, "join"),
    (dict(join=[]), ValueError, "join"),
    (dict(dtype="int8"), ValueError, "dtype='int8'"),
    (dict(dtype=float), ValueError, "dtype='float': must be None, 'uint8'"),
    (dict(layout="CHW"), ValueError, "layout='CHW'"),
    (dict(dtype="uint8", transforms=["CenterCrop(size=8)", "ToDtype", "MixUp"]), ValueError, "MixUp"),
    (dict(fields=()), ValueError, "fields"),
    (dict(fields=("image", "image")), ValueError, "fields"),
    (dict(arrays="tf"), ValueError, "arrays='tf'"),
    (dict(replicas=2, rank=0, world_size=2, job="x", join="next"), ValueError, "replicas"),
    (dict(weight=0), ValueError, "weight"),
    (dict(weight=-1), ValueError, "weight"),
    (dict(weight="2"), ValueError, "weight='2'"),
    (dict(rank="0", world_size="2", job="x"), ValueError, "rank='0': must be a whole number"),
    (dict(replicas="2"), ValueError, "replicas='2'"),
]

# device= -> backend, the device of those where torch has current device 3, has not begun with CUDA, is not imported
USING, IDLE = (types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda begun=begun: begun, current_device=lambda: 3))
               for begun in (True, False))
DEVICES = [
    (None, 0, (0, 0, 0)), ("cpu", 0, (0, 0, 0)), ("host", 1, (0, 0, 0)), ("cuda", 2, (3, 0, 0)), ("cuda:0", 2, (0, 0, 0)), ("cuda:12", 2, (12, 12, 12)),
    ("cuda:", None, None), ("CUDA:0", None, None), ("cuda:0 ", None, None), (0, None, None),
]


class Pure(unittest.TestCase):
    def test_devices(self):
        for value, backend, ordinals in DEVICES:
            with unittest.mock.patch.object(device._core, "has_cuda", True):
                if backend is None:
                    self.assertRaises(ValueError, device.parse, value)
                    continue
                parsed = device.parse(value)
            self.assertEqual((parsed.backend, parsed.ingests), (backend, backend != 0), value)
            for torch, ordinal in zip((USING, IDLE, None), ordinals):
                with unittest.mock.patch.dict(sys.modules, {"torch": torch}):
                    self.assertEqual(device.ordinal(parsed), ordinal, value)
        with unittest.mock.patch.object(device._core, "has_cuda", False), self.assertRaisesRegex(errors.UnsupportedError, "no CUDA toolkit"):
            device.parse("cuda:0")

    def test_launch(self):
        for environ, arguments, wanted in GOOD:
            self.assertEqual(tuple(launch.identify(environ, suffix=".d.0", **arguments)), wanted, (environ, arguments))

    def test_launch_refusals(self):
        for environ, arguments, text in BAD:
            with self.assertRaisesRegex(ValueError, text):
                launch.identify(environ, **arguments)

    def test_job_names_are_what_the_server_takes(self):
        name = launch.identify({**TORCHRUN, "TORCHELASTIC_RUN_ID": "a b/ü" * 60}, suffix=".d.0").job
        self.assertRegex(name, r"^[\w.:-]{1,110}$")
        other = launch.identify({**TORCHRUN, "TORCHELASTIC_RUN_ID": "a b/ü" * 61}, suffix=".d.0").job
        self.assertNotEqual(name, other)

    def test_loaders_of_one_process_are_several_jobs(self):
        before = dict(os.environ)
        os.environ.update(TORCHRUN)
        try:
            names = [millrace.Loader(dataset=d, batch_size=1).launch.job for d in ("a", "b", "a")]
        finally:
            os.environ.clear()
            os.environ.update(before)
        self.assertEqual(len(set(names)), 3)
        self.assertEqual([re.sub(r"\.\d+$", "", name) for name in names], ["night-node7:29400.a", "night-node7:29400.b", "night-node7:29400.a"])

    def test_batches_hide_no_method_of_theirs(self):
        about = set(vars(batch._About)) | set(batch.COLUMNS)
        for kind in dict, tuple:
            self.assertEqual({name for name in about & set(dir(kind)) if not name.startswith("__")}, set())

    def test_recipes(self):
        for arguments, wanted in RECIPES:
            self.assertEqual(tuple(recipe.make(*arguments)), wanted)

    def test_refusals(self):
        for changes, kind, text in REFUSED:
            with self.assertRaisesRegex(kind, text) as caught:
                millrace.Loader(**{**dict(dataset="x", batch_size=4), **changes})
            self.assertIsInstance(caught.exception, millrace.PermanentError)

    def test_errors_are_builtins_too(self):
        for code, builtin, kind in (("timeout", TimeoutError, millrace.RetryableError), ("unavailable", ConnectionError, millrace.RetryableError),
                                    ("not_found", FileNotFoundError, millrace.PermanentError), ("bad_sample", ValueError, millrace.BadSampleError),
                                    ("no_memory", MemoryError, millrace.RetryableError), ("io", OSError, millrace.RetryableError),
                                    ("unsupported", NotImplementedError, millrace.PermanentError), ("new", RuntimeError, errors.InternalError)):
            error = errors.make(code, "it")
            self.assertIsInstance(error, builtin)
            self.assertIsInstance(error, kind)
            self.assertEqual(str(error), "it")
            self.assertEqual(error.code, code if code != "new" else "internal")

    def test_every_code_of_the_library_has_a_class(self):
        header = open(os.path.join(os.path.dirname(__file__), "..", "..", "..", "client", "include", "millrace", "millrace.h")).read()
        codes = re.findall(r"\bMR_([A-Z_]+) = \d+,?", header[header.index("enum mr_code"):header.index("MR_END")])
        self.assertGreater(len(codes), 15)
        for code in codes:
            if code != "OK":
                self.assertEqual(errors.make(code.lower(), "").code, code.lower())

    def test_wrappers_that_cut_again(self):
        class IterableDatasetShard:  # as accelerate's
            def __iter__(self):
                wrappers.refuse()
                yield 1

        class DataLoaderShard:
            def __iter__(self):
                wrappers.refuse()
                yield 1
        # the class's qualified name begins with the function that it stands in, here
        IterableDatasetShard.__iter__.__code__ = IterableDatasetShard.__iter__.__code__.replace(co_qualname="IterableDatasetShard.__iter__")
        with self.assertRaisesRegex(ValueError, "IterableDatasetShard keeps one process's share"):
            list(IterableDatasetShard())
        self.assertEqual(list(DataLoaderShard()), [1])

    def test_a_worker_of_a_torch_loader(self):
        sys.modules["torch.utils.data"] = types.SimpleNamespace(get_worker_info=lambda: types.SimpleNamespace(num_workers=4))
        try:
            with self.assertRaisesRegex(ValueError, "one of 4 worker processes"):
                wrappers.refuse()
            sys.modules["torch.utils.data"].get_worker_info = lambda: None
            wrappers.refuse()
        finally:
            del sys.modules["torch.utils.data"]

    def test_indexing_says_why(self):
        with self.assertRaisesRegex(TypeError, "do not wrap it in a DataLoader"):
            millrace.Loader(dataset="x", batch_size=4)[0]


if __name__ == "__main__":
    unittest.main(verbosity=2)
