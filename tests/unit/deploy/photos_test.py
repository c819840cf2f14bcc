#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""photos_test.py MILLRACE_PHOTOS: its files are what they should be, as Pillow sees them."""
import collections
import filecmp
import os
import subprocess
import sys
import tempfile
import unittest

from PIL import Image, ImageStat, JpegImagePlugin

PHOTOS = sys.argv[1]
COUNT = 40


def run(*arguments):
    return subprocess.run([PHOTOS, *map(str, arguments)], capture_output=True, text=True, timeout=100)


def files(folder):
    return sorted(os.path.join(where, name) for where, _, names in os.walk(folder) for name in names)


class Photos(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.TemporaryDirectory(prefix="millrace-photos-")
        self.addCleanup(self.root.cleanup)

    def path(self, name):
        return os.path.join(self.root.name, name)

    def test_what_is_made(self):
        self.assertEqual(run(self.path("a"), COUNT).returncode, 0)
        made = files(self.path("a"))
        self.assertEqual(len(made), COUNT)
        self.assertEqual(len(os.listdir(self.path("a"))), 10)
        samplings, modes, spreads, means = collections.Counter(), collections.Counter(), [], []
        for path in made:
            with Image.open(path) as image:
                image.load()
                self.assertEqual(image.format, "JPEG")
                self.assertTrue(all(200 <= side <= 640 for side in image.size), image.size)
                modes[image.mode] += 1
                samplings[JpegImagePlugin.get_sampling(image)] += 1
                grey = ImageStat.Stat(image.convert("L"))
                means.append(grey.mean[0])
                spreads.append(grey.stddev[0])
        self.assertEqual(set(modes), {"RGB", "L"})
        self.assertLessEqual({0, 1, 2}, set(samplings))  # 4:4:4, 4:2:2, 4:2:0
        self.assertGreater(max(means) - min(means), 80)  # dark ones and bright ones
        self.assertGreater(sorted(spreads)[COUNT // 2], 20)
        sizes = sorted(os.path.getsize(path) for path in made)
        self.assertTrue(40000 < sizes[COUNT // 2] < 130000, sizes)

    def test_the_seed_decides(self):
        for name, seed in (("a", 7), ("b", 7), ("c", 8)):
            self.assertEqual(run(self.path(name), 5, seed).returncode, 0)
        for a, b, c in zip(*(files(self.path(name)) for name in "abc")):
            self.assertTrue(filecmp.cmp(a, b, shallow=False))
            self.assertFalse(filecmp.cmp(a, c, shallow=False))

    def test_wrong_use(self):
        for arguments in ((), ("x",), ("x", 0), ("x", "1x"), ("x", 100001), ("x", 3, -1), ("x", 3, 1, 1), ("-h",)):
            result = run(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn("usage", result.stderr)
        for folder in ("/dev/null", self.path("no/such/parent"), "/proc/none"):
            result = run(folder, 3)
            self.assertEqual(result.returncode, 1, folder)
            self.assertIn(folder, result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
