#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Finds the length at which causal linear attention becomes faster than softmax attention.

usage: crossover.py TOOLS DEVICE [TYPE] [--longest N] >> TIMES.csv
       crossover.py --plot TIMES.csv PICTURE.svg

Times what the planner takes for B1 H8 D64 (TYPE f32; as attn-bench does by itself) at the
longest of lengths that double from 128 to --longest (16384), at all of them, and writes a line
for each: device, type, length, ms of softmax, ms of linear attention with elu + 1 and the
normaliser. --plot draws the ratio over the length, by gnuplot, and prints where it passes 1.
"""
import csv
import json
import math
import pathlib
import subprocess
import sys

SHAPE = "b1,hq8,hkv8,lq{n},lk{n},d64,causal"
KINDS = (("softmax_fwd", ""), ("linear_fwd", ",phi=elu1,normalize"))


def planned(tools, device, problem):
    """The variant that the planner takes."""
    said = subprocess.run([tools / "attn-info", "--device", device, "--json", "--explain",
                           problem], check=True, capture_output=True, text=True).stdout
    return json.loads(said)["variant"]


def times_of(tools, device, problem, lengths):
    said = subprocess.run([tools / "attn-bench", "--device", device, "--json", "--min-time",
                           "0.3", "--variant", planned(tools, device, problem), "--sweep",
                           "l=" + ",".join(map(str, lengths)), problem],
                          check=True, capture_output=True, text=True).stdout
    return [row["ms"] for row in json.loads(said)["results"]]


def measure(tools, device, type_, longest):
    lengths = [2**i for i in range(7, longest.bit_length())]
    softmax, linear = (times_of(tools, device, f"{kind}:{type_},{SHAPE.format(n=longest)}{rest}",
                                lengths) for kind, rest in KINDS)
    for n, s, t in zip(lengths, softmax, linear):
        print(f"{device},{type_},{n},{s:.5f},{t:.5f}")


def crossing(points):
    """Where the line through points (length, ratio) passes 1, lengths and ratios as powers."""
    for (n, low), (m, high) in zip(points, points[1:]):
        if low < 1 <= high:
            part = -math.log(low) / (math.log(high) - math.log(low))
            return round(n * (m / n) ** part)
    return None


def plot(path, picture):
    lines = {}
    for device, type_, n, softmax, linear in csv.reader(path.open()):
        lines.setdefault(f"{device}, {type_}", []).append((int(n),
                                                           float(softmax) / float(linear)))
    blocks, commands = "", []
    for name, points in lines.items():
        at = crossing(points)
        print(f"{name}: " + (f"from {at} tokens on" if at else
                             "at every length" if points[0][1] >= 1 else "at none"))
        blocks += f"$data{len(commands)} << END\n" + "".join(
            f"{n} {ratio}\n" for n, ratio in points) + "END\n"
        commands.append(f'$data{len(commands)} with linespoints title "{name}"')
    script = (f"set terminal svg size 720,420\nset output '{picture}'\nset logscale x 2\n"
              "set logscale y\nset grid\nset key left top\nset xlabel 'tokens'\n"
              "set ylabel 'time of softmax / time of linear attention'\n" + blocks +
              "plot 1 with lines dashtype 2 lc 'grey' notitle, " + ", ".join(commands) + "\n")
    subprocess.run(["gnuplot"], input=script, text=True, check=True)


def main(argv):
    if len(argv) == 3 and argv[0] == "--plot":
        return plot(pathlib.Path(argv[1]), argv[2])
    longest = 16384
    if "--longest" in argv:
        at = argv.index("--longest")
        longest, argv = int(argv[at + 1]), argv[:at] + argv[at + 2:]
    if len(argv) not in (2, 3):
        sys.exit(__doc__)
    return measure(pathlib.Path(argv[0]).resolve(), argv[1],
                   argv[2] if len(argv) == 3 else "f32", longest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
