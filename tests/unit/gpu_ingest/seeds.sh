#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: seeds.sh COUNT PROGRAM [ARGUMENT...]: runs a test under the fake CUDA with COUNT seeds.
set -eu
count=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for ((seed = 0; seed < count; seed++)); do
  FAKE_CUDA_SEED=$seed "$@" >"$log" 2>&1 || { cat "$log"; echo "FAKE_CUDA_SEED=$seed $*"; exit 1; }
done
echo "$count seeds"
