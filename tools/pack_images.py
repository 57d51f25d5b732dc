#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Packs the CUDA images of one kernel file into one C file, where
src/backend/cuda/image.h says what they are.

usage: pack_images.py ZSTD OUT.c NAME IMAGE.zip...     an image is named as its file

The instances of a file resemble each other, so those for one architecture are packed
together, and all PTX: a third as large as each alone. ZSTD is the program.
"""
import pathlib
import subprocess
import sys
import zipfile

ALIGN = 16    # of an instruction


def parts(images, wanted):
    """The parts of one pack as (image, arch, bytes, number of those to load)."""
    arches = sorted({name for image in images.values() for name in image.namelist()
                     if wanted(name)}, key=lambda name: (len(name), name))
    for arch in arches:
        for name, image in images.items():
            if arch in image.namelist():
                data = image.read(arch)
                yield name, arch, data, int(image.getinfo(arch).comment)


def pack(zstd, raw):
    """Unpacked ten times as fast as what lzma makes of it, which is a fifth smaller: the first
    use of a kernel unpacks."""
    window = max((len(raw) - 1).bit_length(), 10)
    return subprocess.run([zstd, "-19", f"--long={window}", "--check", "--no-progress",
                           f"--stream-size={len(raw)}", "-c"], input=raw, check=True,
                          stdout=subprocess.PIPE).stdout


def main():
    zstd, out, group, *paths = sys.argv[1:]
    images = {path.stem: zipfile.ZipFile(path) for path in map(pathlib.Path, paths)}
    codes = sorted({name for image in images.values() for name in image.namelist()
                    if name.startswith("sm_")}, key=lambda name: (len(name), name))
    rows = {name: [] for name in images}
    with open(out, "w") as file:
        file.write('/* made by tools/pack_images.py */\n#include "backend/cuda/image.h"\n')
        for what in [*codes, "compute"]:
            raw = bytearray()
            for name, arch, data, n_bytes in parts(images, lambda n, w=what: n == w or
                                                   w == "compute" and n.startswith("compute_")):
                number = arch.split("_")[1]
                capability = number.rstrip("abcdefghijklmnopqrstuvwxyz")
                rows[name].append(f"{{ {capability}, {int(number != capability)}, "
                                  f"{int(what == 'compute')}, &pack_{what}, {len(raw)}, "
                                  f"{len(data)}, {n_bytes} }}")
                raw += data + bytes(-len(data) % ALIGN)
            if not raw:
                continue
            packed = pack(zstd, bytes(raw))
            file.write(f"\nstatic const unsigned char bytes_{what}[] = {{\n")
            for at in range(0, len(packed), 64):
                file.write(",".join(map(str, packed[at:at + 64])) + ",\n")
            file.write(f"}};\nstatic const attn_cu_pack pack_{what} = {{ bytes_{what}, "
                       f"{len(packed)}, {len(raw)} }};\n")
        for name, row in rows.items():
            file.write(f"\nstatic const attn_cu_part {name}[] = {{\n    ")
            file.write(",\n    ".join(row) + ",\n};\n")
        file.write(f"\nconst attn_cu_image attn_cu_images_{group}[] = {{\n")
        for name, row in rows.items():
            file.write(f'    {{ "{name}", {name}, {len(row)} }},\n')
        file.write("    { NULL, NULL, 0 },\n};\n")


if __name__ == "__main__":
    main()
