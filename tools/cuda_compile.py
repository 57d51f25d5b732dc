#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compiles one CUDA kernel file into one image for all architectures of the build, and
keeps what ptxas says of registers, stack and spills, and which files were read.

usage: cuda_compile.py NVCC ARCHS LEAST ROOT SOURCE OUT.zip OUT.txt OUT.d [DEFINE=VALUE...]

ARCHS is a list like 75,80,90a: 75 gives PTX alone, a number machine code and PTX, one
with a letter machine code alone, since that PTX runs nowhere else. Those below LEAST are
left out, and if that has a letter, all others. The image holds sm_ARCH for machine code and
compute_ARCH for PTX, with registers as in ptx_names.py; the comment of each
is the number of bytes to load, for PTX of the text that comes of it.
"""
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import ptx_names


def number(arch):
    return int(arch.rstrip("abcdefghijklmnopqrstuvwxyz"))


def targets(archs, least):
    for arch in archs.split(","):
        if not least.isdigit() and arch != least or number(arch) < number(least):
            continue
        yield arch, arch != "75", arch.isdigit()


def short_ptx(path):
    text = path.read_bytes().decode("ascii")
    short = ptx_names.shorten(text)
    restored = ptx_names.restore(short)
    if not ptx_names.same(text, restored):
        raise ValueError(f"{path.name} is not the same with other names of registers")
    return short, len(restored)


class Failure(Exception):
    pass


def run(said, *command):
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said.append(result.stdout)
    if result.returncode:
        raise Failure(result.returncode)


def files_read(rule):
    """The files of a make rule as nvcc writes it: target : file \\ file ..."""
    if not rule.exists():
        return []
    return rule.read_text().replace("\\\n", " ").partition(" : ")[2].split()


def add(image, name, data, n_bytes):
    info = zipfile.ZipInfo(name)    # without a date: the same image each time
    info.comment = str(n_bytes).encode()
    info.compress_type = zipfile.ZIP_DEFLATED
    image.writestr(info, data, compresslevel=1)


def compile_to(image, said, nvcc, wanted, front):
    read = set()
    with tempfile.TemporaryDirectory() as folder:
        for arch, has_code, has_ptx in wanted:
            ptx, code = (pathlib.Path(folder) / f"{arch}.{end}" for end in ("ptx", "cubin"))
            rule = ptx.with_suffix(".d")
            run(said, nvcc, "-ptx", *front, "-gencode", f"arch=compute_{arch},code=compute_{arch}",
                "-MD", "-MF", rule, "-o", ptx)
            read.update(files_read(rule))
            if has_code:
                run(said, nvcc, "-cubin", "-Xptxas", "-v,-warn-spills", ptx,
                    "-gencode", f"arch=compute_{arch},code=sm_{arch}", "-o", code)
                data = code.read_bytes()
                add(image, f"sm_{arch}", data, len(data))
            if has_ptx:
                add(image, f"compute_{arch}", *short_ptx(ptx))
    return read


def main():
    nvcc, archs, least, root, source, out, report, rule, *defines = sys.argv[1:]
    front = ["-std=c++17", "-O3", "-I", root, source, *(f"-D{define}" for define in defines)]
    said, code, read = [], 0, set()
    with zipfile.ZipFile(out, "w") as image:
        try:
            read = compile_to(image, said, nvcc, targets(archs, least), front)
        except Failure as failure:
            code = failure.args[0]
    pathlib.Path(report).write_text("".join(said))
    pathlib.Path(rule).write_text(f"{out}: {' '.join(sorted(read))}\n")
    if code:
        print("".join(said))
        pathlib.Path(out).unlink()
    return code


if __name__ == "__main__":
    sys.exit(main())
