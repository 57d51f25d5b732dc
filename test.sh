#!/bin/sh
# SPDX-License-Identifier: MIT
# Sets up, builds and runs every test: on the host, on each OpenCL implementation
# and with none, and once more under the sanitizers. Ends with a line of counts.
set -eu
cd "$(dirname "$0")"
tools/setup.sh test
[ -f build-asan/build.ninja ] ||
    # -O1: at -O2 gcc takes minutes for vectors with the sanitizers' checks
    meson setup build-asan -Dbuildtype=debug -Doptimization=1 -Db_sanitize=address,undefined \
        -Db_lundef=false
ninja -C build-asan
exec python3 tests/run_all.py build build-asan
