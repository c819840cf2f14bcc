#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/run.sh [--long]: on a fresh Debian 12, installs what is missing, builds, and passes the tests.
#
# Parts, each with its time: release (unit, sim, integration, gates), asan-ubsan (unit, sim, trouble), tsan (the unit tests with
# threads), fuzz (10 s a target). --long adds the tests labelled long, clang-tidy among them, and fuzzes for 120 s.
# The last line counts over all parts: "N passed, N failed, N skipped". Results stay in build/results.
set -u
cd "$(dirname "$0")/.."

without=(-LE '^long$')
export MILLRACE_FUZZ_SECONDS=10
case "${1:-}" in
"") ;;
--long) without=() MILLRACE_FUZZ_SECONDS=120 ;;
*)
    echo "usage: tests/run.sh [--long]" >&2
    exit 2
    ;;
esac

jobs=$((2 * $(nproc))) # many tests mostly wait: for paces, leases, deadlines
results=$PWD/build/results
rm -rf "$results"
mkdir -p "$results"
if command -v ccache >/dev/null; then export CMAKE_C_COMPILER_LAUNCHER=ccache; fi
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
# The sanitizers of Debian 12 cannot map their shadow where a kernel randomises more than 28 bits of addresses.
unrandomised=()
if setarch -R true 2>/dev/null; then unrandomised=(setarch -R); fi

# step NAME COMMAND...: shows what it does and how long it took; its output only if it fails. A failure is counted.
step() {
    local name=$1 start=$SECONDS
    shift
    if "$@" >"$results/$name.log" 2>&1; then
        printf '== %-20s %4d s\n' "$name" $((SECONDS - start))
        return 0
    fi
    printf '== %-20s %4d s: failed: %s\n' "$name" $((SECONDS - start)) "$*"
    tail -n 60 "$results/$name.log"
    echo "$*" >"$results/$name.failed"
    return 1
}

# tests NAME PRESET LABELS [CTEST OPTIONS]: runs the tests with a label that LABELS matches.
tests() {
    local name=$1 preset=$2 labels=$3 start=$SECONDS
    shift 3
    "${unrandomised[@]}" ctest --test-dir "build/$preset" -j "$jobs" --output-on-failure --no-tests=error \
        --test-output-size-passed 65536 \
        --output-junit "$results/$name.xml" -L "$labels" "${without[@]}" "$@" >"$results/$name.log" 2>&1
    local status=$?
    printf '== %-20s %4d s: %s\n' "$name" $((SECONDS - start)) "$(grep -E 'tests passed|No tests' "$results/$name.log")"
    if [ $status -ne 0 ]; then
        grep -vE '^ *(Start +[0-9]+:|[0-9]+/[0-9]+ Test +#.* Passed )' "$results/$name.log" | tail -n 200
        # A test that failed is counted from the XML; ctest that did not get that far is a failure of its own.
        grep -q '<failure' "$results/$name.xml" 2>/dev/null || echo "ctest ended with $status" >"$results/$name.failed"
    fi
}

# build PRESET [LABELS]: all of the tree, or only what the tests with these labels run.
build() {
    local preset=$1 labels=${2:-} targets=()
    step "$preset-configure" cmake --preset "$preset" || return 1
    if [ -n "$labels" ]; then
        mapfile -t targets < <(ctest --test-dir "build/$preset" --show-only=json-v1 -L "$labels" "${without[@]}" |
            python3 tests/summary.py targets "build/$preset")
    fi
    step "$preset-build" cmake --build "build/$preset" --target "${targets[@]:-all}"
}


step packages deploy/packages.sh build test || exec python3 tests/summary.py count "$results"
if build release; then
    tests release release '^(unit|sim|integration)$'
    tests gates release '^gate$'
fi
if build asan-ubsan '^(unit|sim|trouble)$'; then
    tests asan-ubsan asan-ubsan '^(unit|sim|trouble)$'
fi
if build tsan '^threads$'; then
    tests tsan tsan '^threads$'
fi
if [ -f tests/fuzz/CMakeLists.txt ] && build fuzz '^fuzz$'; then
    tests fuzz fuzz '^fuzz$'
fi
printf '== %-20s %4d s\n' all "$SECONDS"
exec python3 tests/summary.py count "$results"
