# SPDX-License-Identifier: Apache-2.0
"""Real processes for the integration tests: a server, workers, trainers, the command (what harms connections between them: relay.py).

Programs come from $MILLRACE_BIN. Test data comes from $MILLRACE_TEST_DATA, else ../shared/data beside the project; a test that
needs it exits with 77 (skipped) where it is missing. Only processes that a test started are ended, by their id.
"""
import contextlib
import hashlib
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("MILLRACE_BIN", os.path.join(ROOT, "build", "release", "bin"))
DATA = os.environ.get("MILLRACE_TEST_DATA", os.path.join(os.path.dirname(ROOT), "shared", "data"))
START_S, STOP_S = 60, 20


def need_data(*parts):
    path = os.path.join(DATA, *parts)
    if not os.path.isdir(path):
        print(f"SKIPPED: test data is not here: {os.path.join(*parts)} (set MILLRACE_TEST_DATA)")
        sys.exit(77)
    return os.path.realpath(path)


def wait_for(what, condition, timeout_s=30.0, every_s=0.02):
    """Polls until condition() is true; its last value. Fails naming `what`."""
    end = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {timeout_s} s in vain for {what}")
        time.sleep(every_s)


def free_port():
    """Below the ports that the kernel gives to connections: it stays free while a program that serves it is restarted."""
    while True:
        port = random.SystemRandom().randrange(20000, 32768)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


class Process:
    """One program, its stdout line by line, its stderr in a file."""

    def __init__(self, args, log, env=None, **popen):
        self.log = log
        self.args = args
        self.err = open(log, "ab")
        self.popen = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=self.err, stdin=subprocess.DEVNULL,
                                      env=dict(os.environ, **(env or {})), **popen)
        self.buffer = b""

    def line(self, timeout_s=START_S):
        """The next line of stdout; None at its end."""
        end = time.monotonic() + timeout_s
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.popen.stdout], [], [], max(0, end - time.monotonic()))
            if not ready:
                raise AssertionError(f"{self.args[0]} said nothing for {timeout_s} s; its log ends:\n{self.tail()}")
            more = os.read(self.popen.stdout.fileno(), 65536)
            if not more:
                return None
            self.buffer += more
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line.decode()

    def ready(self, timeout_s=START_S):
        line = self.line(timeout_s)
        if line is None or not line.startswith("ready "):
            self.popen.wait(STOP_S)
            raise AssertionError(f"{self.args[0]} is not ready ({line}); its log ends:\n{self.tail()}")
        return line.split()

    def tail(self, count=30):
        return "\n".join(self.text().splitlines()[-count:])

    def text(self):
        return open(self.log, errors="replace").read()

    def kill(self, sign=signal.SIGKILL):
        if self.popen.poll() is None:
            self.popen.send_signal(sign)

    def end(self, timeout_s=STOP_S):
        """SIGTERM, and the exit code; a process that does not go is killed and reported."""
        self.kill(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s=60):
        try:
            out, _ = self.popen.communicate(timeout=timeout_s)
            self.buffer += out or b""
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.communicate()
            raise AssertionError(f"{' '.join(self.args[:3])} did not end in {timeout_s} s; log:\n{self.tail()}")
        finally:
            self.err.close()
        return self.popen.returncode


class Cluster:
    """A server and workers on loopback, in a folder of their own. Use as a context manager."""

    def __init__(self, roots, workers=2, staging="96MB", threads=1, server_args=(), worker_args=(), env=None):
        self.dir = tempfile.mkdtemp(prefix="millrace-test-")
        os.chmod(self.dir, 0o755)
        self.roots = [roots] if isinstance(roots, str) else list(roots)
        self.staging, self.threads = staging, threads
        self.server_args, self.worker_args, self.env = list(server_args), list(worker_args), env
        self.address, self.http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.server, self.workers, self.others, self.count = None, {}, [], workers

    def __enter__(self):
        try:
            self.start_server()
            for i in range(1, self.count + 1):
                self.start_worker(i)
            self.wait_workers(self.count)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind, value, trace):
        if kind:
            self.show_logs()
        self.stop()

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def within(self, who):
        """What runs the program of "server", "worker-1", ..., a trainer's name, or "cli": nothing, here."""
        return []

    def worker_listen(self, i):
        return "127.0.0.1:0"

    def start_server(self):
        args = [os.path.join(BIN, "millrace-server"), "--listen", self.address, "--http", self.http, "--state", self.path("server")]
        self.server = Process(self.within("server") + args + self.server_args, self.path("server.log"), self.env)
        self.server.ready()

    def start_worker(self, i, extra=(), server=None, **popen):
        args = [os.path.join(BIN, "millrace-worker"), "--server", server or self.address, "--listen", self.worker_listen(i), "--state",
                self.path(f"worker-{i}"), "--staging", self.staging, "--threads", str(self.threads)]
        args += ["--cpu-class", "normal"]  # beside compilers idle threads wait for half a minute
        for root in self.roots:
            args += ["--data-root", root]
        process = Process(self.within(f"worker-{i}") + args + self.worker_args + list(extra), self.path(f"worker-{i}.log"), self.env, **popen)
        self.workers[i] = process
        process.address = process.ready()[1]
        return process

    def wait_workers(self, count, timeout_s=START_S):
        def ready():
            reply = self.cli("workers", "--json", check=False)
            if reply.returncode:
                return False
            states = [w["state"] for w in json.loads(reply.stdout)["workers"]]
            return states.count("ready") >= count
        wait_for(f"{count} ready workers", ready, timeout_s, 0.1)

    def cli(self, *args, check=True, timeout_s=120, env=None):
        reply = subprocess.run([*self.within("cli"), os.path.join(BIN, "millrace"), *map(str, args)], capture_output=True, text=True,
                               timeout=timeout_s, stdin=subprocess.DEVNULL,
                               env=dict(os.environ, MILLRACE_SERVER=self.address, **(self.env or {}), **(env or {})))
        if check and reply.returncode:
            raise AssertionError(f"millrace {' '.join(map(str, args))}: exit {reply.returncode}\n{reply.stdout}{reply.stderr}")
        return reply

    def add(self, name, path):
        self.cli("dataset", "add", name, path)
        self.wait_eligible(name, len(self.workers))

    def wait_eligible(self, name, count, timeout_s=30):
        def eligible():
            info = json.loads(self.cli("dataset", "show", name, "--json").stdout)
            return info["eligible_workers"] >= count
        wait_for(f"{count} workers eligible for {name}", eligible, timeout_s, 0.05)

    def cat(self, dataset, out, *args, check=True, **more):
        path = self.path(out)
        reply = self.cli("cat", dataset, "--out", path, *args, check=check, **more)
        return Cat(path) if check else reply

    def trainer(self, name, dataset, server=None, rows=True, **options):
        """Starts a trainer; options as its flags, lists repeated. Its rows are read by rows(name), unless rows=False."""
        args = [os.path.join(BIN, "millrace-test-trainer"), "--server", server or self.address, "--dataset", dataset]
        args += ["--rows", self.path(f"{name}.rows")] if rows else []
        for key, value in options.items():
            for each in value if isinstance(value, (list, tuple)) else [value]:
                args += ["--" + key.replace("_", "-"), str(each)] if each is not True else ["--" + key.replace("_", "-")]
        process = Process(self.within(name) + args, self.path(f"{name}.log"), self.env)
        self.others.append(process)
        return process

    def rows(self, name):
        try:
            return [Row(line) for line in open(self.path(f"{name}.rows")) if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def blocks_made(self, i=None):
        """(stream, epoch, block, rows, cause) of every block that a worker's log says it made, killed ones included."""
        made = []
        for j in [i] if i else sorted(self.workers):
            for line in open(self.path(f"worker-{j}.log"), errors="replace"):
                if " id=block_made " in line and line.endswith("\n"):
                    f = dict(re.findall(r"(\w+)=(\S+)", line))
                    made.append((f["stream"], int(f["epoch"]), int(f["block"]), int(f["rows"]), f["cause"]))
        return made

    def audit(self, *arguments, code=0):
        """What `millrace audit --json` says: arguments as its own; ledgers must be proven unless another code is expected."""
        reply = self.cli("audit", "--json", *arguments, check=False)
        if reply.returncode != code:
            raise AssertionError(f"audit: exit {reply.returncode}, not {code}\n{reply.stdout}{reply.stderr}")
        return json.loads(reply.stdout)

    def metric(self, pattern):
        """The sum of the server's metrics whose lines begin with `pattern`; workers tell theirs about once a second."""
        text = urllib.request.urlopen(f"http://{self.http}/metrics", timeout=10).read().decode()
        return sum(float(value) for value in re.findall(rf"^(?:{pattern}).* (\S+)$", text, re.M))

    def show_logs(self):
        for name in sorted(os.listdir(self.dir)):
            if name.endswith(".log"):
                text = open(self.path(name), errors="replace").read().splitlines()
                text = [line for line in text if "id=block_made" not in line]
                print(f"---- {name}, the end:", *text[-15:], sep="\n", file=sys.stderr)

    def stop(self):
        for process in self.others + list(self.workers.values()) + [self.server]:
            if process:
                process.kill(signal.SIGKILL)
        for process in self.others + list(self.workers.values()) + [self.server]:
            if process and not process.err.closed:
                try:
                    process.wait(STOP_S)
                except (AssertionError, ValueError):
                    pass
        if not os.environ.get("MILLRACE_KEEP"):
            shutil.rmtree(self.dir, ignore_errors=True)


class Row:
    """One line of a trainer's --rows."""

    def __init__(self, line):
        f = line.split()
        self.job_epoch, self.epoch, self.step, self.position, self.item, self.used_item = map(int, f[:6])
        self.hash, self.valid, self.status, self.cause = f[6], int(f[7]), int(f[8]), f[9]

    def key(self):
        return self.epoch, self.position


class Cat:
    """What `millrace cat` wrote."""

    def __init__(self, path):
        self.path = path
        self.rows = [json.loads(line) for line in open(os.path.join(path, "rows.jsonl"))]

    def field(self, name):
        import numpy
        return numpy.load(os.path.join(self.path, name + ".npy"))

    def digest(self):
        """One hash over every file, in order of name."""
        h = hashlib.sha256()
        for name in sorted(os.listdir(self.path)):
            h.update(name.encode())
            h.update(open(os.path.join(self.path, name), "rb").read())
        return h.hexdigest()


def copy_photos(folder, count, source="imagenet-mini"):
    """An image folder of the first `count` photographs, as links into the data (same files, other set)."""
    base, made = need_data(source), 0
    for label in sorted(os.listdir(base)):
        if not os.path.isdir(os.path.join(base, label)):
            continue
        for name in sorted(os.listdir(os.path.join(base, label))):
            if made == count:
                return folder
            os.makedirs(os.path.join(folder, label), exist_ok=True)
            shutil.copy(os.path.join(base, label, name), os.path.join(folder, label, name))
            made += 1
    return folder


@contextlib.contextmanager
def photos(count):
    """The folder of copy_photos(), for a while, readable to all."""
    with tempfile.TemporaryDirectory(prefix="millrace-photos-") as folder:
        os.chmod(folder, 0o755)
        yield copy_photos(folder, count)


class PhotosTest(unittest.TestCase):
    """Tests that share one folder of COUNT photographs."""
    COUNT = 0

    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(photos(cls.COUNT))


def main():
    unittest.main(verbosity=2, warnings="ignore")
