# SPDX-License-Identifier: Apache-2.0
# Sourced by the gates: goes to the root of the tree; `sources PATTERN...` lists its tracked and new C files, and ends the
# gate when there is none (a gate that matches no file passes for ever).
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

sources() {
    local found
    found=$(git ls-files -co --exclude-standard "$@" | while read -r file; do [ -f "$file" ] && echo "$file"; done)
    if [ -z "$found" ]; then
        echo "${0##*/}: no file matches $*" >&2
        return 1
    fi
    echo "$found"
}
