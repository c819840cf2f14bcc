#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A search of eight trials on one stream of Millrace, and the same search with eight torch DataLoaders, on the same cores.

Both are examples/hp_search.py: the same nets, the same number of epochs, nothing stopped early; only where batches come from differs.
DataLoader reads an ImageFolder with torchvision's RandomResizedCrop and RandomHorizontalFlip. Rounds alternate; shown are wall and CPU
seconds (of trainers, worker processes, server and workers) and how often Millrace's workers made each item. Each round has a
cluster of its own, which has nothing prepared. Needs python3-torch and python3-torchvision.
"""
import argparse
import functools
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "integration"), os.path.join(ROOT, "examples")]
from harness import BIN, Cluster  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(BIN), "python"))
import hp_search  # noqa: E402
import torch  # noqa: E402
import train_classifier  # noqa: E402
from torchvision import datasets, transforms  # noqa: E402


class Batch(tuple):
    stream_epoch = 0


class TorchLoader:
    """A DataLoader that can be used as a Loader."""

    def __init__(self, *args, **options):
        self.loader = torch.utils.data.DataLoader(*args, **options)

    def __iter__(self):
        return map(Batch, self.loader)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass


def torch_loaders(folder, processes, batch_size, **unused):
    """As train_classifier.loaders(), of torch. Both read the same folder: accuracy is not what is measured."""
    size = train_classifier.SIZE
    finish = [transforms.ToTensor(), transforms.Normalize((.485, .456, .406), (.229, .224, .225))]
    train = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), *finish]
    check = [transforms.Resize(size), transforms.CenterCrop(size), *finish]
    options = dict(batch_size=batch_size, num_workers=processes, persistent_workers=processes > 0)
    return (TorchLoader(datasets.ImageFolder(folder, transforms.Compose(train)), shuffle=True, drop_last=True, **options),
            TorchLoader(datasets.ImageFolder(folder, transforms.Compose(check)), **options))


class All(list):
    """Scores that stop no trial."""

    def append(self, score):
        pass

    def __iter__(self):
        return iter([0.0])


def search(make_loaders, args, workers_cpu_s=lambda: 0.0):
    """Wall and CPU seconds of a search."""
    def cpu_s():
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime + workers_cpu_s()
    began, cpu = time.monotonic(), cpu_s()
    results = list(hp_search.search(make_loaders, args, [All() for _ in range(args.epochs)]))
    assert len(results) == args.trials and all(result["epochs"] == args.epochs for result in results)
    return time.monotonic() - began, cpu_s() - cpu


def processes_cpu_s(processes):
    ticks = 0
    for process in processes:
        ticks += sum(map(int, open(f"/proc/{process.popen.pid}/stat").read().rsplit(")", 1)[1].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def millrace_round(folder, args, threads):
    with Cluster(folder, 2, threads=threads) as cluster:
        cluster.add("photos", folder)
        make = functools.partial(train_classifier.loaders, cluster.address, "photos", "photos")
        spent = search(make, args, lambda: processes_cpu_s([cluster.server, *cluster.workers.values()]))
        made = cluster.blocks_made()
        once = sum({block[:3]: block[3] for block in made}.values())
        return (*spent, sum(block[3] for block in made), once)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--photos", type=int, default=400, help="to make [%(default)s]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1, help="num_workers of each DataLoader [%(default)s]")
    args = parser.parse_args()
    args.at_once = args.trials
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="millrace-search-") as made:
        os.chmod(made, 0o755)
        folder = os.path.join(made, "photos")
        subprocess.run([os.path.join(BIN, "millrace-photos"), folder, str(args.photos)], check=True, stdout=subprocess.DEVNULL)
        ours, theirs = [], []
        for turn in range(args.rounds):
            ours.append(millrace_round(folder, args, max(1, cores // 2)))
            theirs.append(search(functools.partial(torch_loaders, folder, args.processes), args))
            print(f"round {turn + 1}, load {os.getloadavg()[0]:.1f}: millrace {ours[-1][0]:.1f} s, {ours[-1][1]:.1f} CPU-s, {ours[-1][2]} items "
                  f"prepared of {ours[-1][3]}; torch {theirs[-1][0]:.1f} s, {theirs[-1][1]:.1f} CPU-s", flush=True)
    for i, what in enumerate(("wall time", "CPU time")):
        ratio = statistics.median(t[i] / o[i] for o, t in zip(ours, theirs))
        print(f"{args.trials} torch DataLoaders / {args.trials} trials on one stream: {ratio:.1f} x the {what} (bar 5)")


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    sys.exit(main())
