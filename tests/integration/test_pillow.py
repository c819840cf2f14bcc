# SPDX-License-Identifier: Apache-2.0
"""What trainers get equals Pillow to the last bit on every photograph; Pillow 13's order of passes too, with --long (from PyPI)."""
import os
import subprocess
import sys
import tempfile
import unittest

import harness
from harness import Cluster, need_data

PHOTOS = need_data("imagenet-mini")
CHECK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pillow_check.py")


class Pillow(unittest.TestCase):
    def compare(self, python, preset, *options):
        with Cluster(PHOTOS, 1) as cluster:
            cluster.add("photos", PHOTOS)
            cat = cluster.cat("photos", "out", "--transforms", preset, *options)
            self.assertEqual(len(cat.rows), 400)
            # once more, when every item's verdict is known and only the crop's region is decoded
            again = cluster.cat("photos", "again", "--transforms", preset, *options, "--epoch", "1")
            for path in ("out", "again"):
                reply = subprocess.run([python, CHECK, cluster.path(path), PHOTOS, preset], capture_output=True, text=True)
                print(reply.stdout[-400:])
                self.assertEqual(reply.returncode, 0, reply.stdout[-2000:] + reply.stderr[-2000:])
            del again

    def test_train(self):
        self.compare("/usr/bin/python3", "imagenet_train")

    def test_eval(self):
        self.compare("/usr/bin/python3", "imagenet_eval")

    @unittest.skipUnless(os.environ.get("MILLRACE_LONG"), "Pillow 13 comes from PyPI: run with --long")
    def test_pillow13(self):
        with tempfile.TemporaryDirectory() as env:
            subprocess.run([sys.executable, "-m", "venv", env], check=True)
            python = os.path.join(env, "bin", "python")
            subprocess.run([python, "-m", "pip", "install", "-q", "pillow>=13", "numpy"], check=True)
            for preset in ("imagenet_train", "imagenet_eval"):
                self.compare(python, preset, "--option", "resize_order=pillow13")


if __name__ == "__main__":
    harness.main()
