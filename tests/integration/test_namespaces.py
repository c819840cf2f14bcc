# SPDX-License-Identifier: Apache-2.0
"""A server, three workers and three trainers, each in a network namespace with an address of its own, over IPv4 and IPv6.

The namespaces hang on a bridge in one more, so that the host's network is not touched. Skipped visibly (77) where the
kernel or this process's rights do not allow it.
"""
import os
import subprocess
import sys
import tempfile
import time
import unittest

import harness
from harness import Cluster, copy_photos, need_data, wait_for

need_data("imagenet-mini")
ITEMS, EPOCHS = 101, 2
WHO = ("server", "worker-1", "worker-2", "worker-3", "trainer-1", "trainer-2", "trainer-3")
TRAINERS = (("trainer-1", 16), ("trainer-2", 20), ("trainer-3", 50))


def ip(*args):
    reply = subprocess.run(["ip", *args], capture_output=True, text=True, timeout=20)
    if reply.returncode:
        raise OSError(f"ip {' '.join(args)}: {reply.stderr.strip()}")


class Network:
    """Namespaces on a bridge; host k (the place in WHO) is 10.83.0.k+1 and fd83::k+1."""

    def __init__(self):
        self.made = []

    def __enter__(self):
        try:
            self.add("bridge")
            ip("-n", self.name("bridge"), "link", "add", "br0", "type", "bridge")
            ip("-n", self.name("bridge"), "link", "set", "br0", "up")
            for who in WHO:
                self.plug_in(who)
        except (OSError, subprocess.TimeoutExpired) as error:
            self.__exit__()
            print(f"SKIPPED: no network namespaces here: {error}")
            sys.exit(77)
        return self

    def __exit__(self, *_):
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)

    @staticmethod
    def name(who):
        return f"millrace-{os.getpid()}-{who}"

    def add(self, who):
        ip("netns", "add", self.name(who))
        self.made.append(self.name(who))
        ip("-n", self.name(who), "link", "set", "lo", "up")

    def plug_in(self, who):
        """The bridge's end has the name of `who`."""
        self.add(who)
        number, bridge = WHO.index(who) + 1, self.name("bridge")
        ip("-n", bridge, "link", "add", who, "type", "veth", "peer", "name", "eth0", "netns", self.name(who))
        ip("-n", bridge, "link", "set", who, "master", "br0", "up")
        ip("-n", self.name(who), "addr", "add", f"10.83.0.{number}/24", "dev", "eth0")
        ip("-n", self.name(who), "addr", "add", f"fd83::{number}/64", "dev", "eth0", "nodad")
        ip("-n", self.name(who), "link", "set", "eth0", "up")

    def address(self, who, version):
        number = WHO.index(who) + 1
        return f"10.83.0.{number}" if version == 4 else f"[fd83::{number}]"

    def set_link(self, who, state):
        """At the bridge, so that the addresses stay."""
        ip("-n", self.name("bridge"), "link", "set", who, state)


class NetCluster(Cluster):
    def __init__(self, network, version, folder, secret):
        self.network, self.version = network, version
        super().__init__(folder, 3, server_args=["--secret-file", secret], worker_args=["--secret-file", secret],
                         env={"MILLRACE_SECRET_FILE": secret})
        self.address = f"{network.address('server', version)}:7070"
        self.http = "127.0.0.1:7071"

    def within(self, who):
        return ["ip", "netns", "exec", self.network.name("trainer-1" if who == "cli" else who)]

    def worker_listen(self, i):
        return f"{self.network.address(f'worker-{i}', self.version)}:0"


class Namespaces(unittest.TestCase):
    def check(self, version):
        with tempfile.TemporaryDirectory(prefix="millrace-net-") as folder, Network() as network:
            os.chmod(folder, 0o755)
            photos = copy_photos(os.path.join(folder, "photos"), ITEMS)
            secret = os.path.join(folder, "secret")
            with open(secret, "w") as f:
                f.write("the-secret-of-a-cluster-in-namespaces\n")
            os.chmod(secret, 0o600)
            with NetCluster(network, version, photos, secret) as cluster:
                for i, worker in cluster.workers.items():
                    self.assertTrue(worker.address.startswith(network.address(f"worker-{i}", version) + ":"), worker.address)
                cluster.add("photos", photos)
                self.read_over_a_cut(network, cluster)
                cluster.wait_workers(3)

    def read_over_a_cut(self, network, cluster):
        """The link of one worker is down from the middle of the first epoch until all have ended, and comes back."""
        trainers = [cluster.trainer(name, "photos", job=name, batch=batch, tail="exact", epochs=EPOCHS, pace=80)
                    for name, batch in TRAINERS]
        wait_for("the middle of an epoch", lambda: len(cluster.rows("trainer-1")) >= ITEMS // 3)
        network.set_link("worker-2", "down")
        began = time.monotonic()
        hashes = {}
        for process, (name, _) in zip(trainers, TRAINERS):
            self.assertEqual(process.wait(60), 0, process.tail())
            rows = cluster.rows(name)
            self.assertEqual([r.key() for r in rows], [(e, p) for e in range(EPOCHS) for p in range(ITEMS)])
            for row in rows:
                self.assertEqual(hashes.setdefault(row.key(), (row.item, row.hash)), (row.item, row.hash))
        said = " ".join(p.buffer.decode() for p in trainers)
        self.assertRegex(said, r"failovers=[1-9]")
        print(f"IPv{cluster.version}: ended {time.monotonic() - began:.1f} s after the link went down")
        network.set_link("worker-2", "up")

    def test_ipv4(self):
        self.check(4)

    def test_ipv6(self):
        self.check(6)


if __name__ == "__main__":
    harness.main()
