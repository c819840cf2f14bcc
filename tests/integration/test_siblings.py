# SPDX-License-Identifier: Apache-2.0
"""Two jobs of different augmentation on one dataset: each item is decoded once for both, and no bit tells."""
import re
import signal

import harness
from harness import Cluster, PhotosTest, wait_for

ITEMS, EPOCHS = 397, 5
TRIALS = {
    "plain": {},
    "soft": {"pipeline": "sample: Decode RandomResizedCrop(size=224,scale_min=0.5) RandomHorizontalFlip(p=0.2)"},
}


def shared_rows(cluster):
    """(rows, of those made from another's decode), by the workers' logs."""
    rows = shared = 0.0
    for worker in cluster.workers.values():
        for line in worker.text().splitlines():
            if " id=block_made " in line:
                f = dict(re.findall(r"(\w+)=(\S+)", line))
                rows += int(f["rows"])
                shared += int(f["shared"]) / int(f["together"])
    return rows, shared


class Siblings(PhotosTest):
    COUNT = ITEMS

    def start(self, cluster, names, pace=120):
        cluster.add("photos", self.folder)
        return [cluster.trainer(name, "photos", job=name, batch=16, tail="exact", epochs=EPOCHS, pace=pace, look_ahead=2,
                                **TRIALS[name]) for name in names]

    def rows(self, cluster, trainers, names):
        for trainer in trainers:
            self.assertEqual(trainer.wait(120), 0, trainer.tail())
        rows = {name: {r.key(): (r.item, r.used_item, r.status, r.hash) for r in cluster.rows(name)} for name in names}
        for name in names:
            self.assertEqual(len(cluster.rows(name)), ITEMS * EPOCHS)
            self.assertEqual(sorted(rows[name]), [(e, p) for e in range(EPOCHS) for p in range(ITEMS)])
        return rows

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.alone = {}

    def alone_rows(self, name):
        if name not in self.alone:
            with Cluster(self.folder, 1, staging="48MB") as cluster:
                self.alone[name] = self.rows(cluster, self.start(cluster, [name], pace=0), [name])[name]
                self.assertEqual(shared_rows(cluster)[1], 0)
        return self.alone[name]

    def test_items_are_decoded_once_for_both(self):
        with Cluster(self.folder, 2, staging="48MB") as cluster:
            trainers = self.start(cluster, TRIALS)
            wait_for("both to be told", lambda: cluster.cli("jobs").stdout.count("alone; shares decoding with stream ") == 2)
            rows = self.rows(cluster, trainers, TRIALS)
            made, shared = shared_rows(cluster)
            share = (made - shared) / (ITEMS * EPOCHS)
            print(f"{made:.0f} rows of {made - shared:.0f} decodes: {share:.2f} an item and epoch")
            self.assertLessEqual(made, 1.02 * 2 * ITEMS * EPOCHS)  # a hedge, perhaps
            self.assertLessEqual(share, 1.15)
            wait_for("the workers' counters", lambda: cluster.metric("millrace_worker_rows_shared_total") == shared)
            self.assertEqual(cluster.metric("millrace_worker_items_decoded_total"), made - shared)
            self.assertEqual(cluster.metric("millrace_worker_items_read_total"), made - shared)
            self.assertEqual(cluster.metric("millrace_worker_blocks_together_total") % 2, 0)
        for name in TRIALS:
            self.assertEqual(rows[name], self.alone_rows(name), name)

    def test_a_kill_changes_no_bit(self):
        with Cluster(self.folder, 2, staging="48MB") as cluster:
            trainers = self.start(cluster, TRIALS)
            wait_for("the middle", lambda: len(cluster.rows("plain")) >= ITEMS * EPOCHS // 2)
            cluster.workers[1].kill(signal.SIGKILL)
            rows = self.rows(cluster, trainers, TRIALS)
            self.assertGreater(shared_rows(cluster)[1], 0)
        for name in TRIALS:
            self.assertEqual(rows[name], self.alone_rows(name), name)


if __name__ == "__main__":
    harness.main()
