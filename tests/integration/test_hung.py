# SPDX-License-Identifier: Apache-2.0
"""Processes that hang rather than die: they hold their connections and say nothing. Every wait has its deadline all the same."""
import json
import os
import signal
import tempfile
import time
import unittest

import harness
from harness import BIN, Cluster, need_data, wait_for
from relay import Relay

PHOTOS = need_data("imagenet-mini")
EPOCHS = 2


class Hung(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(PHOTOS, 2).__enter__()
        self.addCleanup(self.cluster.stop)
        self.cluster.add("photos", PHOTOS)

    def rows_are_whole(self, name):
        self.assertEqual([r.key() for r in self.cluster.rows(name)], [(e, p) for e in range(EPOCHS) for p in range(400)])

    def start(self, name):
        trainer = self.cluster.trainer(name, "photos", job=name, batch=16, tail="exact", epochs=EPOCHS, pace=200)
        wait_for("the first rows", lambda: len(self.cluster.rows(name)) >= 100)
        return trainer

    def test_a_worker(self):
        trainer = self.start("t")
        worker = self.cluster.workers[1]
        worker.kill(signal.SIGSTOP)
        self.assertEqual(trainer.wait(60), 0, trainer.tail())
        self.rows_are_whole("t")
        said = dict(f.split("=") for f in trainer.buffer.decode().split())
        self.assertLess(int(said["longest_wait_ms"]), 8000)
        self.assertGreater(int(said["failovers"]), 0)
        worker.kill(signal.SIGCONT)
        self.cluster.wait_workers(2)
        again = self.cluster.trainer("u", "photos", job="u", batch=16, tail="exact", epochs=EPOCHS)
        self.assertEqual(again.wait(60), 0, again.tail())
        self.assertEqual([(r.key(), r.hash) for r in self.cluster.rows("u")], [(r.key(), r.hash) for r in self.cluster.rows("t")])

    def test_a_pause(self):
        """Silent for too short a time to be dead: its late blocks come from the other, and no row differs."""
        epochs, pauses = 5, 3
        options = dict(batch=4, tail="exact", epochs=epochs)
        trainer = self.cluster.trainer("t", "photos", job="t", pace=400, **options)
        for i in range(pauses):
            wait_for("rows to earn hedges by", lambda: len(self.cluster.rows("t")) >= 400 * (i + 1))
            self.cluster.workers[1].kill(signal.SIGSTOP)
            time.sleep(0.6)
            self.cluster.workers[1].kill(signal.SIGCONT)
        self.assertEqual(trainer.wait(60), 0, trainer.tail())
        said = dict(f.split("=") for f in trainer.buffer.decode().split())
        print(f"longest wait {said['longest_wait_ms']} ms; {said['hedges']} hedges, {said['hedges_won']} won, of {said['requests']} requests")
        self.assertGreater(int(said["hedges_won"]), 0)
        self.assertLessEqual(50 * int(said["hedges"]), int(said["requests"]))
        quiet = self.cluster.trainer("u", "photos", job="u", **options)
        self.assertEqual(quiet.wait(60), 0, quiet.tail())
        self.assertEqual([(r.key(), r.hash) for r in self.cluster.rows("t")], [(r.key(), r.hash) for r in self.cluster.rows("u")])
        self.assertEqual(len(self.cluster.rows("t")), 400 * epochs)

    def test_a_server(self):
        trainer = self.start("t")
        self.cluster.server.kill(signal.SIGSTOP)
        self.assertEqual(trainer.wait(60), 0, trainer.tail())
        self.rows_are_whole("t")
        begin = time.monotonic()
        late = self.cluster.trainer("late", "photos", job="late", timeout_ms=1500)
        self.assertEqual(late.wait(20), 1)
        self.assertGreater(time.monotonic() - begin, 1.4)
        self.assertLess(time.monotonic() - begin, 8)
        self.assertIn(self.cluster.address, late.tail())
        begin = time.monotonic()
        reply = self.cluster.cli("jobs", "--timeout-ms", "1000", check=False)
        self.assertEqual(reply.returncode, 4, reply.stderr)
        self.assertLess(time.monotonic() - begin, 6)
        self.cluster.server.kill(signal.SIGCONT)
        again = self.cluster.trainer("u", "photos", job="u", batch=16, tail="exact", epochs=EPOCHS)
        self.assertEqual(again.wait(60), 0, again.tail())
        self.rows_are_whole("u")
        jobs = {j["job"]: j for j in json.loads(self.cluster.cli("jobs", "--json").stdout)["jobs"]}
        self.assertEqual((jobs["u"]["state"], jobs["u"]["rows"]), ("closed", 400 * EPOCHS))


class Storage(unittest.TestCase):
    """A worker whose reads do not come back goes all the same when it is told to."""

    def test_a_worker_ends_all_the_same(self):
        with Cluster(PHOTOS, 1) as cluster:
            hang = cluster.path("hang")
            cluster.env = {"LD_PRELOAD": os.path.join(BIN, "libmillrace-test-hang.so"), "MILLRACE_TEST_HANG": hang}
            slow = cluster.start_worker(2, extra=["--drain-ms", "1000"])
            cluster.env = None
            cluster.add("photos", PHOTOS)
            open(hang, "w").close()
            trainer = cluster.trainer("t", "photos", job="t", batch=16, tail="exact", epochs=EPOCHS)
            wait_for("blocks of the other worker", lambda: len(cluster.blocks_made(1)) >= 2)
            self.assertEqual(slow.end(), 0, slow.tail())
            self.assertIn("left threads", slow.text())
            self.assertEqual(cluster.blocks_made(2), [])
            self.assertEqual(trainer.wait(60), 0, trainer.tail())
            self.assertEqual([r.key() for r in cluster.rows("t")], [(e, p) for e in range(EPOCHS) for p in range(400)])


class ControlLink(unittest.TestCase):
    """A worker's connection to the server forwards nothing any more, and nobody resets it."""

    def test_the_worker_is_back_before_anybody_misses_it(self):
        with tempfile.TemporaryDirectory() as root, Cluster(root, 1) as cluster:
            relay = Relay(cluster.address)
            self.addCleanup(relay.close)
            worker = cluster.start_worker(2, server=relay.address)
            cluster.wait_workers(2)
            dialled = relay.count
            relay.hole(later=False)
            begin = time.monotonic()
            wait_for("the worker to see it", lambda: "id=server_away" in worker.text())
            wait_for("the worker to be back", lambda: worker.text().count("id=server_here") == 2)
            print(f"back after {time.monotonic() - begin:.1f} s, {relay.count - dialled} connections more")
            self.assertEqual(relay.count - dialled, 1)
            self.assertNotIn("is lost", cluster.server.text())  # its lease did not end


if __name__ == "__main__":
    harness.main()
