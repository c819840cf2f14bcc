#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Proves each gate: it passes a small clean tree, and catches every violation that is planted into a copy of it.

usage: tests/gates/plants.py
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINE = "/* SPDX-License-Identifier: Apache-2.0 */\n"


def git(tree, *arguments):
    subprocess.run(["git", "-C", tree, *arguments], check=True, capture_output=True)


class Gate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="millrace-gate-")
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name)
        shutil.copytree(ROOT / "tests/gates", self.tree / "tests/gates", ignore=shutil.ignore_patterns("__pycache__"))
        for name in (".clang-format", ".clang-tidy"):
            shutil.copy(ROOT / name, self.tree / name)
        for folder in ("base", "scheduler", "proto/wire", "worker/decode", "server", "client/cli", "client/include/millrace"):
            name = folder.replace("/", "_")
            self.plant("%s/%s.h" % (folder, name), "#include <stdint.h>\n\nint %s_one(void);\n" % name)
            own = "%s/%s.h" % (folder, name) if folder != "client/include/millrace" else "millrace/%s.h" % name
            source = folder if folder != "client/include/millrace" else "client/src"
            self.plant("%s/%s.c" % (source, name), '#include "%s"\n\nint %s_one(void)\n{\n    return 1;\n}\n' % (own, name))
        git(self.tree, "init", "-q")

    def plant(self, path, text, head=LINE):
        (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
        (self.tree / path).write_text(head + text)

    def run_gate(self, *command):
        result = subprocess.run([self.tree / "tests/gates" / command[0], *command[1:]], cwd="/", capture_output=True, text=True)
        return result.returncode, result.stdout + result.stderr

    def assert_clean(self, *command):
        code, output = self.run_gate(*command)
        self.assertEqual(code, 0, output)

    def assert_caught(self, said, *command):
        code, output = self.run_gate(*command)
        self.assertNotEqual(code, 0, output)
        self.assertIn(said, output)


class Includes(Gate):
    def test_arrows(self):
        self.assert_clean("includes.py")
        rows = [
            ("base/up.c", '#include "scheduler/scheduler.h"\n', "base/up.c:2: base may not include scheduler/scheduler.h"),
            ("proto/wire/up.c", '#include "server/server.h"\n', "proto may not include server/server.h"),
            ("scheduler/up.c", '#include "proto/wire/proto_wire.h"\n', "scheduler may not include proto/wire/proto_wire.h"),
            ("server/side.c", '#include "client/cli/client_cli.h"\n', "server may not include client/cli/client_cli.h"),
            ("worker/side.c", '#include "server/server.h"\n', "worker may not include server/server.h"),
            ("client/src/side.c", '#include "worker/decode/worker_decode.h"\n', "client may not include worker/decode"),
            ("worker/decode/up.c", '#include "proto/wire/proto_wire.h"\n', "worker/decode may not include proto/wire"),
            ("client/cli/in.c", '#include "client/src/secret.h"\n', "client/cli may not include client/src/secret.h"),
            ("client/include/millrace/in.h", '#include "base/base.h"\n', "client/include may not include base/base.h"),
        ]
        self.plant("client/src/secret.h", "")
        for path, text, said in rows:
            with self.subTest(path):
                self.plant(path, text)
                self.assert_caught(said, "includes.py")
                (self.tree / path).unlink()
        self.assert_clean("includes.py")

    def test_third_party_headers(self):
        rows = [
            ("server/a.c", "#include <grpc/grpc.h>\n", "<grpc/grpc.h> belongs to proto/rpc"),
            ("proto/wire/a.c", "#include <event2/event.h>\n", "<event2/event.h> belongs to"),
            ("server/a.c", "#include <jpeglib.h>\n", "<jpeglib.h> belongs to worker/decode"),
            ("server/a.c", "#include <png.h>\n", "<png.h> belongs to worker/decode"),
            ("server/a.c", "#include <sqlite3.h>\n", "<sqlite3.h> belongs to server/store"),
            ("server/a.c", "#include <zstd.h>\n", "<zstd.h> belongs to proto/manifest"),
            ("base/a.c", "#include <xxhash.h>\n", "<xxhash.h> belongs to base/hash.c"),
            ("base/a.c", "#include <openssl/evp.h>\n", "<openssl/evp.h> belongs to base/hash.c"),
            ("scheduler/a.c", "#include <protobuf-c/protobuf-c.h>\n", "belongs to proto"),
            ("base/a.c", "#include <uv.h>\n", "<uv.h> has no owner"),
            ("worker/decode/a.c", "#include <sys/socket.h>\n", "it does no input or output"),
            ("scheduler/a.c", "#include <pthread.h>\n", "it does no input or output"),
        ]
        for path, text, said in rows:
            with self.subTest(text):
                self.plant(path, text)
                self.assert_caught(said, "includes.py")
                (self.tree / path).unlink()
        self.plant("server/store/a.c", "#include <sqlite3.h>\n")
        self.plant("base/hash.c", "#include <openssl/evp.h>\n")
        self.assert_clean("includes.py")

    def test_form(self):
        rows = [
            ("base/a.c", "int a;\n", "", "base/a.c:1: no line"),
            ("base/a.py", "a = 1\n", "", "base/a.py:1: no line"),
            ("base/base.c", '#include <stdio.h>\n#include "base/base.h"\n', LINE, "its own header base/base.h comes first"),
            ("base/a.c", '#include "base.h"\n', LINE, "is no file of the tree"),
            ("base/a.c", '#include "../server/server.h"\n', LINE, "not rooted at the tree"),
            ("base/a.h", "size_t base_a_size(void);\n", LINE, "base/a.h:1: does not compile alone"),
            ("client/include/millrace/a.h", "uint8_t mr_a(void);\n", LINE, "does not compile alone"),
            ("newfolder/a.c", '#include "base/base.h"\n', LINE, "no row in the table of arrows"),
        ]
        for path, text, head, said in rows:
            with self.subTest(said):
                old = (self.tree / path).read_text() if (self.tree / path).exists() else None
                self.plant(path, text, head)
                self.assert_caught(said, "includes.py")
                (self.tree / path).unlink() if old is None else self.plant(path, old, "")
        self.assert_clean("includes.py")

    def test_nothing_matched(self):
        for folder in ("base", "scheduler", "proto", "worker", "server", "client"):
            shutil.rmtree(self.tree / folder)
        self.assert_caught("no source file", "includes.py")


class Format(Gate):
    def test_plant(self):
        self.assert_clean("format.sh")
        self.plant("server/a.c", "int  a( void );\n")
        self.assert_caught("server/a.c:2:4: error", "format.sh")
        self.assert_clean("format.sh", "--fix")
        self.assert_clean("format.sh")

    def test_nothing_matched(self):
        for folder in ("base", "scheduler", "proto", "worker", "server", "client"):
            shutil.rmtree(self.tree / folder)
        for gate in ("format.sh", "cppcheck.sh"):
            self.assert_caught("no file matches", gate)


class Cppcheck(Gate):
    def test_plant(self):
        self.assert_clean("cppcheck.sh")
        self.plant("server/a.c", "int server_a(void);\nint server_a(void)\n{\n    int a[4] = {0};\n    return a[4];\n}\n")
        self.assert_caught("Array 'a[4]' accessed at index 4", "cppcheck.sh")


class Tidy(Gate):
    def test_plant(self):
        self.assert_caught("run cmake --preset release first", "tidy.sh")
        self.compile("base/base.c")
        for folder in ("scheduler", "proto", "worker", "server", "client"):
            shutil.rmtree(self.tree / folder)
        self.assert_clean("tidy.sh")
        self.plant("base/base.c", "int base_one(int *at);\nint base_one(int *at)\n{\n    if (!at)\n        *at = 1;\n    return 1;\n}\n")
        self.assert_caught("clang-analyzer-core.NullDereference", "tidy.sh")
        self.plant("base/base.c", "int base_one(int a);\nint base_one(int a)\n{\n    if (a)\n        ;\n        return 1;\n    return 0;\n}\n")
        self.assert_caught("bugprone-suspicious-semicolon", "tidy.sh")

    def compile(self, path):
        (self.tree / "build/release").mkdir(parents=True)
        command = {"directory": str(self.tree), "file": path, "command": "cc -std=c17 -I. -c " + path}
        (self.tree / "build/release/compile_commands.json").write_text(json.dumps([command]))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
