#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the arrows between modules: who may include whom, who owns which third-party header.

usage: tests/gates/includes.py [--root DIR] [--generated DIR]

Also: quoted includes are rooted at the tree (or are the public "millrace/..."), a source file includes its own header
first, every header compiles alone, every source file has its SPDX line. Prints `file:line: what` for each
violation; exit status 1 when there is one, or when no source was found. The tables below are the design's
"Modules and the way dependencies point"; a new arrow wants a decision record in docs/adr/.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor

# Folder -> folders that its files may include. The longest matching folder decides. "" is the rest of the folder itself.
ARROWS = {
    "base": ["base"],
    "proto": ["proto", "base"],
    "proto/wire": ["proto", "scheduler", "base"],  # docs/adr/0003
    "scheduler": ["scheduler", "base"],
    "worker": ["worker", "scheduler", "proto", "base"],
    "worker/decode": ["worker/decode", "base"],
    "worker/transform": ["worker/transform", "scheduler", "base"],
    "worker/format": ["worker/format", "base"],
    "server": ["server", "scheduler", "proto", "base"],
    "client": ["client", "scheduler", "proto", "base"],
    "client/include": ["client/include"],
    "client/cli": ["client/include", "client/cli", "scheduler", "proto", "base"],
    "client/python": ["client/python", "client/include", "gpu_ingest/include"],
    "gpu_ingest": ["gpu_ingest", "client/include", "base"],
    "gpu_ingest/include": ["gpu_ingest/include", "client/include"],
    "deploy": ["deploy"],
    "tests": [""],
}

# Third-party header -> folders (or files) that own it. Tests may use what the code they test uses.
OWNERS = {
    r"grpc/": ["proto/rpc"],
    r"protobuf-c/": ["proto"],
    r"event2/": ["server", "worker", "client/src"],
    r"(jpeglib|jerror|turbojpeg)\.h": ["worker/decode", "deploy/photos.c"],  # which only writes
    r"png\.h": ["worker/decode"],
    r"sqlite3\.h": ["server/store"],
    r"zstd": ["proto/manifest"],
    r"(xxhash|xxh_x86dispatch)\.h": ["base/hash.c"],
    r"openssl/": ["base/hash.c"],
    r"Python\.h": ["client/python"],
    r"cuda(_runtime_api)?\.h": ["gpu_ingest/cuda.cu"],
    r"cmocka\.h": [],
}

# Folders that do no input or output -> headers that they may not include. base/clock.h has constants that all may use.
PURE = {
    "scheduler": r"pthread\.h|threads\.h|time\.h|sys/|unistd\.h|fcntl\.h|base/(log|pool|mailbox|address)\.h",
    "worker/decode": r"netdb\.h|netinet/|arpa/|sys/socket\.h|sys/un\.h|base/address\.h",
    "worker/transform": r"netdb\.h|netinet/|arpa/|sys/socket\.h|sys/un\.h|base/address\.h",
    "worker/format": r"netdb\.h|netinet/|arpa/|sys/socket\.h|sys/un\.h|base/address\.h",
}

LIBC = re.compile(
    r"(assert|complex|ctype|errno|fenv|float|inttypes|iso646|limits|locale|math|setjmp|signal|stdalign|stdarg|stdatomic"
    r"|stdbool|stddef|stdint|stdio|stdlib|stdnoreturn|string|tgmath|threads|time|uchar|wchar|wctype"
    r"|dirent|dlfcn|endian|fcntl|fnmatch|ftw|getopt|glob|grp|ifaddrs|langinfo|libgen|malloc|netdb|poll|pthread|pwd"
    r"|regex|sched|semaphore|spawn|strings|sysexits|syslog|termios|ucontext|unistd|cpuid|[a-z]+intrin|arm_neon)\.h"
    r"|(arpa|linux|net|netinet|sys|sanitizer)/[a-z0-9_/]+\.h"
)

# ... and what those that are machines may not call: time is a parameter, randomness has a key.
MACHINES = ["scheduler"]
CALLS = re.compile(r"\b(base_clock_\w+|clock_gettime|gettimeofday|s?rand|random)\(")

SPDX = "SPDX-License-Identifier: Apache-2.0"
NEEDS_SPDX = re.compile(r"\.(c|h|cc|cu|py|sh|cmake|proto|in|yaml|yml)$|(^|/)(CMakeLists\.txt|\.clang-(format|tidy))$|^\.ci/run$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def files_of(root):
    """Tracked and new files, else (a copy without git) all that is not built."""
    listing = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard", "."], capture_output=True, text=True)
    if listing.returncode == 0:
        return sorted(f for f in listing.stdout.splitlines() if (root / f).is_file())
    found = [p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()]
    return sorted(f for f in found if not f.startswith(("build/", ".git/")))


def within(path, folder):
    return folder == "" or path == folder or path.startswith(folder + "/")


def longest(table, path):
    folders = [f for f in table if within(path, f)]
    return max(folders, key=len) if folders else None


def target_of(root, name):
    """The tree's path of a quoted include; None when there is no such file."""
    for candidate in (name, "client/include/" + name, "gpu_ingest/include/" + name):
        if (root / candidate).is_file():
            return candidate
    if name.endswith(".pb-c.h") and (root / (name[:-7] + ".proto")).is_file():  # generated
        return name
    return None


def check_project_include(root, path, name):
    if name.startswith((".", "/")) or "/../" in name:
        return "include of %s is not rooted at the tree" % name
    target = target_of(root, name)
    if not target:
        return "%s is no file of the tree (quoted includes are rooted at it; others take <>)" % name
    folder = longest(ARROWS, path)
    if folder is None:
        return "folder of %s has no row in the table of arrows" % path
    if not any(within(target, allowed) for allowed in ARROWS[folder]):
        return "%s may not include %s" % (folder, target)
    return None


def check_system_include(path, name):
    if LIBC.fullmatch(name):
        return None
    for header, owners in OWNERS.items():
        if re.match(header, name):
            if within(path, "tests") or any(within(path, owner) for owner in owners):
                return None
            return "<%s> belongs to %s" % (name, ", ".join(owners) or "tests")
    return "<%s> has no owner in the table of third-party headers" % name


def check_pure(path, name):
    folder = longest(PURE, path)
    if folder and re.match(PURE[folder], name):
        return "%s may not include %s: it does no input or output" % (folder, name)
    return None


def check_calls(path, line):
    found = CALLS.search(line)
    if found and longest({folder: 0 for folder in MACHINES}, path):
        return "%s in a machine without I/O" % found.group(1)
    return None


def own_header(root, path):
    header = path[:-2] + ".h"
    return header if path.endswith(".c") and (root / header).is_file() else None


def check_source(root, path):
    own, first = own_header(root, path), True
    for number, line in enumerate((root / path).read_text(errors="replace").splitlines(), 1):
        called = check_calls(path, line)
        if called:
            yield "%s:%d: %s" % (path, number, called)
        match = INCLUDE.match(line)
        if not match:
            continue
        quoted, name = match.group(1) == '"', match.group(2)
        found = [check_project_include(root, path, name) if quoted else check_system_include(path, name), check_pure(path, name)]
        if first and own and name != own:
            found.append("its own header %s comes first" % own)
        first = False
        yield from ("%s:%d: %s" % (path, number, what) for what in found if what)


def check_spdx(root, path):
    with open(root / path, errors="replace") as file:
        head = [file.readline() for _ in range(3)]
    if not any(SPDX in line for line in head):
        yield "%s:1: no line \"%s\" among the first three" % (path, SPDX)


def compile_alone(root, generated, path):
    includes = ["-I", str(root)] if "/include/" not in path else []
    if within(path, "gpu_ingest") or within(path, "client/python"):
        includes += ["-I", str(root / "client/include")]
    if generated:
        includes += ["-I", str(generated)]
    if within(path, "client/python"):
        includes += ["-isystem", sysconfig.get_paths()["include"]]
    command = ["gcc", "-std=c17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c", "-include", str(root / path)]
    result = subprocess.run(command + includes + ["/dev/null"], capture_output=True, text=True)
    if result.returncode == 0:
        return []
    if "pb-c.h: No such file" in result.stderr:
        return ["%s:1: needs a generated header: build first, then give --generated" % path]
    return ["%s:1: does not compile alone: %s" % (path, result.stderr.strip().splitlines()[0])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--generated", type=pathlib.Path, help="build folder that holds proto/schema/*.pb-c.h")
    options = parser.parse_args()
    root = options.root.resolve()
    files = files_of(root)
    sources = [f for f in files if f.endswith((".c", ".h", ".cu")) and "/" in f]
    headers = [f for f in sources if f.endswith(".h") and not within(f, "tests")]
    if not sources:
        print("includes: no source file under %s" % root)
        return 1
    found = [v for f in sources for v in check_source(root, f)]
    found += [v for f in files if NEEDS_SPDX.search(f) for v in check_spdx(root, f)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for violations in pool.map(lambda f: compile_alone(root, options.generated, f), headers):
            found += violations
    print("\n".join(found + ["includes: %d files, %d headers alone, %d violations" % (len(sources), len(headers), len(found))]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
