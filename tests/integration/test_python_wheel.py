# SPDX-License-Identifier: Apache-2.0
"""The wheel, and `pip install` from the clone, each in a virtual environment without Debian's Python packages. Skipped where PyPI is out
of reach."""
import os
import subprocess
import sys
import tempfile
import unittest

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

IMAGES = """
import sys
def images():
    import millrace
    loader = millrace.Loader(sys.argv[1], dataset="photos", batch_size=4, options={"size": 32}, timeout=30)
    return next(iter(loader))[0]
"""


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

    def use(self, name, *install):
        """Installs into a new environment, uses it there; the libraries it loaded."""
        run("/usr/bin/python3", "-m", "venv", self.path(name))
        run(self.path(name, "bin", "pip"), "install", "--quiet", *install)
        rows, libraries = run(self.path(name, "bin", "python"), "-c", USE, self.cluster.address, cwd=self.folder.name).splitlines()
        self.assertEqual(eval(rows), list(range(10)))
        return eval(libraries)

    def test_the_wheel_brings_what_it_needs(self):
        run(os.path.join(PACKAGE, "build_wheel.sh"), self.path("wheel"))
        [wheel] = os.listdir(self.path("wheel"))
        self.assertRegex(wheel, r"-cp311-abi3-manylinux_2_34_\w+\.whl$")
        libraries = self.use("venv-wheel", "--no-index", "--no-deps", self.path("wheel", wheel))
        of_system = [os.path.basename(p) for p in libraries if not p.startswith(self.folder.name)]
        self.assertTrue(any("millrace.libs/libgrpc-" in p for p in libraries), libraries)
        for name in ("grpc", "gpr", "absl", "event", "protobuf", "re2", "cares", "upb", "xxhash", "address_sorting"):
            self.assertFalse([lib for lib in of_system if lib.startswith("lib" + name)], of_system)

    def test_beside_tensorflow_and_jax(self):
        """TensorFlow's gRPC before and after ours; jax takes the slot itself."""
        self.use("venv-large", PACKAGE, "tensorflow-cpu", "jax")
        total = "print(float(tf.reduce_sum(tf.experimental.dlpack.from_dlpack(images().__dlpack__()))))"
        found = {self.run_in("venv-large", *lines) for lines in (("import tensorflow as tf", total, "images()"),
                                                                ("images()", "import tensorflow as tf", total))}
        self.assertEqual(len(found), 1)
        self.assertEqual(self.run_in("venv-large", "import jax", "of_slot = images()",
                                     "print(jax.dlpack.from_dlpack(of_slot).unsafe_buffer_pointer() == of_slot.pointer)"), "True")

        example = os.path.join(ROOT, "examples", "jax_loop.py")
        text = run(self.path("venv-large", "bin", "python"), example, "--photos", "200", "--reach", "0.4", cwd=self.folder.name,
                   env=dict(os.environ, PATH=harness.BIN + ":" + os.environ["PATH"]))
        self.assertEqual(text.count("epoch "), 6, text)

    def run_in(self, name, *lines):
        return run(self.path(name, "bin", "python"), "-c", IMAGES + "\n".join(lines), self.cluster.address, cwd=self.folder.name).strip()

    def test_pip_install_from_the_clone(self):
        self.use("venv-clone", PACKAGE)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        pip = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, "wheel"]
        if subprocess.run([sys.executable, *pip], capture_output=True).returncode:
            print("SKIPPED: PyPI cannot be reached")
            sys.exit(77)
    harness.main()
