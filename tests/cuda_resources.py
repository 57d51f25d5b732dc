#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What ptxas says of every CUDA kernel of the build: a table, and a failure where a kernel
spills, has a stack frame or products that are serialised, or a report is missing one.

usage: cuda_resources.py TABLE.txt REPORT.txt...    reports as tools/cuda_compile.py makes them
"""
import pathlib
import re
import sys

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")

# wgmma products that wait for each other, or registers that stay where they are.
SERIALISED = re.compile(r"\(C75\d\d\)")

# Kernels that may have a stack frame or spill: symbol -> bytes, with the reason beside it.
MAY = {}


def kernels(text):
    found = list(ENTRY.finditer(text))
    for at, entry in enumerate(found):
        part = text[entry.end():found[at + 1].start() if at + 1 < len(found) else len(text)]
        frame, used = FRAME.search(part), USED.search(part)
        if not frame or not used:
            raise SystemExit(f"{entry[1]} for {entry[2]}: no resources in the report")
        yield (entry[2], entry[1], int(used[1]), *map(int, frame.groups()))


def main():
    table, *paths = sys.argv[1:]
    rows, faults = [], []
    for path in map(pathlib.Path, paths):
        text = path.read_text()
        of_this = list(kernels(text))
        if not of_this and "sm_" not in text and text.strip():
            faults.append(f"{path.name}: no kernel in it")
        rows += of_this
        faults += [f"{path.name}: {line}" for line in text.splitlines()
                   if "warning" in line.lower() or SERIALISED.search(line)]
    lines = [f"{'arch':8} {'registers':>9} {'stack':>6} {'stores':>6} {'loads':>6}  kernel"]
    for arch, name, registers, *frame in sorted(rows):
        lines.append(f"{arch:8} {registers:9} {frame[0]:6} {frame[1]:6} {frame[2]:6}  {name}")
        if max(frame) > MAY.get(name, 0):
            faults.append(f"{name} for {arch}: stack and spills {frame}, want at most "
                          f"{MAY.get(name, 0)} bytes")
    pathlib.Path(table).write_text("\n".join(lines) + "\n")
    print("\n".join(lines + faults))
    return bool(faults) or not rows


if __name__ == "__main__":
    sys.exit(main())
