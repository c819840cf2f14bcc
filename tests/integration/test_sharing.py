# SPDX-License-Identifier: Apache-2.0
"""Jobs that share a stream: each item is prepared once for all of them, counted from the workers' own logs."""
import signal
import unittest

import harness
from harness import Cluster, PhotosTest, need_data, wait_for

PHOTOS = need_data("imagenet-mini")
ITEMS, EPOCHS, BLOCK_ROWS = 397, 2, 8
# name, batch, world, pace in rows per second of a rank, items after the first job at which it starts
JOBS = (("a", 16, 1, 120, 0), ("b", 20, 2, 60, 16), ("c", 50, 1, 120, 40), ("d", 16, 2, 60, 64))


class Sharing(PhotosTest):
    COUNT = ITEMS

    def start(self, cluster, jobs=JOBS, epochs=EPOCHS, **more):
        started = []
        for name, batch, world, pace, after in jobs:
            first = jobs[0][0]
            wait_for(f"job {first} to be {after} items on", lambda n=after: len(cluster.rows(f"{first}-0")) >= n)
            for rank in range(world):
                started.append(cluster.trainer(f"{name}-{rank}", "photos", job=name, rank=rank, world=world, batch=batch,
                                               tail="exact", epochs=epochs, pace=pace, look_ahead=2, **more))
        return started

    def finish(self, cluster, started, jobs=JOBS, epochs=EPOCHS):
        for process in started:
            self.assertEqual(process.wait(120), 0, process.tail())
        hashes = {}
        for name, _, world, _, _ in jobs:
            rows = [row for rank in range(world) for row in cluster.rows(f"{name}-{rank}")]
            self.assertEqual(sorted(r.key() for r in rows), [(e, p) for e in range(epochs) for p in range(ITEMS)], name)
            self.assertTrue(all(r.valid for r in rows))
            for row in rows:
                self.assertEqual(hashes.setdefault(row.key(), (row.item, row.hash)), (row.item, row.hash))
        return hashes

    def test_four_jobs_prepare_each_item_once(self):
        with Cluster(self.folder, 3, staging="24MB") as cluster:
            cluster.add("photos", self.folder)
            self.finish(cluster, self.start(cluster))
            made = cluster.blocks_made()
            items = sum(rows for _, _, _, rows, _ in made)
            self.assertLessEqual(items, 1.05 * ITEMS * EPOCHS)
            self.assertEqual(len({stream for stream, *_ in made}), 1)
            for i in (1, 2, 3):
                share = len(cluster.blocks_made(i)) / len(made)
                self.assertGreaterEqual(share, 0.2, f"worker {i}")
            print(f"prepared {items} for {ITEMS * EPOCHS} x 4 delivered")

    def test_a_kill_costs_no_more_than_what_the_dead_worker_had(self):
        with Cluster(self.folder, 3, staging="24MB") as cluster:
            cluster.add("photos", self.folder)
            started = self.start(cluster)
            wait_for("job a to be in the middle", lambda: len(cluster.rows("a-0")) >= ITEMS // 2)
            cluster.workers[2].kill(signal.SIGKILL)
            self.finish(cluster, started)
            lost = len(cluster.blocks_made(2))
            staged = 24_000_000 // (BLOCK_ROWS * 150_528)
            items = sum(rows for _, _, _, rows, _ in cluster.blocks_made())
            # staged at most what fits, and what was in the making: two a thread and the reading ahead of them
            self.assertLessEqual(items, 1.05 * ITEMS * EPOCHS + BLOCK_ROWS * (min(lost, staged) + 8))
            print(f"prepared {items} with a kill; the dead worker had made {lost} blocks, {staged} fit its staging")

    def test_started_farther_apart_than_staging_is_remade_and_exact(self):
        jobs = (("near", 16, 1, 0, 0), ("far", 20, 1, 0, 390))
        with Cluster(self.folder, 2, staging="8MB") as cluster:
            cluster.add("photos", self.folder)
            self.finish(cluster, self.start(cluster, jobs, 1), jobs, 1)
            remade = [m for m in cluster.blocks_made() if m[4] != "first"]
            self.assertGreater(len(remade), 10)
            self.assertTrue({cause for *_, cause in remade} <= {"late", "pressure"}, remade[:3])

    def test_dtype_tail_and_default_seed_share_and_another_seed_does_not(self):
        with Cluster(self.folder, 1) as cluster:
            cluster.add("photos", self.folder)
            small = dict(batch=32, batches=2, epochs=1)
            for name, more in (("plain", {}), ("f16", dict(finish=True, option=["dtype=float16"])),
                               ("padded", dict(tail="pad"))):
                self.assertEqual(cluster.trainer(name, "photos", job=name, **small, **more).wait(), 0, name)
            self.assertEqual(len({m[0] for m in cluster.blocks_made()}), 1)
            other = cluster.trainer("seeded", "photos", job="seeded", seed=7, **small)
            self.assertEqual(other.wait(), 0)
            self.assertEqual(len({m[0] for m in cluster.blocks_made()}), 2)
            self.assertIn("only in seed", cluster.server.text())


class Validation(unittest.TestCase):
    def run_epochs(self, staging):
        with Cluster(PHOTOS, 1, staging=staging) as cluster:
            cluster.add("photos", PHOTOS)
            trainer = cluster.trainer("v", "photos", job="v", pipeline="imagenet_eval", batch=50, tail="exact", epochs=4)
            self.assertEqual(trainer.wait(120), 0, trainer.tail())
            rows = cluster.rows("v")
            self.assertEqual(len(rows), 1600)
            for row in rows:
                self.assertEqual(row.position, row.item)
            self.assertEqual(len({(r.position, r.hash) for r in rows}), 400)
            return cluster.blocks_made()

    def test_prepared_once_for_four_epochs_when_staging_holds_it(self):
        made = self.run_epochs("96MB")
        self.assertEqual(sum(rows for _, _, _, rows, _ in made), 400)
        self.assertTrue(all(cause == "first" for *_, cause in made))

    def test_remade_and_counted_when_it_does_not(self):
        made = self.run_epochs("16MB")
        items = sum(rows for _, _, _, rows, _ in made)
        self.assertGreater(items, 400)
        self.assertEqual(items - 400, sum(rows for _, _, _, rows, cause in made if cause in ("pressure", "late")))


if __name__ == "__main__":
    harness.main()
