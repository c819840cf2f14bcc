#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Searches for a learning rate and a width with trials that share one preparation.

Eight trials train at once, each a process and a job of its own. They read the same dataset with the same transforms, so the workers
prepare each epoch once for all of them, whatever the trials' batch sizes. A trial that is worse than half of those that came as far
is stopped, and the next one takes its place: it joins the stream at its next epoch, so that nothing is prepared again for it.

    python3 examples/hp_search.py
    python3 examples/hp_search.py --trials 24 --epochs 12
"""
import concurrent.futures
import functools
import multiprocessing
import random
import statistics
import sys
import time

import local
import torch
from train_classifier import count_right, loaders, make_net, train_epoch


def draw(number):
    """What trial `number` tries."""
    chance = random.Random(number)
    return {"rate": 10 ** chance.uniform(-4.5, -1.5), "width": chance.choice((8, 12, 16)), "batch_size": chance.choice((16, 20, 32))}


def keeps_up(scores, score):
    """The median rule. `scores`: of all trials so far at the same age."""
    scores.append(score)
    return score >= statistics.median(scores)


def trial(number, make_loaders, batch_size, rate, width, join, epochs, scores):
    """Trains one net. Runs in a process of its own, and opens its Loaders there."""
    torch.set_num_threads(1)
    torch.manual_seed(number)
    net = make_net(width)
    optimizer = torch.optim.Adam(net.parameters(), rate)
    train, valid = make_loaders(batch_size=batch_size, job=f"trial-{number}", epochs=epochs, join=join)
    seen, rows, score = set(), 0, 0.0

    def noted(batches):
        nonlocal rows
        for batch in batches:
            seen.add(batch.stream_epoch)  # which epoch of the stream this is: one that joined later is not at 0
            rows += len(batch[1])
            yield batch

    with train, valid:
        for epoch in range(epochs):
            for _ in train_epoch(net, optimizer, noted(train)):
                pass
            right, total = count_right(net, valid)
            score, rows = right / total, rows + total
            if not keeps_up(scores[epoch], score) and epoch + 1 < epochs:
                break
    return {"number": number, "score": score, "epochs": epoch + 1, "stream_epochs": seen, "rows": rows,
            "what": f"rate {rate:.5f}, width {width}, {batch_size} a batch"}


def search(make_loaders, args, scores):
    """Results as trials end. The first ones begin together, the others whenever a place is free."""
    context = multiprocessing.get_context("fork")  # torch is imported once; no Loader is open here, else it had to be "spawn"
    with concurrent.futures.ProcessPoolExecutor(args.at_once, context) as places:
        trials = [places.submit(trial, number, make_loaders, join="now" if number < args.at_once else "next", epochs=args.epochs,
                                scores=scores, **draw(number)) for number in range(args.trials)]
        for ended in concurrent.futures.as_completed(trials):
            yield ended.result()


def arguments(text, **defaults):
    parser = local.parser(text)
    parser.add_argument("--trials", type=int, default=12, help="in all [%(default)s]")
    parser.add_argument("--at-once", type=int, default=8, help="of them [%(default)s]")
    parser.add_argument("--epochs", type=int, default=6, help="of a trial that is not stopped [%(default)s]")
    parser.set_defaults(**defaults)
    return parser


def main():
    args = arguments(__doc__).parse_args()
    with local.cluster(args) as cluster, multiprocessing.Manager() as manager:
        scores = [manager.list() for _ in range(args.epochs)]
        prepared, cpu_s, began = cluster.prepared(), cluster.cpu_s(), time.monotonic()
        results = []
        for result in search(functools.partial(loaders, cluster.address, args.train, args.valid), args, scores):
            print(f"trial {result['number']:2}: {result['score']:4.0%} after {result['epochs']} epochs, {result['what']}", flush=True)
            results.append(result)
        wall_s, cpu_s = time.monotonic() - began, cluster.cpu_s() - cpu_s
        prepared = cluster.prepared() - prepared
    best = max(results, key=lambda result: result["score"])
    epochs = set().union(*(result["stream_epochs"] for result in results))
    delivered = sum(result["rows"] for result in results)
    print(f"best: trial {best['number']}, {best['score']:.0%}: {best['what']}")
    print(f"items prepared   {prepared}  ({len(epochs)} epochs of the stream, what was fetched ahead beyond them, the validation set)")
    print(f"items delivered  {delivered}  ({delivered / max(1, prepared):.1f} for each prepared)")
    print(f"{wall_s:.1f} s, {cpu_s:.1f} CPU-s of server and workers")


if __name__ == "__main__":
    sys.exit(main())
