#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/gates/cppcheck.sh: cppcheck finds nothing in the product's C files.
set -euo pipefail
. "$(dirname "$0")/sources.sh"
files=$(sources '*.c' ':!tests')
# Off: a block of memory is carved into arrays of several types (invalidPointerCast); LeakSanitizer sees leaks, memleak takes
# for one what is stored by memcpy or in a compound literal; readdir is safe on a stream of one's own (readdirCalled);
# its model of mmap knows no descriptor -1 (invalidFunctionArg).
xargs cppcheck -q -j "$(nproc)" --std=c11 --library=posix -I . --inline-suppr --error-exitcode=1 \
    --enable=warning,performance,portability \
    --suppress=invalidPointerCast --suppress=memleak --suppress=readdirCalled --suppress=invalidFunctionArg \
    --suppress=missingInclude --suppress=missingIncludeSystem --suppress=normalCheckLevelMaxBranches <<<"$files"
echo "cppcheck: $(wc -l <<<"$files") files"
