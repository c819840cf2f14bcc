# SPDX-License-Identifier: Apache-2.0
"""`millrace up`: one command that starts everything, and ends all that it started; draining a worker."""
import json
import os
import signal
import tempfile
import unittest

import harness
from harness import BIN, Cluster, Process, copy_photos, free_port, need_data, wait_for

need_data("imagenet-mini")


def children(pid):
    found, todo = [], [pid]
    while todo:
        p = todo.pop()
        try:
            for task in os.listdir(f"/proc/{p}/task"):
                with open(f"/proc/{p}/task/{task}/children") as f:
                    more = [int(c) for c in f.read().split()]
                found += more
                todo += more
        except OSError:
            pass
    return found


def gone(pids):
    def alive(pid):
        try:
            with open(f"/proc/{pid}/stat") as f:
                return f.read().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False
    return not any(alive(p) for p in pids)


class Up(unittest.TestCase):
    def up(self, folder, *args):
        address = f"127.0.0.1:{free_port()}"
        process = Process([os.path.join(BIN, "millrace"), "up", "--workers", "2", "--data-root", folder, "--listen", address,
                           "--state", os.path.join(folder, "state"), *args], os.path.join(folder, "up.log"))
        self.addCleanup(process.kill)
        self.assertEqual(process.ready()[1], address)
        return process, address

    def test_ready_serving_and_gone(self):
        for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            with self.subTest(sign=sign), tempfile.TemporaryDirectory() as folder:
                os.chmod(folder, 0o755)
                copy_photos(os.path.join(folder, "photos"), 20)
                process, address = self.up(folder)
                pids = children(process.popen.pid)
                self.assertEqual(len(pids), 3)
                cluster = Cluster(folder, 0)
                cluster.address = address
                cluster.add("photos", os.path.join(folder, "photos"))
                self.assertEqual(len(cluster.cat("photos", "out").rows), 20)
                process.kill(sign)
                code = process.wait(20)
                wait_for("the children's end", lambda: gone(pids), 20)
                if sign != signal.SIGKILL:
                    self.assertEqual(code, 0, process.tail())
                cluster.stop()

    def test_a_worker_that_cannot_start_ends_it_with_the_cause(self):
        with tempfile.TemporaryDirectory() as folder:
            process = Process([os.path.join(BIN, "millrace"), "up", "--data-root", os.path.join(folder, "not-there"), "--listen",
                               f"127.0.0.1:{free_port()}", "--state", os.path.join(folder, "state")],
                              os.path.join(folder, "up.log"))
            self.assertNotEqual(process.wait(30), 0)
            self.assertIn("not-there", process.text())


class Drain(unittest.TestCase):
    def test_a_drained_worker_makes_nothing_new_and_nobody_notices(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            copy_photos(folder, 200)
            with Cluster(folder, 2) as cluster:
                cluster.add("photos", folder)
                trainer = cluster.trainer("t", "photos", job="t", batch=10, tail="exact", epochs=3, pace=150)
                wait_for("the first epoch", lambda: len(cluster.rows("t")) >= 100)
                workers = json.loads(cluster.cli("workers", "--json").stdout)["workers"]
                first = next(w for w in workers if cluster.workers[1].address in w["endpoint"]["addresses"])
                cluster.cli("drain", first["endpoint"]["worker"])
                wait_for("one ready worker", lambda: sorted(w["state"] for w in json.loads(
                    cluster.cli("workers", "--json").stdout)["workers"]) == ["draining", "ready"])
                made = len(cluster.blocks_made(1))
                seen = len(cluster.rows("t"))
                wait_for("more rows", lambda: len(cluster.rows("t")) >= seen + 200)
                self.assertLessEqual(len(cluster.blocks_made(1)), made + 8)
                self.assertEqual(cluster.workers[1].end(20), 0)
                self.assertEqual(trainer.wait(60), 0, trainer.tail())
                self.assertEqual([r.key() for r in cluster.rows("t")], [(e, p) for e in range(3) for p in range(200)])


if __name__ == "__main__":
    harness.main()
