#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Installs the library into a fresh prefix and builds the examples against it
through pkg-config alone, as a user does; runs them; looks at what libattn.so
links and exports.

usage: consumer.py BUILD_FOLDER EXAMPLES_FOLDER CC
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

LINKED = re.compile(r"^(libc|libm|libgomp|libomp|libpthread|libdl|libzstd|ld-linux.*"
                    r"|linux-vdso)\.so")


def run(*command, **more):
    result = subprocess.run(command, text=True, capture_output=True, **more)
    if result.returncode:
        sys.exit(f"{' '.join(command)}: exit {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def main():
    build, examples, cc = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as folder:
        run("meson", "install", "-C", build, "--no-rebuild", "--destdir", folder)
        pc = next(pathlib.Path(folder).rglob("attn.pc"))
        prefix = re.search(r"^prefix=(.*)$", pc.read_text(), re.M)[1]
        env = dict(os.environ, PKG_CONFIG_PATH=str(pc.parent),
                   LD_LIBRARY_PATH=str(pc.parent.parent))
        library = next(pc.parent.parent.glob("libattn.so"))

        for line in run("ldd", str(library)).splitlines():
            name = pathlib.PurePath(line.split()[0]).name
            if not LINKED.match(name):
                sys.exit(f"libattn.so links {name}")
        symbols = run("nm", "-D", "--defined-only", str(library)).split("\n")
        names = [line.split()[-1] for line in symbols if line]
        if wrong := [name for name in names if not name.startswith("attn_")]:
            sys.exit(f"libattn.so exports {wrong}")

        flags = run("pkg-config", "--define-variable=prefix=" + folder + prefix, "--cflags",
                    "--libs", "attn", env=env).split()
        for source in sorted(pathlib.Path(examples).glob("*.c")):
            more = ["-lOpenCL"] if "opencl" in source.stem else []
            program = f"{folder}/{source.stem}"
            run(cc, "-std=c11", "-Wall", "-Wextra", "-Werror", str(source), "-o", program,
                *flags, *more, "-lm")
            print(f"{source.name}: {run(program, env=env).strip()}")


if __name__ == "__main__":
    sys.exit(main())
