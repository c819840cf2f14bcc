#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: tests/bench/chaos.py [--seeds N] [--first S] [--jobs J] [--deaths N]

Runs N seeds of tests/integration/test_chaos.py, J at a time, then prints the longest wait for a batch of a trainer when one
of three workers dies in each way, over N deaths. Exit code 1 when a seed fails. Programs come from $MILLRACE_BIN.
"""
import argparse
import os
import signal
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "integration"))
import harness  # noqa: E402

BOUND_MS = {"killed": 300, "cut": 300, "paused": 1500, "black hole": 1500}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--deaths", type=int, default=5)
    args = parser.parse_args()
    import test_chaos  # asks for its data at once: not before --help
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    failed = test_chaos.run_seeds(range(args.first, args.first + args.seeds), args.jobs or test_chaos.AT_ONCE)
    print(f"{args.seeds - len(failed)} of {args.seeds} seeds passed in {time.monotonic() - began:.0f} s; failed: {failed or 'none'}")
    with harness.photos(test_chaos.ITEMS) as folder:
        for name, harm in test_chaos.DEATHS.items() if args.deaths else ():
            waits = [test_chaos.wait_of_a_death(folder, harm) for _ in range(args.deaths)]
            print(f"longest wait for a batch, worker {name}: median {statistics.median(waits):.0f} ms, worst {max(waits)} ms "
                  f"of {len(waits)} (bound {BOUND_MS[name]} ms)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
