#!/bin/bash
# SPDX-License-Identifier: MIT
# Builds what stages.sh runs where there is an nvcc but no GPU, so that the time of a machine that
# has one, and for minutes alone, goes into what it is for: the folder travels there, as its BUILT.
#
# usage: tools/gpu/prebuild.sh FOLDER    (made anew; ARCHS: compute capabilities, 90a)
#
# The build itself stays in build-gpu. That machine's C library may not be older than this one's.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$1
export PATH=$PATH:/usr/local/cuda/bin
[ -f build-gpu/build.ninja ] ||
    meson setup build-gpu -Dcuda=enabled "-Dnvcc_archs=${ARCHS:-90a}" > /dev/null
programs=$(ninja -C build-gpu -t targets all |
    sed -nE 's,^((tools/attn-|tests/test_(cuda|faults)_)[a-z0-9_-]*): c(pp)?_LINKER$,\1,p')
# shellcheck disable=SC2086 # names are words
ninja -C build-gpu $programs
rm -rf "$out"
mkdir -p "$out"/{src,tools,tests}
find build-gpu/src -maxdepth 1 -name 'libattn.so*' ! -type d -exec cp -P {} "$out/src" ';'
python3 tools/gpu/record.py --digest > "$out/sources"
for program in $programs; do cp "build-gpu/$program" "$out/${program%/*}"; done
du -sh "$out"
