# SPDX-License-Identifier: Apache-2.0
"""Chaos from a seed: programs killed and paused, links cut, slowed, silenced and corrupted, while three jobs read.

At the end of each run the jobs' ledgers, audited beside that of a run without faults, prove that every position was delivered
once per job-epoch along the jobs' cursors, with the same hash. Seeds: 20; MILLRACE_CHAOS_SEED=N replays one; tests/bench/chaos.py
runs many. A seed fixes what happens and when; what it hits depends on the machine.
"""
import collections
import concurrent.futures
import os
import random
import re
import signal
import tempfile
import time
import traceback
import unittest

import harness
from harness import Cluster, need_data, photos, wait_for
from relay import BACK, OUT, Fault, Relay, Seeded

need_data("imagenet-mini")
ITEMS, EPOCHS = 61, 5
CHAOS_S = 3.5   # how long harm is done
RECOVER_S = 60  # for all jobs to end after it; far more than needed on a busy machine
JOBS = (("a", 16, 1), ("b", 20, 2), ("c", 50, 1))
PACE = 80  # rows a second and rank: the epochs must outlast the chaos
AT_ONCE = 6  # seeds side by side: nearly all of their time is waiting
CONTROL = ("delay", "throttle", "reset", "close", "hole", "half-dead")  # gRPC has no checksum of its own without TLS


class Job:
    """One job's ranks through all their starts."""

    def __init__(self, cluster, name, batch, world, server):
        self.cluster, self.name, self.batch, self.world, self.server = cluster, name, batch, world, server
        self.starts, self.ranks, self.dead = 0, [], False

    def cursor_path(self, rank):
        return self.cluster.path(f"{self.name}-{rank}.cursor")

    def cursor(self, rank):
        try:
            text = open(self.cursor_path(rank)).read().strip()
        except FileNotFoundError:
            return (0, 0), None
        epoch, _, position = text.split(".")[1:4]
        return (int(epoch), int(position)), text

    def start(self):
        """From the step that all ranks have passed: what a checkpoint of the whole job would hold."""
        _, text = min(self.cursor(rank) for rank in range(self.world))
        self.ranks = []
        for rank in range(self.world):
            path = self.cursor_path(rank)
            if text:
                with open(path, "w") as f:
                    f.write(text + "\n")
            name = f"{self.name}-{rank}-{self.starts}"
            options = dict(job=self.name, rank=rank, world=self.world, batch=self.batch, tail="exact", epochs=EPOCHS, rows=False,
                           pace=PACE // self.world, cursor_out=path, ledger=self.cluster.path("ledgers"), timeout_ms=1000 * RECOVER_S)
            if text:
                options["cursor_in"] = path
            self.ranks.append(self.cluster.trainer(name, "photos", server=self.server, **options))
        self.starts += 1
        self.dead = False

    def kill(self):
        for process in self.ranks:
            process.kill(signal.SIGKILL)
        for process in self.ranks:
            process.wait()
        self.dead = True

    def finish(self, deadline):
        for process in self.ranks:
            code = process.wait(max(0.1, deadline - time.monotonic()))
            assert code == 0, f"{process.log}: exit {code}: {process.tail()}"


class Chaos:
    """One run: the cluster behind relays, and what is done to it when."""

    def __init__(self, seed, cluster):
        self.seed, self.cluster, self.random = seed, cluster, random.Random(f"chaos/{seed}")
        self.links = {i: Relay(plan=Seeded(seed, f"worker {i}")) for i in (1, 2, 3)}
        self.control = Relay(cluster.address, Seeded(seed, "control", 0.3, CONTROL, 10000))
        for relay in self.relays():
            relay.calm()  # until the cluster is set up
        self.jobs, self.stopped, self.said = [], {}, []
        self.todo = []  # (time, text, function)

    def relays(self):
        return [*self.links.values(), self.control]

    def start_worker(self, i):
        old = self.cluster.workers.get(i)
        if old and old.popen.poll() is None:
            return
        process = self.cluster.start_worker(i, ["--advertise", self.links[i].address], server=self.control.address)
        self.links[i].target = process.address

    def start_server(self):
        if self.cluster.server.popen.poll() is not None:
            self.cluster.start_server()

    def at(self, when_s, text, function):
        self.todo.append((when_s, len(self.todo), text, function))

    def kill(self, process):
        process.kill(signal.SIGKILL)
        process.wait()

    def pause(self, process):
        process.kill(signal.SIGSTOP)
        self.stopped[process.popen.pid] = process

    def go_on(self, process):
        process.kill(signal.SIGCONT)
        self.stopped.pop(process.popen.pid, None)

    def plan(self):
        """Two to four harms for workers, one or two for the rest; each is undone at the latest when the chaos ends."""
        r = self.random
        for _ in range(r.randint(3, 5)):
            self.plan_worker(r.choice((1, 2, 3)), r.uniform(0.3, CHAOS_S - 1), r.uniform(0.3, 2.5))
        for _ in range(r.randint(1, 2)):
            self.plan_server(r.uniform(0.3, CHAOS_S - 1), r.uniform(0.3, 2.0))
        for _ in range(r.randint(1, 3)):
            self.plan_trainer(r.choice(self.jobs), r.uniform(0.5, CHAOS_S - 0.5), r.uniform(0.1, 1.5))

    def plan_worker(self, i, when_s, for_s):
        workers, link = self.cluster.workers, self.links[i]
        kind = self.random.choice(("kill", "kill", "pause", "pause", "cut", "hole"))
        self.at(when_s, f"{kind} worker {i} for {for_s:.1f} s", {
            "kill": lambda: self.kill(workers[i]), "pause": lambda: self.pause(workers[i]), "cut": link.cut,
            "hole": link.hole}[kind])
        end = {"kill": lambda: self.start_worker(i), "pause": lambda: self.go_on(workers[i]),
               "hole": lambda: link.hole(False)}.get(kind)
        if end:
            self.at(when_s + for_s, f"worker {i} is well again", end)

    def plan_server(self, when_s, for_s):
        kind = self.random.choice(("kill", "pause", "cut"))
        self.at(when_s, f"{kind} the server for {for_s:.1f} s", {
            "kill": lambda: self.kill(self.cluster.server), "pause": lambda: self.pause(self.cluster.server),
            "cut": self.control.cut}[kind])
        end = {"kill": self.start_server, "pause": lambda: self.go_on(self.cluster.server)}.get(kind)
        if end:
            self.at(when_s + for_s, "the server is well again", end)

    def plan_trainer(self, job, when_s, for_s):
        kind = self.random.choice(("kill", "kill", "pause"))
        if kind == "kill":
            self.at(when_s, f"kill job {job.name} for {for_s:.1f} s", job.kill)
            self.at(when_s + for_s, f"job {job.name} resumes", lambda: job.dead and job.start())
        else:
            rank = self.random.randrange(job.world)
            self.at(when_s, f"pause rank {rank} of job {job.name} for {for_s:.1f} s", lambda: self.pause(job.ranks[rank]))
            self.at(when_s + for_s, f"rank {rank} of job {job.name} goes on", lambda: self.go_on(job.ranks[rank]))

    def run(self):
        for i in self.links:
            self.start_worker(i)
        self.cluster.wait_workers(3)
        self.cluster.add("photos", self.cluster.roots[0])
        os.mkdir(self.cluster.path("ledgers"))
        self.jobs = [Job(self.cluster, *job, server=self.control.address) for job in JOBS]
        self.plan()
        for relay in self.relays():
            relay.stir()
        began = time.monotonic()
        for job in self.jobs:
            job.start()
        for when_s, _, text, function in sorted(self.todo, key=lambda entry: entry[:2]):
            time.sleep(max(0.0, began + when_s - time.monotonic()))
            self.said.append(f"{time.monotonic() - began:6.2f} s: {text}")
            function()
        time.sleep(max(0.0, began + CHAOS_S - time.monotonic()))
        self.heal()

    def heal(self):
        for process in list(self.stopped.values()):
            self.go_on(process)
        self.start_server()
        for relay in self.relays():
            relay.calm()
        for i in self.links:
            self.start_worker(i)
        for job in self.jobs:
            if job.dead:
                job.start()
        deadline = time.monotonic() + RECOVER_S
        for job in self.jobs:
            job.finish(deadline)

    def harm(self):
        total = sum((relay.harmed for relay in self.relays()), start=collections.Counter())
        return " ".join(f"{kind}={n}" for kind, n in sorted(total.items()) if n and kind != "none")

    def close(self):
        for process in list(self.stopped.values()):
            process.kill(signal.SIGCONT)
        for relay in self.relays():
            relay.close()


def run_without_faults(folder, ledger):
    """What each row must be."""
    with Cluster(folder, 1) as cluster:
        cluster.add("photos", folder)
        trainer = cluster.trainer("t", "photos", job="t", batch=25, tail="exact", epochs=EPOCHS, ledger=ledger)
        assert trainer.wait(120) == 0, trainer.tail()
        keys = [row.key() for row in cluster.rows("t")]
        assert keys == [(e, p) for e in range(EPOCHS) for p in range(ITEMS)], keys


def stream_of(ledger):
    """The stream in a ledger's first record."""
    head = open(ledger, "rb").read(4096)
    end = 16 + int.from_bytes(head[8:12], "little")
    return head[end - 48:end - 16]


def audit(cluster, truth):
    """Every job-epoch is complete, and no position differs from that of the run without faults."""
    streams = {stream_of(cluster.path("ledgers", name)) for name in os.listdir(cluster.path("ledgers"))}
    assert streams == {stream_of(truth)}, "other streams are not compared with each other"
    proof = cluster.audit("--complete", cluster.path("ledgers"), truth)
    found = {(e["job"], e["epoch"]): (e["stream_epoch"], e["delivered"]) for e in proof["epochs"]}
    assert found == {(job, e): (e, ITEMS) for job in ("t", *(name for name, *_ in JOBS)) for e in range(EPOCHS)}, proof


def run_seed(seed, folder, truth):
    """Raises when a seed fails, with what was done and how to do it again; else a line for the reader."""
    began = time.monotonic()
    chaos = None
    try:
        with Cluster(folder, 0, env={"MILLRACE_SOCKETS_ONLY": str(seed % 2)}) as cluster:  # rows by either path
            chaos = Chaos(seed, cluster)
            try:
                chaos.run()
                audit(cluster, truth)
            finally:
                chaos.close()
    except BaseException:
        print(f"\nseed {seed} failed; replay: MILLRACE_CHAOS_SEED={seed} {os.path.abspath(__file__)}",
              *(chaos.said if chaos else []), sep="\n")
        raise
    starts = sum(job.starts - 1 for job in chaos.jobs)
    return f"seed {seed}: {len(chaos.said)} events, {starts} resumes, {time.monotonic() - began:.1f} s; links: {chaos.harm()}"


def run_seeds(seeds, at_once):
    """Prints a line a seed, most of whose time is waiting; returns those that failed."""
    failed = []
    with photos(ITEMS) as folder, tempfile.NamedTemporaryFile(suffix=".ledger") as truth, \
            concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        run_without_faults(folder, truth.name)
        runs = {pool.submit(run_seed, seed, folder, truth.name): seed for seed in seeds}
        try:
            for run in concurrent.futures.as_completed(runs):
                if run.exception():
                    traceback.print_exception(run.exception())
                    failed.append(runs[run])
                else:
                    print(run.result(), flush=True)
        finally:
            pool.shutdown(cancel_futures=True)  # interrupted: only those under way end
    return sorted(failed)


class Seeds(unittest.TestCase):
    def test_every_position_once_and_every_row_the_same(self):
        one = os.environ.get("MILLRACE_CHAOS_SEED")
        self.assertEqual(run_seeds([int(one)] if one else range(1, 21), AT_ONCE), [])


def what(row):
    return row.item, row.used_item, row.hash, row.status, row.cause, row.valid


class Corruption(unittest.TestCase):
    """A byte changed anywhere in a conversation's greeting, requests or first rows: nothing wrong gets through, nothing ends."""
    BACK_BYTES, OUT_BYTES, STEP = 1500, 500, 41

    def test_one_byte_on_the_only_link(self):
        with photos(ITEMS) as folder, Cluster(folder, 0, env={"MILLRACE_SOCKETS_ONLY": "1"}) as cluster:
            link = Relay()
            link.target = cluster.start_worker(1, ["--advertise", link.address]).address
            cluster.wait_workers(1)
            cluster.add("photos", folder)
            self.assertEqual(self.read(cluster, "truth").wait(30), 0)
            truth, noticed, changed = [what(r) for r in cluster.rows("truth")], 0, 0
            step = 7 if os.environ.get("MILLRACE_LONG") else self.STEP
            for way, size in ((BACK, self.BACK_BYTES), (OUT, self.OUT_BYTES)):
                for at in range(0, size, step):
                    first = link.count
                    link.plan = lambda n: Fault("corrupt", way, at, bit=at % 8) if n == first else Fault()
                    name = f"t-{way}-{at}"
                    trainer = self.read(cluster, name)
                    self.assertEqual(trainer.wait(30), 0, f"way {way} byte {at}: {trainer.tail()}")
                    self.assertEqual([what(r) for r in cluster.rows(name)], truth, f"way {way} byte {at}")
                    said = totals(trainer)
                    noticed += said["bad_frames"] + said["reconnects"] > 0
                    changed += 1
            link.close()
            print(f"{changed} conversations with a byte changed: {noticed} began again")
            self.assertGreater(noticed, changed // 2)

    @staticmethod
    def read(cluster, name):
        return cluster.trainer(name, "photos", job=name, batch=8, batches=2, tail="exact")


def totals(process):
    """What a trainer said at its end."""
    return {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", process.buffer.decode())}


def wait_of_a_death(folder, harm):
    """The trainer's longest wait for a batch, but for its first, when `harm(cluster, relay)` befalls a worker of three."""
    relay = Relay()
    with Cluster(folder, 0) as cluster:
        # what a death costs, not what else runs here: prep threads of the idle class wait seconds for a busy host's CPU
        relay.target = cluster.start_worker(1, ["--advertise", relay.address, "--cpu-class", "normal"]).address
        for i in (2, 3):
            cluster.start_worker(i, ["--cpu-class", "normal"])
        cluster.wait_workers(3)
        cluster.add("photos", folder)
        trainer = cluster.trainer("t", "photos", job="t", batch=16, tail="exact", epochs=4, pace=100, why_ms=500)
        wait_for("some batches", lambda: len(cluster.rows("t")) >= 48)
        harm(cluster, relay)
        code = trainer.wait(60)
        cluster.workers[1].kill(signal.SIGCONT)
        relay.close()
        assert code == 0, trainer.tail()
        assert len(cluster.rows("t")) == 4 * ITEMS
        return totals(trainer)["later_wait_ms"]


DEATHS = {
    "killed": lambda cluster, relay: cluster.workers[1].kill(signal.SIGKILL),
    "cut": lambda cluster, relay: relay.close(),
    "paused": lambda cluster, relay: cluster.workers[1].kill(signal.SIGSTOP),
    "black hole": lambda cluster, relay: relay.hole(),
}


class Deaths(unittest.TestCase):
    """The trainer gets all of its rows within its calls' deadlines. How long it waited is printed; the figures are the bench's."""

    def test_longest_wait(self):
        with photos(ITEMS) as folder:
            for name in ("killed", "black hole"):
                waited_ms = wait_of_a_death(folder, DEATHS[name])
                print(f"{name}: longest wait for a batch {waited_ms} ms")


class Deadlines(unittest.TestCase):
    """Whatever hangs, a call ends by its deadline and closing takes less than a second."""
    CALL_MS, SLACK_MS = 1500, 1500

    def check(self, trainer):
        self.assertEqual(trainer.wait(30), 1, trainer.tail())
        said = totals(trainer)
        self.assertLess(said.get("longest_wait_ms", 0), self.CALL_MS + self.SLACK_MS)
        self.assertLess(said["close_ms"], 1000)
        return said

    def test_everything_hangs_in_the_middle(self):
        """In each of these states: all workers, the server, or both stopped; links silent; half-dead workers."""
        with photos(ITEMS) as folder, Cluster(folder, 0) as cluster:
            links, control = [Relay(), Relay()], Relay(cluster.address)
            for i, link in enumerate(links, 1):
                link.target = cluster.start_worker(i, ["--advertise", link.address]).address
            cluster.wait_workers(2)
            cluster.add("photos", folder)
            workers = list(cluster.workers.values())

            def stop(processes, sign=signal.SIGSTOP):
                for process in processes:
                    process.kill(sign)

            def hole(relays, on=True):
                for relay in relays:
                    relay.hole(on)
            states = (("workers stopped", lambda: stop(workers), lambda: stop(workers, signal.SIGCONT)),
                      ("all stopped", lambda: stop(workers + [cluster.server]),
                       lambda: stop(workers + [cluster.server], signal.SIGCONT)),
                      ("links silent", lambda: hole(links + [control]), lambda: hole(links + [control], False)))
            for number, (name, harm, heal) in enumerate(states):
                with self.subTest(state=name):
                    trainer = cluster.trainer(f"t{number}", "photos", server=control.address, job=f"t{number}", batch=16,
                                              epochs=50, pace=200, timeout_ms=self.CALL_MS, open_timeout_ms=30000)
                    wait_for("some batches", lambda: len(cluster.rows(f"t{number}")) >= 64)
                    harm()
                    said = self.check(trainer)
                    heal()
                    print(f"{name}: a call of {self.CALL_MS} ms took {said['longest_wait_ms']} ms, closing {said['close_ms']} ms")
            for relay in links + [control]:
                relay.close()

    def test_a_server_that_accepts_and_never_answers(self):
        with photos(ITEMS) as folder, Cluster(folder, 1) as cluster:
            control = Relay(cluster.address)
            control.hole()
            began = time.monotonic()
            trainer = cluster.trainer("t", "photos", server=control.address, job="t", timeout_ms=self.CALL_MS)
            said = self.check(trainer)
            took_ms = 1000 * (time.monotonic() - began)
            self.assertLess(took_ms, self.CALL_MS + 1000 + 2 * self.SLACK_MS)
            self.assertRegex(trainer.text(), "timeout|unavailable")
            print(f"half-dead server: opening with {self.CALL_MS} ms, all of it {took_ms:.0f} ms, closing {said['close_ms']} ms")
            control.close()


if __name__ == "__main__":
    harness.main()
