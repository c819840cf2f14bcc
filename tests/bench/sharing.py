#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What sharing is worth: 1, 2, 4 and 8 jobs on one stream, and 8 on 8 streams of their own, on this machine.

A server, two workers of one prep thread each, and trainers that take batches as fast as they come, all bound by CPU.
Rounds of all variants are interleaved, so that what else the machine does befalls all alike; medians are shown.

  samples/s     handed to all jobs together
  prepared      how often the workers made each row of the epochs that the jobs went through: 1 is once for all
  CPU us/item   of workers and of trainers, for each sample handed to a job
  P, T          CPU of preparing an item, and of sending, receiving, checking and handing it over once. T is one job's that
                reads a staged epoch (nothing is prepared), workers and trainer together; P is that of one job, less T.
  bar           0.9 x 8 (P + T) / (P + 8 T): what 8 sharing jobs must deliver of what 8 others do

Then 7 jobs at a pace of at most 60% of what 8 jobs got, with and without an eighth at a quarter of it: what it costs them.

Photographs: imagenet-mini in $MILLRACE_TEST_DATA, where it is there, else generated. Programs come from $MILLRACE_BIN.
"""
import argparse
import bisect
import calendar
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "integration"))
from harness import BIN, DATA, Cluster  # noqa: E402

GENERATED, BATCH, WORKERS, STAGING = 400, 64, 2, "128MB"
SETTLE_S = 1.0  # from the last job's first batch
SLOW, PACED, LOAD = 0.25, 7, 0.6
VARIANTS = {"1": (1, True), "2": (2, True), "4": (4, True), "8": (8, True), "8 unshared": (8, False)}  # jobs, one stream


class Line:
    """A count that only grows, known at some moments."""

    def __init__(self, points):
        self.at_ns, self.count = zip(*points)

    def during(self, begin_ns, end_ns):
        return self.value(end_ns) - self.value(begin_ns)

    def value(self, at_ns):
        i = min(max(bisect.bisect_right(self.at_ns, at_ns), 1), len(self.at_ns) - 1)
        (t0, t1), (c0, c1) = self.at_ns[i - 1:i + 1], self.count[i - 1:i + 1]
        return c0 + (c1 - c0) * (at_ns - t0) / (t1 - t0)


class Bench:
    def __init__(self, cluster, seconds, look_ahead):
        self.cluster, self.seconds, self.look_ahead, self.runs = cluster, seconds, look_ahead, 0

    def measure(self, jobs):
        """Runs trainers with these options; what happened while all of them read."""
        self.runs += 1
        name = f"run-{self.runs}"
        seen_bytes = {i: os.path.getsize(self.cluster.path(f"worker-{i}.log")) for i in self.cluster.workers}
        paths = [self.cluster.path(f"{name}-{i}.progress") for i in range(len(jobs))]
        trainers = [self.cluster.trainer(f"{name}-{i}", "photos", rows=False, job=f"{name}-{i}", batch=BATCH, epochs=1000000,
                                         look_ahead=self.look_ahead, seconds=int(self.seconds + 2 * SETTLE_S + 2), progress=paths[i], **options)
                    for i, options in enumerate(jobs)]
        cpu = []
        while any(t.popen.poll() is None for t in trainers):
            cpu.append((time.monotonic_ns(), self.workers_cpu_s()))
            time.sleep(0.05)
        for trainer in trainers:
            assert trainer.wait() == 0, trainer.tail()
            self.cluster.others.remove(trainer)
        lines = [[tuple(map(int, line.split())) for line in open(path)] for path in paths]
        begin = max(points[0][0] for points in lines) + int(SETTLE_S * 1e9)
        end = min(begin + int(self.seconds * 1e9), min(points[-1][0] for points in lines))
        assert end > begin, "the jobs did not all read at once: give more --seconds"
        blocks = [block for i in seen_bytes for block in self.blocks_made(i, seen_bytes[i])]
        return {
            "rows": [Line([p[:2] for p in points]).during(begin, end) for points in lines],
            "trainers_s": sum(Line([p[::2] for p in points]).during(begin, end) for points in lines) / 1e9,
            "workers_s": Line(cpu).during(begin, end),
            "made": sum(rows for at_ns, *_, rows in blocks if begin <= at_ns < end),
            "prepared": len({options.get("seed") for options in jobs}) * sum(rows for *_, rows in blocks)
            / max(1, sum({block[1:4]: block[4] for block in blocks}.values())),
            "seconds": (end - begin) / 1e9,
        }

    def workers_cpu_s(self):
        ticks = 0
        for process in self.cluster.workers.values():
            fields = open(f"/proc/{process.popen.pid}/stat").read().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def blocks_made(self, i, from_byte):
        """(monotonic ns, stream, epoch, block, rows) of each."""
        wall_s = time.time() - time.monotonic()
        with open(self.cluster.path(f"worker-{i}.log")) as log:
            log.seek(from_byte)
            found = re.findall(r"^(\S+)Z .* id=block_made stream=(\w+) epoch=(\d+) block=(\d+) rows=(\d+)", log.read(), re.M)
        return [((datetime_s(when) - wall_s) * 1e9, stream, *map(int, numbers)) for when, stream, *numbers in found]

    # the variants

    def staged(self):
        """CPU seconds of an item that is sent and handed over, and not prepared."""
        options = dict(pipeline="imagenet_eval", tail="exact")
        self.cluster.trainer("warm", "photos", rows=False, job=f"warm-{self.runs}", epochs=1, batch=BATCH, **options).wait()
        run = self.measure([options])
        assert run["made"] == 0, f"{run['made']} rows were made although the epoch is staged"
        return (run["workers_s"] + run["trainers_s"]) / sum(run["rows"])

    def jobs(self, count, shared, **options):
        seed = 100 * (self.runs + 1)  # nothing staged by an earlier run helps
        return [dict(options, seed=seed if shared else seed + i) for i in range(count)]

    def round(self):
        result = {"T": self.staged()}
        for name, (count, shared) in VARIANTS.items():
            result[name] = self.measure(self.jobs(count, shared))
        result["P"] = cpu_s(result["1"]) / sum(result["1"]["rows"]) - result["T"]
        return result

    def slow_round(self, pace):
        seven = self.jobs(PACED, True, pace=pace)
        alone = self.measure(seven)
        seven = self.jobs(PACED, True, pace=pace)
        beside = self.measure(seven + [dict(seven[0], pace=max(1, int(pace * SLOW)))])
        return [{"rate": sum(run["rows"][:PACED]) / PACED / run["seconds"], "slowest": min(run["rows"][:PACED]) / run["seconds"],
                 "eighth": sum(run["rows"][PACED:]) / run["seconds"], "made": run["made"] / run["seconds"]} for run in (alone, beside)]


def datetime_s(text):
    whole, fraction = text.split(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float("0." + fraction)


def cpu_s(run):
    return run["workers_s"] + run["trainers_s"]


def rate(run):
    return sum(run["rows"]) / run["seconds"]


def median(rounds, what):
    return statistics.median(what(r) for r in rounds)


def summary(rounds):
    """The table's rows, and the ratio beside its bar."""
    table = []
    for name in VARIANTS:
        runs = [r[name] for r in rounds]
        table.append({
            "jobs": name, "samples_per_s": median(runs, rate),
            "prepared_per_item_epoch": median(runs, lambda r: r["prepared"]),
            "workers_us": median(runs, lambda r: 1e6 * r["workers_s"] / sum(r["rows"])),
            "trainers_us": median(runs, lambda r: 1e6 * r["trainers_s"] / sum(r["rows"])),
            "cores": median(runs, lambda r: cpu_s(r) / r["seconds"])})
    p, t = median(rounds, lambda r: r["P"]), median(rounds, lambda r: r["T"])
    return {
        "table": table, "P_us": 1e6 * p, "T_us": 1e6 * t,
        "ratio": median(rounds, lambda r: rate(r["8"]) / rate(r["8 unshared"])),
        "ratio_of_cpu": median(rounds, lambda r: cpu_s(r["8 unshared"]) / sum(r["8 unshared"]["rows"])
                               / (cpu_s(r["8"]) / sum(r["8"]["rows"]))),
        "ideal": 8 * (p + t) / (p + 8 * t), "bar": 0.9 * 8 * (p + t) / (p + 8 * t)}


def print_summary(s):
    print(f"{'jobs':>10} {'samples/s':>10} {'prepared':>9} {'workers us/item':>16} {'trainers us/item':>17} {'cores':>6}")
    for row in s["table"]:
        print(f"{row['jobs']:>10} {row['samples_per_s']:10.0f} {row['prepared_per_item_epoch']:9.2f} {row['workers_us']:16.0f} "
              f"{row['trainers_us']:17.0f} {row['cores']:6.2f}")
    print(f"P {s['P_us']:.0f} us, T {s['T_us']:.0f} us an item: 8 sharing jobs should deliver {s['ideal']:.2f} x what 8 others do, "
          f"at least {s['bar']:.2f} x")
    print(f"8 sharing / 8 unshared: {s['ratio']:.2f} x the samples/s ({'reached' if s['ratio'] >= s['bar'] else 'not reached'}), "
          f"{s['ratio_of_cpu']:.2f} x the samples of a CPU second")


def slow_summary(rounds, pace):
    alone, beside = ([r[i] for r in rounds] for i in (0, 1))
    return {"pace": pace, "alone": median(alone, lambda r: r["rate"]), "beside": median(beside, lambda r: r["rate"]),
            "slowest_alone": median(alone, lambda r: r["slowest"]), "slowest_beside": median(beside, lambda r: r["slowest"]),
            "eighth": median(beside, lambda r: r["eighth"]), "made_alone": median(alone, lambda r: r["made"]),
            "made_beside": median(beside, lambda r: r["made"]),
            "slowed_by": 1 - median(rounds, lambda r: r[1]["rate"] / r[0]["rate"]),
            "slowest_slowed_by": 1 - median(rounds, lambda r: r[1]["slowest"] / r[0]["slowest"])}


def print_slow(s):
    print(f"7 jobs at a pace of {s['pace']} rows/s: {s['alone']:.1f} each, the slowest {s['slowest_alone']:.1f}, "
          f"{s['made_alone']:.1f} rows/s prepared")
    print(f"beside an eighth at {s['eighth']:.1f}: {s['beside']:.1f} each, the slowest {s['slowest_beside']:.1f}, "
          f"{s['made_beside']:.1f} rows/s prepared")
    print(f"slowed by {100 * s['slowed_by']:.1f}%, the slowest by {100 * s['slowest_slowed_by']:.1f}% (bar 3%)")


def run(cluster, args):
    bench, rounds = Bench(cluster, args.seconds, args.look_ahead), []
    for i in range(args.rounds):
        rounds.append(bench.round())
        if not args.json:
            r = rounds[-1]
            print(f"round {i + 1}, load {os.getloadavg()[0]:.1f}: " + "  ".join(f"{n}: {rate(r[n]):.0f}/s" for n in VARIANTS), flush=True)
    result = summary(rounds)
    if not args.json:
        print_summary(result)
    if args.slow_rounds:
        run_slow(bench, rounds, result, args)
    if args.json:
        print(json.dumps(result))


def run_slow(bench, rounds, result, args):
    pace = args.pace or int(LOAD * min(rate(r["8"]) / 8 for r in rounds))
    result["slow"] = slow_summary([bench.slow_round(pace) for _ in range(args.slow_rounds)], pace)
    if not args.json:
        print_slow(result["slow"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6, help="measured of each run [6]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slow-rounds", type=int, default=3, help="of the part with a slow job; 0: without it")
    parser.add_argument("--look-ahead", type=int, default=2, help="steps that each job asks for ahead [2]")
    parser.add_argument("--pace", type=int, default=0, help="rows/s of each of the 7 jobs [60%% of what 8 got in the worst round]")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-sharing-") as made:
        folder = os.path.join(DATA, "imagenet-mini")
        if not os.path.isdir(folder):
            os.chmod(made, 0o755)
            folder = made
            subprocess.run([os.path.join(BIN, "millrace-photos"), folder, str(GENERATED)], check=True, stdout=subprocess.DEVNULL)
        with Cluster(os.path.realpath(folder), WORKERS, staging=STAGING) as cluster:
            cluster.add("photos", os.path.realpath(folder))
            run(cluster, args)


if __name__ == "__main__":
    sys.exit(main())
