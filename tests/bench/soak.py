#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Eight jobs and three workers for an hour, while workers and jobs come and go: sizes and descriptors must stay flat.

  1. A server, three workers and eight paced jobs on a small generated dataset, so that many epochs pass (about 1,200 an hour).
  2. Every 20 s a worker other than the first is killed or drained and one takes its place, as often with a new identity as with
     the old one. Five jobs end after 1 to 5 minutes, or are killed and go on from their cursor, and are replaced; now and then by
     one with a stream of its own. The server, worker 1 and three jobs live through it all.
  3. Each minute: resident size, descriptors and threads of every process, epochs, blocks remade by cause, CPU.
  4. At the end the ledgers of all jobs are audited, and of what lived through it all, over the second half:
       size         the slope of its resident size (without shared memory, which is workers' staging; of each minute's least;
                    Theil and Sen's: the median of all slopes between two minutes) is below --bound-kb an hour and below 1% of
                    the size an hour, or its 95% interval holds 0: a worker's size swings by 2 MB with what it decodes
       descriptors  at quiet moments (just before a worker goes, all workers ready, all jobs running) their median is that of the
                    quiet moments before the half
     Fewer than 20 minutes judge nothing but the ledgers: what is allocated once looks like a slope.

All of it uses less than a quarter of a core. Exit code 1 when something is not as it must be. Programs come from $MILLRACE_BIN.
"""
import argparse
import collections
import itertools
import json
import math
import os
import random
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "integration"))
from harness import BIN, Cluster  # noqa: E402

ITEMS, PACE, STAGING = 48, 16, "16MB"
OPTIONS = ["size=160"]  # rows of 77 kB: blocks of 16 rows
HARM_EVERY_S, SAMPLE_EVERY_S, JUDGED_S = 20, 10, 1200
KEEP_MS = 120000  # else the list of what has ended grows for the server's first hour
STAYING = (("stays-1", {"batch": 8}), ("stays-2", {"batch": 5, "tail": "exact"}), ("stays-3", {"batch": 16, "seed": 7}))
COMING = 5


class Sample:
    """What the kernel says of a process."""

    def __init__(self, pid):
        status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status") if ":" in line)
        self.at_s = time.monotonic()
        self.size_kb = sum(int(status[part].split()[0]) for part in ("RssAnon", "RssFile"))
        self.threads = int(status["Threads"])
        self.descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        self.cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __str__(self):
        return f"{self.size_kb / 1024:.1f}/{self.descriptors}/{self.threads}"


class Job:
    """A trainer that may be killed and goes on from its cursor."""

    def __init__(self, cluster, name, options):
        self.cluster, self.name, self.starts = cluster, name, 0
        self.options = dict(job=name, option=OPTIONS, pace=PACE, ledger=cluster.path("ledgers"), rows=False,
                            cursor_out=cluster.path(f"{name}.cursor"), timeout_ms=60000, **options)
        self.start()

    def start(self):
        if os.path.exists(self.options["cursor_out"]):
            self.options["cursor_in"] = self.options["cursor_out"]
        self.process = self.cluster.trainer(f"{self.name}-{self.starts}", "photos", **self.options)
        self.starts += 1

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.cluster.others.remove(self.process)


class Soak:
    def __init__(self, cluster, seed):
        self.cluster, self.random = cluster, random.Random(f"soak/{seed}")
        self.names, self.worker_numbers = itertools.count(1), itertools.count(4)
        self.jobs, self.samples, self.quiet = [], collections.defaultdict(list), collections.defaultdict(list)
        self.remade, self.read_bytes, self.done = collections.Counter(), collections.Counter(), collections.Counter()
        self.failures, self.cpu = [], None

    def processes(self):
        yield "server", self.cluster.server
        for i, worker in self.cluster.workers.items():
            yield f"worker-{i}", worker
        for job in self.jobs:
            yield job.name, job.process

    # what comes and goes

    def start_jobs(self):
        for name, options in STAYING:
            self.jobs.append(Job(self.cluster, name, dict(options, epochs=1000000)))
        for _ in range(COMING):
            self.jobs.append(self.new_job())

    def new_job(self):
        r, name = self.random, f"comes-{next(self.names)}"
        options = dict(batch=r.choice((4, 8, 12, 30)), tail=r.choice(("exact", "drop", "pad")), epochs=r.randint(20, 110),
                       join=r.choice(("next", "next", "next", "partial")))
        if r.random() < 0.08:
            options["seed"] = 1000 + int(name.split("-")[1])
        return Job(self.cluster, name, options)

    def tend_jobs(self):
        """Replaces jobs that have ended; one that failed goes on from its cursor."""
        for i, job in enumerate(self.jobs):
            if job.process.popen.poll() is None:
                continue
            failed = job.process.wait() != 0
            self.cluster.others.remove(job.process)
            if failed:
                self.fail(f"{job.name} ended with {job.process.popen.returncode}: {job.process.tail(1)}")
                job.start()
            else:
                self.done["jobs ended"] += 1
                self.jobs[i] = self.new_job()

    def fail(self, text):
        print(f"FAILED, load {os.getloadavg()[0]:.1f}: {text}", flush=True)
        self.failures.append(text)

    def harm(self):
        """A worker goes and another comes; at times a job is killed and goes on."""
        workers, how = self.cluster.workers, self.random.choice(("killed", "drained"))
        i = self.random.choice([i for i in workers if i != 1])
        process = workers.pop(i)
        self.read_log(i)
        if how == "killed":
            process.kill()
            process.wait()
        else:
            self.drain(i, process)
        self.cluster.start_worker(i if self.random.random() < 0.5 else next(self.worker_numbers))
        self.done[f"workers {how}"] += 1
        victim = self.random.choice(self.jobs[len(STAYING):])
        if self.random.random() < 0.3 and victim.process.popen.poll() is None and os.path.exists(victim.options["cursor_out"]):
            victim.kill()
            victim.start()
            self.done["jobs resumed"] += 1

    def drain(self, i, process):
        try:
            if process.end() != 0:
                self.fail(f"worker {i} ended with {process.popen.returncode} when told to drain")
        except AssertionError as late:
            self.fail(f"worker {i}: {str(late).splitlines()[0]}")

    # what is seen

    def read_log(self, i):
        """Counts what worker i has made since it was looked at last."""
        path = self.cluster.path(f"worker-{i}.log")
        with open(path, "rb") as log:
            log.seek(self.read_bytes[i])
            text = log.read()
        whole = text.rfind(b"\n") + 1
        self.read_bytes[i] += whole
        self.remade.update(re.findall(r" id=block_made .*cause=(\w+)", text[:whole].decode(errors="replace")))

    def sample(self):
        for name, process in self.processes():
            try:
                self.samples[name].append(Sample(process.popen.pid))
            except (FileNotFoundError, KeyError, ProcessLookupError):
                pass  # it has just ended

    def look_at_quiet(self):
        """Descriptors, if the whole cluster is there."""
        jobs = self.list_of("jobs")
        running = {j["job"] for j in jobs if j["state"] == "running" and j["ranks_live"] == 1}
        ready = [w for w in self.list_of("workers") if w["state"] == "ready"]
        if len(running) != len(self.jobs) or {job.name for job in self.jobs} != running or len(ready) != 3:
            return
        self.sample()
        for name, _ in self.processes():
            self.quiet[name].append(self.samples[name][-1])

    def list_of(self, what):
        return json.loads(self.cluster.cli(what, "--json").stdout)[what]

    def cpu_s(self):
        """Of all processes, this one and those that have ended among them."""
        ended, own = resource.getrusage(resource.RUSAGE_CHILDREN), resource.getrusage(resource.RUSAGE_SELF)
        return (ended.ru_utime + ended.ru_stime + own.ru_utime + own.ru_stime
                + sum(samples[-1].cpu_s for name, samples in self.samples.items() if name in dict(self.processes())))

    def report(self, since_s):
        for i in self.cluster.workers:
            self.read_log(i)
        self.sample()
        now = (time.monotonic(), self.cpu_s())
        cores = (now[1] - self.cpu[1]) / (now[0] - self.cpu[0]) if self.cpu else 0
        self.cpu = now
        at = {j["job"]: j["at"]["epoch"] for j in self.list_of("jobs")}
        print(f"{since_s:6.0f} s  load {os.getloadavg()[0]:.1f}  cores {cores:.2f}  epoch {at.get('stays-1')}  "
              + "  ".join(f"{what} {n}" for what, n in sorted(self.done.items()))
              + "  made " + " ".join(f"{cause}={n}" for cause, n in sorted(self.remade.items())))
        print("          MB/descriptors/threads  " + "  ".join(f"{name} {self.samples[name][-1]}" for name, _ in self.processes()),
              flush=True)

    def run(self, seconds):
        began = time.monotonic()
        self.start_jobs()
        next_harm, next_sample, next_report = began + HARM_EVERY_S, began, began
        while time.monotonic() < began + seconds:
            self.tend_jobs()
            now = time.monotonic()
            if now >= next_report:
                self.report(now - began)
                next_report += 60
            if now >= next_harm:
                self.look_at_quiet()
                self.harm()
                next_harm += HARM_EVERY_S
            if now >= next_sample:
                self.sample()
                next_sample += SAMPLE_EVERY_S
            time.sleep(0.25)
        self.report(time.monotonic() - began)
        return began

    # what is concluded

    def audit(self):
        for job in self.jobs:
            job.kill()
        reply = self.cluster.cli("audit", "--json", self.cluster.path("ledgers"), check=False)
        proof = json.loads(reply.stdout) if reply.returncode in (0, 6) else {"proven": False, "epochs": [], "first_violations": [reply.stderr]}
        print(f"audit: {'proven' if proof['proven'] else 'VIOLATED'}: {len(proof['epochs'])} job-epochs, "
              f"{sum(e['state'] == 'complete' for e in proof['epochs'])} complete, {proof.get('starts')} starts")
        if not proof["proven"]:
            self.fail("the ledgers do not prove it: " + "; ".join(proof["first_violations"][:5]))

    def judge(self, began, seconds, bound_kb):
        half = began + seconds / 2
        print(f"{'second half':<12} {'size MB':>8} {'slope kB/h':>11} {'95% interval':>16} {'bound':>6} {'descriptors':>12} {'before':>7} "
              f"{'threads':>8}")
        for name in ["server", "worker-1", *(name for name, _ in STAYING)]:
            late = [s for s in self.samples[name] if s.at_s >= half]
            least = {int((s.at_s - began) // 60): s.size_kb for s in sorted(late, key=lambda s: -s.size_kb)}
            if len(least) < 3:
                continue
            size_kb, (low, slope, high) = statistics.median(s.size_kb for s in late), slopes_of(sorted(least.items()))
            bound = min(bound_kb, size_kb / 100)
            quiet = [[s.descriptors for s in self.quiet[name] if (s.at_s >= half) == is_late] for is_late in (True, False)]
            now, before = (statistics.median_low(q) if q else 0 for q in quiet)
            print(f"{name:<12} {size_kb / 1024:8.1f} {slope:11.0f} {f'{low:.0f} .. {high:.0f}':>16} {bound:6.0f} {now:12} {before:7} {late[-1].threads:8}")
            if seconds >= JUDGED_S and slope >= bound and low > 0:
                self.fail(f"{name} grows by {slope:.0f} kB an hour")
            if seconds >= JUDGED_S and now != before:
                self.fail(f"{name} has {now} descriptors when it is quiet, and had {before}")


def slopes_of(points):
    """The median of all slopes between two of (minute, size), an hour, between the ends of its 95% interval (Sen 1968)."""
    n = len(points)
    slopes = sorted(60 * (b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points, 2))
    spread = 1.96 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low, high = (max(0, min(len(slopes) - 1, round((len(slopes) + sign * spread) / 2))) for sign in (-1, 1))
    return slopes[low], statistics.median(slopes), slopes[high]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=1, help="of what comes and goes when")
    parser.add_argument("--bound-kb", type=float, default=1000, help="growth of a process an hour that is too much [1000]")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-soak-") as folder:
        os.chmod(folder, 0o755)
        subprocess.run([os.path.join(BIN, "millrace-photos"), folder, str(ITEMS)], check=True, stdout=subprocess.DEVNULL)
        with Cluster(folder, 3, staging=STAGING, server_args=["--keep-ms", str(KEEP_MS)]) as cluster:
            os.mkdir(cluster.path("ledgers"))
            cluster.add("photos", folder)
            soak = Soak(cluster, args.seed)
            began = soak.run(args.seconds)
            soak.audit()
            soak.judge(began, args.seconds, args.bound_kb)
    judged = "flat" if args.seconds >= JUDGED_S else "ledgers are right; too short to judge sizes"
    print(f"{len(soak.failures)} failures" if soak.failures else judged)
    return 1 if soak.failures else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
