# SPDX-License-Identifier: Apache-2.0
"""The wheel, in a virtual environment without Debian's Python packages: what it brings, under which licences, and beside PyPI's grpcio.
`pip install` from the clone is tested by test_python_peers.py. Skipped where PyPI is out of reach."""
import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

import harness
from harness import ROOT, Cluster, copy_photos, need_data

need_data("imagenet-mini")
PACKAGE = os.path.join(ROOT, "client", "python")

USE = """
import sys, millrace
loader = millrace.Loader(sys.argv[1], dataset="photos", batch_size=4, tail="exact", options={"size": 32}, timeout=30)
print(sorted(p for batch in loader for p in memoryview(batch.positions)))
loader.close()
libraries = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print(sorted(libraries))
"""

GRPC = """
import sys
def call():
    import grpc
    assert grpc.insecure_channel(sys.argv[1]).unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20) == b"\\x08\\x01"
def rows():
    import millrace
    loader = millrace.Loader(sys.argv[1], dataset="photos", batch_size=4, tail="exact", options={"size": 32}, timeout=30)
    print(sum(len(labels) for _, labels in loader))
"""
TYPED = """
import millrace
with millrace.Loader("host:7070", dataset="x", batch_size=4, transforms=["CenterCrop(size=8)", ("Normalize", {"mean0": 0.5})]) as loader:
    names: list[str] = loader.classes
    steps: int = len(loader)
    for images, labels in loader:
        kept = loader.state_dict()
    loader.load_state_dict(kept)
try:
    loader.close()
except millrace.BadSampleError as error:
    code: str = error.code
"""
PERMISSIVE = {"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause"}


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL, **more)
    if done.returncode:
        raise AssertionError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="millrace-wheel-")
        os.chmod(cls.folder.name, 0o755)
        cls.photos = copy_photos(cls.path("photos"), 10)
        cls.cluster = Cluster(cls.photos, 1).__enter__()
        cls.cluster.add("photos", cls.photos)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__(None, None, None)
        cls.folder.cleanup()

    @classmethod
    def path(cls, *parts):
        return os.path.join(cls.folder.name, *parts)

    def test_the_wheel(self):
        run(os.path.join(PACKAGE, "build_wheel.sh"), self.path("wheel"))
        [wheel] = os.listdir(self.path("wheel"))
        self.assertRegex(wheel, r"-cp311-abi3-manylinux_2_34_\w+\.whl$")
        self.check_licences(self.path("wheel", wheel))

        run("/usr/bin/python3", "-m", "venv", self.path("venv"))
        pip, python = self.path("venv", "bin", "pip"), self.path("venv", "bin", "python")
        run(pip, "install", "--quiet", "--no-index", "--no-deps", self.path("wheel", wheel))
        rows, libraries = map(eval, run(python, "-c", USE, self.cluster.address, cwd=self.folder.name).splitlines())
        self.assertEqual(rows, list(range(10)))
        of_system = [os.path.basename(p) for p in libraries if not p.startswith(self.folder.name)]
        self.assertTrue(any("millrace.libs/libgrpc-" in p for p in libraries), libraries)
        for name in ("grpc", "gpr", "absl", "event", "protobuf", "re2", "cares", "upb", "xxhash", "address_sorting"):
            self.assertFalse([lib for lib in of_system if lib.startswith("lib" + name)], of_system)

        run(pip, "install", "--quiet", "grpcio", "mypy")
        self.check_types(python)
        for order in ("call(), rows(), call()", "rows(), call(), rows()"):
            self.assertEqual(set(run(python, "-c", GRPC + order, self.cluster.address, cwd=self.folder.name).split()), {"10"})

    def check_types(self, python):
        """The stubs are the extension's, and a user's strictly typed program passes."""
        with open(self.path("allowed"), "w") as f:
            f.write("millrace._core.Array.__buffer__\n")  # seen by Python from 3.12 on
        run(python, "-m", "mypy.stubtest", "millrace._core", "--allowlist", "allowed", "--ignore-unused-allowlist", cwd=self.folder.name)
        with open(self.path("typed.py"), "w") as f:
            f.write(TYPED)
        run(python, "-m", "mypy", "--strict", "typed.py", cwd=self.folder.name)

    def check_licences(self, path):
        """Each library that is in the wheel is told of, under a licence that goes with Apache-2.0, with its authors' notice."""
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            [text] = [wheel.read(name).decode() for name in names if name.endswith(".dist-info/licenses/THIRD_PARTY")]
            [own] = [wheel.read(name) for name in names if name.endswith(".dist-info/licenses/LICENSE")]
        self.assertEqual(own, open(os.path.join(ROOT, "LICENSE"), "rb").read())
        listed, *notices = re.split(r"\n={80}\n(.+)\n={80}\n", text)
        bundled = {name.split("/")[1] for name in names if name.startswith("millrace.libs/") and not name.endswith("/")}
        self.assertEqual(set(re.findall(r"^    (\S+)$", listed, re.M)), bundled)
        packages = dict(re.findall(r"^(\S+ \S+): (.+)$", listed, re.M))
        self.assertLessEqual(set(packages.values()), PERMISSIVE)
        self.assertEqual([name for name in notices[::2] if not name.startswith("NVIDIA")], list(packages))
        with zipfile.ZipFile(path) as wheel:
            self.assertEqual("NVIDIA CUDA runtime, in millrace/_core.abi3.so" in notices, b"libcuda.so.1" in wheel.read("millrace/_core.abi3.so"))
        for package, notice in zip(notices[::2], notices[1::2]):
            self.assertRegex(notice, "(?i)copyright", package)

    def test_a_library_whose_licence_nobody_has_looked_at(self):
        for library, reason in (("/lib/x86_64-linux-gnu/libreadline.so.8", r"libreadline8?\S* is of libreadline8: look at its licence"),
                                ("/nowhere/libother.so.1", "libreadline-0123abcd.so.8: none of the libraries given")):
            folder = tempfile.mkdtemp(dir=self.folder.name)
            os.makedirs(os.path.join(folder, "x.dist-info"))
            os.makedirs(os.path.join(folder, "x.libs"))
            open(os.path.join(folder, "x.libs", "libreadline-0123abcd.so.8"), "w").close()
            done = subprocess.run([sys.executable, os.path.join(PACKAGE, "licences.py"), folder, library], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, reason)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        pip = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, "wheel"]
        if subprocess.run([sys.executable, *pip], capture_output=True).returncode:
            print("SKIPPED: PyPI cannot be reached")
            sys.exit(77)
    harness.main()
