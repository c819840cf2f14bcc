# SPDX-License-Identifier: Apache-2.0
"""Ledgers of jobs of different shapes, with a killed and resumed trainer and a killed worker, prove exactly once; ledgers that
were changed do not, and the audit names what is wrong."""
import json
import os
import shutil
import signal
import struct

import harness
from harness import Cluster, PhotosTest, need_data, wait_for

need_data("imagenet-mini")
ITEMS, EPOCHS = 150, 2
BATCH = 2  # kind of record


def records(path):
    """(offset, size, kind) of each whole record."""
    data, at = open(path, "rb").read(), 0
    while at + 16 <= len(data):
        magic, _, kind, length, _ = struct.unpack_from("<4sHHII", data, at)
        assert magic == b"MRLG"
        if at + 16 + length + 8 > len(data):
            break
        yield at, 16 + length + 8, kind
        at += 16 + length + 8


class Audit(PhotosTest):
    COUNT = ITEMS

    def named(self, cluster, ledgers, *words):
        found = cluster.audit(*ledgers, code=6)
        self.assertFalse(found["proven"])
        text = "\n".join(found["first_violations"])
        for word in words:
            self.assertIn(word, text)
        return found

    def train(self, cluster):
        def start(name, rank=0, **more):
            return cluster.trainer(f"{name}-{rank}", "photos", job=name, rank=rank, epochs=EPOCHS, look_ahead=2,
                                   ledger=cluster.path("ledgers"), **more)
        os.mkdir(cluster.path("ledgers"))
        killed = dict(batch=16, tail="exact", cursor_out=cluster.path("a.cursor"))
        a = start("a", pace=150, **killed)
        others = [start("b", rank, world=2, batch=5, tail="pad", pace=150) for rank in (0, 1)]
        others.append(start("c", batch=7, tail="drop"))
        wait_for("job a to be within its first epoch", lambda: len(cluster.rows("a-0")) >= 64)
        saved = cluster.path("a.cursor.saved")
        shutil.copy(cluster.path("a.cursor"), saved)
        wait_for("job a to be past what it saved", lambda: len(cluster.rows("a-0")) >= 112)
        a.kill()
        a.wait()
        cluster.workers[2].kill(signal.SIGKILL)
        killed.update(batch=10, cursor_in=saved)  # another shape goes on
        for process in others + [start("a", **killed)]:
            self.assertEqual(process.wait(120), 0, process.tail())
        return [cluster.path("ledgers", f"{name}.ledger") for name in ("a.0", "b.0", "b.1", "c.0")]

    def test_proves_and_names(self):
        with Cluster(self.folder, 3) as cluster:
            cluster.add("photos", self.folder)
            ledgers = self.train(cluster)
            with self.subTest("clean"):
                self.clean(cluster, ledgers)
            with self.subTest("as rows say"):
                self.as_rows_say(cluster, ledgers[3])
            with self.subTest("changed"):
                self.changed(cluster, ledgers)
            with self.subTest("millrace run"):
                self.run_command(cluster)
            with self.subTest("certificates"):
                self.certificates(cluster)

    def clean(self, cluster, ledgers):
        proof = cluster.audit(cluster.path("ledgers"), "--complete")
        self.assertEqual(cluster.audit(*ledgers), proof)
        self.assertTrue(proof["proven"])
        found = {(e["job"], e["epoch"]): e for e in proof["epochs"]}
        self.assertEqual(set(found), {(job, e) for job in "abc" for e in range(EPOCHS)})
        for (job, epoch), row in found.items():
            self.assertEqual(row["state"], "complete")
            self.assertEqual(row["delivered"], ITEMS // 7 * 7 if job == "c" else ITEMS)
            self.assertEqual(row["again"] > 0, (job, epoch) == ("a", 0))
        self.assertEqual(proof["starts"], 5)
        text = cluster.cli("audit", *ledgers).stdout
        self.assertIn("proven: 5 starts", text)

    def as_rows_say(self, cluster, ledger):
        """The trainer wrote down by itself what it was handed."""
        rows, data = iter(cluster.rows("c-0")), open(ledger, "rb").read()
        for at, _, kind in records(ledger):
            if kind != BATCH:
                continue
            runs, = struct.unpack_from("<I", data, at + 16 + 60)
            positions = []
            for i in range(runs):
                begin, count = struct.unpack_from("<QI", data, at + 80 + 12 * i)
                positions += range(begin, begin + count)
            for i, position in enumerate(positions):
                value, = struct.unpack_from("<Q", data, at + 80 + 12 * runs + 8 * i)
                row = next(rows)
                self.assertEqual((row.position, row.hash), (position, "%016x" % value))
        self.assertIsNone(next(rows, None))

    def changed(self, cluster, ledgers):
        a, b0, b1, c = ledgers

        def copy(path, change):
            out = cluster.path("changed.ledger")
            data = bytearray(open(path, "rb").read())
            change(data)
            open(out, "wb").write(data)
            return out

        at, size, _ = [r for r in records(c) if r[2] == BATCH][3]

        def flip(data):
            data[at + size // 2] ^= 1

        def double(data):
            data[at:at] = data[at:at + size]

        def drop(data):
            del data[at:at + size]
        self.named(cluster, [copy(c, flip)], f"byte {at}", "checksum", "missing")
        self.named(cluster, [copy(c, double)], "job c rank 0 epoch 0 position 21: doubled")
        self.named(cluster, [copy(c, drop)], "job c epoch 0 positions 21 to 27: missing")
        found = self.named(cluster, [a, b0, c], "no ledger of rank 1 of 2", "job b epoch 0", "uneven", "missing")
        self.assertEqual({e["job"] for e in found["epochs"] if e["state"] == "violated"}, {"b"})
        cut = copy(c, lambda data: data.__delitem__(slice(-10, None)))
        found = cluster.audit(cut)  # killed while it wrote its last batch
        self.assertEqual((found["torn"], found["epochs"][-1]["state"]), (1, "incomplete"))
        cluster.audit(cut, "--complete", code=6)
        out = cluster.path("garbage")
        open(out, "wb").write(os.urandom(5000))
        reply = cluster.cli("audit", out, check=False)
        self.assertEqual(reply.returncode, 1)
        self.assertIn("garbage", reply.stderr)
        self.assertEqual(cluster.cli("audit", cluster.path("nothing"), check=False).returncode, 3)

    def run_command(self, cluster):
        folder, file = cluster.path("run"), cluster.path("file")
        open(file, "wb").close()
        self.assertNotEqual(cluster.cli("run", "photos", "--ledger", file, check=False).returncode, 0)
        cluster.cli("run", "photos", "--jobs", 2, "--ledger", folder, "--quiet")
        proof = cluster.audit(folder, cluster.path("ledgers"), "--complete")  # the same stream
        self.assertEqual((proof["starts"], len(proof["epochs"])), (7, 8))
        others = [e["delivered"] for e in proof["epochs"] if e["job"] not in "abc"]  # their names are made up
        self.assertEqual(others, [ITEMS, ITEMS])

    def certificates(self, cluster):
        jobs = {j["job"]: j for j in json.loads(cluster.cli("jobs", "--json").stdout)["jobs"]}
        b = jobs["b"]["certificates"]
        self.assertEqual([(c["epoch"], c["positions"], c["complete"]) for c in b], [(0, ITEMS, True), (1, ITEMS, True)])
        whole = {c["epoch"]: c for c in jobs["a"]["certificates"]}
        self.assertFalse(whole[0]["complete"])  # a second process did not see all of it
        self.assertEqual((whole[1]["complete"], whole[1]["hash"]), (True, b[1]["hash"]))
        self.assertNotEqual(b[0]["hash"], b[1]["hash"])
        self.assertNotIn("id=epoch_differs", cluster.server.text())


if __name__ == "__main__":
    harness.main()
