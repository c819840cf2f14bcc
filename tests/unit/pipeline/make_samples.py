#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Wrote worker/pipeline/samples.c, once. Never run it again for a stream's sake: other bytes are another fingerprint."""
import io
import subprocess

import numpy
from PIL import Image


def picture(width, height, seed):
    y, x = numpy.mgrid[0:height, 0:width] / 40.0
    planes = [128 + 90 * numpy.sin(x * (1 + c) + seed) * numpy.cos(y * (2 - c / 2) + c) for c in range(3)]
    pixels = numpy.stack(planes, axis=-1)
    noise = numpy.random.RandomState(seed).randint(-14, 15, (height // 4 + 1, width // 4 + 1, 3))
    pixels += noise.repeat(4, axis=0).repeat(4, axis=1)[:height, :width]
    pixels[height // 3:height // 2, width // 5:width // 3] = (250, 20, 40)
    return Image.fromarray(pixels.clip(0, 255).astype("uint8"))


def save(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def cjpeg(image, *options):
    ppm = save(image, "PPM")
    return subprocess.run(["cjpeg", *options], input=ppm, stdout=subprocess.PIPE, check=True).stdout


def samples():
    small = picture(75, 61, 1)
    yield "jpeg_420", cjpeg(picture(301, 230, 2), "-quality", "25", "-sample", "2x2")
    yield "jpeg_422", cjpeg(picture(97, 83, 3), "-quality", "60", "-sample", "2x1", "-restart", "1")
    yield "jpeg_444", cjpeg(small, "-quality", "75", "-sample", "1x1")
    yield "jpeg_440", cjpeg(small, "-quality", "60", "-sample", "1x2")
    yield "jpeg_gray", save(small.convert("L"), "JPEG", quality=70)
    yield "jpeg_cmyk", save(small.convert("CMYK"), "JPEG", quality=50)
    yield "jpeg_progressive", cjpeg(small, "-quality", "60", "-progressive", "-sample", "2x2")
    tiny = picture(29, 31, 4)
    yield "png_rgb", save(tiny.quantize(32).convert("RGB"), "PNG")
    yield "png_palette", save(tiny.quantize(13), "PNG", transparency=3)
    alpha = tiny.quantize(16).convert("RGBA")
    alpha.putalpha(tiny.convert("L").quantize(4).convert("L"))
    yield "png_rgba", save(alpha, "PNG")
    deep = numpy.asarray(tiny.convert("L").quantize(16).convert("L")).astype("int32") * 3
    yield "png_gray16", save(Image.fromarray(deep, "I"), "PNG")
    yield "png_bits", save(tiny.convert("1"), "PNG")


def main():
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print("/* Written by tests/unit/pipeline/make_samples.py, once: other bytes are another fingerprint. */")
    print('#include "worker/pipeline/samples.h"\n')
    print("/* clang-format off */")
    names = []
    for name, data in samples():
        names.append(name)
        print("static const uint8_t %s[%d] = {" % (name, len(data)))
        for at in range(0, len(data), 21):
            print("    " + " ".join("%d," % b for b in data[at:at + 21]))
        print("};\n")
    print("const struct pipeline_sample pipeline_samples[] = {")
    for name in names:
        print("    {%s, sizeof %s}," % (name, name))
    print("};")
    print("const int pipeline_sample_count = sizeof pipeline_samples / sizeof pipeline_samples[0];")


main()
