#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What tests/run.sh asks about tests.

usage: tests/summary.py count RESULTS    names what failed and what was skipped in RESULTS/*.xml (JUnit, from ctest)
                                         and *.failed; the last line is "N passed, N failed, N skipped"
       tests/summary.py targets BUILD   reads ctest's json-v1 on stdin; prints the targets of BUILD that have the tests'
                                        names, or "all" if one has none (a script: it may run anything)
"""

import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as xml


def skipped_inside(case):
    """cmocka's skip() leaves the program's status at success: what it skipped is in the output only."""
    output = case.findtext("system-out") or ""
    return sorted(set(re.findall(r"^\[  SKIPPED \] (\w+)$", output, re.MULTILINE)))


def count(results):
    passed, failed, skipped = [], [], []
    for file in sorted(results.glob("*.xml")):
        for case in xml.parse(file).getroot().iter("testcase"):
            name = "%s: %s" % (file.stem, case.get("name"))
            skipped += ["%s: %s" % (name, test) for test in skipped_inside(case)]
            skip = case.find("skipped")
            if skip is not None and skip.get("message", "").startswith("SKIP_"):  # else it could not be started
                skipped.append(name)
            elif case.find("failure") is not None or case.get("status") != "run":
                failed.append(name)
            else:
                passed.append(name)
    failed += ["%s: %s" % (file.stem, file.read_text().strip()) for file in sorted(results.glob("*.failed"))]
    for word, names in (("skipped", skipped), ("failed", failed)):
        for name in names:
            print("%s: %s" % (word, name))
    print("%d passed, %d failed, %d skipped" % (len(passed), len(failed), len(skipped)))
    return 1 if failed or not passed else 0


def targets(build):
    names = {test["name"] for test in json.load(sys.stdin)["tests"]}
    listing = subprocess.run(["ninja", "-C", build, "-t", "targets", "all"], capture_output=True, text=True, check=True)
    known = {line.split(":")[0] for line in listing.stdout.splitlines()}
    print("\n".join(sorted(names)) if names <= known else "all")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("count", "targets"):
        sys.exit(__doc__)
    sys.exit((count if sys.argv[1] == "count" else targets)(pathlib.Path(sys.argv[2])))
