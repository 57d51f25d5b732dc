#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Whether the library, CUDA images and all, is as small as was promised.

usage: library_size.py LIBRARY MOST_MB
"""
import pathlib
import sys


def main():
    megabytes, most = pathlib.Path(sys.argv[1]).stat().st_size / 1e6, float(sys.argv[2])
    print(f"{sys.argv[1]}: {megabytes:.1f} MB, at most {most:g}")
    return megabytes > most


if __name__ == "__main__":
    sys.exit(main())
