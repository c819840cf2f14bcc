# SPDX-License-Identifier: Apache-2.0
"""`millrace up`: ready when it says so, and nothing left when it ends, however it ends."""
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

import harness
from harness import BIN, Process, copy_photos, need_data, wait_for

need_data("imagenet-mini")


def children(pid):
    """Of its first thread, which starts them all."""
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return list(map(int, f.read().split()))


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Up(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="millrace-up-")
        self.photos = copy_photos(os.path.join(self.dir, "photos"), 40)
        self.up, self.pids = None, []

    def tearDown(self):
        if self.up and self.up.popen.poll() is None:
            self.up.end(30)
        shutil.rmtree(self.dir)

    def start(self, *args, workers=2):
        self.up = Process([os.path.join(BIN, "millrace"), "up", "--workers", str(workers), "--data-root", self.photos, "--listen",
                           "127.0.0.1:0", "--http", "127.0.0.1:0", "--state", os.path.join(self.dir, "state"), *args],
                          os.path.join(self.dir, "up.log"))
        line = self.up.line()
        self.assertRegex(line or self.up.tail(), r"^ready 127\.0\.0\.1:\d+$")
        self.address = line.split()[1]
        self.pids = children(self.up.popen.pid)
        self.assertEqual(len(self.pids), workers + 1)

    def cli(self, *args):
        return subprocess.run([os.path.join(BIN, "millrace"), *args, "--server", self.address], capture_output=True, text=True,
                              timeout=120, stdin=subprocess.DEVNULL)

    def all_gone(self, timeout_s=10):
        wait_for("the end of all that was started", lambda: not any(map(alive, self.pids)), timeout_s)

    def test_all_is_there_when_it_says_ready_and_gone_after_sigterm(self):
        self.start()
        workers = json.loads(self.cli("workers", "--json").stdout)["workers"]
        self.assertEqual([w["state"] for w in workers], ["ready", "ready"])
        reply = self.cli("dataset", "add", "photos", self.photos)
        self.assertEqual(reply.returncode, 0, reply.stderr)
        self.assertRegex(reply.stdout, r"^photos: 40 items in \d+ class")
        self.assertEqual(sorted(os.listdir(os.path.join(self.dir, "state", "log"))),
                         ["server.log", "worker-1.log", "worker-2.log"])
        self.assertEqual(self.up.end(20), 0)
        self.all_gone(0.1)

    def test_ctrl_c_ends_all(self):
        self.start()
        self.up.kill(signal.SIGINT)
        self.assertEqual(self.up.wait(20), 0)
        self.all_gone(0.1)

    def test_kill_ends_all(self):
        self.start()
        self.up.kill(signal.SIGKILL)
        self.up.wait(5)
        self.all_gone()

    def test_a_death_is_told_and_the_rest_goes_on(self):
        self.start()
        worker = next(p for p in self.pids if "worker" in open(f"/proc/{p}/cmdline").read())
        os.kill(worker, signal.SIGKILL)
        wait_for("the report", lambda: re.search(r"worker-\d was ended by signal 9", self.up.text()))
        self.assertEqual(self.cli("workers").returncode, 0)
        self.assertEqual(self.up.end(20), 0)
        self.all_gone(0.1)

    def test_datasets_outlive_a_restart(self):
        self.start(workers=1)
        self.assertEqual(self.cli("dataset", "add", "photos", self.photos).returncode, 0)
        self.assertEqual(self.up.end(20), 0)
        self.start(workers=1)
        wait_for("the dataset", lambda: json.loads(
            self.cli("dataset", "show", "photos", "--json").stdout)["eligible_workers"] == 1)

    def refused(self, words, *args, code):
        reply = subprocess.run([os.path.join(BIN, "millrace"), "up", *args], capture_output=True, text=True, timeout=60,
                               stdin=subprocess.DEVNULL)
        self.assertEqual(reply.returncode, code, reply.stderr)
        for word in words:
            self.assertIn(word, reply.stderr)

    def test_what_cannot_be_started_is_named(self):
        self.start(workers=0)
        state, other = os.path.join(self.dir, "state"), os.path.join(self.dir, "other")
        self.refused([state, "another"], "--state", state, code=1)
        self.refused([self.address.split(":")[1]], "--state", other, "--listen", self.address, "--http", "127.0.0.1:0", code=4)
        self.refused(["no-such-folder"], "--state", other, "--data-root", os.path.join(self.dir, "no-such-folder"), code=3)
        self.refused(["--no-such-flag"], "--no-such-flag", code=2)
        self.refused(["--no-such-flag"], "--state", other, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--workers", "1",
                     "--", "--no-such-flag", code=2)


if __name__ == "__main__":
    harness.main()
