#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: install_test.sh BUILD
# Installs the client library, builds a stranger's program from the installed tree alone, once with pkg-config and once with
# find_package, runs both, and checks what the library exports.
set -eu
build=$1
here=$(cd "$(dirname "$0")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cmake --install "$build" --component client --prefix "$tree/usr" >"$tree/install.log"
mv "$tree/usr" "$tree/moved" # nothing may remember where it was installed first
root=$tree/moved
library=$(find "$root" -name 'libmillrace.so.0' | head -1)
lib=$(dirname "$library")

echo "-- exports"
nm -D --defined-only "$library" | awk '$2 != "A" {print $3}' | sed 's/@.*//' | sort >"$tree/exported"
grep -v '^mr_' "$tree/exported" && { echo "not ours to export" >&2; exit 1; }
sed -n 's/^MR_API .*[ *]\(mr_[a-z_]*\)(.*/\1/p' "$root/include/millrace/millrace.h" | sort >"$tree/declared"
diff "$tree/declared" "$tree/exported"
test "$(wc -l <"$tree/exported")" -gt 15
readelf -d "$library" | grep -q 'SONAME.*\[libmillrace.so.0\]'

echo "-- pkg-config"
export PKG_CONFIG_PATH=$lib/pkgconfig
cc -std=c99 -pedantic -Wall -Wextra -Werror "$here/consumer.c" -o "$tree/by_pkg_config" \
  $(pkg-config --cflags --libs millrace)
LD_LIBRARY_PATH=$lib timeout 30 "$tree/by_pkg_config"
test "$(pkg-config --modversion millrace)" = "$(LD_LIBRARY_PATH=$lib "$tree/by_pkg_config" | cut -d: -f1)"

echo "-- find_package"
mkdir "$tree/project"
cp "$here/consumer.c" "$tree/project"
cat >"$tree/project/CMakeLists.txt" <<'PROJECT'
cmake_minimum_required(VERSION 3.16)
project(consumer LANGUAGES C)
find_package(millrace 0.1 REQUIRED)
add_executable(consumer consumer.c)
target_link_libraries(consumer PRIVATE millrace::millrace)
PROJECT
cmake -S "$tree/project" -B "$tree/project/build" -DCMAKE_PREFIX_PATH="$root" >"$tree/configure.log"
cmake --build "$tree/project/build" >"$tree/build.log"
timeout 30 "$tree/project/build/consumer"

echo "-- the header alone, as C++ and as C17"
echo '#include <millrace/millrace.h>' >"$tree/alone.c"
cc -std=c17 -Wall -Wextra -Wstrict-prototypes -Werror -fsyntax-only -I"$root/include" "$tree/alone.c"
if command -v c++ >/dev/null; then
  c++ -std=c++17 -Wall -Wextra -Werror -fsyntax-only -x c++ -I"$root/include" "$tree/alone.c"
fi
