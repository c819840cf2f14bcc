#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: deploy/quickstart.sh [FOLDER]: on a fresh Debian 12, installs what is missing, builds, and runs the main job on this machine:
# a server, two workers, and four jobs that stream FOLDER (one subfolder of images for each class) for two epochs. Without FOLDER it
# makes photographs of its own. Ends all that it started, on Ctrl-C, too. Leaves build/quickstart behind, nothing else.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
usage() {
    echo "usage: deploy/quickstart.sh [FOLDER]   (FOLDER: one subfolder of images for each class)" >&2
    exit 2
}
[ $# -le 1 ] || usage
case "${1:-}" in
-h | --help) (usage) 2>&1 || exit 0 ;;
-*) usage ;;
esac
folder=
if [ $# -eq 1 ]; then
    folder=$(realpath -e -- "$1") || exit 2
fi

say() { printf '== %s\n' "$*"; }

say "installing what is missing (deploy/packages.txt)"
"$here/deploy/packages.sh" build
say "building (build/quickstart)"
cd "$here"
cmake --preset release -B build/quickstart -DMILLRACE_TESTS=OFF >/dev/null
cmake --build build/quickstart --target millrace millrace-server millrace-worker millrace-photos
bin=$here/build/quickstart/bin

work=$(mktemp -d "${TMPDIR:-/tmp}/millrace-quickstart-XXXXXX")
up=
finish() {
    trap - EXIT INT TERM
    [ -z "$up" ] || { kill -TERM "$up" 2>/dev/null && wait "$up" 2>/dev/null; } || true
    rm -rf "$work"
}
trap finish EXIT
trap 'finish; exit 130' INT
trap 'finish; exit 143' TERM

if [ -z "$folder" ]; then
    folder=$work/photos
    say "no FOLDER given: making 400 photograph-like JPEG files of our own"
    "$bin/millrace-photos" "$folder" 400 >/dev/null
fi

: >"$work/ready"
say "starting a server and two workers"
# Ports of its own, so that it disturbs no Millrace that runs here.
"$bin/millrace" up --workers 2 --data-root "$folder" --listen 127.0.0.1:0 --http 127.0.0.1:0 --state "$work/state" \
    >"$work/ready" &
up=$!
while ! grep -q '^ready ' "$work/ready"; do # `up` itself ends when it takes too long
    kill -0 "$up" 2>/dev/null || { wait "$up" || true; up=; exit 1; }
    sleep 0.05
done
MILLRACE_SERVER=$(cut -d' ' -f2 "$work/ready")
export MILLRACE_SERVER

say "registering $folder"
"$bin/millrace" dataset add quickstart "$folder"
say "four jobs, two epochs each, one preparation for all"
"$bin/millrace" run quickstart --jobs 4 --epochs 2
say "STALL: the share of its time that a job waited for batches; these do nothing else, so it is nearly all"
