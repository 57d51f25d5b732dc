#!/bin/bash
# SPDX-License-Identifier: MIT
# Compiles and runs tools/gpu/micro: rates and latencies of one Hopper GPU that the kernels'
# design rests on, as Markdown tables, also in OUT/micro.md. No library needed.
#
# usage: tools/gpu/micro.sh OUT [NAME...]    (wgmma mma exp2 shared copies adds barriers; all)
set -u
cd "$(dirname "$0")/../.." || exit 1
out=$1
shift
[ $# -gt 0 ] || set -- wgmma mma exp2 shared copies adds barriers
PATH=$PATH:/usr/local/cuda/bin
work=$(mktemp -d)
mkdir -p "$out"
for name in "$@"; do
    nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I cuda_kernels \
        "tools/gpu/micro/$name.cu" -o "$work/$name" > "$work/$name.log" 2>&1 &
done
wait
{
    nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv,noheader 2>&1 |
        head -1
    for name in "$@"; do
        echo
        grep -E 'error|warning|ptxas info *: *\(C' "$work/$name.log"    # serialized products
        timeout "${LIMIT:-30}" "$work/$name" 2>&1
        code=$?
        [ $code = 0 ] || echo "exit $code of $name" | tee -a "$work/failed"
    done
} | tee "$out/micro.md"
[ ! -e "$work/failed" ]
code=$?
rm -rf "$work"
exit $code
