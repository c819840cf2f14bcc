#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares rows with Pillow's, to the last bit.

usage: oracle.py ROW_DUMP DATA SUITE [KERNEL...]
SUITE: eval, train, filters, pillow13 (images of DATA/imagenet-mini) or trouble (DATA/trouble/images). Each KERNEL is run and
compared; none: the best. With a Pillow of version 13 (python -m venv V; V/bin/pip install pillow==13.*; V/bin/python oracle.py ...)
pillow13 compares with its own resize; with an older one with its passes made one after the other.
Exit status 77: the data is not there.
"""
import glob
import os
import subprocess
import sys
import warnings

import PIL
from PIL import Image, ImageFile

PIL_MAJOR = int(PIL.__version__.split(".")[0])
FILTERS = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS}


class Row:
    pass


def dump(program, paths, arguments):
    process = subprocess.Popen([program] + arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    import threading

    def feed():
        process.stdin.write("".join(p + "\n" for p in paths).encode())
        process.stdin.close()

    threading.Thread(target=feed, daemon=True).start()
    while True:
        line = process.stdout.readline()
        if not line:
            break
        row = Row()
        path, row.code, row.verdict, draws, size, count, row.error = line.decode().rstrip("\n").split("\t")
        row.path = path
        row.top, row.left, row.height, row.width, row.flip = map(int, draws.split())
        row.size = tuple(map(int, size.split()))
        row.pixels = process.stdout.read(int(count))
        yield row
    if process.wait() != 0:
        sys.exit("%s %s: exit status %d" % (program, arguments, process.returncode))


class Images:
    """Decoded images, the last one kept: epochs of one path come together."""

    def __init__(self):
        self.path = None

    def get(self, path):
        if path != self.path:
            with Image.open(path) as image:
                self.image = image.convert("RGB")
            self.path = path
        return self.image


def resize_classic(image, size, kind):
    if PIL_MAJOR < 13:
        return image.resize(size, kind)
    return image.resize((size[0], image.height), kind).resize(size, kind)


def resize_pillow13(image, size, kind):
    if PIL_MAJOR >= 13:
        return image.resize(size, kind)
    rows, columns = image.height - size[1], image.width - size[0]
    if rows > 0 and rows > 2 * columns:
        return image.resize((image.width, size[1]), kind).resize(size, kind)
    return image.resize(size, kind)


def expected_train(image, row, size, resize, kind):
    crop = image.crop((row.left, row.top, row.left + row.width, row.top + row.height))
    out = resize(crop, (size, size), kind)
    return out.transpose(Image.FLIP_LEFT_RIGHT) if row.flip else out


def expected_eval(image, shorter, size, resize, kind):
    w, h = image.size
    if w <= h:
        out = resize(image, (shorter, int(shorter * h / w)), kind)
    else:
        out = resize(image, (int(shorter * w / h), shorter), kind)
    if size > min(out.size):  # torchvision's padding
        pad_left, pad_top = max(0, (size - out.width) // 2), max(0, (size - out.height) // 2)
        wide = Image.new("RGB", (max(size, out.width), max(size, out.height)))
        wide.paste(out, (pad_left, pad_top))
        out = wide
    left, top = int(round((out.width - size) / 2.0)), int(round((out.height - size) / 2.0))
    return out.crop((left, top, left + size, top + size))


def compare(program, paths, arguments, expected):
    images, count, wrong = Images(), 0, 0
    boxes, flips = set(), 0
    for row in dump(program, paths, arguments):
        count += 1
        want = expected(images.get(row.path), row).tobytes()
        boxes.add((row.path, row.top, row.left, row.height, row.width))
        flips += row.flip
        if row.code != "ok" or row.pixels != want:
            wrong += 1
            if wrong <= 10:
                differ = sum(a != b for a, b in zip(row.pixels, want))
                print("  %s: %s %s: %d of %d bytes differ" % (row.path, row.code, row.error, differ, len(want)))
    print("%-70s %5d rows, %d boxes, %d flips, %d differ" % (" ".join(arguments), count, len(boxes), flips, wrong))
    return wrong == 0 and count > 0


def photographs(data, every=1):
    paths = sorted(glob.glob(os.path.join(data, "imagenet-mini", "*", "*.JPEG")))[::every]
    if not paths:
        print("skipped: no images in %s/imagenet-mini" % data)
        sys.exit(77)
    return paths


def suite_eval(program, data, kernel):
    ok = True
    for known in [], ["--good"]:
        ok &= compare(program, photographs(data), kernel + known + ["imagenet_eval"],
                      lambda image, row: expected_eval(image, 256, 224, resize_classic, Image.BILINEAR))
    for text, shorter, size in [("sample: Decode Resize(size=64) CenterCrop(size=101)", 64, 101)]:
        ok &= compare(program, photographs(data, 10), kernel + [text],
                      lambda image, row: expected_eval(image, shorter, size, resize_classic, Image.BILINEAR))
    return ok


def suite_train(program, data, kernel):
    ok = True
    for known in [], ["--good"]:
        ok &= compare(program, photographs(data), kernel + known + ["--epochs=2", "imagenet_train"],
                      lambda image, row: expected_train(image, row, 224, resize_classic, Image.BILINEAR))
    return ok


def suite_filters(program, data, kernel):
    ok = True
    for name, kind in FILTERS.items():
        for size in 7, 160, 500:
            text = "sample: Decode RandomResizedCrop(size=%d,filter=%s) RandomHorizontalFlip" % (size, name)
            ok &= compare(program, photographs(data, 8), kernel + ["--good", "--epochs=2", text],
                          lambda image, row: expected_train(image, row, size, resize_classic, kind))
    return ok


def suite_pillow13(program, data, kernel):
    print("Pillow %s" % PIL.__version__)
    ok = True
    for name, kind in FILTERS.items():
        text = "sample: Decode RandomResizedCrop(size=224,filter=%s) RandomHorizontalFlip" % name
        ok &= compare(program, photographs(data, 2), kernel + ["--good", "--epochs=2", text, "resize_order=pillow13"],
                      lambda image, row: expected_train(image, row, 224, resize_pillow13, kind))
    ok &= compare(program, photographs(data), kernel + ["--good", "imagenet_eval", "resize_order=pillow13"],
                  lambda image, row: expected_eval(image, 256, 224, resize_pillow13, Image.BILINEAR))
    return ok


SUITES = {"eval": suite_eval, "train": suite_train, "filters": suite_filters, "pillow13": suite_pillow13}


def main():
    program, data, suite = sys.argv[1:4]
    kernels = [["--kernel=" + name] for name in sys.argv[4:]] or [[]]
    ok = all([SUITES[suite](program, data, kernel) for kernel in kernels])
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
