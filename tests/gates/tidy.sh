#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/gates/tidy.sh [BUILD]: clang-tidy (see .clang-tidy) finds nothing in the product's C files. BUILD (default
# build/release) must be configured, and built once for the generated headers.
set -euo pipefail
. "$(dirname "$0")/sources.sh"
build=${1:-build/release}
if [ ! -f "$build/compile_commands.json" ]; then
    echo "tidy.sh: no $build/compile_commands.json: run cmake --preset release first" >&2
    exit 1
fi
files=$(sources '*.c' ':!tests')
# One file a run: with several, clang-tidy 14's va_list checker takes the second file's for uninitialised.
xargs -n 1 -P "$(nproc)" clang-tidy -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option <<<"$files" 2>&1 |
    { grep -vE '^[0-9]+ warnings? generated' || true; }
echo "tidy: $(wc -l <<<"$files") files"
