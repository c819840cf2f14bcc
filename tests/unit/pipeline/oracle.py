#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares rows and decoded images with Pillow's, to the last bit.

usage: oracle.py ROW_DUMP SUITE [KERNEL...]
SUITE: eval, train, views, masks, filters, pillow13 (images of imagenet-mini), png (made here) or trouble (trouble/images). Each KERNEL is run
and compared; none: the best one. The data is in $MILLRACE_TEST_DATA, else beside the repository in shared/data; without it
the exit status is 77.

pillow13 compares with the passes of the installed Pillow made one after the other; pillow13.sh fetches a real Pillow 13 and
runs it on that (part of tests/run.sh --long).
"""
import csv
import glob
import itertools
import os
import random
import struct
import subprocess
import sys
import tempfile
import threading
import warnings
import zlib

import numpy
import PIL
from PIL import Image

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.environ.get("MILLRACE_TEST_DATA") or os.path.normpath(os.path.join(HERE, "../../../../shared/data"))
PIL_MAJOR = int(PIL.__version__.split(".")[0])
FILTERS = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS}


class Row:
    pass


def dump(program, paths, arguments):
    process = subprocess.Popen([program] + arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
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


class Both:
    """An image and its mask."""

    def __init__(self, image, mask):
        self.bytes = image.tobytes() + mask.tobytes()

    def tobytes(self):
        return self.bytes


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


def photographs(every=1):
    paths = sorted(glob.glob(os.path.join(DATA, "imagenet-mini", "*", "*.JPEG")))[::every]
    if not paths:
        print("skipped: no images in %s/imagenet-mini" % DATA)
        sys.exit(77)
    return paths


def suite_eval(program, kernel):
    ok = True
    for known in [], ["--good"]:
        ok &= compare(program, photographs(), kernel + known + ["imagenet_eval"],
                      lambda image, row: expected_eval(image, 256, 224, resize_classic, Image.BILINEAR))
    for text, shorter, size in [("sample: Decode Resize(size=64) CenterCrop(size=101)", 64, 101)]:
        ok &= compare(program, photographs(10), kernel + [text],
                      lambda image, row: expected_eval(image, shorter, size, resize_classic, Image.BILINEAR))
    return ok


def suite_train(program, kernel):
    ok = True
    for known in [], ["--good"]:
        ok &= compare(program, photographs(), kernel + known + ["--epochs=2", "imagenet_train"],
                      lambda image, row: expected_train(image, row, 224, resize_classic, Image.BILINEAR))
    return ok


def suite_views(program, kernel):
    ok = True
    for known in [], ["--good"]:
        ok &= compare(program, photographs(4), kernel + known + ["imagenet_train", "views=8"],
                      lambda image, row: expected_train(image, row, 224, resize_classic, Image.BILINEAR))
    return ok


def suite_filters(program, kernel):
    ok = True
    for name, kind in FILTERS.items():
        for size in 7, 160, 500:
            text = "sample: Decode RandomResizedCrop(size=%d,filter=%s) RandomHorizontalFlip" % (size, name)
            ok &= compare(program, photographs(16), kernel + ["--good", "--epochs=2", text],
                          lambda image, row: expected_train(image, row, size, resize_classic, kind))
    return ok


def as_mask(path):
    """What the field mask must hold: indices, gray values, 0 and 1."""
    with Image.open(path) as mask:
        return Image.fromarray(numpy.asarray(mask).astype(numpy.uint8))


def transformed_mask(mask, row, fill):
    if row.size_text == "train":
        out = mask.crop((row.left, row.top, row.left + row.width, row.top + row.height)).resize((96, 96), Image.NEAREST)
    else:
        w, h = mask.size
        out = mask.resize((64, int(64 * h / w)) if w <= h else (int(64 * w / h), 64), Image.NEAREST)
        wide = Image.new("L", (max(101, out.width), max(101, out.height)), fill)
        wide.paste(out, (max(0, (101 - out.width) // 2), max(0, (101 - out.height) // 2)))
        left, top = int(round((wide.width - 101) / 2.0)), int(round((wide.height - 101) / 2.0))
        out = wide.crop((left, top, left + 101, top + 101))
    return out.transpose(Image.FLIP_LEFT_RIGHT) if row.flip else out


def suite_masks(program, kernel):
    """Noise, so that one pixel beside is another value; of each kind that a mask may be."""
    kinds = list(itertools.product(((1, 0), (2, 0), (4, 0), (8, 0), (1, 3), (2, 3), (4, 3), (8, 3)), (0, 1), (0, 1)))
    ok, masks = True, {}
    with tempfile.TemporaryDirectory() as folder:
        lines = []
        for i, path in enumerate(photographs(12)):
            (depth, color), interlaced, trns = kinds[i % len(kinds)]
            mask = os.path.join(folder, "%d.png" % i)
            with Image.open(path) as image:
                write_png(mask, image.width, image.height, depth, color, interlaced, trns)
            masks[path] = as_mask(mask)
            lines.append(path + "\t" + mask)

        def expected(text, fill):
            def both(image, row):
                row.size_text = text
                if text == "train":
                    made = expected_train(image, row, 96, resize_classic, Image.BILINEAR)
                else:
                    made = expected_eval(image, 64, 101, resize_classic, Image.BILINEAR)
                    made = made.transpose(Image.FLIP_LEFT_RIGHT) if row.flip else made
                return Both(made, transformed_mask(masks[row.path], row, fill))
            return both
        ok &= compare(program, lines, kernel + ["--epochs=2", "sample: Decode RandomResizedCrop(size=96) RandomHorizontalFlip Views(count=3) Mask"],
                      expected("train", 0))
        ok &= compare(program, lines, kernel + ["--good", "sample: Decode Resize(size=64) CenterCrop(size=101) RandomHorizontalFlip Mask(fill=255)"],
                      expected("eval", 255))
        return ok & refused_masks(program, kernel, folder)


def refused_masks(program, kernel, folder):
    path, lines, wanted = photographs(400)[0], [], []
    size = Image.open(path).size
    def add(name, image, says):
        mask = os.path.join(folder, name)
        image.save(mask)
        lines.append(path + "\t" + mask)
        wanted.append(says)
    add("rgb.png", Image.new("RGB", size), "neither gray nor palette")
    add("deep.png", Image.fromarray(numpy.zeros(size[::-1], numpy.uint16)), "neither gray nor palette")
    add("alpha.png", Image.new("LA", size), "neither gray nor palette")
    add("photo.jpg", Image.new("L", size), "JPEG is not supported")
    add("small.png", Image.new("L", (size[0] - 1, size[1])), "%d x %d, but its image is %d x %d" % (size[0] - 1, size[1], *size))
    add("fine.png", Image.new("L", size), "")
    with open(os.path.join(folder, "fine.png"), "rb") as whole, open(os.path.join(folder, "cut.png"), "wb") as cut:
        cut.write(whole.read()[:-40])
    lines.append(path + "\t" + os.path.join(folder, "cut.png"))
    wanted.append("end too early")
    ok = True
    rows = list(dump(program, lines, kernel + ["sample: Decode CenterCrop(size=32) Mask"]))
    for row, line, says in zip(rows, lines, wanted, strict=True):
        good = row.code == "ok" if not says else row.verdict == "bad_mask" and row.error.startswith("mask: ") and says in row.error
        if not good:
            print("  %s: %s %s %s" % (line.split("/")[-1], row.code, row.verdict, row.error))
        ok &= good
    return ok


def suite_pillow13(program, kernel):
    print("Pillow %s" % PIL.__version__)
    ok = True
    for name, kind in FILTERS.items():
        text = "sample: Decode RandomResizedCrop(size=224,filter=%s) RandomHorizontalFlip" % name
        ok &= compare(program, photographs(4), kernel + ["--good", "--epochs=2", text, "resize_order=pillow13"],
                      lambda image, row: expected_train(image, row, 224, resize_pillow13, kind))
    ok &= compare(program, photographs(), kernel + ["--good", "imagenet_eval", "resize_order=pillow13"],
                  lambda image, row: expected_eval(image, 256, 224, resize_pillow13, Image.BILINEAR))
    return ok


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def write_png(path, width, height, depth, color, interlaced, trns):
    """A PNG of random samples of any kind; rows take each of the five filters."""
    rng = random.Random(path)
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    palette_size = min(1 << depth, 200)
    raw = b""
    for x0, y0, dx, dy in ADAM7 if interlaced else [(0, 0, 1, 1)]:
        columns, rows = len(range(x0, width, dx)), len(range(y0, height, dy))
        for row in range(rows if columns else 0):
            if color == 3 or depth < 8:
                most = palette_size - 1 if color == 3 else (1 << depth) - 1
                bits = "".join(format(rng.randint(0, most), "0%db" % depth) for _ in range(columns * channels))
                bits += "0" * (-len(bits) % 8)
                body = int(bits, 2).to_bytes(len(bits) // 8, "big")
                raw += b"\0" + body
            else:
                samples = columns * channels * depth // 8
                body = bytes(rng.choice((0, 0, 0, 1, 7, 255)) if i % 2 == 0 and depth == 16 else rng.randrange(256)
                             for i in range(samples))
                raw += bytes([rng.randrange(5)]) + body
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced))
    if color == 3:
        head += chunk(b"PLTE", bytes(rng.randrange(256) for _ in range(3 * palette_size)))
    if trns:
        head += chunk(b"tRNS", {0: b"\0\1", 2: b"\0\1\0\2\0\3", 3: b"\0\x80"}[color])
    with open(path, "wb") as out:
        out.write(b"\x89PNG\r\n\x1a\n" + head + chunk(b"gAMA", struct.pack(">I", 30000)) +
                  chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))


def suite_png(program, kernel):
    kinds = [(d, c) for c, depths in ((0, (1, 2, 4, 8, 16)), (2, (8, 16)), (3, (1, 2, 4, 8)), (4, (8, 16)), (6, (8, 16)))
             for d in depths]
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for (depth, color), interlaced, trns, side in itertools.product(kinds, (0, 1), (0, 1), (1, 3, 37)):
            if trns and color in (4, 6):
                continue
            paths.append(os.path.join(folder, "color%d_depth%d_interlaced%d_trns%d_%d.png" %
                                      (color, depth, interlaced, trns, side)))
            write_png(paths[-1], side, side + 2, depth, color, interlaced, trns)
        return compare(program, paths, ["--decode"], lambda image, row: image)


NOT_BUILT = ("GIF is not supported", "WebP is not supported", "BMP is not supported")
# Where our verdict is not Pillow's, and why.
DIFFERENT = {
    "bomb/png_decompression_dos.png": "a text chunk unpacks to megabytes: we skip text unread, Pillow gives up",
    "corrupt/jfif-bogus-empty-jfif-segment.jpg": "only metadata is broken: an empty JFIF segment",
    "corrupt/truncated_exif_dpi.jpg": "only metadata is broken: EXIF that ends early",
    "other-format/unknown_compression_method.png": "only metadata is broken: a profile of unknown compression",
}


def pillow_verdict(path):
    try:
        with Image.open(path) as image:
            return image.convert("RGB"), ""
    except Exception as error:  # whatever it raises is a refusal
        return None, "%s: %s" % (type(error).__name__, error)


def judge(row, name, expected):
    """What is wrong with this row, if anything."""
    image, refusal = pillow_verdict(row.path)
    if row.code not in ("ok", "bad_sample") or (row.code == "bad_sample") != (row.error != ""):
        return "not a clean answer: %s %s" % (row.code, row.error)
    if expected == "must decode" and row.code != "ok":
        return "MANIFEST: %s; ours: %s" % (expected, row.error)
    if expected == "must be rejected" and row.code == "ok":
        return "MANIFEST: %s; ours decodes" % expected
    if (row.code == "ok") != (image is not None):
        if image is not None and row.error in NOT_BUILT or name in DIFFERENT and row.code == "ok":
            return ""
        return "ours: %s %s; Pillow: %s" % (row.code, row.error, refusal or "decodes")
    if name in DIFFERENT:
        return "agrees with Pillow now: take it off the list"
    if image is not None and (row.size != image.size or row.pixels != image.tobytes()):
        return "other pixels than Pillow's"
    return ""


def suite_trouble(program, kernel):
    folder = os.path.join(DATA, "trouble", "images")
    paths = sorted(p for p in glob.glob(os.path.join(folder, "*", "*")) if os.path.isfile(p))
    if not paths:
        print("skipped: no images in %s" % folder)
        sys.exit(77)
    with open(os.path.join(DATA, "trouble", "MANIFEST.tsv"), encoding="utf-8") as table:
        expected = {row["file"]: row["expected"] for row in csv.DictReader(table, delimiter="\t")}
    wrong, verdicts = 0, {}
    for row in dump(program, paths, ["--decode"]):
        name = os.path.relpath(row.path, folder)
        complaint = judge(row, name, expected["images/" + name])
        verdicts[row.verdict] = verdicts.get(row.verdict, 0) + 1
        if complaint:
            wrong += 1
            print("  %s: %s" % (name, complaint))
    print("%d files: %s; %d wrong, %d known to differ from Pillow" % (len(paths), verdicts, wrong, len(DIFFERENT)))
    rows = 0
    for arguments in ["imagenet_eval"], ["--good", "--epochs=2", "imagenet_train"], ["--epochs=2", "imagenet_train"]:
        rows += sum(1 for _ in dump(program, paths, kernel + arguments))
    return wrong == 0 and rows == 5 * len(paths)


SUITES = {"eval": suite_eval, "train": suite_train, "views": suite_views, "masks": suite_masks, "filters": suite_filters, "pillow13": suite_pillow13, "png": suite_png,
          "trouble": suite_trouble}


def main():
    warnings.simplefilter("ignore")
    program, suite = sys.argv[1:3]
    kernels = [["--kernel=" + name] for name in sys.argv[3:]] or [[]]
    ok = all([SUITES[suite](program, kernel) for kernel in kernels])
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
