#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains examples/train_text.c for some steps on one device, twice: the loss begins where a
guess stands, ln(letters), falls to what it should be then (without the gradients of Q it
stays 0.03 above that from 200 steps on), and is the same both times.

usage: training.py PROGRAM DEVICE STEPS LOSS
"""
import math
import re
import subprocess
import sys

LETTERS = 30


def losses(program, device, steps):
    result = subprocess.run([program, device, steps], text=True, capture_output=True)
    if result.returncode:
        sys.exit(f"exit {result.returncode}\n{result.stdout}{result.stderr}")
    return [float(x) for x in re.findall(r"loss ([0-9.]+)$", result.stdout, re.M)]


def main():
    program, device, steps, want = sys.argv[1:]
    found = losses(program, device, steps)
    print(f"on {device}: {found}")
    if abs(found[0] - math.log(LETTERS)) > 0.3:
        sys.exit(f"the first loss is {found[0]}, want about ln({LETTERS}) = {math.log(LETTERS)}")
    if abs(found[-1] - float(want)) > 0.015:
        sys.exit(f"the loss after {steps} steps is {found[-1]}, want {want} +- 0.015")
    if (again := losses(program, device, steps)) != found:
        sys.exit(f"the second run differs: {again}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
