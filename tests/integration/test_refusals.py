# SPDX-License-Identifier: Apache-2.0
"""Bad input of every kind to every program: a clear error, a counter, nothing lost, no other job disturbed."""
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import unittest
import urllib.request

import harness
from harness import BIN, Cluster, copy_photos, need_data, wait_for

PHOTOS = need_data("imagenet-mini")


DROPPED = "millrace_worker_connections_dropped_total"


def run(program, *args, timeout=20, env=None):
    return subprocess.run([os.path.join(BIN, program), *args], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL, env=dict(os.environ, **(env or {})))


class Usage(unittest.TestCase):
    def refused(self, words, program, *args, code=2):
        reply = run(program, *args)
        self.assertEqual(reply.returncode, code, (args, reply.stdout, reply.stderr))
        for word in words:
            self.assertIn(word, reply.stderr)

    def test_wrong_flags_are_named(self):
        for program in ("millrace", "millrace-server", "millrace-worker"):
            args = ["workers"] if program == "millrace" else []
            self.refused(["--no-such-flag"], program, *args, "--no-such-flag")
        self.refused(["no-such-command"], "millrace", "no-such-command")
        self.refused(["--listen", "nonsense"], "millrace-server", "--state", "/tmp/x", "--listen", "nonsense")
        self.refused(["--state"], "millrace-server")
        self.refused(["--data-root"], "millrace-worker", "--state", "/tmp/x")
        self.refused(["--staging", "many"], "millrace-worker", "--data-root", "/tmp", "--state", "/tmp/x", "--staging", "many")
        self.refused(["--staging", "may use"], "millrace-worker", "--data-root", "/tmp", "--state", "/tmp/x", "--staging", "900TB")

    def test_help_is_there(self):
        for args in (["--help"], ["cat", "--help"], ["up", "--help"], ["dataset", "--help"], ["bench", "--help"]):
            reply = run("millrace", *args)
            self.assertEqual(reply.returncode, 0, args)
            self.assertIn("--", reply.stdout)

    def test_other_addresses_than_loopback_need_a_secret(self):
        with tempfile.TemporaryDirectory() as d:
            self.refused(["0.0.0.0:0", "--insecure", "--secret-file"], "millrace-server", "--state", d, "--listen", "0.0.0.0:0")
            self.refused(["0.0.0.0:0", "--insecure", "--secret-file"], "millrace-worker", "--state", d, "--data-root", d,
                         "--server", "127.0.0.1:1", "--listen", "0.0.0.0:0")
            self.refused(["--insecure"], "millrace", "up", "--state", d, "--data-root", d, "--listen", "0.0.0.0:0", code=2)

    def test_insecure_serves_any_address(self):
        with tempfile.TemporaryDirectory() as d:
            server = harness.Process([os.path.join(BIN, "millrace-server"), "--state", os.path.join(d, "server"), "--listen",
                                      "0.0.0.0:0", "--http", "127.0.0.1:0", "--insecure"], os.path.join(d, "server.log"))
            worker = harness.Process([os.path.join(BIN, "millrace-worker"), "--state", os.path.join(d, "worker"), "--data-root", d,
                                      "--server", "127.0.0.1:1", "--listen", "0.0.0.0:0", "--advertise", "localhost:1",
                                      "--staging", "8MB", "--drain-ms", "0", "--insecure"], os.path.join(d, "worker.log"))
            try:
                self.assertRegex(server.ready()[1], r"^0\.0\.0\.0:")
                self.assertRegex(worker.ready()[1], r"^0\.0\.0\.0:")
                for folder in ("server", "worker"):
                    for path, _, files in os.walk(os.path.join(d, folder)):
                        for name in [path] + [os.path.join(path, f) for f in files]:
                            self.assertEqual(os.stat(name).st_mode & 0o077, 0, name)
            finally:
                self.assertEqual((server.end(), worker.end()), (0, 0))

    def test_a_server_that_is_not_there_is_named_within_the_deadline(self):
        port = harness.free_port()
        reply = run("millrace", "workers", "--server", f"127.0.0.1:{port}", timeout=30)
        self.assertNotEqual(reply.returncode, 0)
        self.assertIn(str(port), reply.stderr)


class Refusals(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="millrace-refusals-")
        os.chmod(cls.folder, 0o755)
        copy_photos(os.path.join(cls.folder, "photos"), 100)
        os.makedirs(os.path.join(cls.folder, "empty", "a"))
        os.makedirs(os.path.join(cls.folder, "empty", "b"))
        shutil.copytree(os.path.join(cls.folder, "photos"), os.path.join(cls.folder, "half"))
        os.makedirs(os.path.join(cls.folder, "half", "zzz-nothing-here"))
        cls.photos = os.path.join(cls.folder, "photos")
        cls.cluster = Cluster(cls.folder, 2).__enter__()
        cls.cluster.add("photos", cls.photos)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__(None, None, None)
        shutil.rmtree(cls.folder)

    def refused(self, words, *args, code=None):
        reply = self.cluster.cli(*args, check=False)
        self.assertNotEqual(reply.returncode, 0, args)
        if code:
            self.assertEqual(reply.returncode, code, reply.stderr)
        for word in words:
            self.assertIn(word, reply.stderr)

    def test_datasets(self):
        self.refused(["nowhere"], "dataset", "show", "nowhere", code=3)
        self.refused(["nowhere"], "dataset", "rm", "nowhere", code=3)
        self.refused(["nowhere"], "cat", "nowhere", "--out", self.cluster.path("no"))
        self.refused(["zzz-nothing-here"], "dataset", "add", "half", os.path.join(self.folder, "half"))
        self.refused(["/etc"], "dataset", "add", "etc", "/etc", code=5)
        self.refused(["no-such-folder"], "dataset", "add", "none", os.path.join(self.folder, "no-such-folder"), code=3)
        self.refused(["a/b"], "dataset", "add", "a/b", self.photos)
        self.refused(["registered already"], "dataset", "add", "photos", self.folder)

    def test_links(self):
        inside, outside = os.path.join(self.folder, "inside"), os.path.join(self.folder, "outside")
        for path in (inside, outside):
            os.makedirs(os.path.join(path, "class"))
        first = next(os.path.join(d, f) for d, _, fs in os.walk(self.photos) for f in fs)
        os.symlink(first, os.path.join(inside, "class", "link.jpg"))
        stray = tempfile.NamedTemporaryFile(suffix=".jpg")
        shutil.copy(first, stray.name)
        os.symlink(stray.name, os.path.join(outside, "class", "link.jpg"))
        self.cluster.cli("dataset", "add", "inside", inside)
        cat = self.cluster.cat("inside", "inside-out", "--transforms", "imagenet_eval")
        self.assertEqual([r["status"] for r in cat.rows], ["ok"])
        self.refused(["link.jpg"], "dataset", "add", "outside", outside)

    def test_skipped_files_are_counted_and_listed(self):
        path = os.path.join(self.folder, "skips")
        shutil.copytree(self.photos, path)
        label = os.path.join(path, sorted(os.listdir(path))[0])
        for name in ("notes.txt", "Thumbs.db"):
            open(os.path.join(label, name), "w").close()
        self.cluster.cli("dataset", "add", "skips", path)
        info = json.loads(self.cluster.cli("dataset", "show", "skips", "--json").stdout)
        self.assertEqual((info["items"], info["skipped"]), (100, 2))
        self.assertEqual(sorted(os.path.basename(n) for n in info["skipped_names"]), ["Thumbs.db", "notes.txt"])

    def test_jobs(self):
        for words, options in (
                (["NoSuchOp"], dict(pipeline="sample: NoSuchOp()")),
                (["size"], dict(option=["size=-3"])),
                (["no-such-option"], dict(option=["no-such-option=1"])),
                (["no-such-field"], dict(field=["no-such-field"])),
                (["rank"], dict(rank=3, world=2)),
                (["batch"], dict(batch=0))):
            trainer = self.cluster.trainer("bad", "photos", job="bad", timeout_ms=10000, **options)
            self.assertEqual(trainer.wait(30), 1, options)
            for word in words:
                self.assertIn(word, trainer.tail())

    def test_ranks_that_disagree_are_named(self):
        first = self.cluster.trainer("r0", "photos", job="pair", rank=0, world=2, batch=8, pace=20)
        wait_for("rank 0", lambda: self.cluster.rows("r0"))
        second = self.cluster.trainer("r1", "photos", job="pair", rank=1, world=2, batch=10, timeout_ms=5000)
        self.assertEqual(second.wait(30), 1)
        self.assertIn("batch", second.tail())
        first.kill()
        first.wait()

    def test_a_port_in_use_is_named(self):
        with tempfile.TemporaryDirectory() as d:
            reply = run("millrace-server", "--state", d, "--listen", self.cluster.address, "--http", "127.0.0.1:0")
            self.assertEqual(reply.returncode, 1)
            self.assertIn(self.cluster.address.split(":")[1], reply.stderr)
            reply = run("millrace-server", "--state", d, "--listen", "127.0.0.1:0", "--http", self.cluster.http)
            self.assertIn(self.cluster.http.split(":")[1], reply.stderr)
            worker = self.cluster.workers[1].address
            reply = run("millrace-worker", "--state", d, "--data-root", d, "--server", self.cluster.address, "--listen", worker)
            self.assertEqual(reply.returncode, 1)
            self.assertIn(worker.split(":")[1], reply.stderr)

    def test_a_state_in_use_is_named(self):
        reply = run("millrace-server", "--state", self.cluster.path("server"), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
        self.assertEqual(reply.returncode, 1)
        self.assertIn("locked", reply.stderr)

    def test_garbage_on_the_data_port_disturbs_nobody(self):
        before = self.cluster.metric(DROPPED)
        job = self.cluster.trainer("steady", "photos", job="steady", batch=10, tail="exact", epochs=3, pace=100)
        wait_for("the steady job", lambda: self.cluster.rows("steady"))
        hello = bytearray(64)
        struct.pack_into("<IBBH", hello, 0, 0x4352524D, 1, 1, 0)
        for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), bytes(64), b"MRRC" + bytes(60),
                        b"MRRC" + b"\xff" * 60, bytes(hello), os.urandom(63), b"MRRC"):
            for worker in self.cluster.workers.values():
                host, port = worker.address.rsplit(":", 1)
                with socket.create_connection((host, int(port)), 5) as s:
                    s.sendall(garbage)
                    s.shutdown(socket.SHUT_WR)
                    s.settimeout(5)
                    try:
                        while s.recv(65536):
                            pass
                    except OSError:
                        pass
        self.assertEqual(job.wait(60), 0, job.tail())
        self.assertEqual([r.key() for r in self.cluster.rows("steady")], [(e, p) for e in range(3) for p in range(100)])
        wait_for("the counters", lambda: self.cluster.metric(DROPPED) >= before + 10)
        self.assertTrue(all(w.popen.poll() is None for w in self.cluster.workers.values()))

    def test_garbage_on_the_control_and_http_ports(self):
        for address in (self.cluster.address, self.cluster.http):
            host, port = address.rsplit(":", 1)
            for garbage in (b"\x00" * 100, os.urandom(5000), b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
                            b"POST /metrics HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n"):
                with socket.create_connection((host, int(port)), 5) as s:
                    try:
                        s.sendall(garbage)
                        s.shutdown(socket.SHUT_WR)
                        s.settimeout(15)
                        while s.recv(65536):
                            pass
                    except OSError:
                        pass
        self.assertEqual(self.cluster.cli("workers").returncode, 0)
        self.assertEqual(urllib.request.urlopen(f"http://{self.cluster.http}/readyz", timeout=10).status, 200)


class Secret(unittest.TestCase):
    def test_only_those_who_have_it_are_served(self):
        with tempfile.TemporaryDirectory() as d:
            os.chmod(d, 0o755)
            copy_photos(os.path.join(d, "photos"), 20)
            for name, text in (("secret", "a-long-enough-secret-of-the-cluster"), ("other", "another-long-enough-secret-here")):
                with open(os.path.join(d, name), "w") as f:
                    f.write(text + "\n")
                os.chmod(os.path.join(d, name), 0o600)
            secret = os.path.join(d, "secret")
            with Cluster(d, 1, env={"MILLRACE_SECRET_FILE": secret}) as cluster:
                cluster.add("photos", os.path.join(d, "photos"))
                self.assertEqual(cluster.trainer("in", "photos", job="in", batch=4).wait(30), 0)
                for other in ("", os.path.join(d, "other")):
                    reply = run("millrace", "workers", "--server", cluster.address, env={"MILLRACE_SECRET_FILE": other})
                    self.assertNotEqual(reply.returncode, 0)
                    self.assertRegex(reply.stderr, "token|secret")


if __name__ == "__main__":
    harness.main()
