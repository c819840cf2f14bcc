#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""grpcio_test.py ECHO_SERVER BUILD_DIR: an independent client (python3-grpcio, python3-protobuf) speaks to our server."""
import hashlib
import hmac
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import grpc

SERVER, BUILD = sys.argv[1], sys.argv[2]
HERE = os.path.dirname(os.path.abspath(__file__))
SCHEMA = os.path.join(HERE, "../../../proto/schema")
PYTHON_DIR = os.path.join(BUILD, "python")
KEY = "a secret of the tests"


def make_stubs():
    os.makedirs(PYTHON_DIR, exist_ok=True)
    for folder, name in ((HERE, "echo"), (SCHEMA, "health"), (SCHEMA, "millrace")):
        subprocess.run(["protoc", "-I" + folder, "--python_out=" + PYTHON_DIR, name + ".proto"], check=True)
    sys.path.insert(0, PYTHON_DIR)


make_stubs()
import echo_pb2  # noqa: E402
import health_pb2  # noqa: E402

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


class Server:
    def __init__(self, key=None):
        self.process = subprocess.Popen([SERVER, "127.0.0.1:0"] + ([key] if key else []), stdout=subprocess.PIPE, text=True)
        word, self.address = self.process.stdout.readline().split()
        assert word == "ready"

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, self.process.returncode
        return int(out.split()[2])


def token(key, job="job-1", expiry=None):
    text = "v1.%s.%d" % (job, expiry or time.time() + 100)
    return text + "." + hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


class Case(unittest.TestCase):
    key = None

    def setUp(self):
        self.server = Server(self.key)
        self.channel = grpc.insecure_channel(self.server.address, options=[
            ("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)])
        self.say = self.method("/millrace.test.Echo/Say", echo_pb2.EchoRequest, echo_pb2.EchoReply)
        self.check = self.method("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest,
                                 health_pb2.HealthCheckResponse)
        self.watch = self.channel.unary_stream(
            "/grpc.health.v1.Health/Watch", request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString)
        self.stopped = False

    def tearDown(self):
        self.channel.close()
        if not self.stopped:
            self.server.stop()

    def method(self, path, request, reply):
        return self.channel.unary_unary(path, request_serializer=request.SerializeToString,
                                        response_deserializer=reply.FromString)

    def raw(self, path, data, **more):
        more.setdefault("timeout", 20)
        return self.channel.unary_unary(path)(data, **more)

    def count(self):
        return self.method("/millrace.test.Echo/Count", echo_pb2.Many, echo_pb2.Counts)(echo_pb2.Many(), timeout=20)

    def await_counts(self, wanted):
        deadline = time.monotonic() + 20
        while not wanted(self.count()):
            self.assertLess(time.monotonic(), deadline)

    def assert_fails(self, status, call, *args, **more):
        with self.assertRaises(grpc.RpcError) as caught:
            call(*args, **more)
        self.assertEqual(caught.exception.code(), status, caught.exception.details())
        return caught.exception


class Calls(Case):
    def test_echo(self):
        for text in ("hello", "", "\u00e9\u4e16" * 1000):
            self.assertEqual(self.say(echo_pb2.EchoRequest(text=text), timeout=20).text, text)
        reply = self.say(echo_pb2.EchoRequest(reply_bytes=1000000, padding=b"x" * 1000000), timeout=20)
        self.assertEqual(reply.padding, bytes(1000000))

    def test_unknown_methods_are_refused_at_once(self):
        for path in ("/millrace.test.Echo/Nope", "/no.such.Service/Say", "/grpc.health.v1.Health/Nope", "/", "/x"):
            start = time.monotonic()
            error = self.assert_fails(grpc.StatusCode.UNIMPLEMENTED, self.raw, path, b"")
            self.assertLess(time.monotonic() - start, 5)
            self.assertIn(("millrace-code", "6"), [tuple(m) for m in error.trailing_metadata()])
        for _ in range(50):  # more than are armed
            self.assert_fails(grpc.StatusCode.UNIMPLEMENTED, self.raw, "/millrace.test.Echo/Nope", b"")

    def test_bad_messages(self):
        for data in (b"\xff\xff\xff", b"\x0a\x05abc", b"\x0a\xff\xff\xff\xff\x7fabc", b"\x08"):
            error = self.assert_fails(grpc.StatusCode.INVALID_ARGUMENT, self.raw, "/millrace.test.Echo/Say", data)
            self.assertIn("Say", error.details())
            self.assert_fails(grpc.StatusCode.INVALID_ARGUMENT, self.raw, "/grpc.health.v1.Health/Check", data)
        # fields that we do not know are passed over
        self.assertEqual(echo_pb2.EchoReply.FromString(self.raw("/millrace.test.Echo/Say", b"\x0a\x02hi\xa2\x06\x03abc")).text,
                         "hi")

    def test_errors_carry_code_and_text(self):
        for code, status in ((2, grpc.StatusCode.NOT_FOUND), (34, grpc.StatusCode.RESOURCE_EXHAUSTED),
                             (8, grpc.StatusCode.FAILED_PRECONDITION), (64, grpc.StatusCode.DATA_LOSS)):
            error = self.assert_fails(status, self.say, echo_pb2.EchoRequest(text="x", code=code), timeout=20)
            self.assertEqual(error.details(), "asked to fail: x")
            self.assertIn(("millrace-code", str(code)), [tuple(m) for m in error.trailing_metadata()])

    def test_oversize(self):
        self.assert_fails(grpc.StatusCode.RESOURCE_EXHAUSTED, self.say, echo_pb2.EchoRequest(padding=bytes(1 << 20)),
                          timeout=20)
        self.assert_fails(grpc.StatusCode.RESOURCE_EXHAUSTED, self.say, echo_pb2.EchoRequest(padding=bytes(3 << 20)),
                          timeout=20)
        self.test_echo()

    def test_compressed_is_refused(self):
        bomb = echo_pb2.EchoRequest(padding=bytes(100 << 20))
        for request in (echo_pb2.EchoRequest(text="x" * 5000), bomb):
            with self.assertRaises(grpc.RpcError):
                self.say(request, timeout=20, compression=grpc.Compression.Gzip)
        self.test_echo()

    def test_deadline_and_cancel(self):
        start = time.monotonic()
        self.assert_fails(grpc.StatusCode.DEADLINE_EXCEEDED, self.say, echo_pb2.EchoRequest(hold=True), timeout=0.2)
        self.assertLess(time.monotonic() - start, 5)
        before = self.count()
        future = self.say.future(echo_pb2.EchoRequest(hold=True), timeout=60)
        self.await_counts(lambda now: now.calls > before.calls)
        future.cancel()
        self.await_counts(lambda now: now.gone > before.gone)

    def test_many_at_once(self):
        futures = [self.say.future(echo_pb2.EchoRequest(text=str(i), delay_ms=100), timeout=30) for i in range(300)]
        self.assertEqual([f.result().text for f in futures], [str(i) for i in range(300)])

    def test_two_messages_for_a_unary_call(self):
        stream = self.channel.stream_unary("/millrace.test.Echo/Say")
        message = echo_pb2.EchoRequest(text="twice").SerializeToString()
        try:  # whichever is answered, nothing hangs
            stream(iter([message, message]), timeout=20)
        except grpc.RpcError as error:
            self.assertNotEqual(error.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        with self.assertRaises(grpc.RpcError) as caught:
            stream(iter([]), timeout=5)
        self.assertNotEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        self.test_echo()


class Health(Case):
    def turn(self):
        self.server.process.send_signal(signal.SIGUSR1)

    def test_check(self):
        for name in ("", "millrace.test.Echo", "grpc.health.v1.Health"):
            self.assertEqual(self.check(health_pb2.HealthCheckRequest(service=name), timeout=20).status, SERVING)
        self.assert_fails(grpc.StatusCode.NOT_FOUND, self.check, health_pb2.HealthCheckRequest(service="nope"), timeout=20)

    def test_watch_says_each_change(self):
        streams = [self.watch(health_pb2.HealthCheckRequest(service=name), timeout=60)
                   for name in ("", "millrace.test.Echo")]
        unknown = self.watch(health_pb2.HealthCheckRequest(service="nope"), timeout=60)
        self.assertEqual(next(unknown).status, SERVICE_UNKNOWN)
        for want in (SERVING, NOT_SERVING, SERVING, NOT_SERVING):
            for stream in streams:
                self.assertEqual(next(stream).status, want)
            self.turn()
        for stream in streams:
            stream.cancel()
        self.assertEqual(self.say(echo_pb2.EchoRequest(text="on"), timeout=20).text, "on")

    def test_stop_ends_watches(self):
        streams = [self.watch(health_pb2.HealthCheckRequest(), timeout=60) for _ in range(20)]
        for stream in streams:
            self.assertEqual(next(stream).status, SERVING)
        ends = []

        def drain(stream):
            try:
                while True:
                    next(stream)
            except grpc.RpcError as error:
                ends.append(error.code())

        threads = [threading.Thread(target=drain, args=(stream,)) for stream in streams]
        for thread in threads:
            thread.start()
        self.stopped = True
        self.assertLess(self.server.stop(), 1000)
        for thread in threads:
            thread.join(20)
        self.assertEqual(ends, [grpc.StatusCode.UNAVAILABLE] * 20)

    def test_stop_with_calls_in_flight(self):
        futures = [self.say.future(echo_pb2.EchoRequest(hold=True), timeout=60) for _ in range(20)]
        self.await_counts(lambda now: now.calls == 20)
        self.stopped = True
        self.assertLess(self.server.stop(), 1500)  # its grace is 500 ms
        for future in futures:
            self.assertIn(future.exception(timeout=20).code(), (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED))


class Tokens(Case):
    key = KEY

    def test_tokens(self):
        good = token(KEY)
        rows = (("Bearer " + good, None), ("Bearer " + token(KEY, expiry=time.time() - 1), "expired"),
                ("Bearer " + token(KEY + "!"), "another secret"), (good, "needed"), ("Bearer ", "form"),
                ("Bearer " + good.replace("job-1", "job-2"), "another secret"), ("bearer", "needed"),
                ("Bearer " + "x" * 600, "needed"), (None, "needed"))
        for value, error in rows:
            metadata = [("authorization", value)] if value is not None else []
            if error is None:
                self.assertEqual(self.say(echo_pb2.EchoRequest(text="in"), timeout=20, metadata=metadata).text, "in")
            else:
                caught = self.assert_fails(grpc.StatusCode.PERMISSION_DENIED, self.say, echo_pb2.EchoRequest(text="in"),
                                           timeout=20, metadata=metadata)
                self.assertIn(error, caught.details())

    def test_health_is_open(self):
        self.assertEqual(self.check(health_pb2.HealthCheckRequest(), timeout=20).status, SERVING)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
