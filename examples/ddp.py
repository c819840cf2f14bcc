#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains one network on several ranks with torch's DistributedDataParallel.

Each rank's Loader asks torch.distributed which part is its own: there is no sampler to make, no set_epoch to remember, and all ranks
have the same number of steps. The last check counts each validation picture once, whatever the number of ranks (tail="exact").

    python3 examples/ddp.py                                            # starts two ranks itself, with gloo on the CPU
    torchrun --nproc_per_node 4 examples/ddp.py --server HOST:PORT     # torchrun starts them
"""
import os
import socket
import sys

import local
import torch
import torch.distributed as dist
import torch.multiprocessing
from train_classifier import count_right, loaders, make_net, train_epoch


def run_rank(server, args, job):
    """One rank, whose process group exists."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = torch.nn.parallel.DistributedDataParallel(make_net())
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    # batch_size is a rank's. The job's name says which processes belong together; torchrun gives one, then None is right.
    train, valid = loaders(server, args.train, args.valid, args.batch_size, job=job, epochs=args.epochs)
    with train, valid:
        for epoch in range(args.epochs):
            losses = list(train_epoch(net, optimizer, train))
            counts = torch.tensor([*count_right(net.module, valid), sum(losses), len(losses)], dtype=torch.float64)
            dist.all_reduce(counts)
            right, total, loss, steps = counts.tolist()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: {dist.get_world_size()} ranks, {len(losses)} steps, loss {loss / steps:.3f}, "
                      f"accuracy {right / total:.0%} of {total:.0f}", flush=True)


def start_rank(rank, port, server, args):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=args.ranks)
    run_rank(server, args, "ddp")
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    parser = local.parser(__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="to start, unless torchrun did [%(default)s]")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=10, help="of each rank [%(default)s]")
    args = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun
        if not args.server:
            sys.exit("with torchrun give --server: each rank would start a cluster of its own")
        dist.init_process_group("gloo")
        run_rank(args.server, args, None)
        dist.destroy_process_group()
        return
    with local.cluster(args) as cluster:
        # "fork" saves importing torch again. With GPUs take "spawn".
        torch.multiprocessing.start_processes(start_rank, (free_port(), cluster.address, args), args.ranks, start_method="fork")


if __name__ == "__main__":
    main()
