#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: pillow13.sh ROW_DUMP: rows of resize_order=pillow13 against Pillow 13 from PyPI, in a throw-away environment.
# Exit status 77: PyPI or the data cannot be reached.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder" && "$folder/bin/pip" install --quiet 'pillow==13.*' numpy || exit 77
"$folder/bin/python" "$(dirname "$0")/oracle.py" "$1" pillow13
