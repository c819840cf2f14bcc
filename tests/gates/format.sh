#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/gates/format.sh [--fix]: every C file is as .clang-format says.
set -euo pipefail
. "$(dirname "$0")/sources.sh"
files=$(sources '*.c' '*.h' '*.cu')
if [ "${1:-}" = --fix ]; then
    xargs -n 16 clang-format -i <<<"$files"
else
    xargs -n 16 clang-format --dry-run -Werror <<<"$files"
fi
echo "format: $(wc -l <<<"$files") files"
