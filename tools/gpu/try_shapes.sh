#!/bin/bash
# SPDX-License-Identifier: MIT
# Times shapes of softmax/fwd_mma.cu (or FILE=softmax/fwd_wgmma.cu, _tile.cu) on a GPU, no library
# needed: compiles a copy of the file for each, side by side, then runs one after another. With
# FILE=linear/fwd_chunk_mma.cu (or fwd_wgmma.cu) the problems are those of try_linear.cu, and PART
# is output; with linear/bwd_wgmma.cu it is q, k, v, kv or, f32 of D 64, all, and walk with
# linear/bwd_wgmma_tiles.cu. With FILE=softmax/fwd_split_mma.cu or fwd_split.cu a
# PROBLEM ends with the keys of a piece, and the merge is part of what is timed.
#
# usage: tools/gpu/try_shapes.sh TYPE DIM PART "PROBLEM;PROBLEM..." SHAPE...
#
#   TYPE     bf16, f16 or f32
#   PART     plain, tall, ranges, all, tf32 ...: the instance; of all, BIAS, MASK, ALIBI and OVER
#            in the environment say what terms there are, as try_kernel.cu has them
#   PROBLEM  B HQ HKV LQ LK CAUSAL, as try_kernel.cu has them
#   SHAPE    what the instance's shape is to be: "mma<4, 2, 64, 2, false>"; "as-is" leaves
#            the file alone; "s/this/that/" is an edit of all kernel files
#
#   tools/gpu/try_shapes.sh bf16 128 plain "4 16 16 4096 4096 0" as-is "mma<8, 1, 64, 1, true>"
#   FILE=linear/fwd_chunk_mma.cu tools/gpu/try_shapes.sh bf16 64 output "4 16 4096 64 64 6" \
#       as-is "s/STAGES = 2, SUM/STAGES = 3, SUM/"
#   FILE=linear/fwd_wgmma.cu tools/gpu/try_shapes.sh f32 64 output "4 16 4096 64 64 1" \
#       as-is "s/define WIDTH 32/define WIDTH 64/"
#   BIAS=bf16 OVER=hqk tools/gpu/try_shapes.sh bf16 64 all "4 32 32 4096 4096 1" as-is
set -u
cd "$(dirname "$0")/../.." || exit 1
file=${FILE:-softmax/fwd_mma.cu}
try=tools/gpu/try_kernel.cu
[ "${file%%/*}" = softmax ] || try=tools/gpu/try_linear.cu
type=$1 dim=$2 part=$3 problems=$4
shift 4
PATH=$PATH:/usr/local/cuda/bin
work=$(mktemp -d)
used=large
if [ "$file" = softmax/fwd_wgmma.cu ]; then
    extra="-DRESIDENT=${RESIDENT:-132} ${extra:-}"
    [ "$part" = plain ] || used=ranged
fi
shapes="using $used|template <sums SUMS> using f32"
defines=(-DTYPE=TYPE_"${type^^}" -DDIM="$dim")
[ "$type" != f32 ] || defines+=(-DTYPE_IS_F32)
[[ $file != linear/fwd_wgmma*.cu ]] || defines+=(-DOUTPUT_THREADS=WALKING)
[[ $file != linear/fwd_wgmma*.cu ]] || defines+=(-DRELAYS -DSCAN=_scan)
if [ "$file" = linear/bwd_wgmma.cu ]; then
    sums=_k_sums
    [ "$part" != q ] || sums=_q_sums
    [ "$part" != all ] || sums=_sums
    [ "$part" != all ] || defines+=(-DSCAN=_scan)
    defines+=("-DGRADIENT=OF_${part^^}" -DOUTPUT_THREADS=WALKING "-DSUMS=$sums"
              "-DLAST_BYTES=sizeof(shared_walk)")
fi
if [ "$file" = linear/bwd_wgmma_tiles.cu ]; then
    defines+=(-DGRADIENT=OF_ALL -DOUTPUT_THREADS=WALKING -DSUM_THREADS=SUMMING -DSUMS=_sums
              -DSCAN=_scan "-DLAST_BYTES=WALK_BYTES")
fi
[ "$file $part" != "softmax/fwd_tile.cu ${part/all/}" ] || defines+=("-DUNITS=${UNITS:-132}")
merges=
case $file in
softmax/fwd_split_mma.cu) used=few merges=1 ;;
softmax/fwd_split.cu) used=block merges=1 ;;
esac
[ -z "$merges" ] || defines+=(-DMERGES)
[ "${ARCH:-90a}" != 90a ] || defines+=(-DHOPPER)    # the host's pass too has those shapes
if [ "$type $file" = "f32 softmax/fwd_mma.cu" ]; then
    case $part in ranges) sums=EXACT ;; long) sums=EXACT_LONG ;; *) sums=IN_CORES ;; esac
    [ "$part" = all ] && [ "$dim" -le 128 ] && sums=EXACT_LONG
    [ "$part" = all ] && [ "$dim" -gt 128 ] && sums=EXACT
    used="f32<$sums>"
fi
if [[ $part = *all ]]; then
    shapes="using special|template <sums SUMS> using f32_special"
    used=special
    [ "$type" = f32 ] && used="f32_special<$sums>"
    defines+=("-DSHARED_BYTES=(USED::BYTES + USED::TERMS)")
fi
n=0
for shape in "$@"; do
    mkdir -p "$work/$n"
    cp -r cuda_kernels/common cuda_kernels/softmax cuda_kernels/linear "$work/$n"
    case $shape in
    as-is) ;;
    s/*) sed -i -E "$shape" "$work/$n"/*/* ;;
    *) sed -i -E "s/^($shapes) = .*/\\1 = $shape;/" "$work/$n/$file" ;;    # of every class
    esac
    make=(nvcc -O3 -std=c++17 -gencode "arch=compute_${ARCH:-90a},code=sm_${ARCH:-90a}" -Xptxas -v
        -I "$work/$n" "${defines[@]}" ${extra:-})
    (
        [ -z "$merges" ] || "${make[@]}" -DNAME=attn_try_merge -c -o "$work/$n/merge.o" \
            "$work/$n/softmax/fwd_split_merge.cu"
        "${make[@]}" -DNAME=attn_try -DKERNEL_FILE="\"$file\"" -DPART=_"$part" "-DUSED=$used" \
            "$try" ${merges:+"$work/$n/merge.o"} -o "$work/$n/try"
    ) > "$work/$n/log" 2>&1 &
    n=$((n + 1))
done
wait
exec 9> "${TMPDIR:-/tmp}/try_shapes.lock"    # several may compile at once, one has the GPU
flock 9
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
