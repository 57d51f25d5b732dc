#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Turns kernel sources into one C file: a byte array a kernel, #includes resolved.

usage: embed.py ROOT OUT.c SOURCE...    SOURCE is relative to ROOT: softmax/fwd_tile_cpu.cl

The symbol that a source defines is its path: softmax/fwd_tile_cpu.cl has the
kernel attn_softmax_fwd_tile_cpu. Each array ends with a 0, so it is a C string
too; byte arrays and not literals, since compilers limit the length of those.
"""
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"\s*$')


def flatten(root, path, seen):
    """The text of a source with each included file put in once, where first named."""
    lines = [f'#line 1 "{path}"']
    for number, line in enumerate((root / path).read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            lines.append(line)
            continue
        if match[1] not in seen:
            seen.add(match[1])
            lines += flatten(root, match[1], seen)
        lines.append(f'#line {number + 1} "{path}"')
    return lines


def main():
    root, out, sources = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    arrays, rows = [], []
    for source in sources:
        name = source.rsplit(".", 1)[0].replace("/", "_")
        data = ("\n".join(flatten(root, source, set())) + "\n").encode("ascii") + b"\0"
        body = "".join(f"{byte},\n" if i % 32 == 31 else f"{byte}," for i, byte in enumerate(data))
        arrays.append(f"static const char {name}[] = {{\n{body}\n}};\n")
        rows.append(f'    {{ "{name}", {name}, sizeof {name} - 1 }},\n')
    with open(out, "w") as file:
        file.write("/* made by tools/embed.py */\n#include \"backend/opencl/source.h\"\n\n")
        file.write("".join(arrays))
        file.write("\nconst attn_cl_source attn_cl_sources[] = {\n" + "".join(rows) +
                   "    { NULL, NULL, 0 },\n};\n")


if __name__ == "__main__":
    main()
