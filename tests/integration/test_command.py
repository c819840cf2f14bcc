# SPDX-License-Identifier: Apache-2.0
"""The `millrace` command as a stranger meets it: what it prints, how it exits, what cat writes."""
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

import harness
from harness import BIN, Cluster, need_data

PHOTOS = need_data("imagenet-mini")
MILLRACE = os.path.join(BIN, "millrace")


class Command(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(PHOTOS, 2).__enter__()
        cls.cluster.add("photos", PHOTOS)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__(None, None, None)

    def fails(self, code, words, *args):
        reply = self.cluster.cli(*args, check=False)
        self.assertEqual(reply.returncode, code, reply.stdout + reply.stderr)
        for word in words:
            self.assertIn(word, reply.stderr)
        return reply

    def test_completion_completes(self):
        script = ("source <(%s completion); COMP_WORDS=(millrace %s); COMP_CWORD=%d; _millrace; echo ${COMPREPLY[*]}")
        for words, at, expected in (("dat", 1, "dataset"), ("dataset ver", 2, "verify"), ("cat --trans", 2, "--transforms")):
            reply = subprocess.run(["bash", "-c", script % (MILLRACE, words, at)], capture_output=True, text=True, timeout=20)
            self.assertEqual(reply.stdout.strip(), expected, reply.stderr)

    def test_every_command_has_help_and_the_program_a_version(self):
        listed = subprocess.run([MILLRACE, "--help"], capture_output=True, text=True, timeout=20).stdout
        commands = listed.split("Commands:\n")[1].split("\n\n")[0]
        names = [line.split()[0] for line in commands.splitlines()]
        self.assertIn("cat", names)
        for name in names:
            reply = self.cluster.cli(name, "--help")
            self.assertIn(f"millrace {name}", reply.stdout)
        self.assertRegex(self.cluster.cli("--version").stdout, r"^millrace \d+\.\d+\.\d+\n$")
        self.assertEqual(self.cluster.cli("cat", "--version").stdout, self.cluster.cli("--version").stdout)
        for program in ("millrace-server", "millrace-worker"):
            said = subprocess.run([os.path.join(harness.BIN, program), "--version"], capture_output=True, text=True)
            self.assertEqual(said.returncode, 0, said.stderr)
            self.assertRegex(said.stdout, rf"^{program} \d+\.\d+\.\d+\n$")
        self.assertEqual(subprocess.run([MILLRACE], capture_output=True, timeout=20).returncode, 2)

    def test_exit_codes(self):
        self.fails(3, ["nothing"], "cat", "nothing", "--out", self.cluster.path("x"))
        self.fails(3, ["nothing"], "run", "nothing")
        self.fails(3, ["7"], "drain", "7")
        self.fails(2, ["seven"], "drain", "seven")
        self.fails(3, ["127.0.0.1:1"], "drain", "127.0.0.1:1")
        self.fails(2, ["--out"], "cat", "photos")
        self.fails(2, ["--weight", "0.01 to 100"], "run", "photos", "--weight", "0.001")
        self.fails(2, ["--weight", "0.01 to 100"], "run", "photos", "--weight", "nan")
        self.fails(2, ["--join later", "now, next or partial"], "run", "photos", "--join", "later")
        self.fails(2, ["--ledger /dev/null", "Not a directory"], "run", "photos", "--ledger", "/dev/null")
        self.fails(2, ["--ledger /dev/null/x", "Not a directory"], "run", "photos", "--ledger", "/dev/null/x")
        self.fails(2, ["usage"], "dataset", "show")
        self.fails(1, ["400"], "cat", "photos", "--from", "400", "--out", self.cluster.path("x"))
        self.fails(1, ['server: address "there": no port'], "jobs", "--server", "there")
        self.fails(4, [], "jobs", "--server", f"127.0.0.1:{harness.free_port()}")
        error = json.loads(self.fails(3, ["nothing"], "dataset", "show", "nothing", "--json").stdout)
        self.assertEqual(error["error"]["code"], "not_found")
        self.assertFalse(os.path.exists(self.cluster.path("x")))

    def test_cat_writes_the_part_that_was_asked_for(self):
        whole = self.cluster.cat("photos", "whole", "--seed", "5", "--epoch", "2")
        part = self.cluster.cat("photos", "part", "--seed", "5", "--epoch", "2", "--from", "101", "--count", "77")
        self.assertEqual([r["position"] for r in whole.rows], list(range(400)))
        self.assertEqual(sorted(r["item"] for r in whole.rows), list(range(400)))
        self.assertEqual(part.rows, whole.rows[101:178])
        for field in ("image", "label", "box", "flip"):
            self.assertTrue((part.field(field) == whole.field(field)[101:178]).all())
        self.assertEqual(len(self.cluster.cat("photos", "tail", "--from", "390", "--count", "50").rows), 10)
        other = self.cluster.cat("photos", "other", "--seed", "6", "--epoch", "2", "--count", "20")
        self.assertNotEqual([r["item"] for r in other.rows], [r["item"] for r in whole.rows[:20]])
        self.assertEqual(set(other.rows[0]), {"epoch", "position", "item", "used_item", "path", "label", "status", "cause",
                                              "hash", "box", "flip"})
        self.assertEqual(sorted(os.listdir(other.path)), ["box.npy", "flip.npy", "image.npy", "label.npy", "rows.jsonl"])

    def test_run_counts_what_was_shared(self):
        reply = json.loads(self.cluster.cli("run", "photos", "--jobs", "3", "--epochs", "2", "--seed", "77", "--quiet",
                                            "--json").stdout)
        self.assertEqual([j["rows"] for j in reply["jobs"]], [800] * 3)
        self.assertEqual(reply["delivered"], 2400)
        self.assertLessEqual(reply["prepared"], 840)
        text = self.cluster.cli("run", "photos", "--seed", "77")
        self.assertIn("items delivered  400", text.stdout)
        self.assertIn("100%  400 rows", text.stderr)

    def test_a_join_that_times_out_says_what_it_waited_for(self):
        slow = self.cluster.trainer("slow", "photos", job="slow", seed=99, batch=8, epochs=1, pace=20)
        harness.wait_for("a step", lambda: [j for j in json.loads(self.cluster.cli("jobs", "--json").stdout)["jobs"]
                                            if j["job"] == "slow" and j["rows"] > 0])
        self.fails(4, ["waits for the next epoch", "read by slow"], "run", "photos", "--seed", "99", "--join", "next",
                   "--wait-ms", "1500", "--quiet")
        slow.kill()

    def test_an_interrupted_run_ends_at_once(self):
        job = subprocess.Popen([MILLRACE, "run", "photos", "--epochs", "1000", "--weight", "2.5", "--server", self.cluster.address],
                               stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        jobs = lambda: [j for j in json.loads(self.cluster.cli("jobs", "--json").stdout)["jobs"] if j["state"] == "running" and j["job"] != "slow"]
        harness.wait_for("the job", jobs)
        self.assertEqual([j["weight"] for j in jobs()], [2.5])
        job.send_signal(signal.SIGINT)
        start = time.monotonic()
        job.communicate(timeout=10)
        self.assertEqual(job.returncode, 130)
        self.assertLess(time.monotonic() - start, 3)

    def test_an_interrupted_bench_ends_at_once(self):
        with tempfile.TemporaryDirectory() as tmp:
            bench = subprocess.Popen([MILLRACE, "bench", PHOTOS, "--seconds", "600"], stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                                     env=dict(os.environ, TMPDIR=tmp))
            log = lambda: "".join(open(os.path.join(d, f), errors="replace").read() for d, _, files in os.walk(tmp)
                                  for f in files if f.endswith(".log"))
            harness.wait_for("rows", lambda: "id=block_made" in log())
            bench.send_signal(signal.SIGINT)
            start = time.monotonic()
            bench.communicate(timeout=20)
            self.assertEqual(bench.returncode, 130)
            self.assertLess(time.monotonic() - start, 8)
            self.assertEqual(os.listdir(tmp), [])

    def test_a_loader_that_bench_cannot_use_is_told_why(self):
        with tempfile.TemporaryDirectory() as tmp:
            for i, (text, says) in enumerate([(None, "no such file"), ("x = 1", "defines no function loader"), ("def loader(): return [1, 2]", "a batch is int, not"),
                                              ("import no_such_thing", r"No module named 'no_such_thing', of /\S*python\S*: it is the python3 of your PATH")]):
                path = os.path.join(tmp, f"loader_{i}.py")
                if text:
                    with open(path, "w") as f:
                        f.write(text)
                reply = subprocess.run([MILLRACE, "bench", PHOTOS, "--seconds", "1", "--against", path], capture_output=True, text=True, timeout=60)
                self.assertEqual(reply.returncode, 1, reply.stderr)
                self.assertRegex(reply.stderr, f"^{path}: {says}")

    def test_bench_prints_its_figures(self):
        reply = subprocess.run([MILLRACE, "bench", PHOTOS, "--seconds", "1", "--json", "--against",
                                "echo some peer images/s 10.0 cpu_s/1000 99.0"], capture_output=True, text=True, timeout=120)
        self.assertEqual(reply.returncode, 0, reply.stderr)
        figures = json.loads(reply.stdout)
        for key in ("images_per_s", "images_per_s_per_core", "cpu_s_per_1000", "ratio"):
            self.assertGreater(figures["prep"][key], 0)
        for key in ("gb_per_s", "cpu_s_per_gb", "copy_gb_per_s", "copy_cpu_s_per_gb"):
            self.assertGreater(figures["plane"][key], 0)


if __name__ == "__main__":
    harness.main()
