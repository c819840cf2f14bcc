#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, and passes the tests.
set -eu
cd "$(dirname "$0")/.."
cmake --preset release
cmake --build --preset release
ctest --test-dir build/release --output-on-failure
