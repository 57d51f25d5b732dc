#!/bin/bash
# SPDX-License-Identifier: MIT
# Times shapes of softmax/fwd_mma.cu (or FILE=softmax/fwd_wgmma.cu) on a GPU, no library
# needed: compiles a copy of the file for each, side by side, then runs one after another.
#
# usage: tools/gpu/try_shapes.sh TYPE DIM PART "PROBLEM;PROBLEM..." SHAPE...
#
#   TYPE     bf16, f16 or f32
#   PART     plain, ranges, tf32 ...: the instance
#   PROBLEM  B HQ HKV LQ LK CAUSAL, as try_kernel.cu has them
#   SHAPE    what the instance's shape is to be: "mma<4, 2, 64, 2, false>"; "as-is" leaves
#            the file alone
#
#   tools/gpu/try_shapes.sh bf16 128 plain "4 16 16 4096 4096 0" as-is "mma<8, 1, 64, 1, true>"
set -u
cd "$(dirname "$0")/../.." || exit 1
file=${FILE:-softmax/fwd_mma.cu}
type=$1 dim=$2 part=$3 problems=$4
shift 4
PATH=$PATH:/usr/local/cuda/bin
work=$(mktemp -d)
[ "$file" = softmax/fwd_mma.cu ] || extra="-DRESIDENT=${RESIDENT:-132} ${extra:-}"
used=large defines=(-DTYPE=TYPE_"${type^^}" -DDIM="$dim")
if [ "$type" = f32 ]; then
    defines+=(-DTYPE_IS_F32)
    case $part in ranges) sums=EXACT ;; long) sums=EXACT_LONG ;; *) sums=IN_CORES ;; esac
    used="f32<$sums>"
fi
n=0
for shape in "$@"; do
    mkdir -p "$work/$n/softmax"
    change=
    if [ "$shape" != as-is ]; then    # of every class: the one of DIM is among them
        change="s/^(using large|template <sums SUMS> using f32) = .*/\\1 = $shape;/"
    fi
    sed -E "$change" "cuda_kernels/$file" > "$work/$n/$file"
    nvcc -O3 -std=c++17 -gencode "arch=compute_${ARCH:-90a},code=sm_${ARCH:-90a}" -Xptxas -v -I "$work/$n" -I cuda_kernels "${defines[@]}" ${extra:-} \
        -DNAME=attn_try -DKERNEL_FILE="\"$file\"" -DPART=_"$part" "-DUSED=$used" \
        tools/gpu/try_kernel.cu -o "$work/$n/try" > "$work/$n/log" 2>&1 &
    n=$((n + 1))
done
wait
n=0
for shape in "$@"; do
    echo "== $shape: $(grep -A4 "entry function 'attn_try_$part'" "$work/$n/log" |
        grep -oE 'Used [0-9]+ registers|[0-9]+ bytes spill stores' | tr '\n' ' ')"
    IFS=';' read -ra each <<< "$problems"
    for problem in "${each[@]}"; do
        # shellcheck disable=SC2086 # a problem is words
        if [ -x "$work/$n/try" ]; then
            echo "   $problem: $(timeout 20 "$work/$n/try" $problem 0)"
        else
            grep -m 3 -E 'error' "$work/$n/log"
        fi
    done
    n=$((n + 1))
done
rm -rf "$work"
