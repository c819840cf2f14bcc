# SPDX-License-Identifier: Apache-2.0
"""Compares what `millrace cat` wrote with Pillow, bit by bit: pillow_check.py CAT_DIR FOLDER imagenet_train|imagenet_eval
Several views are compared one by one.

Runs under whichever Python has the Pillow to compare with. Prints one line a difference; exit 1 if there is any.
"""
import json
import os
import sys

import numpy
from PIL import Image


def eval_crop(image):
    """torchvision's Resize(256) and CenterCrop(224), from their documentation."""
    w, h = image.size
    short, long = min(w, h), max(w, h)
    size = (256, int(256 * long / short)) if w <= h else (int(256 * long / short), 256)
    image = image.resize(size, Image.BILINEAR)
    top, left = int(round((size[1] - 224) / 2.0)), int(round((size[0] - 224) / 2.0))
    return image.crop((left, top, left + 224, top + 224))


def train_crop(image, box, flip):
    top, left, height, width = box
    image = image.crop((left, top, left + width, top + height)).resize((224, 224), Image.BILINEAR)
    return image.transpose(Image.FLIP_LEFT_RIGHT) if flip else image


def expected(image, row, preset):
    """As the row's image: of several views an array of them."""
    if preset == "imagenet_eval":
        return numpy.asarray(eval_crop(image))
    if isinstance(row["flip"], int):
        return numpy.asarray(train_crop(image, row["box"], row["flip"]))
    return numpy.stack([numpy.asarray(train_crop(image, box, flip)) for box, flip in zip(row["box"], row["flip"], strict=True)])


def main():
    out, folder, preset = sys.argv[1:4]
    images, labels = numpy.load(os.path.join(out, "image.npy")), numpy.load(os.path.join(out, "label.npy"))
    classes = sorted(d for d in os.listdir(folder) if os.path.isdir(os.path.join(folder, d)))
    rows = [json.loads(line) for line in open(os.path.join(out, "rows.jsonl"))]
    wrong = 0
    for i, row in enumerate(rows):
        image = Image.open(os.path.join(folder, row["path"])).convert("RGB")
        want = expected(image, row, preset)
        difference = numpy.abs(want.astype(int) - images[i]).max() if want.shape == images[i].shape else "its shape"
        label = classes.index(row["path"].split("/")[0])
        if difference or not label == labels[i] == row["label"]:
            wrong += 1
            print(f"{row['path']}: differs by {difference}, label {labels[i]} instead of {label}")
    boxes, flips = {str(r["box"]) for r in rows}, numpy.ravel([r["flip"] for r in rows])
    print(f"Pillow {Image.__version__}: {len(rows)} rows, {wrong} differ, {len(boxes)} boxes, {sum(map(bool, flips))} flipped")
    sys.exit(1 if wrong or not rows else 0)


main()
