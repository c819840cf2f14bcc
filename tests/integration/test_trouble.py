# SPDX-License-Identifier: Apache-2.0
"""Every troublesome image in one dataset, what the manifest expects, or a clean refusal.

Run on the build with ASan and UBSan: all programs, then, are built so, and leaks count at their exit."""
import csv
import json
import os
import shutil
import tempfile
import unittest

import harness
from harness import Cluster, need_data

TROUBLE = need_data("trouble", "images")


def expected():
    with open(os.path.join(os.path.dirname(TROUBLE), "MANIFEST.tsv")) as f:
        return [r for r in csv.DictReader(f, delimiter="\t") if r["kind"] == "image"]


class Trouble(unittest.TestCase):
    def test_all_of_them_in_one_dataset(self):
        files = expected()
        with tempfile.TemporaryDirectory(prefix="millrace-trouble-") as folder:
            os.chmod(folder, 0o755)
            names = {}
            for i, row in enumerate(files):
                # the content decides, never the suffix: so every file may be called .jpg
                name = f"{row['category']}/{i:03d}-{os.path.basename(row['file'])}.jpg"
                os.makedirs(os.path.join(folder, row["category"]), exist_ok=True)
                shutil.copy(os.path.join(os.path.dirname(TROUBLE), row["file"]), os.path.join(folder, name))
                names[name] = row
            for i, good in enumerate(sorted(os.listdir(need_data("imagenet-mini")))[:20]):
                if good != "MANIFEST.tsv":  # something to stand in for the bad ones
                    source = need_data("imagenet-mini", good)
                    os.makedirs(os.path.join(folder, "good"), exist_ok=True)
                    shutil.copy(os.path.join(source, os.listdir(source)[0]), os.path.join(folder, "good", f"{i}.jpg"))
            self.run_all(folder, names)

    def run_all(self, folder, names):
        with Cluster(folder, 1) as cluster:
            cluster.add("trouble", folder)
            cat = cluster.cat("trouble", "out", "--transforms", "imagenet_eval", timeout_s=300)
            items = {}
            for row in cat.rows:
                self.assertEqual(row["position"], row["item"])
                items[row["item"]] = row
            order = sorted(os.path.join(d, f)[len(folder) + 1:] for d, _, fs in os.walk(folder) for f in fs)
            self.assertEqual(len(order), len(cat.rows))
            wrong = []
            for item, name in enumerate(order):
                row = items[item]
                decoded = row["status"] == "ok"
                self.assertIn(row["status"], ("ok", "substituted"))
                if decoded:
                    self.assertEqual(row["path"], name)
                else:
                    self.assertTrue(row["cause"].startswith("bad_"), row)
                if name not in names:
                    self.assertTrue(decoded, name)
                    continue
                want = names[name]["expected"]
                if (want == "must decode" and not decoded) or (want == "must be rejected" and decoded):
                    wrong.append(f"{name}: {want}; {row['status']} {row['cause']} (Pillow: {names[name]['pillow'][:60]})")
            self.assertEqual(wrong, [])
            bad = [r for r in cat.rows if r["status"] != "ok"]
            harness.wait_for("the quarantine list", lambda: json.loads(
                cluster.cli("dataset", "show", "trouble", "--json").stdout)["bad_items"] >= len(bad))
            trainer = cluster.trainer("strict", "trouble", job="strict", pipeline="imagenet_eval", batch=16, on_bad="error")
            self.assertEqual(trainer.wait(60), 1)
            self.assertIn("bad_", trainer.text())
            skipper = cluster.trainer("skip", "trouble", job="skip", pipeline="imagenet_eval", batch=16, tail="exact",
                                      on_bad="skip")
            self.assertEqual(skipper.wait(120), 0, skipper.tail())
            self.assertEqual(sum(1 for r in cluster.rows("skip") if not r.valid), len(bad))
            worker = cluster.workers[1]
            self.assertEqual(worker.end(60), 0, worker.tail(60))
            self.assertNotIn("Sanitizer", worker.text())
            self.assertNotIn("runtime error", worker.text())
            print(f"{len(cat.rows)} files: {len(cat.rows) - len(bad)} decoded, {len(bad)} refused by name")


if __name__ == "__main__":
    harness.main()
