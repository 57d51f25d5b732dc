#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Each public header compiles alone, as C11 and as C++, without a warning.

usage: headers.py INCLUDE_FOLDER CC CXX      (CXX may be empty: then C only)
"""
import pathlib
import subprocess
import sys

FLAGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]


def main():
    folder, cc, cxx = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    failed = 0
    for header in sorted((folder / "attn").glob("*.h")):
        for compiler, language, standard in ((cc, "c", "c11"), (cxx, "c++", "c++11")):
            if not compiler:
                continue
            source = f'#include <attn/{header.name}>\n'
            result = subprocess.run(
                [compiler, f"-std={standard}", "-x", language, *FLAGS, "-I", str(folder), "-"],
                input=source, text=True, capture_output=True)
            if result.returncode:
                failed += 1
                print(f"attn/{header.name} as {standard}:\n{result.stderr}")
    print(f"{failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
