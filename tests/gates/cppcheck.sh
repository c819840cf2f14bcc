#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/gates/cppcheck.sh: cppcheck finds nothing in the product's C files.
set -euo pipefail
. "$(dirname "$0")/sources.sh"
files=$(sources '*.c' ':!tests')
# A block of memory is carved into arrays of several types (invalidPointerCast).
xargs cppcheck -q -j "$(nproc)" --std=c11 --library=posix -I . --inline-suppr --error-exitcode=1 \
    --enable=warning,performance,portability \
    --suppress=invalidPointerCast --suppress=missingInclude --suppress=missingIncludeSystem --suppress=normalCheckLevelMaxBranches <<<"$files"
echo "cppcheck: $(wc -l <<<"$files") files"
