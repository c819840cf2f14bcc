#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Holds README.md and docs/ to the tree: what they name is there, and what they must name is named.

usage: tests/gates/docs.py [--root DIR]

  functions   docs/life-of-a-block.md's blocks fenced as ```calls have a line "FILE function comment" each: FILE defines the
              function, and the function above it (the nearest one further left) mentions it, unless it is marked `~`.
              A backquoted `name()` anywhere in docs/ is defined in some file.
  log ids     those of level warn and error in the code are the rows "| `id` | level |" of docs/errors.md
  numbers     codes, causes and exit codes are the rows "| N | `name` |" of docs/errors.md
  threads     a file that starts a thread or has a lock is named in docs/threading.md
  links       relative ones lead to a file, and to a heading in it
  paths       of files and folders exist (not so in docs/adr/: decisions speak of other times)

Prints `file:line: what` for each violation; exit status 1 when there is one, or when something has nothing to check.
"""

import argparse
import pathlib
import re
import sys

sys.dont_write_bytecode = True
from includes import files_of  # noqa: E402

LIFE, ERRORS, THREADS = "docs/life-of-a-block.md", "docs/errors.md", "docs/threading.md"

# Header with an enum -> (constants' pattern, heading of errors.md beneath which its rows stand).
NUMBERS = [
    ("base/error.h", r"\bBASE_((?!CLASS_|OK\b)[A-Z_]+) = (\d+)", "Codes"),
    ("worker/pipeline/pipeline.h", r"\bPIPELINE_(BAD_[A-Z_]+) = (\d+)", "Causes of bad rows"),
    ("client/cli/cli.h", r"\bCLI_EXIT_([A-Z_]+) = (\d+)", "Exit codes"),
]

NAMED_FILE = re.compile(r"`([\w-]+\.(?:c|h|py|sh|md|proto|cmake))`")
STARTS_OR_LOCKS = re.compile(r"\bpthread_create\(|^\s*(?:static )?pthread_mutex_t \w+", re.MULTILINE)


def without_comments(text):
    """C text of the same length and lines; strings stay."""
    blank = lambda m: m.group() if m.group()[0] == '"' else re.sub(r"[^\n]", " ", m.group())  # noqa: E731
    return re.sub(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', blank, text, flags=re.DOTALL)


class Tree:
    def __init__(self, root):
        self.root, self.files = root, files_of(root)
        self.docs = [f for f in self.files if f == "README.md" or (f.startswith("docs/") and f.endswith(".md"))]
        self.text = {f: (root / f).read_text(errors="replace") for f in self.docs}
        product = [f for f in self.files if f.endswith((".c", ".h")) and "/" in f and not f.startswith("tests/")]
        self.code = {f: without_comments((root / f).read_text(errors="replace")) for f in product}
        self.folders = {part for f in self.files for part in map(str, pathlib.PurePath(f).parents)} - {"."}
        self.bodies = {}

    def body(self, file, function):
        """What stands between the braces of a function that the file defines; None: it does not."""
        key = file, function
        if key not in self.bodies:
            head = r"^[A-Za-z_][^;{}=#]*?\b%s\([^;{}]*\)\s*\{(.*?)^\}" % re.escape(function)
            found = re.search(head, self.code.get(file, ""), re.MULTILINE | re.DOTALL)
            self.bodies[key] = found.group(1) if found else None
        return self.bodies[key]

    def section(self, doc, heading):
        """(line number, line) of a section."""
        inside = False
        for number, line in enumerate(self.text.get(doc, "").splitlines(), 1):
            if line.startswith("#"):
                inside = line.lstrip("#").strip() == heading
            elif inside:
                yield number, line


# ---- functions ----


def call_lines(text):
    """(line number, line) in blocks fenced as calls; None between two blocks."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside = line.strip() == "```calls"
            yield None
        elif inside and line.strip():
            yield number, line


def check_calls(tree):
    above, count = [], 0
    for entry in call_lines(tree.text.get(LIFE, "")):
        if entry is None:
            above = []
            continue
        number, line = entry
        match = re.match(r"(\S+\.[ch]) +(~?)(\w+)(?: |$)", line)
        if not match:
            yield "%s:%d: no line of the form FILE function" % (LIFE, number)
            continue
        count += 1
        file, handed, function = match.groups()
        depth = match.start(2)
        above = [a for a in above if a[0] < depth]
        if tree.body(file, function) is None:
            yield "%s:%d: %s defines no %s" % (LIFE, number, file, function)
        elif above and not handed and not re.search(r"\b%s\b" % function, tree.body(*above[-1][1:]) or ""):
            yield "%s:%d: %s does not mention %s" % (LIFE, number, above[-1][2], function)
        above.append((depth, file, function))
    if not count:
        yield "%s:1: names no function" % LIFE


def check_names(tree):
    for doc in tree.docs:
        for number, line in enumerate(tree.text[doc].splitlines(), 1):
            for name in re.findall(r"`(\w+)\(\)`", line):
                if not any(name in code and tree.body(file, name) is not None for file, code in tree.code.items()):
                    yield "%s:%d: no file defines %s()" % (doc, number, name)


# ---- errors.md ----


def arguments(code, at):
    """The first two arguments of the call whose parenthesis is at `at`."""
    depth, begin, found, quoted = 0, at + 1, [], False
    for i in range(at, len(code)):
        c = code[i]
        if c == '"' and code[i - 1] != "\\":
            quoted = not quoted
        if quoted:
            continue
        depth += (c in "([{") - (c in ")]}")
        if (c == "," and depth == 1) or depth == 0:
            found.append(" ".join(code[begin:i].split()))
            begin = i + 1
        if len(found) == 2 or depth == 0:
            break
    return (found + ["", ""])[:2]


def pairs_of(level, text):
    """(level, id) that a call may log; of two choices by one condition the branches go together."""
    split = lambda s: re.fullmatch(r"(.+?) \? (.+) : (.+)", s)  # noqa: E731
    by_level, by_id = split(level), split(text)
    if by_level and by_id and by_level.group(1) == by_id.group(1):
        return pairs_of(by_level.group(2), by_id.group(2)) + pairs_of(by_level.group(3), by_id.group(3))
    levels = re.findall(r"\bBASE_LOG_(DEBUG|INFO|WARN|ERROR)\b", level)
    return [(one.lower(), name) for one in levels for name in re.findall(r'"(\w+)"', text)]


def check_ids(tree):
    logged = {}
    for file, code in tree.code.items():
        for match in re.finditer(r"\bbase_log(\()", code):
            place = "%s:%d" % (file, code.count("\n", 0, match.start()) + 1)
            level, text = arguments(code, match.start(1))
            if level.startswith("enum base_log_level"):
                continue  # the function itself
            pairs = pairs_of(level, text)
            if not pairs:
                yield "%s: the level or the id of this line cannot be read: write constants" % place
            logged.update({pair: place for pair in pairs if pair[0] in ("warn", "error")})
    told = {}
    for number, line in enumerate(tree.text.get(ERRORS, "").splitlines(), 1):
        match = re.match(r"\| `(\w+)` \| (\w+) \|", line)
        if match:
            told[match.group(2), match.group(1)] = "%s:%d" % (ERRORS, number)
    if not logged:
        yield "%s:1: no warning or error is logged anywhere" % ERRORS
    yield from ("%s: id %s of level %s is not in %s" % (logged[p], p[1], p[0], ERRORS) for p in sorted(logged.keys() - told.keys()))
    yield from ("%s: nothing logs %s with level %s" % (told[p], p[1], p[0]) for p in sorted(told.keys() - logged.keys()))


def check_numbers(tree):
    for header, pattern, heading in NUMBERS:
        real = {(int(n), name.lower()) for name, n in re.findall(pattern, tree.code.get(header, ""))}
        told = {}
        for number, line in tree.section(ERRORS, heading):
            match = re.match(r"\| (\d+) \| `(\w+)` \|", line)
            if match:
                told[int(match.group(1)), match.group(2)] = number
        if not real:
            yield "%s:1: no number under '%s' can be found in %s" % (ERRORS, heading, header)
        yield from ("%s:1: '%s' lacks %d %s of %s" % (ERRORS, heading, *p, header) for p in sorted(real - told.keys()))
        yield from ("%s:%d: %s has no %d %s" % (ERRORS, told[p], header, *p) for p in sorted(told.keys() - real))


# ---- threading.md ----


def check_threads(tree):
    for file, code in tree.code.items():
        if STARTS_OR_LOCKS.search(code) and file not in tree.text.get(THREADS, ""):
            yield "%s:1: starts a thread or has a lock, and is not in %s" % (file, THREADS)


# ---- links and paths ----


def slugs(text):
    """Anchors of the headings, as GitHub makes them."""
    heads = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def check_links(tree):
    for doc in tree.docs:
        for number, line in enumerate(tree.text[doc].splitlines(), 1):
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                path, _, anchor = target.partition("#")
                if re.match(r"[a-z]+:", target):
                    continue
                file = (tree.root / doc).parent / path if path else tree.root / doc
                if not file.exists():
                    yield "%s:%d: dead link %s" % (doc, number, target)
                elif anchor and anchor not in slugs(file.read_text()):
                    yield "%s:%d: dead link %s: no such heading" % (doc, number, target)


def check_paths(tree):
    tops = sorted({f.split("/")[0] for f in tree.files if "/" in f and f[0] != "."})
    path = re.compile(r"(?<![\w/.<-])(?:%s)/[\w./-]*|(?<![\w/.<-])[\w-]+(?:/[\w.-]+)*/[\w-]+\.[ch]\b" % "|".join(map(re.escape, tops)))
    known = set(tree.files) | tree.folders
    names = {f.rsplit("/")[-1] for f in tree.files}
    for doc in tree.docs:
        for number, line in enumerate(tree.text[doc].splitlines(), 1):
            if doc.startswith("docs/adr/"):
                break
            found = {p.rstrip("./") for p in path.findall(line)}
            yield from ("%s:%d: no file or folder %s" % (doc, number, p) for p in sorted(found - known - INSTALLED))
            yield from ("%s:%d: no file is named %s" % (doc, number, n) for n in NAMED_FILE.findall(line) if n not in names)


INSTALLED = {"millrace/millrace.h", "millrace/ingest.h"}  # as users include it

CHECKS = [check_calls, check_names, check_ids, check_numbers, check_threads, check_links, check_paths]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    tree = Tree(parser.parse_args().root.resolve())
    needed = [f for f in ("README.md", LIFE, ERRORS, THREADS) if f not in tree.docs]
    found = ["%s:1: is missing" % f for f in needed] + [v for check in CHECKS for v in check(tree)]
    print("\n".join(found + ["docs: %d pages, %d violations" % (len(tree.docs), len(found))]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
