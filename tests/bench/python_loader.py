#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: tests/bench/python_loader.py [--rounds N] [--epochs N] [--memory EPOCHS]

Rows/s of millrace.Loader beside the C client's, over rows that a worker has staged (so preparing does not count), in turns: the median of
each, and of their ratio; CPU seconds of the client a GB; then how far the Python process grows over so many epochs. Programs come
from $MILLRACE_BIN, the package from BUILD/python.
"""
import argparse
import os
import resource
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "integration"))
import harness  # noqa: E402

PACKAGE = os.path.join(os.path.dirname(harness.BIN), "python")
PHOTOS, BATCH, ROW_BYTES = 400, 64, 224 * 224 * 3

LOADER = """
import os, sys
sys.path.insert(0, sys.argv[1])
import millrace
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
loader = millrace.Loader(sys.argv[2], dataset="photos", batch_size=64, transforms="imagenet_eval", tail="exact", dtype="uint8")
epochs, rows = int(sys.argv[3]), 0
for epoch in range(epochs):
    for images, labels in loader:
        rows += len(labels)
    if epoch == epochs // 5:
        before = resident()
assert rows == 400 * epochs and loader.stats()["copies"] == 0
print(resident() - before)
loader.close()
"""


def timed(command):
    """Wall and CPU seconds of a process, and what it printed."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, out


def rate(command_of, epochs):
    """Rows/s and CPU seconds a GB of the epochs after the first."""
    short, long = timed(command_of(1)), timed(command_of(epochs))
    rows = PHOTOS * (epochs - 1)
    return rows / (long[0] - short[0]), (long[1] - short[1]) / (rows * ROW_BYTES / 1e9)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--memory", type=int, default=1000)
    args = parser.parse_args()
    photos = harness.need_data("imagenet-mini")
    with harness.Cluster(photos, 1, staging="128MB") as cluster:
        cluster.add("photos", photos)

        def in_c(epochs):
            return [os.path.join(harness.BIN, "millrace-test-trainer"), "--server", cluster.address, "--dataset", "photos", "--pipeline",
                    "imagenet_eval", "--tail", "exact", "--batch", str(BATCH), "--look-ahead", "3", "--epochs", str(epochs)]

        def in_python(epochs):
            return [sys.executable, "-c", LOADER, PACKAGE, cluster.address, str(epochs)]

        timed(in_c(1))
        pairs = []
        for turn in range(args.rounds):
            both = {side: rate(side, args.epochs) for side in ((in_c, in_python) if turn % 2 else (in_python, in_c))}
            pairs.append((both[in_c], both[in_python]))
        for name, i in (("C", 0), ("Python", 1)):
            print(f"{name:7} {statistics.median(p[i][0] for p in pairs):8.0f} rows/s, {statistics.median(p[i][1] for p in pairs):.2f} CPU-s a GB")
        print(f"Python / C: {statistics.median(p[1][0] / p[0][0] for p in pairs):.3f} by time (wanted 0.95), "
              f"{statistics.median(p[1][1] / p[0][1] for p in pairs):.3f} by CPU; of {args.rounds} rounds", flush=True)
        grown = float(timed(in_python(args.memory))[2])
        print(f"memory: {grown:+.1f} MiB over the last {args.memory - args.memory // 5 - 1} of {args.memory} epochs")


if __name__ == "__main__":
    main()
