#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compiles one CUDA kernel file into one image for all architectures of the build, and
keeps what ptxas says of registers, stack and spills.

usage: cuda_compile.py NVCC ARCHS LEAST ROOT SOURCE OUT.fatbin OUT.txt [DEFINE=VALUE...]

ARCHS is a list like 75,80,90a: 75 gives PTX alone, a number machine code and PTX, one
with a letter machine code alone, since that PTX runs nowhere else. Those below LEAST are
left out, and if that has a letter, all others.
"""
import subprocess
import sys


def number(arch):
    return int(arch.rstrip("abcdefghijklmnopqrstuvwxyz"))


def targets(archs, least):
    for arch in archs.split(","):
        if not least.isdigit() and arch != least or number(arch) < number(least):
            continue
        if arch == "75":
            yield f"arch=compute_{arch},code=compute_{arch}"
        elif arch.isdigit():
            yield f"arch=compute_{arch},code=[sm_{arch},compute_{arch}]"
        else:
            yield f"arch=compute_{arch},code=sm_{arch}"


def main():
    nvcc, archs, least, root, source, image, report, *defines = sys.argv[1:]
    command = [nvcc, "-std=c++17", "-O3", "-fatbin", "--compress-mode=size",
               "-Xptxas", "-v,-warn-spills", "-I", root, "-o", image, source]
    for target in targets(archs, least):
        command += ["-gencode", target]
    command += [f"-D{define}" for define in defines]
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)
    with open(report, "w") as file:
        file.write(result.stdout)
    if result.returncode:
        print(result.stdout)
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
