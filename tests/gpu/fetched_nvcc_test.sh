#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: fetched_nvcc_test.sh SOURCE
# Where no CUDA is installed: fetches the newest nvcc of CUDA 13 into a throw-away environment, lets CMake find it there and build
# the CUDA backend. Skipped (77) where it cannot be fetched.
set -eu
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
/usr/bin/env python3 -m venv "$work/venv" || { echo "skipped: python3 makes no virtual environment"; exit 77; }
timeout 300 "$work/venv/bin/pip" install -q --disable-pip-version-check \
  'nvidia-cuda-nvcc==13.*' 'nvidia-cuda-runtime==13.*' 'nvidia-cuda-cccl==13.*' ||
  { echo "skipped: nvcc cannot be fetched"; exit 77; }
cuda=$(echo "$work"/venv/lib/python3*/site-packages/nvidia/cu13)
env -u CUDACXX PATH="$cuda/bin:$PATH" cmake -S "$source" -B "$work/build" -DMILLRACE_TESTS=OFF \
  "-DCUDAToolkit_ROOT=$cuda" >"$work/configure.log" 2>&1 || { tail -20 "$work/configure.log"; exit 1; }
grep 'the CUDA backend is built' "$work/configure.log"
cmake --build "$work/build" --target gpu_ingest_cuda
"$(dirname "$0")/fatbin.py" "$work/build/gpu_ingest/cuda.o"
