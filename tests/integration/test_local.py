#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer on a worker's host takes rows from the worker's memory (docs/adr/0009): the same bits, seen by its figures; whoever is killed or
stopped in the middle, holds up nobody; another user goes on by sockets."""
import os
import re
import signal
import unittest

import harness
from harness import Cluster, PhotosTest, Process, need_data, wait_for

need_data("imagenet-mini")
SOCKETS = {"MILLRACE_SOCKETS_ONLY": "1"}
COUNT, EPOCHS = 120, 2


def said(trainer):
    """Its last line but one, in numbers."""
    line = trainer.line()
    return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", line)}


def descriptors(process):
    return len(os.listdir(f"/proc/{process.popen.pid}/fd"))


class Local(PhotosTest):
    COUNT = COUNT

    def trainer(self, cluster, name, env=None, **options):
        saved, cluster.env = cluster.env, dict(cluster.env or {}, **(env or {}))
        options = {"job": name, "batch": 16, "tail": "exact", "epochs": EPOCHS, **options}
        try:
            return cluster.trainer(name, "photos", **options)
        finally:
            cluster.env = saved

    def check(self, cluster, name, trainer):
        """It ends well with every row; its figures."""
        figures = said(trainer)
        self.assertEqual(trainer.wait(60), 0, trainer.tail())
        rows = cluster.rows(name)
        self.assertEqual([r.key() for r in rows], [(e, p) for e in range(EPOCHS) for p in range(COUNT)])
        self.assertEqual(figures["bad_frames"], 0)
        return figures, [(r.item, r.hash) for r in rows]

    def test_same_bits_by_either_path(self):
        with Cluster(self.folder, 2) as cluster:
            cluster.add("photos", self.folder)
            memory, rows = self.check(cluster, "memory", self.trainer(cluster, "memory"))
            sockets, others = self.check(cluster, "sockets", self.trainer(cluster, "sockets", SOCKETS))
            self.assertEqual(rows, others)
            self.assertGreater(memory["memory_bytes"], 4 * memory["socket_bytes"])  # a first answer may come before it is mapped
            self.assertEqual(sockets["memory_bytes"], 0)
            self.assertGreater(sockets["socket_bytes"], 0)
            self.assertEqual(cluster.cat("photos", cluster.path("a")).digest(),
                             self.cat_by_sockets(cluster, cluster.path("b")))

    def cat_by_sockets(self, cluster, path):
        saved, cluster.env = cluster.env, SOCKETS
        try:
            return cluster.cat("photos", path).digest()
        finally:
            cluster.env = saved

    def test_a_trainer_killed_or_stopped_holds_up_nobody(self):
        """Staging holds a few blocks only: what a dead or stopped trainer had been lent must come back."""
        with Cluster(self.folder, 1, staging="6MB") as cluster:
            cluster.add("photos", self.folder)
            for number, harm in enumerate((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)):
                victim = self.trainer(cluster, f"victim-{number}")
                wait_for("rows", lambda: len(cluster.rows(f"victim-{number}")) >= 32)
                victim.kill(harm)
                self.check(cluster, f"next-{number}", self.trainer(cluster, f"next-{number}"))
            victim.kill(signal.SIGCONT)  # was given up after a second: it asks again
            self.check(cluster, "victim-2", victim)

    def test_a_worker_killed_in_the_middle(self):
        with Cluster(self.folder, 2) as cluster:
            cluster.add("photos", self.folder)
            trainer = self.trainer(cluster, "t", pace=100)
            wait_for("rows", lambda: len(cluster.rows("t")) >= 64)
            cluster.workers[1].kill(signal.SIGKILL)
            cluster.workers[1].wait()
            figures, rows = self.check(cluster, "t", trainer)
            self.assertGreater(figures["memory_bytes"], 0)
            _, others = self.check(cluster, "u", self.trainer(cluster, "u", SOCKETS))
            self.assertEqual(rows, others)

    @unittest.skipIf(os.geteuid(), "needs root, to be another user")
    def test_another_user_goes_on_by_sockets(self):
        def nobody():
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        with Cluster(self.folder, 1) as cluster:
            cluster.add("photos", self.folder)
            args = [os.path.join(harness.BIN, "millrace-test-trainer"), "--server", cluster.address, "--dataset", "photos", "--batch", "16",
                    "--epochs", "1", "--job", "nobody"]
            trainer = Process(args, cluster.path("nobody.log"), preexec_fn=nobody)
            cluster.others.append(trainer)
            figures = said(trainer)
            self.assertEqual(trainer.wait(60), 0, trainer.tail())
            self.assertEqual(figures["memory_bytes"], 0)
            self.assertGreater(figures["socket_bytes"], 0)
            self.assertEqual(figures["bad_frames"] + figures["reconnects"], 0)

    def test_descriptors_do_not_leak(self):
        with Cluster(self.folder, 1) as cluster:
            cluster.add("photos", self.folder)
            worker, long_one = cluster.workers[1], self.trainer(cluster, "long", pace=100, epochs=0)
            wait_for("rows", lambda: cluster.rows("long"))
            before = descriptors(worker), descriptors(long_one)
            for i in range(20):
                cluster.others.append(self.trainer(cluster, f"t{i}", batches=1))
                self.assertEqual(cluster.others[-1].wait(60), 0)
            wait_for("the connections' ends", lambda: descriptors(worker) <= before[0])
            for _ in range(3):  # given up and connected anew, each time
                long_one.kill(signal.SIGSTOP)
                self.trainer(cluster, "while", batches=1).wait(60)
                long_one.kill(signal.SIGCONT)
                seen = len(cluster.rows("long"))
                wait_for("more rows", lambda: len(cluster.rows("long")) > seen)
            self.assertLessEqual(descriptors(long_one), before[1] + 1)


if __name__ == "__main__":
    harness.main()
