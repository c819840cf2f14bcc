# SPDX-License-Identifier: Apache-2.0
"""A worker taken out of service: it makes nothing new, what it has is served, nobody notices."""
import json
import os
import tempfile
import unittest

import harness
from harness import Cluster, copy_photos, need_data, wait_for

need_data("imagenet-mini")


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
                made, seen = len(cluster.blocks_made(1)), len(cluster.rows("t"))
                wait_for("more rows", lambda: len(cluster.rows("t")) >= seen + 200)
                self.assertLessEqual(len(cluster.blocks_made(1)), made + 8)
                self.assertEqual(cluster.workers[1].end(20), 0)
                self.assertEqual(len(json.loads(cluster.cli("workers", "--json").stdout)["workers"]), 1)  # it said goodbye
                self.assertEqual(trainer.wait(60), 0, trainer.tail())
                self.assertEqual([r.key() for r in cluster.rows("t")], [(e, p) for e in range(3) for p in range(200)])


if __name__ == "__main__":
    harness.main()
