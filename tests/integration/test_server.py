# SPDX-License-Identifier: Apache-2.0
"""The server alone, with workers and trainers played by an independent gRPC client: restarts, bounds, ends."""
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

import grpc

import harness
from harness import Cluster, wait_for

STUBS = tempfile.TemporaryDirectory(prefix="millrace-stubs-")
SCHEMA = os.path.join(harness.ROOT, "proto", "schema")
subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{SCHEMA}", f"--python_out={STUBS.name}",
                f"--grpc_python_out={STUBS.name}", "millrace.proto"], check=True)
sys.path.insert(0, STUBS.name)
pb, rpc = importlib.import_module("millrace_pb2"), importlib.import_module("millrace_pb2_grpc")
VERSION, PRINT = bytes([7]) * 32, bytes([9]) * 16


class Worker:
    """Says that it holds everything and makes the same bits as all others."""

    def __init__(self, test, number, **say):
        self.test, self.orders, self.streams = test, None, {}
        self.say = dict(worker=number, incarnation=1, addresses=[f"127.0.0.1:{number}"], cores=1)
        self.say.update(say)

    def sync(self, **more):
        seen = self.orders.revision if self.orders else 0
        request = pb.WorkerSync(**self.say, seen_revision=seen, told=self.orders.told if self.orders else 0,
                                plans_told=self.orders.plans_told if self.orders else 0, **more)
        request.datasets.add(version=VERSION, eligible=True)
        for probe in self.orders.probe if self.orders else []:
            request.probes.add(key=probe.hash, fingerprint=PRINT)
        self.orders = self.test.cluster_stub.Sync(request, timeout=20)
        if not self.orders.streams_kept:
            live = {h: self.streams.get(h) for h in self.orders.kept}
            for stream in self.orders.streams:
                before = self.streams.get(stream.stream.hash)
                if before and not stream.HasField("plan") and before.plan.version == stream.plan_version:
                    stream.plan.CopyFrom(before.plan)
                live[stream.stream.hash] = stream
            self.streams = live
        return self.orders

    def index(self, name, items=100):
        """Registers a dataset and answers the order to index it."""
        self.test.datasets.Add(pb.DatasetAdd(name=name, path="/data/" + name), timeout=10)
        order = wait_for("an order", lambda: [o for o in self.sync().index if o.dataset == name])[0]
        self.test.cluster_stub.Indexed(pb.IndexResult(worker=self.say["worker"], order=order.order, version=VERSION,
                                                      items=items, classes=["a", "b"]), timeout=10)


class Server(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster([], 0)
        self.cluster.__enter__()
        self.connect()

    def tearDown(self):
        self.channel.close()
        self.cluster.__exit__(None, None, None)

    def connect(self):
        self.channel = grpc.insecure_channel(self.cluster.address, options=[("grpc.enable_http_proxy", 0)])
        self.cluster_stub, self.datasets = rpc.ClusterStub(self.channel), rpc.DatasetsStub(self.channel)
        self.jobs = rpc.JobsStub(self.channel)

    def restart(self):
        self.channel.close()
        self.cluster.server.kill()
        self.cluster.server.wait()
        self.cluster.start_server()
        self.connect()

    def get(self, path):
        return urllib.request.urlopen(f"http://{self.cluster.http}{path}", timeout=10).read().decode()

    def listed(self, job):
        return next(j for j in self.jobs.List(pb.JobsRequest(), timeout=10).jobs if j.job == job)

    def test_a_job_started_anew_otherwise_is_known_as_it_is_now(self):
        worker = Worker(self, 1)
        worker.index("first")
        worker.index("second")
        opening = dict(job="run", world=1, tail="exact")
        self.jobs.Open(pb.JobOpen(**opening, batch=4, dataset="first", generation=1), timeout=10)
        self.jobs.Open(pb.JobOpen(**opening, batch=8, dataset="second", generation=2), timeout=10)
        self.assertEqual((self.listed("run").batch, self.listed("run").dataset), (8, "second"))
        self.restart()
        self.assertEqual((self.listed("run").batch, self.listed("run").dataset), (8, "second"))

    def test_an_open_that_gives_up_takes_its_job_back(self):
        worker = Worker(self, 1)
        worker.index("set")
        worker.say["draining"] = True  # nobody makes it
        worker.sync()
        cat = self.cluster.cli("cat", "set", "--out", self.cluster.path("out"), "--wait-ms", "600", check=False)
        self.assertNotEqual(cat.returncode, 0)
        jobs = self.jobs.List(pb.JobsRequest(), timeout=10).jobs
        self.assertEqual([(j.state, j.ranks_live) for j in jobs], [("closed", 0)])  # it was "preparing" until its lease ended

    def test_a_job_that_goes_on_elsewhere_is_listed_there(self):
        worker = Worker(self, 1)
        worker.index("set")
        self.jobs.Open(pb.JobOpen(job="run", world=1, batch=4, dataset="set", generation=1), timeout=10)
        worker.sync(), worker.sync()
        for epoch, seeks, listed in ((5, 0, 5), (2, 1, 2), (5, 0, 2), (3, 1, 3)):
            self.jobs.Sync(pb.JobSync(job="run", generation=1, at=pb.Cursor(epoch=epoch), seeks=seeks), timeout=10)
            self.assertEqual(self.listed("run").at.epoch, listed)

    def test_one_that_waits_for_an_epoch_waits_on_after_a_restart(self):
        worker = Worker(self, 1)
        worker.index("set")
        for job, join in (("reads", "now"), ("waits", "next")):
            self.jobs.Open(pb.JobOpen(job=job, world=1, batch=4, dataset="set", join=join, generation=1), timeout=10)
            worker.sync(), worker.sync()
            self.jobs.Sync(pb.JobSync(job="reads", generation=1, at=pb.Cursor(epoch=3, position=8)), timeout=10)
        self.assertEqual(self.listed("waits").state, "waiting")
        self.restart()
        worker = Worker(self, 1)
        for job in ("reads", "waits"):
            self.jobs.Sync(pb.JobSync(job=job, generation=1), timeout=10)
        worker.sync(), worker.sync()
        self.assertEqual((self.listed("reads").state, self.listed("waits").state), ("running", "waiting"))
        self.jobs.Sync(pb.JobSync(job="reads", generation=1, at=pb.Cursor(epoch=4, position=0)), timeout=10)
        answer = self.jobs.Sync(pb.JobSync(job="waits", generation=1), timeout=10)
        wait_for("its workers", lambda: self.jobs.Sync(pb.JobSync(job="waits", generation=1), timeout=10).HasField("start"))
        answer = self.jobs.Sync(pb.JobSync(job="waits", generation=1), timeout=10)
        self.assertEqual((answer.start.at.epoch, answer.start.first_epoch), (4, 4))

    def test_revisions_and_orders_rise_over_a_restart(self):
        worker = Worker(self, 1)
        self.datasets.Add(pb.DatasetAdd(name="first", path="/data/first"), timeout=10)
        before = wait_for("an order", lambda: list(worker.sync().index))[0].order, worker.orders.revision
        self.restart()
        worker = Worker(self, 1)
        after = wait_for("an order", lambda: list(worker.sync().index))[0].order, worker.orders.revision
        self.assertGreater(after, before)
        self.assertGreater(after[1], before[1])

    def test_only_items_that_exist_are_put_on_the_quarantine_list(self):
        worker = Worker(self, 1)
        worker.index("set", items=100)
        bad = [pb.BadItem(dataset_version=v, item=i, name=n, cause="c" * 4000)
               for v, i, n in ((VERSION, 99, "x" * 4000), (VERSION, 100, "none"), (bytes(32), 1, "none"), (b"short", 1, "none"))]
        worker.sync(bad_items=bad)
        info = self.datasets.Show(pb.DatasetName(name="set"), timeout=10)
        self.assertEqual((info.bad_items, [b.item for b in info.bad]), (1, [99]))
        self.restart()  # the list is the store's
        again = self.datasets.Show(pb.DatasetName(name="set"), timeout=10)
        self.assertEqual((again.bad_items, list(again.bad)), (info.bad_items, list(info.bad)))
        self.assertLess(info.ByteSize(), 2000)
        self.datasets.Remove(pb.DatasetName(name="set"), timeout=10)
        worker = Worker(self, 1)
        worker.index("set")
        self.assertEqual(self.datasets.Show(pb.DatasetName(name="set"), timeout=10).bad_items, 0)

    def test_replies_fit_a_message_however_much_there_is_to_tell(self):
        worker = Worker(self, 1)
        worker.index("set")
        for i in range(280):
            self.jobs.Open(pb.JobOpen(job=f"trial-{i}-" + "x" * 100, world=1, batch=4, dataset="set", generation=1, seed=i),
                           timeout=10)
        wait_for("all streams", lambda: worker.sync() and len(worker.streams) == 280)
        anew = Worker(self, 1)
        sizes = []
        while not anew.orders or not anew.orders.streams_kept:
            sizes.append(anew.sync().ByteSize())
        self.assertTrue(max(sizes) < 1 << 20 < sum(sizes), sizes)
        self.assertLess(sizes[-1], 10000)
        self.assertEqual(sum(s.HasField("plan") for s in anew.streams.values()), 280)
        for i in range(2, 1001):
            Worker(self, i, addresses=["10.0.0.1:%d/" % i + "x" * 900]).sync()
        listed = self.cluster_stub.Workers(pb.WorkersRequest(), timeout=10)
        self.assertLess(len(listed.workers), 1000 + 1)
        if listed.omitted:
            self.assertEqual(len(listed.workers) + listed.omitted, 1000)
        self.assertEqual(len(json.loads(self.get("/api/v1/workers"))["workers"]), 1000)

    def test_sigterm_ends_waiting_calls_at_once(self):
        worker = Worker(self, 1)
        worker.sync()
        poll = pb.WorkerSync(**worker.say, seen_revision=worker.orders.revision, told=worker.orders.told, wait_ms=60000)
        poll.datasets.add(version=VERSION, eligible=True)
        waiting = [self.cluster_stub.Sync.future(poll, timeout=30) for _ in range(50)]
        worker.sync()  # behind them on the same connection: they have arrived
        self.assertFalse(any(w.done() for w in waiting))
        began = time.monotonic()
        self.assertEqual(self.cluster.server.end(), 0)
        self.assertLess(time.monotonic() - began, 5)
        self.assertEqual({w.exception(timeout=5).code() for w in waiting}, {grpc.StatusCode.UNAVAILABLE})


if __name__ == "__main__":
    harness.main()
