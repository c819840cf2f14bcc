# SPDX-License-Identifier: Apache-2.0
"""The server through an independent gRPC client: python3-grpcio, with stubs made from our schema by its own tools."""
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request

import grpc

import harness
from harness import Cluster, PhotosTest, need_data

need_data("imagenet-mini")
STUBS = tempfile.TemporaryDirectory(prefix="millrace-stubs-")
SCHEMA = os.path.join(harness.ROOT, "proto", "schema")
subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{SCHEMA}", f"--python_out={STUBS.name}",
                f"--grpc_python_out={STUBS.name}", "millrace.proto", "health.proto"], check=True)
sys.path.insert(0, STUBS.name)
pb, rpc = importlib.import_module("millrace_pb2"), importlib.import_module("millrace_pb2_grpc")
health, health_rpc = importlib.import_module("health_pb2"), importlib.import_module("health_pb2_grpc")


class Grpc(PhotosTest):
    COUNT = 24

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cluster = cls.enterClassContext(Cluster(cls.folder, 1))
        cls.channel = grpc.insecure_channel(cls.cluster.address, options=[("grpc.enable_http_proxy", 0)])
        cls.cluster_stub, cls.datasets = rpc.ClusterStub(cls.channel), rpc.DatasetsStub(cls.channel)
        cls.jobs = rpc.JobsStub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()

    def code(self, call, request):
        with self.assertRaises(grpc.RpcError) as caught:
            call(request, timeout=10)
        return caught.exception.code(), caught.exception.details()

    def test_health(self):
        stub = health_rpc.HealthStub(self.channel)
        serving = health.HealthCheckResponse.SERVING
        self.assertEqual(stub.Check(health.HealthCheckRequest(), timeout=10).status, serving)
        watch = stub.Watch(health.HealthCheckRequest(), timeout=10)
        self.assertEqual(next(watch).status, serving)
        watch.cancel()
        self.assertEqual(self.code(stub.Check, health.HealthCheckRequest(service="nobody"))[0], grpc.StatusCode.NOT_FOUND)

    def test_a_dataset_and_a_job(self):
        info = self.datasets.Add(pb.DatasetAdd(name="photos", path=self.folder, wait_ms=20000), timeout=30)
        self.assertEqual((info.state, info.items, len(info.version)), ("ready", 24, 32))
        self.assertEqual(list(info.classes), sorted(os.listdir(self.folder)))
        opening = pb.JobOpen(job="from-python", world=1, batch=4, dataset="photos", generation=1)
        end = time.monotonic() + 20
        answer = self.jobs.Open(opening, timeout=10)
        while answer.state != "running" and time.monotonic() < end:
            sync = pb.JobSync(job="from-python", generation=1, seen_revision=answer.revision, wait_ms=1000)
            answer = self.jobs.Sync(sync, timeout=10)
        self.assertEqual(answer.state, "running", answer.reason)
        self.assertEqual((len(answer.stream.hash), len(answer.plan.primary), answer.stream.items), (32, 2048, 24))
        self.assertEqual(answer.start.at.epoch, 0)
        self.assertIn("RandomResizedCrop", answer.pipeline_text)
        listed = json.load(urllib.request.urlopen(f"http://{self.cluster.http}/api/v1/jobs", timeout=10))
        self.assertIn("from-python", [j["job"] for j in listed["jobs"]])
        self.jobs.Close(pb.JobClose(job="from-python", generation=1), timeout=10)

    def test_a_weight_out_of_bounds(self):
        for weight in (-1, 0.001, 100.5, float("inf"), float("nan")):
            opening = pb.JobOpen(job="heavy", world=1, batch=4, dataset="photos", generation=1, weight=weight)
            status, text = self.code(self.jobs.Open, opening)
            self.assertEqual(status, grpc.StatusCode.INVALID_ARGUMENT)
            self.assertIn("weight", text)

    def open_ranks(self, job, world):
        for rank in range(world):
            answer = self.jobs.Open(pb.JobOpen(job=job, rank=rank, world=world, batch=4, dataset="certified", generation=1),
                                    timeout=10)
        end = time.monotonic() + 20
        while answer.state != "running" and time.monotonic() < end:
            answer = self.jobs.Sync(pb.JobSync(job=job, generation=1, seen_revision=answer.revision, wait_ms=1000), timeout=10)
        self.assertEqual(answer.state, "running", answer.reason)

    def tell(self, job, rank, *counts):
        epochs = [pb.EpochCount(epoch=e, stream_epoch=e, positions=n, hash=h, whole=whole) for e, n, h, whole in counts]
        self.jobs.Sync(pb.JobSync(job=job, rank=rank, generation=1, epochs=epochs), timeout=10)
        listed = json.load(urllib.request.urlopen(f"http://{self.cluster.http}/api/v1/jobs", timeout=10))
        found = next(j for j in listed["jobs"] if j["job"] == job)["certificates"]
        return [(c["epoch"], c["positions"], c["hash"], c["complete"]) for c in found]

    def test_certificates(self):
        def differing():
            text = urllib.request.urlopen(f"http://{self.cluster.http}/metrics", timeout=10).read().decode()
            counted = next(line for line in text.splitlines() if line.startswith("millrace_server_epochs_differ_total"))
            return int(counted.split()[-1]), self.cluster.server.text().count("id=epoch_differs")
        self.datasets.Add(pb.DatasetAdd(name="certified", path=self.folder, wait_ms=20000), timeout=30)
        self.open_ranks("two", 2)
        self.assertEqual(self.tell("two", 0, (0, 12, 2**64 - 1, True)), [])  # the other rank has not told
        self.assertEqual(self.tell("two", 1, (0, 12, 3, True)), [(0, 24, "%016x" % 2, True)])
        more = [(e, 12, e, e != 4) for e in range(2, 6)]
        self.tell("two", 0, *more)
        self.assertEqual(self.tell("two", 1, *more), [(e, 24, "%016x" % (2 * e), e != 4) for e in range(2, 6)])
        self.open_ranks("one", 1)
        self.tell("one", 0, (2, 24, 4, True), (3, 20, 9, True), (4, 24, 9, True))  # equal; fewer positions; not whole
        self.assertEqual(differing(), (0, 0))
        for _ in range(2):  # told again is not counted again
            self.tell("one", 0, (5, 24, 11, True))
            self.assertEqual(differing(), (1, 1))
        self.assertIn("other=two", self.cluster.server.text())
        for job, world in (("one", 1), ("two", 2)):
            for rank in range(world):
                self.jobs.Close(pb.JobClose(job=job, rank=rank, generation=1), timeout=10)

    def test_errors_have_the_right_status(self):
        self.assertEqual(self.code(self.datasets.Show, pb.DatasetName(name="nowhere"))[0], grpc.StatusCode.NOT_FOUND)
        status, text = self.code(self.jobs.Open, pb.JobOpen(job="x", world=1, batch=4, dataset="nowhere"))
        self.assertEqual(status, grpc.StatusCode.NOT_FOUND)
        self.assertIn("nowhere", text)
        self.assertEqual(self.code(self.cluster_stub.Sync, pb.WorkerSync())[0], grpc.StatusCode.INVALID_ARGUMENT)
        self.assertEqual(self.code(self.datasets.Add, pb.DatasetAdd(name="x", path="relative"))[0],
                         grpc.StatusCode.INVALID_ARGUMENT)

    def test_unknown_methods_and_garbage_are_answered_at_once(self):
        def raw(method, payload):
            call = self.channel.unary_unary(method, request_serializer=None, response_deserializer=None)
            return self.code(lambda request, timeout: call(request, timeout=timeout), payload)[0]
        began = time.monotonic()
        self.assertEqual(raw("/millrace.v1.Jobs/NoSuch", b""), grpc.StatusCode.UNIMPLEMENTED)
        self.assertEqual(raw("/no.such.Service/Call", b""), grpc.StatusCode.UNIMPLEMENTED)
        self.assertEqual(raw("/millrace.v1.Jobs/Open", b"\xff\xff\xff"), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn(raw("/millrace.v1.Jobs/Open", bytes(2_000_000)),
                      (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT))
        self.assertLess(time.monotonic() - began, 5)

    def test_a_long_poll_waits_and_answers_on_change(self):
        sync = pb.WorkerSync(worker=77, incarnation=1, addresses=["127.0.0.1:9"], cores=1)
        orders = self.cluster_stub.Sync(sync, timeout=10)
        sync.seen_revision, sync.wait_ms = orders.revision, 10000
        waiting = self.cluster_stub.Sync.future(sync, timeout=20)
        other = pb.DatasetAdd(name="waker", path=self.folder)
        self.datasets.Add(other, timeout=10)
        self.assertNotEqual(waiting.result(timeout=8).revision, orders.revision)
        self.cluster_stub.Sync(pb.WorkerSync(worker=77, incarnation=1, addresses=["127.0.0.1:9"], draining=True), timeout=10)


if __name__ == "__main__":
    harness.main()
