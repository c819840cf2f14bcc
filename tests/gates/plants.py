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
            ("proto/wire/up.c", '#include "server/server.h"\n', "proto/wire may not include server/server.h"),
            ("proto/rpc/up.c", '#include "scheduler/scheduler.h"\n', "proto may not include scheduler/scheduler.h"),
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
                try:
                    self.assert_caught(said, "includes.py")
                finally:
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
            ("scheduler/a.c", "int a(void)\n{\n    return base_clock_now_ns() > 0;\n}\n", "base_clock_now_ns in a machine"),
        ]
        for path, text, said in rows:
            with self.subTest(text):
                self.plant(path, text)
                try:
                    self.assert_caught(said, "includes.py")
                finally:
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


class Docs(Gate):
    PAGES = {
        "README.md": "See [life](docs/life-of-a-block.md#two) and client/cli/.\n",
        "docs/life-of-a-block.md": "# One\n## Two\n`server_one()`\n```calls\nserver/a.c   server_a  the first\nserver/a.c     server_b\n"
                                   "base/base.c   ~base_one  handed over\n```\n",
        "docs/errors.md": "| `lost` | warn | a |\n| `worse` | error | b |\n## Codes\n| 1 | `invalid` |\n## Causes of bad rows\n"
                          "| 16 | `bad_empty` |\n## Exit codes\n| 0 | `ok` |\n",
        "docs/threading.md": "base/pool.c starts them; `pool.c`.\n",
    }
    CODE = {
        "server/a.c": "static void server_b(int bad)\n{\n    base_log(bad ? BASE_LOG_WARN : BASE_LOG_INFO, bad ? \"lost\" : \"found\", "
                      "\"at=%d\", f(1, 2));\n    base_log(BASE_LOG_ERROR, \"worse\", \"\");\n}\n\nint server_a(int bad)\n{\n    server_b(bad);\n"
                      "    return 1;\n}\n",
        "base/pool.c": "int go(void)\n{\n    return pthread_create(0, 0, 0, 0);\n}\n",
        "base/error.h": "enum base_code { BASE_OK = 0, BASE_INVALID = 1 };\n",
        "worker/pipeline/pipeline.h": "enum pipeline_verdict { PIPELINE_GOOD = 1, PIPELINE_BAD_EMPTY = 16 };\n",
        "client/cli/cli.h": "enum cli_exit { CLI_EXIT_OK = 0 };\n",
    }

    def setUp(self):
        super().setUp()
        for path, text in {**self.PAGES, **self.CODE}.items():
            self.plant(path, text)

    def test_rows(self):
        self.assert_clean("docs.py")
        rows = [  # path, what is replaced by what, what is said of it
            ("server/a.c", "int server_a", "int server_c", "server/a.c defines no server_a"),
            ("server/a.c", "    server_b(bad);", "    /* server_b */", "server_a does not mention server_b"),
            ("server/a.c", "int server_a(int bad)\n{\n", "int server_a(int bad);\nint server_c(int bad)\n{\n", "defines no server_a"),
            ("server/server.c", "server_one", "server_two", "docs/life-of-a-block.md:4: no file defines server_one()"),
            ("docs/life-of-a-block.md", "server/a.c     server_b", "then server_b", "no line of the form FILE function"),
            ("docs/life-of-a-block.md", "```calls", "```c", "names no function"),
            ("server/a.c", '"lost"', '"gone"', "server/a.c:4: id gone of level warn is not in docs/errors.md"),
            ("server/a.c", '"worse"', '"best"', "nothing logs worse with level error"),
            ("server/a.c", "BASE_LOG_ERROR", "BASE_LOG_WARN", "id worse of level warn is not in docs/errors.md"),
            ("server/a.c", '"lost" : "found"', 'name', "the level or the id of this line cannot be read"),
            ("docs/errors.md", "| `lost` | warn |", "| `lost` | error |", "nothing logs lost with level error"),
            ("base/error.h", "BASE_INVALID = 1", "BASE_INVALID = 1, BASE_NEW = 2", "'Codes' lacks 2 new of base/error.h"),
            ("worker/pipeline/pipeline.h", "BAD_EMPTY = 16", "BAD_EMPTY = 17", "worker/pipeline/pipeline.h has no 16 bad_empty"),
            ("client/cli/cli.h", "CLI_EXIT_OK = 0", "CLI_NO = 0", "no number under 'Exit codes' can be found"),
            ("base/base.c", "int base_one", "static pthread_mutex_t lock;\nint base_one", "base/base.c:1: starts a thread or has a lock"),
            ("README.md", "docs/life-of-a-block.md#two", "docs/life.md", "README.md:2: dead link docs/life.md"),
            ("README.md", "#two", "#three", "dead link docs/life-of-a-block.md#three: no such heading"),
            ("README.md", "client/cli/", "client/gone/", "README.md:2: no file or folder client/gone"),
            ("docs/errors.md", "| a |", "| worker/x.c |", "docs/errors.md:2: no file or folder worker/x.c"),
            ("docs/errors.md", "| a |", "| nowhere/x.c |", "docs/errors.md:2: no file or folder nowhere/x.c"),
            ("docs/threading.md", "`pool.c`", "`pond.c`", "docs/threading.md:2: no file is named pond.c"),
        ]
        for path, old, new, said in rows:
            with self.subTest(said):
                text = (self.tree / path).read_text()
                self.assertIn(old, text)
                self.plant(path, text.replace(old, new), "")
                self.assert_caught(said, "docs.py")
                self.plant(path, text, "")
        self.assert_clean("docs.py")

    def test_nothing_to_check(self):
        for path in self.PAGES:
            (self.tree / path).unlink()
            self.assert_caught("%s:1: is missing" % path, "docs.py")


class Packages(unittest.TestCase):
    """deploy/packages.sh among planted commands: `dpkg-query` knows gcc only, `apt-get` and `sudo` say what they were given."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="millrace-gate-")
        self.addCleanup(folder.cleanup)
        self.bin = pathlib.Path(folder.name)
        for name in ("bash", "sed", "dirname", "env"):
            (self.bin / name).symlink_to(shutil.which(name))
        self.command("dpkg-query", '[ "${@: -1}" = gcc ] && echo -n installed')
        self.command("apt-get", 'echo "apt-get $*"; [ "${@: -1}" != broken ]')
        self.command("id", "echo 1000")

    def command(self, name, text):
        (self.bin / name).write_text("#!/bin/bash\n%s\n" % text)
        (self.bin / name).chmod(0o755)

    def run_with(self, *lines):
        (self.bin / "packages.txt").write_text("\n".join(lines) + "\n")
        environment = {"PATH": str(self.bin), "MILLRACE_PACKAGES": str(self.bin / "packages.txt")}
        result = subprocess.run([ROOT / "deploy/packages.sh"], env=environment, capture_output=True, text=True)
        return result.returncode, result.stdout + result.stderr

    def test_nothing_missing(self):
        self.assertEqual(self.run_with("build gcc"), (0, ""))

    def test_neither_root_nor_sudo(self):
        code, output = self.run_with("build gcc", "build absent")
        self.assertEqual(code, 1)
        self.assertIn("no root and no sudo: ask an administrator for: apt-get install absent", output)

    def test_sudo_and_root(self):
        self.command("sudo", 'echo -n "sudo "; exec "$@"')
        self.assertIn("sudo apt-get install -q -y --no-install-recommends absent", self.run_with("build gcc", "build absent")[1])
        self.command("id", "echo 0")
        code, output = self.run_with("build gcc", "build absent")
        self.assertEqual(code, 0)
        self.assertNotIn("sudo", output)

    def test_apt_fails(self):
        self.command("id", "echo 0")
        code, output = self.run_with("build broken")
        self.assertEqual(code, 1)
        self.assertIn("apt-get could not install: broken", output)

    def test_wrong_set(self):
        code, output = self.run_with("test gcc")
        self.assertEqual(code, 2)
        self.assertIn('no set "build"', output)


class Summary(unittest.TestCase):
    """The closing count of tests/run.sh counts what failed, was skipped, or never came to be tested."""

    def count(self, cases, failed=()):
        with tempfile.TemporaryDirectory(prefix="millrace-gate-") as folder:
            text = "<testsuite>%s</testsuite>" % "".join(cases)
            (pathlib.Path(folder) / "part.xml").write_text(text)
            for name in failed:
                (pathlib.Path(folder) / (name + ".failed")).write_text("why")
            result = subprocess.run([ROOT / "tests/summary.py", "count", folder], capture_output=True, text=True)
            return result.returncode, result.stdout.splitlines()

    PASS = '<testcase name="p" status="run"/>'
    INNER = """<testcase name="i" status="run"><system-out>[ RUN      ] t
[  SKIPPED ] t
[==========] 2 test(s) run.
[  SKIPPED ] 1 test(s), listed below:
[  SKIPPED ] t
</system-out></testcase>"""

    def test_rows(self):
        rows = [
            ([self.PASS, self.PASS], (), 0, "2 passed, 0 failed, 0 skipped"),
            ([self.PASS, '<testcase name="f" status="fail"><failure message=""/></testcase>'], (), 1, "1 passed, 1 failed, 0 skipped"),
            ([self.PASS, '<testcase name="s" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>'], (), 0, "1 passed, 0 failed, 1 skipped"),
            ([self.PASS, '<testcase name="u" status="notrun"><skipped message="Unable to find executable"/></testcase>'], (), 1,
             "1 passed, 1 failed, 0 skipped"),
            ([self.INNER], (), 0, "1 passed, 0 failed, 1 skipped"),
            ([self.PASS, '<testcase name="n" status="notrun"/>'], (), 1, "1 passed, 1 failed, 0 skipped"),
            ([self.PASS], ("build",), 1, "1 passed, 1 failed, 0 skipped"),
            ([], (), 1, "0 passed, 0 failed, 0 skipped"),
        ]
        for cases, failed, code, line in rows:
            with self.subTest(line):
                status, lines = self.count(cases, failed)
                self.assertEqual((status, lines[-1]), (code, line))
        self.assertIn("skipped: part: s", self.count(rows[2][0])[1])
        self.assertIn("skipped: part: i: t", self.count([self.INNER])[1])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
