#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/sim/planted.sh [--check] [PATCH...]: proves that the simulation sees. Each patch of planted/ is a bug in the
# product's own machines; it is applied to a copy of the tree, and millrace-sim must fail there, with a verdict that matches the
# patch's line "caught: REGEX", and shrink one of three such worlds to at most three faults; the first that it shrinks must
# fail by the same invariant when it is run again. Without a bug the first 500 seeds pass. The copy lies in a temporary folder; the
# tree is only read. --check: only that each patch applies.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
seeds=2000
check=
[ "${1:-}" != --check ] || { check=1; shift; }
[ $# -gt 0 ] || set -- "$here"/planted/*.patch

if [ "$check" ]; then
    wrong=0
    for patch in "$@"; do
        grep -q '^caught: .' "$patch" || { echo "$patch: no line \"caught: REGEX\""; wrong=1; }
        patch -s --dry-run -p1 -f -d "$root" <"$patch" || { echo "$patch: does not apply"; wrong=1; }
    done
    exit $wrong
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tree"
(cd "$root" && git ls-files -z | xargs -0 ls -d 2>/dev/null | tar -c -T -) | tar -x -C "$work/tree"
sim=$work/build/bin/millrace-sim

build() {
    cmake --build "$work/build" --target millrace-sim >"$work/log" 2>&1 || { tail -n 20 "$work/log"; return 1; }
}

# again: the shrunk history that was printed must fail by the invariant that it was shrunk for.
again() {
    local line
    line=$(sed -n '/^  shrunk/{n;s/^  again: millrace-sim //;p}' "$work/out" | head -n 1)
    # shellcheck disable=SC2086 # options, split at blanks
    timeout 300 "$sim" $line --shrink 0 >"$work/again" 2>&1 && return 1
    [ "$(grep -m1 '^FAILED at' "$work/again" | cut -d: -f2)" = "$(grep -m1 '^  shrunk' "$work/out" | cut -d: -f3)" ]
}

# judge PATCH: says what the simulation says of it.
judge() {
    local caught faults
    caught=$(sed -n 's/^caught: //p' "$1")
    if timeout 1200 "$sim" --seeds $seeds --stop-after 3 --shrink 3 >"$work/out" 2>&1; then
        echo "MISSED by $seeds seeds"
    elif ! grep -E "^seed .*($caught)" "$work/out" >"$work/verdicts"; then
        echo "MISSED: fails, but not with $caught:"
        head -n 3 "$work/out"
    else
        faults=$(sed -n 's/^  shrunk to \([0-9]*\) faults.*/\1/p' "$work/out" | sort -n | head -n 1)
        if [ "${faults:-1000}" -gt 3 ]; then
            echo "caught, but shrunk to $faults faults only"
        elif ! again; then
            echo "caught, but what it was shrunk to does not fail again"
        else
            echo "caught, shrunk to $faults faults: $(head -n 1 "$work/verdicts")"
            return 0
        fi
    fi
    return 1
}

cmake -S "$work/tree" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo >"$work/log" 2>&1 || { tail -n 20 "$work/log"; exit 1; }
build
timeout 600 "$sim" --seeds 500 >"$work/out" 2>&1 || { echo "without a planted bug:"; head -n 5 "$work/out"; exit 1; }

missed=0
for patch in "$@"; do
    patch -s -p1 -d "$work/tree" <"$patch"
    build
    said=$(judge "$patch") || missed=$((missed + 1))
    echo "$(basename "$patch" .patch): $said"
    patch -s -R -p1 -d "$work/tree" <"$patch"
done
exit $((missed > 0))
