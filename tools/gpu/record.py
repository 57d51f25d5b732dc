#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The validation record of a device: what passed, and of which sources.

usage: record.py --write NAME REPORT.json...   makes validation/NAME.json from reports of
                                               attn-validate --json
       record.py --digest                      prints the hash over the sources
       record.py --check                       says of each record whether it is of the
                                               sources as they are now (always exit 0)
"""
import hashlib
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ("cl_kernels", "cuda_kernels", "src/backend", "src/host", "src/plan")
KEPT = ("version", "seed", "rounds", "repeat", "problems", "passed", "failed", "skipped",
        "says no", "devices", "variants", "between")


def digest():
    """SHA-256 over names and contents of kernels, back ends and planner."""
    hashed = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file():
                hashed.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
                hashed.update(path.read_bytes())
    return hashed.hexdigest()


def write(name, reports):
    runs = []
    for path in reports:
        report = json.loads(pathlib.Path(path).read_text())
        run = {key: report[key] for key in KEPT if key in report}
        run["set"] = pathlib.Path(path).stem.removeprefix("validate-")
        run["not passed"] = [row for row in report["results"] if row["outcome"] != "passed"]
        runs.append(run)
    record = {"sources": digest(), "runs": runs}
    out = ROOT / "validation" / f"{name}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{out.relative_to(ROOT)}: {sum(run['passed'] for run in runs)} passed, "
          f"{sum(run['failed'] for run in runs)} failed")


def check():
    for path in sorted((ROOT / "validation").glob("*.json")):
        current = json.loads(path.read_text())["sources"] == digest()
        print(f"validation/{path.name}: {'current' if current else 'stale: the sources changed'}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"] and len(sys.argv) > 3:
        write(sys.argv[2], sys.argv[3:])
    elif sys.argv[1:] == ["--digest"]:
        print(digest())
    elif sys.argv[1:] == ["--check"]:
        check()
    else:
        sys.exit(__doc__)
