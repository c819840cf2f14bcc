#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Judges what finish_test --dump wrote with numpy: Normalize bit for bit, float16 and bfloat16 rounding.

usage: finish_numpy.py FINISH_TEST
"""
import subprocess
import sys
import tempfile

import numpy as np

ROWS, PIXELS, FLOATS = 5, 37, 200000

with tempfile.NamedTemporaryFile() as file:
    subprocess.run([sys.argv[1], "--dump", file.name], check=True, timeout=60)
    data = open(file.name, "rb").read()

count = ROWS * PIXELS * 3
image = np.frombuffer(data, np.uint8, count).reshape(ROWS, PIXELS, 3)
normalized = np.frombuffer(data, np.float32, count, count).reshape(ROWS, 3, PIXELS)
mean = np.array([0.485, 0.456, 0.406], np.float32)
std = np.array([0.229, 0.224, 0.225], np.float32)
want = ((image.astype(np.float32) / np.float32(255) - mean) / std).transpose(0, 2, 1)
assert want.dtype == np.float32 and np.array_equal(want.view(np.uint32), normalized.view(np.uint32)), "Normalize"

rows = np.frombuffer(data, np.dtype([("bits", "<u4"), ("f16", "<u2"), ("bf16", "<u2")]), FLOATS, 5 * count)
value = rows["bits"].view(np.float32)
number = ~np.isnan(value)
with np.errstate(over="ignore"):
    half = value[number].astype(np.float16).view(np.uint16)
assert np.array_equal(half, rows["f16"][number]), "float16"
bits = rows["bits"][number].astype(np.uint64)
brain = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
assert np.array_equal(brain, rows["bf16"][number]), "bfloat16"
assert np.isnan(rows["f16"][~number].view(np.float16)).all(), "NaN"
print(f"{count} normalized values and {number.sum()} rounded ones agree with numpy {np.__version__}")
