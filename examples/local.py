# SPDX-License-Identifier: Apache-2.0
"""What the examples share: where they find a Millrace, and pictures.

With --server (or $MILLRACE_SERVER) an example uses a cluster that runs already and knows both datasets. Without, it makes photographs
of ten classes in a temporary folder and runs `millrace up` over them on this machine, for as long as it needs it.
"""
import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

BUILD = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "build", "release")

try:
    import millrace  # noqa: F401  (pip install ./client/python)
except ModuleNotFoundError:
    sys.path.append(os.path.join(BUILD, "python"))  # the package as a build of the project leaves it


def parser(text):
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--server", default=os.environ.get("MILLRACE_SERVER"), metavar="HOST:PORT",
                      help="a running cluster that knows both datasets [$MILLRACE_SERVER]; neither: photographs are made and `millrace up` runs here")
    made.add_argument("--train", default="photos", metavar="DATASET", help="to train on [%(default)s]")
    made.add_argument("--valid", default="photos-valid", metavar="DATASET", help="to validate on, of the same classes [%(default)s]")
    made.add_argument("--photos", type=int, default=400, metavar="N", help="without --server: make so many, and a quarter more [%(default)s]")
    return made


def program(name):
    found = shutil.which(name) or shutil.which(name, path=os.path.join(BUILD, "bin"))
    return found or sys.exit(f"{name} is neither on PATH nor in {BUILD}/bin: build the project, or give --server")


class Cluster:
    """A Millrace at an address; `up` is the process that runs it, where that is ours."""

    def __init__(self, address, up=None):
        self.address, self.up = address, up

    def command(self, *args):
        return subprocess.run([program("millrace"), *args, "--server", self.address], check=True, capture_output=True, text=True).stdout

    def prepared(self):
        """Rows that the workers have made so far. They tell the server about once a second, hence the wait."""
        time.sleep(2.5)
        return sum(worker["rows_made"] for worker in json.loads(self.command("workers", "--json"))["workers"])

    def cpu_s(self):
        """CPU seconds of server and workers; nan where they run elsewhere."""
        if not self.up:
            return float("nan")
        ticks = 0
        for pid in open(f"/proc/{self.up.pid}/task/{self.up.pid}/children").read().split():
            ticks += sum(map(int, open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def cluster(args):
    """The Cluster of --server, else one of our own that ends with the block."""
    if args.server:
        yield Cluster(args.server)
        return
    with tempfile.TemporaryDirectory(prefix="millrace-example-") as folder:
        for seed, (name, count) in enumerate([(args.train, args.photos), (args.valid, max(10, args.photos // 4))], 1):
            subprocess.run([program("millrace-photos"), os.path.join(folder, name), str(count), str(seed)], check=True)
        up = subprocess.Popen([program("millrace"), "up", "--workers", "2", "--data-root", folder, "--state", os.path.join(folder, "state"),
                               "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
        try:
            line = up.stdout.readline().split()  # "ready HOST:PORT"
            if not line:
                sys.exit("millrace up did not start")
            here = Cluster(line[1], up)
            for name in (args.train, args.valid):
                print(here.command("dataset", "add", name, os.path.join(folder, name)), end="")
            yield here
        finally:
            up.terminate()
            up.wait()
            up.stdout.close()
