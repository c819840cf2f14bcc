#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/sim/planted.sh [PATCH...]: proves that the simulation sees. Each patch of planted/ is a bug in the product's own
# machines; it is applied to a copy of the tree, and millrace-sim must fail there, with a verdict that matches the patch's line
# "caught: REGEX". Without a bug the same seeds pass. The copy lies in a temporary folder; the tree is only read.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
seeds=2000
[ $# -gt 0 ] || set -- "$here"/planted/*.patch

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tree"
(cd "$root" && git ls-files -z | xargs -0 ls -d 2>/dev/null | tar -c -T -) | tar -x -C "$work/tree"

build() {
    cmake --build "$work/build" --target millrace-sim >"$work/log" 2>&1 || { tail -n 20 "$work/log"; return 1; }
}
sim() {
    timeout 300 "$work/build/bin/millrace-sim" --seeds $seeds >"$work/out" 2>&1
}

cmake -S "$work/tree" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo >"$work/log" 2>&1 || { tail -n 20 "$work/log"; exit 1; }
build
sim || { echo "without a planted bug:"; head -n 5 "$work/out"; exit 1; }

missed=0
for patch in "$@"; do
    name=$(basename "$patch" .patch)
    caught=$(sed -n 's/^caught: //p' "$patch")
    patch -s -p1 -d "$work/tree" <"$patch"
    build
    if sim; then
        echo "$name: MISSED by $seeds seeds"
        missed=$((missed + 1))
    elif ! grep -E "^seed .*($caught)" "$work/out" >"$work/verdicts"; then
        echo "$name: MISSED: fails, but not with $caught:"
        head -n 3 "$work/out"
        missed=$((missed + 1))
    else
        echo "$name: caught by $(grep -c '^seed ' "$work/out") of $seeds seeds: $(head -n 1 "$work/verdicts")"
    fi
    patch -s -R -p1 -d "$work/tree" <"$patch"
done
exit $((missed > 0))
