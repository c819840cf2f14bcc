# SPDX-License-Identifier: Apache-2.0
"""The server killed, trainers killed, files that go away: nothing lost, nothing doubled, everything named."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import harness
from harness import BIN, Cluster, Process, copy_photos, need_data, wait_for

PHOTOS = need_data("imagenet-mini")


class ServerDeath(unittest.TestCase):
    def test_running_jobs_do_not_notice_and_state_survives(self):
        """The outage spans an epoch's end and a worker's death."""
        with Cluster(PHOTOS, 3) as cluster:
            cluster.add("photos", PHOTOS)
            trainer = cluster.trainer("t", "photos", job="t", batch=16, tail="exact", epochs=3, pace=200)
            wait_for("the first half epoch", lambda: len(cluster.rows("t")) >= 200)
            cluster.server.kill(signal.SIGKILL)
            cluster.server.wait()
            wait_for("the second epoch", lambda: len(cluster.rows("t")) >= 500)
            cluster.workers[1].kill(signal.SIGKILL)
            wait_for("some of the rest", lambda: len(cluster.rows("t")) >= 800)
            os.rename(cluster.path("server.log"), cluster.path("server-first.log"))
            cluster.start_server()
            self.assertEqual(trainer.wait(120), 0, trainer.tail())
            rows = cluster.rows("t")
            self.assertEqual([r.key() for r in rows], [(e, p) for e in range(3) for p in range(400)])
            listed = json.loads(cluster.cli("dataset", "list", "--json").stdout)["datasets"]
            self.assertEqual([(d["name"], d["state"], d["items"]) for d in listed], [("photos", "ready", 400)])
            cluster.wait_workers(2)
            again = cluster.trainer("u", "photos", job="u", batch=16, tail="exact", epochs=1)
            self.assertEqual(again.wait(60), 0, again.tail())
            self.assertEqual({(r.key(), r.hash) for r in cluster.rows("u")},
                             {(r.key(), r.hash) for r in rows if r.epoch == 0})

    def test_jobs_are_still_there_after_a_restart(self):
        with Cluster(PHOTOS, 1) as cluster:
            cluster.add("photos", PHOTOS)
            trainer = cluster.trainer("long", "photos", job="long", batch=16, epochs=50, pace=100)
            wait_for("its first rows", lambda: len(cluster.rows("long")) >= 32)
            cluster.server.kill(signal.SIGKILL)
            cluster.server.wait()
            cluster.start_server()
            jobs = json.loads(cluster.cli("jobs", "--json").stdout)["jobs"]
            self.assertIn("long", [j["job"] for j in jobs])
            wait_for("the job to be running again",
                     lambda: [j["state"] for j in json.loads(cluster.cli("jobs", "--json").stdout)["jobs"]] == ["running"])
            seen = len(cluster.rows("long"))
            wait_for("more rows", lambda: len(cluster.rows("long")) > seen + 64)
            trainer.kill()


class Resume(unittest.TestCase):
    def test_a_killed_trainer_goes_on_with_another_shape(self):
        """Killed at batch 16 of one rank; resumed with batch 10 of two ranks: the union is the epoch."""
        with Cluster(PHOTOS, 2) as cluster:
            cluster.add("photos", PHOTOS)
            cursor = cluster.path("cursor")
            first = cluster.trainer("first", "photos", job="run", batch=16, tail="exact", epochs=1, pace=300,
                                    cursor_out=cursor)
            wait_for("ten batches", lambda: len(cluster.rows("first")) >= 160)
            first.kill(signal.SIGKILL)
            first.wait()
            ranks = [cluster.trainer(f"second-{r}", "photos", job="run", batch=10, world=2, rank=r, tail="exact", epochs=1,
                                     cursor_in=cursor) for r in (0, 1)]
            for process in ranks:
                self.assertEqual(process.wait(60), 0, process.tail())
            before = {r.position: r.hash for r in cluster.rows("first")}
            after = [r for i in (0, 1) for r in cluster.rows(f"second-{i}")]
            self.assertEqual(sorted(set(before) | {r.position for r in after}), list(range(400)))
            self.assertEqual(len({r.position for r in after}), len(after))
            twice = [r for r in after if r.position in before]
            self.assertLessEqual(len(twice), 16)
            self.assertTrue(all(before[r.position] == r.hash for r in twice))
            self.assertTrue(all(r.epoch == 0 and r.job_epoch == 0 for r in after))

    def test_cursors_that_do_not_fit_are_refused_by_name(self):
        with Cluster(PHOTOS, 1) as cluster:
            cluster.add("photos", PHOTOS)
            cursor = cluster.path("cursor")
            self.assertEqual(cluster.trainer("a", "photos", job="a", batch=16, batches=3, cursor_out=cursor).wait(), 0)
            with tempfile.TemporaryDirectory() as folder:
                os.chmod(folder, 0o755)
                copy_photos(folder, 40)
                with Cluster([folder], 1) as other:
                    other.add("photos", folder)
                    refused = other.trainer("b", "photos", job="b", batch=16, cursor_in=cursor)
                    self.assertEqual(refused.wait(), 1)
                    self.assertIn("version", refused.tail())
            text = open(cursor).read().strip()
            open(cursor, "w").write(text[:-1] + ("0" if text[-1] != "0" else "1") + "\n")
            self.assertEqual(cluster.trainer("c", "photos", job="c", batch=16, cursor_in=cursor).wait(), 1)


class Joins(unittest.TestCase):
    def test_next_waits_for_an_epoch_and_partial_starts_at_the_front(self):
        with Cluster(PHOTOS, 2) as cluster:
            cluster.add("photos", PHOTOS)
            first = cluster.trainer("first", "photos", job="first", batch=16, tail="exact", epochs=3, pace=200)
            wait_for("the server to know of the middle of epoch 0", lambda: any(
                job["at"]["position"] >= 100 for job in json.loads(cluster.cli("jobs", "--json").stdout)["jobs"]))
            late = cluster.trainer("next", "photos", job="next", batch=20, tail="exact", epochs=1, join="next")
            part = cluster.trainer("partial", "photos", job="partial", batch=16, tail="exact", epochs=2, join="partial",
                                   pace=200)
            for process in (first, late, part):
                self.assertEqual(process.wait(60), 0, process.tail())
            self.assertEqual([r.key() for r in cluster.rows("next")], [(1, p) for p in range(400)])
            keys = [r.key() for r in cluster.rows("partial")]
            begun = keys[0][1]
            self.assertGreaterEqual(begun, 100)
            self.assertEqual(keys, [(0, p) for p in range(begun, 400)] + [(1, p) for p in range(400)])
            self.assertEqual({r.job_epoch for r in cluster.rows("next")}, {0})
            alone = cluster.trainer("alone", "photos", job="alone", batch=16, epochs=1, join="next")
            self.assertEqual(alone.wait(60), 0, alone.tail())
            self.assertEqual(len(cluster.rows("alone")), 400)


class Unavailable(unittest.TestCase):
    """A file that goes away after indexing is unavailable, named, and never a bad sample."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="millrace-gone-")
        os.chmod(self.folder, 0o755)
        copy_photos(self.folder, 24)
        self.victim = sorted(os.path.join(d, f) for d, _, fs in os.walk(self.folder) for f in fs)[5]
        for path, dirs, files in os.walk(self.folder):
            for name in files:
                os.chmod(os.path.join(path, name), 0o644)

    def tearDown(self):
        shutil.rmtree(self.folder)

    def check(self, harm, heal, **cluster_options):
        with Cluster(self.folder, 2, **cluster_options) as cluster:
            cluster.add("photos", self.folder)
            shutil.copy2(self.victim, cluster.path("kept"))
            harm(self.victim)
            trainer = cluster.trainer("t", "photos", job="t", batch=8, tail="exact", on_bad="replace", unavailable_ms=700)
            self.assertEqual(trainer.wait(60), 1)
            said = trainer.text()
            self.assertIn("unavailable", said)
            self.assertIn(os.path.basename(self.victim), said)
            self.assertTrue(all(r.status == 0 for r in cluster.rows("t")))
            info = json.loads(cluster.cli("dataset", "show", "photos", "--json").stdout)
            self.assertEqual(info["bad_items"], 0)
            verify = cluster.cli("dataset", "verify", "photos", "--json", check=False)
            self.assertIn(os.path.basename(self.victim), verify.stdout)
            heal(self.victim, cluster.path("kept"))
            healed = cluster.trainer("u", "photos", job="u", batch=8, tail="exact", unavailable_ms=20000)
            self.assertEqual(healed.wait(60), 0, healed.tail())
            self.assertEqual(len(cluster.rows("u")), 24)

    @staticmethod
    def restore(path, kept):
        shutil.copy2(kept, path)

    def test_deleted(self):
        self.check(os.unlink, self.restore)

    def test_replaced(self):
        def replace(path):
            with open(path, "ab") as f:
                f.write(b"more")
        self.check(replace, self.restore)

    @unittest.skipIf(os.geteuid() != 0, "needs root, to run the workers as somebody else")
    def test_unreadable_for_the_worker(self):
        def nobody():
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)

        class AsNobody(Cluster):
            def start_worker(self, i, extra=(), **popen):
                os.makedirs(self.path(f"worker-{i}"))
                os.chown(self.path(f"worker-{i}"), 65534, 65534)
                return super().start_worker(i, extra, preexec_fn=nobody, **popen)
        saved, globals()["Cluster"] = Cluster, AsNobody
        try:
            self.check(lambda p: os.chmod(p, 0), lambda p, kept: os.chmod(p, 0o644))
        finally:
            globals()["Cluster"] = saved


if __name__ == "__main__":
    harness.main()
