#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: deploy/packages.sh [build|run|test]...: installs what Debian 12 packages of these sets (packages.txt; without
# arguments: build) are missing. Needs root or sudo only if one is.
set -euo pipefail
list=${MILLRACE_PACKAGES:-$(dirname "$0")/packages.txt}
[ $# -gt 0 ] || set -- build

wanted=()
for set in "$@"; do
    mapfile -t found < <(sed -n "s/^$set //p" "$list")
    if [ ${#found[@]} -eq 0 ]; then
        echo "packages.sh: no set \"$set\" in $list (build, run or test)" >&2
        exit 2
    fi
    wanted+=("${found[@]}")
done

if ! command -v dpkg-query >/dev/null; then
    echo "packages.sh: no dpkg here: this is not Debian. Install the counterparts of: ${wanted[*]}" >&2
    exit 1
fi
missing=()
for package in "${wanted[@]}"; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "packages.sh: missing: ${missing[*]}" >&2
        echo "packages.sh: no root and no sudo: ask an administrator for: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi
echo "packages.sh: installing ${missing[*]}"
"${as_root[@]}" apt-get update -q ||
    echo "packages.sh: apt-get update failed; trying with the lists that are here" >&2
if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"; then
    echo "packages.sh: apt-get could not install: ${missing[*]} (is this Debian 12, and its mirror in reach?)" >&2
    exit 1
fi
