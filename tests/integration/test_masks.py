# SPDX-License-Identifier: Apache-2.0
"""Masks: cut, flipped and resized as their images, equal to Pillow to the last bit; missing, changed and unfit ones are named."""
import os
import shutil
import signal
import sys
import tempfile
import unittest

import numpy
from PIL import Image, ImageDraw

import harness
from harness import Cluster, copy_photos, need_data, wait_for

need_data("imagenet-mini")
PACKAGE = os.environ.get("MILLRACE_PYTHON", os.path.join(os.path.dirname(harness.BIN), "python"))
COUNT, SIZE = 61, 48
TEXT = f"sample: Decode RandomResizedCrop(size={SIZE}) RandomHorizontalFlip"


def draw_mask(path, size, number):
    """Polygons of a few classes and the value to be ignored; gray, with a palette, or of one bit."""
    mask = Image.new("L", size, 255 if number % 2 else 0)
    for i in range(5):
        box = [(size[0] * (i * 7 % 11) // 11, size[1] * (i * 5 % 13) // 13), (size[0] * 9 // 10, size[1] * i // 5), (size[0] // (i + 2), size[1] - 1)]
        ImageDraw.Draw(mask).polygon(box, fill=(i + number) % 21)
    if number % 3 == 1:
        mask.putpalette([b * 3 % 256 for b in range(768)])
    if number % 3 == 2:
        mask = mask.point(lambda v: 255 * (v > 7)).convert("1")
    mask.save(path)


def values(path):
    with Image.open(path) as mask:
        return Image.fromarray(numpy.asarray(mask).astype(numpy.uint8))


class Masks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.top = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="millrace-masks-"))
        os.chmod(cls.top, 0o755)
        cls.photos, cls.masks = os.path.join(cls.top, "photos"), os.path.join(cls.top, "masks")
        copy_photos(cls.photos, COUNT)
        cls.draw_all(cls.photos, cls.masks)

    @staticmethod
    def draw_all(photos, masks):
        number = 0
        for folder, _, names in sorted(os.walk(photos)):
            for name in sorted(names):
                to = os.path.join(masks, os.path.relpath(folder, photos))
                os.makedirs(to, exist_ok=True)
                with Image.open(os.path.join(folder, name)) as image:
                    draw_mask(os.path.join(to, os.path.splitext(name)[0] + ".png"), image.size, number)
                number += 1

    def mask_of(self, path):
        return os.path.join(self.masks, os.path.splitext(path)[0] + ".png")

    def add(self, cluster, name="seg", photos=None, masks=None):
        cluster.cli("dataset", "add", name, photos or self.photos, "--masks", masks or self.masks)
        cluster.wait_eligible(name, len(cluster.workers))

    def expected(self, row, view=None):
        box, flip = (row["box"], row["flip"]) if view is None else (row["box"][view], row["flip"][view])
        top, left, height, width = box
        mask = values(self.mask_of(row["path"])).crop((left, top, left + width, top + height)).resize((SIZE, SIZE), Image.NEAREST)
        return numpy.asarray(mask.transpose(Image.FLIP_LEFT_RIGHT) if flip else mask)

    def test_masks_are_pillows_and_images_do_not_notice(self):
        with Cluster(self.top, 2) as cluster:
            self.add(cluster)
            self.assertIn(self.masks, cluster.cli("dataset", "show", "seg").stdout)
            plain = cluster.cat("seg", "plain", "--transforms", TEXT)
            self.assertFalse(os.path.exists(cluster.path("plain", "mask.npy")))
            for epoch in (0, 1):
                cat = cluster.cat("seg", f"masks-{epoch}", "--epoch", epoch, "--transforms", TEXT, "--option", "mask=0")
                got = cat.field("mask")
                self.assertEqual((got.shape, got.dtype), ((COUNT, SIZE, SIZE), numpy.uint8))
                for row, mask in zip(cat.rows, got, strict=True):
                    self.assertTrue((mask == self.expected(row)).all(), row)
                self.assertIn(255, numpy.unique(got))
            first = cluster.cat("seg", "again", "--transforms", TEXT, "--option", "mask=0")
            self.assertTrue((first.field("image") == plain.field("image")).all())
            views = cluster.cat("seg", "views", "--transforms", TEXT, "--option", "mask=0", "--option", "views=2")
            for row, masks in zip(views.rows, views.field("mask"), strict=True):
                for view in (0, 1):
                    self.assertTrue((masks[view] == self.expected(row, view)).all(), row)

    def test_a_worker_is_killed(self):
        with Cluster(self.top, 2) as cluster:
            self.add(cluster)
            options = dict(batch=8, tail="exact", epochs=4, pipeline=TEXT + " Mask")
            quiet = cluster.trainer("quiet", "seg", job="quiet", **options)
            self.assertEqual(quiet.wait(60), 0, quiet.tail())
            want = {r.key(): (r.item, r.hash) for r in cluster.rows("quiet")}
            trainer = cluster.trainer("t", "seg", job="t", pace=60, **options)
            wait_for("a quarter", lambda: len(cluster.rows("t")) >= COUNT)
            cluster.workers[1].kill(signal.SIGKILL)
            self.assertEqual(trainer.wait(60), 0, trainer.tail())
            self.assertEqual({r.key(): (r.item, r.hash) for r in cluster.rows("t")}, want)
            self.assertEqual(len(cluster.rows("t")), 4 * COUNT)

    def test_what_is_wrong_is_named(self):
        photos, masks = os.path.join(self.top, "some"), os.path.join(self.top, "some-masks")
        copy_photos(photos, 9)
        self.draw_all(photos, masks)
        names = sorted(os.path.relpath(os.path.join(folder, name), photos) for folder, _, files in os.walk(photos) for name in files)
        gone, small, changed = (os.path.join(masks, os.path.splitext(names[i])[0] + ".png") for i in (1, 3, 5))
        with Cluster(self.top, 1) as cluster:
            cluster.add("bare", photos)
            reply = cluster.cat("bare", "none", "--transforms", TEXT, "--option", "mask=0", check=False)
            self.assertIn("has no masks", reply.stderr)
            os.rename(gone, gone + ".aside")
            reply = cluster.cli("dataset", "add", "seg", photos, "--masks", masks, check=False)
            self.assertNotEqual(reply.returncode, 0)
            self.assertIn(f"{names[1]} has no mask", reply.stderr)
            os.rename(gone + ".aside", gone)
            with Image.open(small) as mask:
                mask.resize((5, 5)).save(small)
            self.add(cluster, "seg", photos, masks)
            bad = cluster.cat("seg", "bad", "--transforms", TEXT, "--option", "mask=0")
            self.assertEqual([r["item"] for r in bad.rows if r["cause"]], [3])
            self.assertEqual([r["cause"] for r in bad.rows if r["cause"]], ["bad_mask"])
            self.assertIn("5 x 5, but its image is", cluster.cli("dataset", "show", "seg", "--bad").stdout)
            good = cluster.cat("seg", "good", "--transforms", TEXT)  # who wants no masks has no bad one
            self.assertEqual([r["cause"] for r in good.rows], [None] * 9)
            version = cluster.cli("dataset", "show", "seg").stdout.split("version")[1].split()[0]
            draw_mask(changed, (7, 7), 0)
            self.assertIn(os.path.relpath(changed, masks), cluster.cli("dataset", "verify", "seg", check=False).stdout)
            self.add(cluster, "seg", photos, masks)
            indexed = cluster.cli("dataset", "show", "seg").stdout
            self.assertNotEqual(indexed.split("version")[1].split()[0], version)
            reply = cluster.cli("dataset", "add", "seg", photos, "--masks", photos + "-none", check=False)
            self.assertIn("has no mask", reply.stderr)
            shown = cluster.cli("dataset", "show", "seg").stdout  # what there is stays, and so do its masks
            self.assertEqual(shown.split("version")[1].split()[0], indexed.split("version")[1].split()[0])
            self.assertIn(masks, shown)
            cluster.workers[1].kill(signal.SIGSTOP)
            reply = cluster.cli("dataset", "add", "seg", photos, "--masks", masks, "--wait-ms", "0")
            cluster.workers[1].kill(signal.SIGCONT)
            self.assertEqual(reply.stdout, "seg: indexing\n")  # not: the version before
        shutil.rmtree(photos)
        shutil.rmtree(masks)

    @unittest.skipUnless(os.path.exists(os.path.join(PACKAGE, "millrace", "_core.abi3.so")), "the Python package is not built")
    def test_python(self):
        sys.path.insert(0, PACKAGE)
        import millrace
        with Cluster(self.top, 1) as cluster:
            self.add(cluster)
            want = cluster.cat("seg", "want", "--transforms", TEXT, "--option", "mask=0")
            options = dict(dataset="seg", batch_size=16, tail="exact", timeout=30, transforms=TEXT)
            with millrace.Loader(cluster.address, **options, fields=("image", "mask")) as loader:
                at = 0
                for batch in loader:
                    self.assertTrue((numpy.asarray(batch["mask"]) == want.field("mask")[at:at + batch.rows]).all())
                    self.assertTrue((numpy.asarray(batch["image"]) == want.field("image")[at:at + batch.rows]).all())
                    at += batch.rows
                self.assertEqual(at, COUNT)
            with self.assertRaisesRegex(millrace.Error, "MixUp and CutMix mix labels, not masks"):
                mixing = ["RandomResizedCrop(size=48)", "ToDtype", "MixUp", "Mask"]
                next(iter(millrace.Loader(cluster.address, **{**options, "transforms": mixing}, fields=("image", "mask"))))


if __name__ == "__main__":
    harness.main()
