#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs what the build (and, with "test", the tests) still lacks on a Debian or
# Ubuntu machine, and configures and builds the library in ./build.
#
# usage: tools/setup.sh [test]
set -eu
cd "$(dirname "$0")/.."

packages="gcc libc6-dev meson ninja-build pkg-config python3 opencl-headers libxxhash-dev
          libzstd-dev zstd libcjson-dev scdoc ocl-icd-libopencl1 pocl-opencl-icd
          libopenblas0-pthread"
if [ "${1:-}" = test ]; then
    packages="$packages g++ clang clang-tidy clang-format cppcheck libclang-rt-14-dev
              ocl-icd-opencl-dev mesa-opencl-icd oclgrind libcmocka-dev libclblast1 valgrind"
fi

missing=""
for p in $packages; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' ||
        missing="$missing $p"
done
if [ -n "$missing" ]; then
    as_root=""
    [ "$(id -u)" = 0 ] || as_root="sudo"
    echo "installing:$missing"
    export DEBIAN_FRONTEND=noninteractive
    $as_root apt-get update -qq
    for p in $missing; do    # a compiler runtime of another version is no reason to stop
        apt-cache show "$p" >/dev/null 2>&1 || { echo "no package $p here: left out"; continue; }
        have="${have:-} $p"
    done
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq ${have:-} >/dev/null
fi

# A build that was configured before does not know of what was installed since.
# ATTN_MESON: options for it.
if [ ! -f build/build.ninja ]; then
    # shellcheck disable=SC2086 # options are words
    meson setup ${ATTN_MESON:-} build
elif [ -n "$missing" ]; then
    meson setup --wipe build
fi
ninja -C build
