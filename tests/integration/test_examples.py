# SPDX-License-Identifier: Apache-2.0
"""The examples, run as their users run them, on a small set; and that batches of Millrace train a net to the losses of torch's DataLoader."""
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import harness
from harness import BIN, ROOT, Cluster

PACKAGE = os.environ.get("MILLRACE_PYTHON", os.path.join(os.path.dirname(BIN), "python"))
EXAMPLES = os.path.join(ROOT, "examples")
sys.path[:0] = [PACKAGE, EXAMPLES]
try:
    import millrace  # noqa: F401
    import torch
except ImportError as error:
    print(f"SKIPPED: {error} (python3-dev, python3-torch)")
    sys.exit(77)
import ddp  # noqa: E402
import hp_search  # noqa: E402
import train_classifier  # noqa: E402

TRAIN, VALID, BATCH = 149, 40, 10  # prime
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "MILLRACE_SERVER"}
ENVIRONMENT.update(PATH=BIN + ":" + os.environ["PATH"], PYTHONPATH=PACKAGE, PYTHONDONTWRITEBYTECODE="1")


def run(name, *args):
    """What an example printed."""
    done = subprocess.run([sys.executable, os.path.join(EXAMPLES, name), *map(str, args)], capture_output=True, text=True, timeout=300,
                          env=ENVIRONMENT)
    if done.returncode:
        raise AssertionError(f"{name}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Samples(torch.utils.data.Dataset):
    """Rows that `millrace cat` wrote, finished as torchvision does: ToTensor, Normalize."""

    def __init__(self, cat):
        self.images, self.labels = cat.field("image"), cat.field("label")

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = torch.from_numpy(self.images[index].copy()).permute(2, 0, 1).to(torch.float32).div(255)
        mean, std = torch.tensor([.485, .456, .406]), torch.tensor([.229, .224, .225])
        return image.sub_(mean[:, None, None]).div_(std[:, None, None]), int(self.labels[index])


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="millrace-examples-"))
        os.chmod(cls.folder, 0o755)
        for seed, (name, count) in enumerate((("photos", TRAIN), ("photos-valid", VALID)), 1):
            subprocess.run([os.path.join(BIN, "millrace-photos"), os.path.join(cls.folder, name), str(count), str(seed)], check=True,
                           stdout=subprocess.DEVNULL)
        cls.cluster = cls.enterClassContext(Cluster(cls.folder, 2))
        for name in ("photos", "photos-valid"):
            cls.cluster.add(name, os.path.join(cls.folder, name))

    def main_here(self, module, *args):
        """What an example printed, run in this process."""
        out = io.StringIO()
        argv = [module.__file__, "--server", self.cluster.address, *map(str, args)]
        with unittest.mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out):
            module.main()
        return out.getvalue()

    def run_here(self, name, *args):
        return run(name, "--server", self.cluster.address, *args)

    def test_train_classifier(self):
        """Really trained; and a run that was interrupted ends where the whole one does."""
        text = self.run_here("train_classifier.py", "--epochs", 6, "--reach", 0.5)
        self.assertEqual(self.run_here("train_classifier.py", "--epochs", 1, "--device", "host").splitlines()[0], text.splitlines()[0])
        told = re.findall(r"^epoch \d: .*accuracy \d+%$", text, re.M)
        self.assertEqual(len(told), 6, text)
        checkpoint = os.path.join(self.folder, "checkpoint")
        parts = [self.main_here(train_classifier, "--epochs", epochs, "--checkpoint", checkpoint) for epochs in (2, 6)]
        self.assertEqual(re.findall(r"^epoch .*$", "".join(parts), re.M), told)

    def test_the_accuracy_that_is_stated(self):
        """By itself, as its first lines say."""
        stated = re.search(r"reach (\d+)%.*--reach (\S+) ", train_classifier.__doc__, re.S)
        text = run("train_classifier.py", "--reach", stated[2])  # else it fails
        told = re.findall(r"accuracy (\d+)%", text)
        print(f"accuracy: {told[-1]}%, {stated[1]}% stated", file=sys.stderr)
        self.assertEqual((len(told), float(stated[2])), (8, int(stated[1]) / 100))

    def test_same_losses_as_torch(self):
        epochs, names = 3, ("millrace", "torch")
        nets, losses = {}, {name: [] for name in names}
        torch.set_num_threads(1)
        for name in names:
            torch.manual_seed(7)
            net = train_classifier.make_net()
            nets[name] = net, torch.optim.Adam(net.parameters(), 3e-3)
        loader, valid = train_classifier.loaders(self.cluster.address, "photos", "photos-valid", BATCH, epochs=epochs)
        with loader, valid:
            for epoch in range(epochs):
                cat = self.cluster.cat("photos", f"epoch-{epoch}", "--epoch", epoch, "--option", f"size={train_classifier.SIZE}")
                theirs = torch.utils.data.DataLoader(Samples(cat), BATCH, drop_last=True, num_workers=2)
                for name, batches in (("millrace", loader), ("torch", theirs)):
                    losses[name] += train_classifier.train_epoch(*nets[name], batches)
        self.assertEqual(len(losses["torch"]), epochs * (TRAIN // BATCH))
        worst = max(abs(a - b) / b for a, b in zip(losses["millrace"], losses["torch"]))
        print(f"losses: {losses['torch'][0]:.3f} to {losses['torch'][-1]:.3f} in {len(losses['torch'])} steps, furthest apart by "
              f"{worst:.1e} of themselves", file=sys.stderr)
        self.assertLess(worst, 1e-6)

    def test_migrating_page(self):
        """Its two scripts give the same kinds of tensors and as many steps; what it says is the same as torchvision, is."""
        try:
            from torchvision import datasets, transforms
        except ImportError as error:
            self.skipTest(f"{error} (python3-torchvision)")
        text = open(os.path.join(ROOT, "docs", "migrating.md")).read()
        blocks = [block.replace("\n    ", "\n") for block in re.findall(r"(?<=\n\n)    (.+?)(?=\n\n\S)", text, re.S)]
        before, after = (next(b for b in blocks if line in b) for line in ("DistributedSampler(", "millrace.Loader("))
        shown = {}
        for name, code, single in (("before", before, "DistributedSampler(train_set, num_replicas=1, rank=0)"), ("after", after, "")):
            code = code.replace("range(90)", "range(1)").replace("/data/photos", os.path.join(self.folder, "photos-valid"))
            code = code.replace("server:7070", self.cluster.address).replace("\"photos\"", "\"photos-valid\"").replace("batch_size=64", "batch_size=16")
            code = code.replace("DistributedSampler(train_set)", single).replace("num_workers=8, pin_memory=True", "num_workers=0")
            names = {}
            exec(compile(code, name, "exec"), names)
            shown[name] = names["images"].shape, names["images"].dtype, names["labels"].dtype, len(names["train"])
        self.assertEqual(shown["before"], shown["after"])
        preset = names["train"].pipeline
        names["train"].close()

        listed = eval(re.search(r"or a list: `(.+?)`", text).group(1))
        options = dict(dataset="photos-valid", batch_size=VALID, arrays="torch", job="page")
        with millrace.Loader(self.cluster.address, transforms=listed, **options) as as_list:
            self.assertEqual(as_list.pipeline, preset)

        finish = [transforms.ToTensor(), transforms.Normalize((.485, .456, .406), (.229, .224, .225))]
        theirs = datasets.ImageFolder(os.path.join(self.folder, "photos-valid"),
                                      transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), *finish]))
        with millrace.Loader(self.cluster.address, transforms="imagenet_eval", tail="exact", **options) as ours:
            [(images, labels)] = ours
            self.assertEqual(ours.class_to_idx, theirs.class_to_idx)
        self.assertTrue(torch.equal(images, torch.stack([image for image, _ in theirs])))
        self.assertEqual(labels.tolist(), [label for _, label in theirs])

    def search(self, names, ahead, *args):
        """The number of trials in a search over pictures that nobody has read before. `ahead`: epochs that may be fetched for trials
        that are stopped then."""
        for name, count in zip(names, (TRAIN, VALID)):
            subprocess.run([os.path.join(BIN, "millrace-photos"), os.path.join(self.folder, name), str(count), str(len(name))], check=True,
                           stdout=subprocess.DEVNULL)
            self.cluster.add(name, os.path.join(self.folder, name))
        before = set(self.cluster.blocks_made())
        text = self.run_here("hp_search.py", "--train", names[0], "--valid", names[1], *args)
        prepared, epochs, delivered = (int(re.search(pattern, text).group(1)) for pattern in
                                       (r"prepared +(\d+)", r"\((\d+) epochs of", r"delivered +(\d+)"))
        made = [block for block in self.cluster.blocks_made() if block not in before]
        rows = sum(block[3] for block in made if block[4] not in ("death", "hedge"))  # which a starved machine may bring about
        print(f"search: {rows} of {TRAIN} x {epochs} + {VALID} items prepared, {delivered} delivered", file=sys.stderr)
        self.assertLessEqual(rows, 1.05 * sum({block[:3]: block[3] for block in made}.values()), "blocks were made twice")
        self.assertLessEqual(rows, 1.05 * (TRAIN * (epochs + ahead) + VALID))
        self.assertTrue(0 < prepared <= sum(block[3] for block in made), text)
        self.assertGreater(delivered, 3 * rows)
        return len(re.findall(r"^trial +\d+: ", text, re.M))

    def test_a_search_of_eight(self):
        self.assertEqual(self.search(("eight", "eight-valid"), 0, "--trials", 8, "--epochs", 3), 8)

    def test_a_search_with_replacements(self):
        self.assertEqual(self.search(("twelve", "twelve-valid"), 1, "--epochs", 4), 12)

    def test_bench_against_the_loader_of_the_page(self):
        text = open(os.path.join(ROOT, "docs", "migrating.md")).read().split("A file that defines a function")[1]
        code = "\n".join(line[4:] for line in text.split("millrace bench")[0].splitlines() if line.startswith("    "))
        photos, path = os.path.join(self.folder, "photos"), os.path.join(self.folder, "my_loader.py")
        with open(path, "w") as f:
            f.write(code.replace("/data/photos", photos))
        done = subprocess.run([os.path.join(BIN, "millrace"), "bench", photos, "--finish", "--seconds", "1", "--against", path],
                              capture_output=True, text=True, timeout=200, env=dict(ENVIRONMENT, PATH=BIN + ":/usr/bin:/bin"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"against +[1-9]\S* images/s, \S+ CPU-s/1000\n +ratio +\S+x, by CPU time \S+x")

    def test_ddp(self):
        """By itself, on a cluster that it starts."""
        text = run("ddp.py", "--epochs", 2, "--photos", 41)
        self.assertEqual(re.findall(r"^epoch (\d): 2 ranks, (\d+) steps, .* of (\d+)$", text, re.M),
                         [("0", "2", "10"), ("1", "2", "10")], text)

    def test_ddp_under_torchrun(self):
        """By its variables; Debian's torchrun does not run on Python 3.11."""
        env = dict(ENVIRONMENT, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(harness.free_port()), TORCHELASTIC_RUN_ID="night")
        ranks = [subprocess.Popen([sys.executable, os.path.join(EXAMPLES, "ddp.py"), "--server", self.cluster.address, "--epochs", "1"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(env, RANK=str(r), LOCAL_RANK=str(r)))
                 for r in range(2)]
        for rank in ranks:
            self.addCleanup(rank.kill)
        told = [rank.communicate(timeout=120) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], told)
        self.assertRegex(told[0][0], rf"^epoch 0: 2 ranks, {TRAIN // 20} steps, .* of {VALID}\n$")
        self.assertEqual(told[1][0], "")

    def test_help(self):
        for module in (train_classifier, ddp, hp_search):
            with self.assertRaises(SystemExit) as ended:
                self.main_here(module, "--help")
            self.assertEqual(ended.exception.code, 0)


if __name__ == "__main__":
    harness.main()
