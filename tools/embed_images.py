#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Turns CUDA images into one C file: a byte array an image.

usage: embed_images.py OUT.c IMAGE...     an image is named as its file, NAME.fatbin
"""
import pathlib
import sys


def main():
    out, paths = sys.argv[1], [pathlib.Path(path) for path in sys.argv[2:]]
    with open(out, "w") as file:
        file.write('/* made by tools/embed_images.py */\n#include "backend/cuda/cuda.h"\n')
        for path in paths:
            data = path.read_bytes()
            file.write(f"\nstatic _Alignas(64) const unsigned char {path.stem}[] = {{\n")
            for at in range(0, len(data), 64):
                file.write(",".join(map(str, data[at:at + 64])) + ",\n")
            file.write("};\n")
        file.write("\nconst attn_cu_image attn_cu_images[] = {\n")
        file.write("".join(f'    {{ "{path.stem}", {path.stem} }},\n' for path in paths))
        file.write("    { NULL, NULL },\n};\n")


if __name__ == "__main__":
    main()
