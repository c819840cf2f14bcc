# SPDX-License-Identifier: Apache-2.0
"""Several views of a sample: each equals Pillow by its own draws, the first is what one view gives, and no worker's death changes a bit."""
import os
import signal
import subprocess
import sys
import unittest

import numpy

import harness
from harness import Cluster, PhotosTest, wait_for

CHECK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pillow_check.py")
PACKAGE = os.environ.get("MILLRACE_PYTHON", os.path.join(os.path.dirname(harness.BIN), "python"))
THREE = "sample: Decode RandomResizedCrop(size=64) RandomHorizontalFlip Views(count=3)"


class Views(PhotosTest):
    COUNT = 97  # prime

    def test_each_view_is_pillows_and_the_first_is_that_of_one(self):
        with Cluster(self.folder, 2) as cluster:
            cluster.add("photos", self.folder)
            for epoch in (0, 1):  # in the second all verdicts are known, and only what the views need is decoded
                one = cluster.cat("photos", f"one-{epoch}", "--epoch", epoch)
                cat = cluster.cat("photos", f"two-{epoch}", "--epoch", epoch, "--option", "views=2")
                self.assertEqual(cat.field("image").shape, (97, 2, 224, 224, 3))
                self.assertTrue((cat.field("image")[:, 0] == one.field("image")).all())
                self.assertEqual([(r["item"], r["box"][0], r["flip"][0]) for r in cat.rows], [(r["item"], r["box"], r["flip"]) for r in one.rows])
                self.assertGreater(sum(r["box"][0] != r["box"][1] for r in cat.rows), 90)
                reply = subprocess.run(["/usr/bin/python3", CHECK, cluster.path(f"two-{epoch}"), self.folder, "imagenet_train"],
                                       capture_output=True, text=True)
                print(reply.stdout[-200:])
                self.assertEqual(reply.returncode, 0, reply.stdout[-2000:] + reply.stderr[-2000:])
            again = cluster.cat("photos", "again", "--epoch", 0, "--option", "views=1")
            self.assertEqual([r["hash"] for r in again.rows], [r["hash"] for r in cluster.cat("photos", "plain").rows])
            refused = cluster.cat("photos", "none", "--transforms", "imagenet_eval", "--option", "views=2", check=False)
            self.assertIn("all views would be the same", refused.stderr)

    def test_a_worker_is_killed(self):
        with Cluster(self.folder, 1) as cluster:
            cluster.add("photos", self.folder)
            quiet = cluster.trainer("quiet", "photos", job="quiet", batch=8, tail="exact", epochs=4, pipeline=THREE)
            self.assertEqual(quiet.wait(60), 0, quiet.tail())
            want = {r.key(): (r.item, r.hash) for r in cluster.rows("quiet")}
        with Cluster(self.folder, 2) as cluster:
            cluster.add("photos", self.folder)
            trainer = cluster.trainer("t", "photos", job="t", batch=8, tail="exact", epochs=4, pace=80, pipeline=THREE)
            wait_for("a quarter", lambda: len(cluster.rows("t")) >= 97)
            cluster.workers[1].kill(signal.SIGKILL)
            self.assertEqual(trainer.wait(60), 0, trainer.tail())
            rows = cluster.rows("t")
            self.assertEqual([r.key() for r in rows], [(e, p) for e in range(4) for p in range(97)])
            self.assertEqual({r.key(): (r.item, r.hash) for r in rows}, want)

    def test_siblings_of_one_view_and_three_share_decodes(self):
        """Rows this small have blocks of 256 with one view and with three, so one making can hold both."""
        with Cluster(self.folder, 1) as cluster:
            cluster.add("photos", self.folder)
            three = THREE.replace("size=64", "size=24")
            texts = {"one": three.replace(" Views(count=3)", ""), "three": three}
            for name, text in texts.items():
                cluster.trainer(name, "photos", job=name, batch=8, tail="exact", epochs=12, pace=300, pipeline=text)
            for process in cluster.others:
                self.assertEqual(process.wait(60), 0, process.tail())
            self.assertRegex(cluster.workers[1].text(), r" id=block_made .* together=2 .*shared=[1-9]")
            for name, text in texts.items():
                alone = cluster.trainer(name + "-alone", "photos", job=name + "-alone", batch=8, tail="exact", epochs=12, pipeline=text)
                self.assertEqual(alone.wait(60), 0, alone.tail())
                self.assertEqual({r.key(): r.hash for r in cluster.rows(name)}, {r.key(): r.hash for r in cluster.rows(name + "-alone")})

    @unittest.skipUnless(os.path.exists(os.path.join(PACKAGE, "millrace", "_core.abi3.so")), "the Python package is not built")
    def test_python(self):
        sys.path.insert(0, PACKAGE)
        import millrace
        mean, std = numpy.float32([.485, .456, .406]), numpy.float32([.229, .224, .225])
        with Cluster(self.folder, 1) as cluster:
            cluster.add("photos", self.folder)
            want = cluster.cat("photos", "want", "--option", "size=48", "--option", "views=2").field("image")
            options = dict(dataset="photos", batch_size=16, options={"size": 48}, views=2, tail="exact", timeout=30)
            floats = numpy.moveaxis((want / numpy.float32(255) - mean) / std, -1, 2)
            for changes, expected in (({}, floats), ({"layout": "NHWC"}, numpy.moveaxis(floats, 2, -1)), ({"dtype": "uint8"}, want),
                                      ({"dtype": "uint8", "layout": "NCHW"}, numpy.moveaxis(want, -1, 2))):
                with millrace.Loader(cluster.address, **options, **changes) as loader:
                    at = 0
                    for images, labels in loader:
                        got = numpy.asarray(images)
                        self.assertEqual(got.shape, (len(labels),) + expected.shape[1:])
                        self.assertTrue((got == expected[at:at + len(labels)]).all(), changes)
                        at += len(labels)
                    self.assertEqual(at, 97)
            fields = ("image", "box", "flip")
            mixing = ["RandomResizedCrop(size=48)", "RandomHorizontalFlip", "ToDtype", "Normalize", "Layout(order=NHWC)", "MixUp"]
            with millrace.Loader(cluster.address, **{**options, "options": {}}, transforms=mixing) as loader:
                mixed, labels = next(iter(loader))
                labels, share = numpy.asarray(labels), numpy.sort(numpy.asarray(labels), axis=1)[:, -2:]
                self.assertEqual((mixed.shape, labels.shape[0]), ((16, 2, 48, 48, 3), 16))
                self.assertTrue(numpy.allclose(share.sum(axis=1), 1))
            with millrace.Loader(cluster.address, **options, fields=fields) as loader:
                batch = next(iter(loader))
                self.assertEqual([batch[name].shape for name in fields], [(16, 2, 3, 48, 48), (16, 2, 4), (16, 2)])


if __name__ == "__main__":
    harness.main()
