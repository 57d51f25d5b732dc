#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Turns lists of problem texts into one C file, for attn-validate and attn-bench.

usage: embed_cases.py OUT.c FILE...    tests/cases/small.txt becomes the set "small"

Byte arrays and not literals, since compilers limit the length of those.
"""
import pathlib
import sys


def main():
    out, files = sys.argv[1], [pathlib.Path(name) for name in sys.argv[2:]]
    arrays, rows = [], []
    for file in files:
        lines = [line.split("#")[0].strip() for line in file.read_text("ascii").splitlines()]
        data = "\n".join(lines).encode("ascii") + b"\0"    # line numbers stay as they are
        body = "".join(f"{byte},\n" if i % 24 == 23 else f"{byte}," for i, byte in enumerate(data))
        arrays.append(f"static const char {file.stem}[] = {{\n{body}\n}};\n")
        rows.append(f'    {{ "{file.stem}", {file.stem} }},\n')
    with open(out, "w") as to:
        to.write('/* made by tools/embed_cases.py */\n#include "cases.h"\n\n')
        to.write("".join(arrays))
        to.write("\nconst case_set case_sets[] = {\n" + "".join(rows) + "    { NULL, NULL },\n};\n")


if __name__ == "__main__":
    main()
