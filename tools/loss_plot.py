#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws what examples/train_text.c prints: the loss over the steps, as an SVG.

usage: train_text host 5000 | loss_plot.py > docs/training_loss.svg
"""
import re
import sys

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 360, 50, 40, 20


def main():
    points = [(int(a), float(b)) for a, b in
              re.findall(r"^step +(\d+)  loss ([0-9.]+)$", sys.stdin.read(), re.M)]
    if len(points) < 2:
        sys.exit("no losses on standard input")
    last, highest = points[-1][0], int(max(y for _, y in points)) + 1

    def x(step):
        return LEFT + (WIDTH - LEFT - 20) * step / last

    def y(loss):
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * loss / highest

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for loss in range(highest + 1):
        out += [f'<path d="M{LEFT} {y(loss):.1f}H{WIDTH - 20}" stroke="#ddd"/>',
                f'<text x="{LEFT - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss}</text>']
    for i in range(6):
        out += [f'<text x="{x(last * i / 5):.1f}" y="{HEIGHT - 22}" text-anchor="middle">'
                f'{round(last * i / 5)}</text>']
    line = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
    out += [f'<polyline points="{line}" fill="none" stroke="#06c" stroke-width="1.5"/>',
            f'<text x="{WIDTH / 2}" y="{HEIGHT - 5}" text-anchor="middle">steps</text>',
            f'<text x="{LEFT}" y="14">loss, nats a letter</text>', "</svg>"]
    print("\n".join(out))


if __name__ == "__main__":
    sys.exit(main())
