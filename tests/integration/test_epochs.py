# SPDX-License-Identifier: Apache-2.0
"""The same bits whatever the number of workers and whoever dies; every position once; two epochs differ."""
import signal
import struct
import unittest

import harness
from harness import Cluster, need_data
from relay import Relay

PHOTOS = need_data("imagenet-mini")
EPOCH = ["--transforms", "imagenet_train"]


def epochs(cluster):
    return [cluster.cat("photos", f"epoch-{e}", *EPOCH, "--epoch", e) for e in (0, 1)]


class Epochs(unittest.TestCase):
    reference = None

    def check(self, cats):
        for epoch, cat in enumerate(cats):
            self.assertEqual([(r["epoch"], r["position"]) for r in cat.rows], [(epoch, p) for p in range(400)])
            self.assertEqual(sorted(r["item"] for r in cat.rows), list(range(400)))
            self.assertTrue(all(r["status"] == "ok" and r["item"] == r["used_item"] for r in cat.rows))
        digests = [cat.digest() for cat in cats]
        self.assertNotEqual(digests[0], digests[1])
        self.assertNotEqual([r["item"] for r in cats[0].rows], [r["item"] for r in cats[1].rows])
        if Epochs.reference is None:
            Epochs.reference = digests
        self.assertEqual(digests, Epochs.reference)

    def test_one_two_and_three_workers(self):
        for workers in (1, 2, 3):
            with self.subTest(workers=workers), Cluster(PHOTOS, workers) as cluster:
                cluster.add("photos", PHOTOS)
                self.check(epochs(cluster))

    def test_a_worker_killed_while_its_block_is_half_received(self):
        """Worker 1 is behind a relay that counts frames; in the middle of its fourth DATA payload it is killed."""
        state = {"payload": 0, "data": 0, "head": b"", "killed": False}
        relay = Relay()

        def watch(relay, chunk):
            passed = 0
            while passed < len(chunk):
                if state["payload"]:
                    step = min(state["payload"], len(chunk) - passed)
                    if state["data"] == 4 and not state["killed"] and state["payload"] <= 200_000:
                        state["killed"] = True
                        cluster.workers[1].kill(signal.SIGKILL)
                        cluster.workers[1].popen.wait()
                        relay.close()
                        return chunk[:passed]
                    state["payload"] -= step
                    passed += step
                    continue
                step = min(64 - len(state["head"]), len(chunk) - passed)
                state["head"] += chunk[passed:passed + step]
                passed += step
                if len(state["head"]) == 64:
                    self.assertEqual(state["head"][:4], b"MRRC")
                    state["payload"] = struct.unpack_from("<Q", state["head"], 40)[0]
                    state["data"] += state["head"][5] == 5 and state["payload"] > 400_000
                    state["head"] = b""
            return chunk
        relay.watch = watch
        with Cluster(PHOTOS, 0, env={"MILLRACE_SOCKETS_ONLY": "1"}) as cluster:  # the relay must see the rows
            relay.target = cluster.start_worker(1, ["--advertise", relay.address]).address
            for i in (2, 3):
                cluster.start_worker(i)
            cluster.wait_workers(3)
            cluster.add("photos", PHOTOS)
            cats = epochs(cluster)
            self.assertTrue(state["killed"], "the relay never saw a fourth block")
            if Epochs.reference is None:
                with Cluster(PHOTOS, 1) as one:
                    one.add("photos", PHOTOS)
                    self.check(epochs(one))
            self.check(cats)
            made = cluster.blocks_made()
            self.assertGreater(len({(e, b) for _, e, b, _, _ in made}), 99)


if __name__ == "__main__":
    harness.main()
