#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: install_test.sh BUILD
# Installs client and GPU library, checks what the latter exports, and builds and runs a stranger's program with pkg-config.
set -eu
build=$1
here=$(cd "$(dirname "$0")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
for component in client gpu; do
  cmake --install "$build" --component $component --prefix "$tree/usr" >"$tree/install.log"
done
library=$(find "$tree/usr" -name 'libmillrace_gpu.so.0' | head -1)
lib=$(dirname "$library")

echo "-- exports"
nm -D --defined-only "$library" | awk '$2 != "A" {print $3}' | sed 's/@.*//' | sort >"$tree/exported"
sed -n 's/^MR_API .*[ *]\(mr_[a-z_]*\)(.*/\1/p' "$tree/usr/include/millrace/ingest.h" | sort >"$tree/declared"
diff "$tree/declared" "$tree/exported"
readelf -d "$library" | grep -q 'SONAME.*\[libmillrace_gpu.so.0\]'
if readelf -d "$library" | grep 'NEEDED.*libcu'; then
  echo "needs CUDA to be loaded" >&2
  exit 1
fi

echo "-- pkg-config"
export PKG_CONFIG_PATH=$lib/pkgconfig
cc -std=c99 -pedantic -Wall -Wextra -Werror "$here/consumer.c" -o "$tree/consumer" $(pkg-config --cflags --libs millrace_gpu)
LD_LIBRARY_PATH=$lib timeout 30 "$tree/consumer"

echo "-- the header alone, as C++ and as C17"
echo '#include <millrace/ingest.h>' >"$tree/alone.c"
cc -std=c17 -Wall -Wextra -Wstrict-prototypes -Werror -fsyntax-only -I"$tree/usr/include" "$tree/alone.c"
if command -v c++ >/dev/null; then
  c++ -std=c++17 -Wall -Wextra -Werror -fsyntax-only -x c++ -I"$tree/usr/include" "$tree/alone.c"
fi
