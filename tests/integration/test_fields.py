# SPDX-License-Identifier: Apache-2.0
"""What `millrace cat` writes: fixed fields, a ragged one end to end, ranges of positions, rows.jsonl."""
import os

import numpy

import harness
from harness import Cluster, PhotosTest, need_data

need_data("imagenet-mini")
COUNT = 37


class Fields(PhotosTest):
    COUNT = COUNT

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cluster = cls.enterClassContext(Cluster(cls.folder, 2))
        cls.cluster.add("photos", cls.folder)

    def test_shapes_and_rows(self):
        cat = self.cluster.cat("photos", "plain")
        self.assertEqual({n: (cat.field(n).dtype.str, cat.field(n).shape) for n in ("image", "label", "box", "flip")},
                         {"image": ("|u1", (COUNT, 224, 224, 3)), "label": ("<i8", (COUNT,)), "box": ("<i4", (COUNT, 4)),
                          "flip": ("|u1", (COUNT,))})
        self.assertFalse(os.path.exists(os.path.join(cat.path, "encoded.npy")))
        for i, row in enumerate(cat.rows):
            self.assertEqual(set(row), {"epoch", "position", "item", "used_item", "path", "label", "status", "cause", "hash",
                                        "box", "flip"})
            self.assertEqual((row["epoch"], row["position"]), (0, i))
            self.assertRegex(row["hash"], "^[0-9a-f]{16}$")
            self.assertEqual(row["box"], cat.field("box")[i].tolist())
            self.assertEqual(row["flip"], bool(cat.field("flip")[i]))
            self.assertTrue(os.path.exists(os.path.join(self.folder, row["path"])))

    def test_a_range_is_a_part_of_the_epoch(self):
        whole = self.cluster.cat("photos", "whole", "--epoch", 3)
        part = self.cluster.cat("photos", "part", "--epoch", 3, "--from", 5, "--count", 11)
        self.assertEqual(part.rows, whole.rows[5:16])
        for name in ("image", "label", "box", "flip"):
            self.assertTrue((part.field(name) == whole.field(name)[5:16]).all(), name)

    def test_a_ragged_field_goes_through_whole(self):
        biggest = max(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(self.folder) for f in fs)
        cat = self.cluster.cat("photos", "ragged", "--option", f"keep_encoded={biggest}")
        lengths, values = cat.field("encoded.lengths"), cat.field("encoded")
        self.assertEqual((lengths.shape, values.dtype.str, values.shape), ((COUNT,), "|u1", (int(lengths.sum()),)))
        offset = 0
        for row, length in zip(cat.rows, lengths):
            with open(os.path.join(self.folder, row["path"]), "rb") as f:
                self.assertEqual(values[offset:offset + int(length)].tobytes(), f.read(), row["path"])
            offset += int(length)

    def test_a_row_over_its_fields_largest_is_bad_and_never_cut(self):
        sizes = sorted(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(self.folder) for f in fs)
        limit = sizes[COUNT // 2]
        cat = self.cluster.cat("photos", "limited", "--option", f"keep_encoded={limit}", "--transforms", "imagenet_eval")
        order = sorted(os.path.join(d, f)[len(self.folder) + 1:] for d, _, fs in os.walk(self.folder) for f in fs)
        for row in cat.rows:
            fits = os.path.getsize(os.path.join(self.folder, order[row["item"]])) <= limit
            self.assertEqual(row["status"], "ok" if fits else "substituted")
            self.assertEqual(row["cause"], None if fits else "bad_row_bytes")
            self.assertLessEqual(os.path.getsize(os.path.join(self.folder, row["path"])), limit)
        self.assertLessEqual(cat.field("encoded.lengths").max(), limit)

    def test_seed_changes_order_and_crops_and_the_default_one_is_fixed(self):
        first, same, other = (self.cluster.cat("photos", f"seed-{i}", *args)
                              for i, args in enumerate(([], [], ["--seed", "9"])))
        self.assertEqual(first.digest(), same.digest())
        self.assertNotEqual([r["item"] for r in first.rows], [r["item"] for r in other.rows])
        self.assertNotEqual(first.rows[0]["hash"], other.rows[0]["hash"])


if __name__ == "__main__":
    harness.main()
