#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the tests of several build folders and adds up what they say.

usage: run_all.py BUILD...

Ends with "N passed, N failed, N skipped"; a skipped test says why.
"""
import json
import pathlib
import subprocess
import sys

SUITES = {"build-asan": ["--suite", "sanitize"]}   # a plain build runs all


def main():
    passed = failed = skipped = 0
    for build in sys.argv[1:]:
        subprocess.run(["meson", "test", "-C", build, "--no-rebuild", "--print-errorlogs",
                        *SUITES.get(pathlib.Path(build).name, [])])
        log = pathlib.Path(build, "meson-logs", "testlog.json")
        for line in log.read_text().splitlines():
            test = json.loads(line)
            good, skip = test["result"] in ("OK", "EXPECTEDFAIL"), test["result"] == "SKIP"
            passed, skipped = passed + good, skipped + skip
            failed += not good and not skip
            if skip:
                said = (test.get("stdout") or "").strip().splitlines()
                print(f"skipped in {build}: {test['name']}: {said[-1] if said else ''}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
