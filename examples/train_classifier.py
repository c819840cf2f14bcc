#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small convolutional network with torch, on batches that Millrace prepares.

Ten classes of photographs, cropped and flipped at random by the workers; after each epoch the accuracy on photographs that were not
trained on. Eight epochs of 400 photographs reach 80% (guessing: 10%); with --reach 0.8 the exit code says whether that was so.
With --checkpoint a run goes on where the one before was interrupted, with --device cuda:0 it trains on a GPU.

    python3 examples/train_classifier.py
    python3 examples/train_classifier.py --server 127.0.0.1:7070 --train photos --valid photos-valid
"""
import os
import sys

import local
import millrace
import torch
from torch import nn

SIZE = 32  # of a picture's side, so that a CPU is enough


def make_net(width=16):
    """Two convolutions, each halving the side, then where things are in the picture (2x2), then a class."""
    def block(before, after):
        return nn.Sequential(nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU())
    return nn.Sequential(block(3, width), block(width, 2 * width), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8 * width, 10))


def loaders(server, train, valid, batch_size, job=None, device="cpu", **more):
    """What to train on, and what to validate with.

    The first is torchvision's RandomResizedCrop and RandomHorizontalFlip in another order each epoch; the second shows each picture's
    middle, in order, and with tail="exact" each exactly once. Both give float32 tensors, normalised, NCHW, on `device`, without a copy.
    """
    def named(name):
        return f"{job}.{name}" if job else None  # not given: a job of one process, or the launcher's
    return (millrace.Loader(server, dataset=train, batch_size=batch_size, transforms="imagenet_train", options={"size": SIZE},
                            arrays="torch", device=device, job=named("train"), **more),
            millrace.Loader(server, dataset=valid, batch_size=batch_size, transforms="imagenet_eval", options={"size": SIZE},
                            tail="exact", arrays="torch", device=device, job=named("valid")))


def train_epoch(net, optimizer, batches):
    """One epoch; yields each step's loss. `batches` may be any iterable of (images, labels)."""
    net.train()
    for images, labels in batches:
        loss = nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@torch.no_grad()
def count_right(net, batches):
    """(pictures whose class was found, pictures)."""
    net.eval()
    right = total = 0
    for images, labels in batches:
        right += int((net(images).argmax(1) == labels).sum())
        total += len(labels)
    return right, total


def main():
    parser = local.parser(__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--checkpoint", metavar="FILE", help="save after each epoch; go on from it where it is there")
    parser.add_argument("--device", default="cpu", help="cpu, cuda:N, or host, which does on the CPU what cuda does on a GPU [%(default)s]")
    parser.add_argument("--reach", type=float, default=0, metavar="SHARE", help="fail if the last accuracy is lower")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, right, total = make_net().to("cpu" if args.device == "host" else args.device), 0, 1
    optimizer = torch.optim.Adam(net.parameters(), args.learning_rate)

    with local.cluster(args) as cluster:
        train, valid = loaders(cluster.address, args.train, args.valid, args.batch_size, device=args.device, epochs=args.epochs)
        with train, valid:
            if args.checkpoint and os.path.exists(args.checkpoint):
                saved = torch.load(args.checkpoint)
                net.load_state_dict(saved["net"])
                optimizer.load_state_dict(saved["optimizer"])
                train.load_state_dict(saved["loader"])  # with its epoch; the order and the crops are the same as without a break
            for epoch in range(train.epoch, args.epochs):
                losses = list(train_epoch(net, optimizer, train))  # each `for` over a Loader is the next epoch
                right, total = count_right(net, valid)
                print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}, accuracy {right / total:.0%}", flush=True)
                if args.checkpoint:
                    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "loader": train.state_dict()}, args.checkpoint)
            stats = train.stats()
            print(f"trained on {stats['rows']} pictures, waited {stats['stall_s']:.1f} s for them")
    return right / total < args.reach


if __name__ == "__main__":
    sys.exit(main())
