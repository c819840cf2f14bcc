#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Judges what mix_test --dump wrote: draws from a second Philox, boxes from torchvision's RandomErasing.get_params fed with
them, MixUp and CutMix as torchvision's references compute them, bit for bit in float32.

usage: mix_oracle.py MIX_TEST. Exit status 77 (skipped) where torch and torchvision are missing.
"""
import math
import subprocess
import sys
import tempfile

import numpy as np

try:
    import torch
    from torchvision.transforms import RandomErasing
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

MASK = 0xFFFFFFFF


def philox(key, counter):
    k0, k1 = key & MASK, key >> 32
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def batch_key(seed, position, epoch):
    first = philox(seed, (position & MASK, position >> 32, epoch, 1))
    last = philox(first[0] | first[1] << 32, (MASK, MASK, first[2], first[3]))
    return last[0] | last[1] << 32


def doubles(key, op, draw, view):
    w = philox(key, (op, draw, view, 2))
    return [((w[2 * i] | w[2 * i + 1] << 32) >> 11) * 2.0**-53 for i in (0, 1)]


def below(key, domain, index, bound):
    w = philox(key, (index & MASK, index >> 32, domain, 3))
    return (w[0] | w[1] << 32) * bound >> 64  # a redraw has a chance of 2^-59


class Fed:
    """torch as get_params sees it: uniforms and integers come from the draws, in double."""

    tries = set()  # (how many, whether the last one fitted)

    def __init__(self, key, row):
        self.key, self.row, self.drawn, self.integers = key, row, 0, 0

    def __getattr__(self, name):
        return getattr(torch, name)

    def tensor(self, value):
        return torch.tensor(value, dtype=torch.float64)

    def empty(self, *_):
        return self

    def uniform_(self, low, high):
        u = doubles(self.key, 0, 1 + self.drawn // 2, self.row)[self.drawn % 2]
        self.drawn += 1
        return torch.tensor(float(low) + (float(high) - float(low)) * u, dtype=torch.float64)

    def randint(self, _, bound, size):
        self.integers += 1
        return torch.tensor(below(self.key, 0, 2 * self.row + self.integers - 1, bound))


def erased(key, row, image, p, scale):
    """(top, left, height, width) by torchvision; None: nothing."""
    if not doubles(key, 0, 0, row)[0] < p:
        return None
    scope = RandomErasing.get_params.__globals__
    fed = scope["torch"] = Fed(key, row)
    try:
        top, left, height, width, _ = RandomErasing.get_params(image, scale, (0.3, 3.3), [0.0])
    finally:
        scope["torch"] = torch
    Fed.tries.add((fed.drawn // 2, fed.integers > 0))
    whole = (height, width) == tuple(image.shape[1:])
    return None if whole or height * width == 0 else (top, left, height, width)


def lambdas(key, mixup_p, cutmix_p):
    """Which one, and lambda; None: neither."""
    coin, u = doubles(key, 1, 0, 0)
    up = coin < 0.5 if mixup_p > 0 and cutmix_p > 0 else mixup_p > 0
    if u >= (mixup_p if up else cutmix_p):
        return None
    return ("up" if up else "cut"), doubles(key, 1, 1, 0)[0]


def mix(key, kind, lam, batch, target):
    """references/classification/transforms.py of torchvision 0.14, its random numbers given."""
    rolled, target_rolled = batch.roll(1, 0), target.roll(1, 0)
    box = (0, 0, 0, 0)
    if kind == "up":
        batch = batch.mul(lam).add(rolled.mul(1.0 - lam))
    else:
        height, width = batch.shape[-2:]
        r_x, r_y = below(key, 1, 0, width), below(key, 1, 1, height)
        r = 0.5 * math.sqrt(1.0 - lam)
        half_w, half_h = int(r * width), int(r * height)
        x1, y1, x2, y2 = max(r_x - half_w, 0), max(r_y - half_h, 0), min(r_x + half_w, width), min(r_y + half_h, height)
        batch = batch.clone()
        batch[:, :, y1:y2, x1:x2] = rolled[:, :, y1:y2, x1:x2]
        lam = float(1.0 - (x2 - x1) * (y2 - y1) / (width * height))
        box = (y1, x1, y2 - y1, x2 - x1)
    return batch, target.mul(lam).add(target_rolled.mul(1.0 - lam)), box


def check(file):
    seed, epoch, position, rows, height, width, classes, *rest = file.readline().split()
    seed, epoch, position, rows, height, width, classes = map(int, (seed, epoch, position, rows, height, width, classes))
    ps, scale = [float(p) for p in rest[:3]], (float(rest[3]), float(rest[4]))
    dtype, first, kind, cut = rest[5].decode(), int(rest[6]), int(rest[7]), tuple(map(int, rest[8:]))
    take = lambda kind, count: np.frombuffer(file.read(np.dtype(kind).itemsize * count), kind)  # noqa: E731
    valid, labels = take("u1", rows).astype(bool), take("<i8", rows)
    raw = take("u1", rows * height * width * 3).reshape(rows, height, width, 3)
    draws = take("<i4", rows * 5).reshape(rows, 5)
    mixed = take("<f4", rows * classes).reshape(rows, classes)
    shape = (rows, 3, height, width) if first else (rows, height, width, 3)
    out = take({"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}[dtype], rows * height * width * 3).reshape(shape)
    out = out if first else out.transpose(0, 3, 1, 2)

    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    image = torch.from_numpy(((raw.astype(np.float32) / np.float32(255) - mean) / std).transpose(0, 3, 1, 2).copy())
    key = batch_key(seed, position, epoch)
    for row in range(rows):
        box = erased(key, row, image[row], ps[0], scale) if valid[row] else None
        assert box == (tuple(draws[row, 1:]) if draws[row, 3] * draws[row, 4] else None), (row, box, draws[row])
        if box:
            top, left, h, w = box
            image[row, :, top:top + h, left:left + w] = 0
    target = torch.zeros(rows, classes)
    target[valid, torch.from_numpy(labels[valid])] = 1
    chosen = lambdas(key, ps[1], ps[2])
    assert kind == (0 if not chosen else 1 if chosen[0] == "up" else 2)
    if chosen:
        box = (0, 0, 0, 0)
        if valid.any():
            made, label, box = mix(key, *chosen, image[valid], target[valid])
            if valid.sum() > 1:
                image[valid], target[valid] = made, label
        assert not valid.any() or cut == box, (cut, box)
    assert np.array_equal(target.numpy().view(np.uint32), mixed.view(np.uint32)), "labels"
    if dtype == "bfloat16":
        want = image.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        assert np.array_equal(want, out), dtype
    else:
        assert np.array_equal(image.numpy().astype(out.dtype), out), dtype
        assert dtype != "float32" or np.array_equal(np.signbit(image.numpy()), np.signbit(out)), "sign of zero"
    return bool(draws[:, 3].any()), kind


with tempfile.NamedTemporaryFile() as dumped:
    subprocess.run([sys.argv[1], "--dump", dumped.name], check=True, timeout=60)
    seen, cases, size = set(), 0, len(open(dumped.name, "rb").read())
    with open(dumped.name, "rb") as dump:
        while dump.tell() < size:
            seen.add(check(dump))
            cases += 1
assert cases == 240 and len(seen) == 6, (cases, seen)
assert {(1, True), (10, True), (10, False)} <= Fed.tries, Fed.tries  # the first try, the last, and none
print(f"{cases} batches are torchvision's, bit for bit: erased or not, not mixed, MixUp, CutMix")
