#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: planted.sh PROGRAM PATCH: gpu_ingest_order_test with the bug of the patch in it must fail, and say what "caught: REGEX" of the
# patch does: the tests under the fake CUDA see such bugs.
set -eu
caught=$(sed -n 's/^caught: //p' "$2")
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if timeout 100 "$1" >"$log" 2>&1; then
  echo "MISSED: $(head -n 1 "$2")"
  exit 1
fi
grep -E -m 1 "^(\[  FAILED  \] )?(fake CUDA: )?($caught)" "$log" || { echo "fails, but not with $caught:"; tail "$log"; exit 1; }
