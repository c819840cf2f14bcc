# SPDX-License-Identifier: Apache-2.0
"""Builds the extension by the project's CMake, from a clone: `pip install ./client/python`. What pyproject.toml says is not said again."""
import os
import pathlib
import re
import shutil
import subprocess
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


class CMakeBuild(build_ext):
    def build_extension(self, ext):
        if not (ROOT / "client/include/millrace/millrace.h").exists():
            raise SystemExit("millrace: builds from a clone of the whole project only, or install its wheel")
        folder = pathlib.Path(self.build_temp).resolve() / "cmake"
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        wanted = [f"-D{name}={os.environ.get(name, usual)}" for name, usual in (("MILLRACE_PYTHON_WHEEL", "OFF"), ("MILLRACE_CUDA", "ON"))]
        subprocess.run(["cmake", "-S", ROOT, "-B", folder, *generator, *wanted, "-DMILLRACE_TESTS=OFF", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                        "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O2 -DNDEBUG", f"-DMILLRACE_PYTHON_INCLUDE={sysconfig.get_paths()['include']}",
                        f"-DMILLRACE_PYTHON_DIR={folder / 'python'}"], check=True)
        subprocess.run(["cmake", "--build", folder, "--target", "millrace_python", "--parallel", str(os.cpu_count() or 1)], check=True)
        target = pathlib.Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "python/millrace/_core.abi3.so", target)


def version():
    return re.search(r"project\(millrace VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


setup(version=version(), ext_modules=[Extension("millrace._core", [], py_limited_api=True)], cmdclass={"build_ext": CMakeBuild},
      options={"bdist_wheel": {"py_limited_api": "cp311"}})
