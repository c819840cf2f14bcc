# SPDX-License-Identifier: Apache-2.0
"""Eight jobs on one stream: seven at one pace and an eighth at a quarter of it, and a search whose trials are stopped and replaced.

Only counts are asserted: what the workers' logs say was prepared, and what the ledgers prove.
"""
import bisect
import calendar
import json
import os
import re
import time

import harness
from harness import Cluster, PhotosTest, need_data, wait_for

need_data("imagenet-mini")
ITEMS, BLOCK_ROWS = 144, 8


class Eight(PhotosTest):
    COUNT = ITEMS

    def trial(self, cluster, name, epochs, **options):
        return cluster.trainer(name, "photos", job=name, epochs=epochs, ledger=cluster.path("ledgers"), progress=self.progress(cluster, name),
                               gate=cluster.path("gate"), **options)

    @staticmethod
    def progress(cluster, name):
        return cluster.path(f"{name}.progress")

    def begin(self, cluster, trials):
        """All have opened their jobs: now they read."""
        for name in trials:
            wait_for(f"{name} to have opened", lambda n=name: "stream" in open(cluster.path(f"{n}.log")).read())
        open(cluster.path("gate"), "w").close()

    def finish(self, trials):
        for name, process in trials.items():
            self.assertEqual(process.wait(60), 0, f"{name}: {process.tail()}")


class Pace(Eight):
    EPOCHS, PACE, SLOW = 2, 72, 18
    BATCHES = {"a": 4, "b": 6, "c": 8, "d": 9, "e": 12, "f": 16, "g": 7}
    STAGING = "8600000"  # 7 blocks: both workers together hold 14 of an epoch's 18

    def test_a_slow_job_costs_the_others_no_decode_and_skips_nothing(self):
        with Cluster(self.folder, 2, staging=self.STAGING) as cluster:
            cluster.add("photos", self.folder)
            os.mkdir(cluster.path("ledgers"))
            trials = {name: self.trial(cluster, name, self.EPOCHS, batch=batch, tail="exact", pace=self.PACE)
                      for name, batch in self.BATCHES.items()}
            trials["slow"] = self.trial(cluster, "slow", self.EPOCHS, batch=6, tail="exact", pace=self.SLOW)
            self.begin(cluster, trials)
            self.finish(trials)
            proof = cluster.audit("--complete", cluster.path("ledgers"))
            self.assertEqual({(e["job"], e["epoch"], e["delivered"], e["again"]) for e in proof["epochs"]},
                             {(name, e, ITEMS, 0) for name in trials for e in range(self.EPOCHS)})
            mine, others = self.charged(cluster)
            print(f"prepared for each item-epoch of the seven: {mine / ITEMS / self.EPOCHS:.3f}; for the slow one besides: {others}")
            self.assertLessEqual(mine, 1.05 * ITEMS * self.EPOCHS)
            self.assertLessEqual(others, ITEMS * self.EPOCHS)

    def charged(self, cluster):
        """Rows made while one of the seven had not been handed them yet, and rows made after that: only the slow one asks then."""
        passed = [[tuple(map(int, line.split()[:2])) for line in open(self.progress(cluster, name))] for name in self.BATCHES]
        wall_ns = time.time_ns() - time.monotonic_ns()
        mine = others = 0
        for at_ns, epoch, block, rows in made(cluster):
            end = epoch * ITEMS + min(ITEMS, (block + 1) * BLOCK_ROWS)
            if all(rows_at(points, at_ns - wall_ns) >= end for points in passed):
                others += rows
            else:
                mine += rows
        return mine, others


def made(cluster):
    """(wall clock ns, epoch, block, rows) of every block made."""
    for i in cluster.workers:
        for line in cluster.workers[i].text().splitlines():
            found = re.match(r"(\S+)\.(\d+)Z .* id=block_made .*epoch=(\d+) block=(\d+) rows=(\d+)", line)
            if found:
                when, fraction, *numbers = found.groups()
                yield (calendar.timegm(time.strptime(when, "%Y-%m-%dT%H:%M:%S")) * 10**9 + int(fraction.ljust(9, "0")), *map(int, numbers))


def rows_at(points, at_ns):
    """Rows that a trainer had been handed by then."""
    i = bisect.bisect_right(points, (at_ns, 1 << 62))
    return points[i - 1][1] if i else 0


class Search(Eight):
    EPOCHS, PACE = 3, 96
    STOPPED = {"s1": 5, "s2": 9, "s3": 14}  # after so many batches of 16: in epoch 0, 0 and 1

    def test_trials_that_replace_stopped_ones_share(self):
        with Cluster(self.folder, 2, staging="32MB") as cluster:
            cluster.add("photos", self.folder)
            os.mkdir(cluster.path("ledgers"))
            trials = {f"t{i}": self.trial(cluster, f"t{i}", self.EPOCHS, batch=8 + i, tail="exact", pace=self.PACE) for i in range(5)}
            stopped = {name: self.trial(cluster, name, self.EPOCHS, batch=16, tail="exact", pace=self.PACE, batches=batches)
                       for name, batches in self.STOPPED.items()}
            self.begin(cluster, {**trials, **stopped})
            for name, process in stopped.items():
                self.assertEqual(process.wait(60), 0, process.tail())
                trials["r" + name] = self.trial(cluster, "r" + name, 2, batch=16, tail="exact", pace=self.PACE, join="next")
            self.says_what_it_shares(cluster)
            self.finish(trials)
            self.check(cluster, trials)

    def says_what_it_shares(self, cluster):
        """Of the first replacement, while the trials that it joined still run."""
        def answer():
            jobs = {j["job"]: j for j in json.loads(cluster.cli("jobs", "--json").stdout)["jobs"]}
            job = jobs.get("rs1", {})
            return job if job.get("state") == "running" else None
        wait_for("the first replacement to run", answer)
        trainer = open(cluster.path("rs1.log")).read()
        self.assertRegex(trainer, r"trainer: shares stream [0-9a-f]{12} with \w+, \w+, \w+, \w+ and others")
        self.assertRegex(answer()["reason"], r"^shares stream [0-9a-f]{12} with ")

    def check(self, cluster, trials):
        proof = cluster.audit(cluster.path("ledgers"))
        found = {}
        for epoch in proof["epochs"]:
            found.setdefault(epoch["job"], []).append(epoch)
        for name in trials:
            self.assertEqual([(e["state"], e["delivered"]) for e in found[name]], [("complete", ITEMS)] * len(found[name]), name)
            self.assertEqual(len(found[name]), 2 if name.startswith("r") else self.EPOCHS)
        self.assertGreater(found["rs1"][0]["stream_epoch"], 0)
        for name, batches in self.STOPPED.items():
            self.assertEqual(sum(e["delivered"] for e in found[name]), 16 * batches)
        epochs = {e["stream_epoch"] for e in proof["epochs"]}
        prepared = sum(rows for *_, rows, _ in cluster.blocks_made())
        print(f"prepared {prepared} for {ITEMS} x {len(epochs)} stream epochs of {len(found)} trials")
        self.assertLessEqual(prepared, 1.05 * ITEMS * len(epochs))


if __name__ == "__main__":
    harness.main()
