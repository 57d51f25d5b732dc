#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs attn-validate once for each device and variant, all at the same time, since compiling
# for one takes a single core; and once over all devices, for device against device. What
# validate.sh does in turn, for machines with many cores.
#
# usage: [ONLY=REGEX] tools/gpu/parallel.sh TOOLS OUT SECONDS ARGUMENT...    for attn-validate
#
# ONLY: devices whose selectors match. The reports are put into OUT/reports.tar, those of ONLY
# into OUT/reports-PID.tar; record.py --write takes them.
#
# OpenCL compiles the kernels that are made for the other kind of device for minutes, one program
# at a time: their problems are dealt out to PIECES (8) processes, to which the others give way
# (nice). Processes have THREADS (2) each, but the host's own variants all that there are.
set -u
tools=$1 out=$2 limit=$3
shift 3
reports=$(mktemp -d) pieces=$(mktemp -d) caches=$(mktemp -d)
mkdir "$caches/begun"
sizes=b1,hq1,hkv1,lq9,lk9,d64
problems=(softmax_fwd:f32,$sizes softmax_bwd:f32,$sizes,grad=q
          linear_fwd:f32,$sizes,causal linear_bwd:f32,$sizes,causal,grad=q)
few=(env OMP_NUM_THREADS="${THREADS:-2}" POCL_MAX_PTHREAD_COUNT="${THREADS:-2}")

# NAME_OF_REPORT ARGUMENT...: of attn-validate. With kernel caches of their own, since of 35 that
# shared one a program could not be built in one (PoCL 5); what the checks of wrong calls compile
# is there from the start.
validate() {
    cp -r "$caches/begun" "$caches/$1"
    POCL_CACHE_DIR=$caches/$1 timeout "$limit" "${@:2}" --json > "$reports/validate-$1.json" \
        2> /dev/null &
}

# The arguments that name no cases, and all problems of those that do.
options=() cases=()
while [ $# -gt 0 ]; do
    if [ "$1" = --cases ]; then
        cases+=("$2")
        shift
    else
        options+=("$1")
    fi
    shift
done
for name in ${cases[@]+"${cases[@]}"}; do
    [ -f "$name" ] || name=tests/cases/$name.txt
    sed 's/#.*//' "$name"
done | grep -E '^[a-z]' > "$pieces/problems"

for device in $("$tools/attn-info" | sed -n 's/^\(opencl:[0-9]*\|cuda:[0-9]*\|host\)$/\1/p' |
                grep -E "${ONLY:-.}"); do
    [[ $device != opencl:* ]] ||
        echo "softmax_fwd:f32,$sizes" | POCL_CACHE_DIR=$caches/begun timeout "$limit" \
            "$tools/attn-validate" --device "$device" --variant softmax_fwd_tile_cpu \
            --rounds 1 --repeat 1 --stress 0 --cases /dev/stdin > "$pieces/begun" 2>&1
    kind=$("$tools/attn-info" --device "$device" | awk '$1 == "kind" { print $2; exit }')
    [ "$device" = host ] && all=() || all=("${few[@]}")
    for variant in $(for problem in "${problems[@]}"; do
                         "$tools/attn-info" --explain "$problem" --device "$device" --json
                     done | grep -oP '"name":\s*"\K[^"]+'); do
        name=${device/:/-}-$variant
        run=("$tools/attn-validate" --device "$device" --variant "$variant" "${options[@]}")
        case $device,$variant,$kind in
        opencl:*_gpu,CPU | opencl:*_cpu,GPU)
            grep "^$(grep -oE '^[a-z]*_[a-z]*' <<< "$variant"):" "$pieces/problems" |
                split -d -n "r/${PIECES:-8}" - "$pieces/$name-"
            stress=10    # once
            for piece in "$pieces/$name"-*; do
                [ -s "$piece" ] || continue    # fewer problems than pieces
                validate "${piece##*/}" "${all[@]}" "${run[@]}" --stress $stress --cases "$piece"
                stress=0
            done ;;
        *)
            validate "$name" nice "${all[@]}" "${run[@]}" --stress 10 \
                ${cases[@]+"${cases[@]/#/--cases=}"} ;;
        esac
    done
done
[ -n "${ONLY:-}" ] || validate across-devices "${few[@]}" "$tools/attn-validate" --rounds 1 \
    --stress 0 --cases tiny --variant softmax_fwd_tile --variant softmax_fwd_tile_gpu \
    --variant softmax_fwd_tile_cpu --variant softmax_fwd_split
wait
rm -r "$pieces" "$caches"
tar -C "$reports" -cf "$out/reports${ONLY:+-$$}.tar" .
python3 - "$reports"/validate-*.json <<'P'
import json, sys
for path in sys.argv[1:]:
    name = path.rsplit("/", 1)[1]
    try:
        report = json.load(open(path))
    except ValueError as fault:
        print(name, "no report:", fault)
        continue
    print(name, {k: report[k] for k in ("passed", "failed", "skipped", "says no")})
    for row in report["results"]:
        if row.get("outcome") == "failed":
            print("  ", {k: str(v)[:300] for k, v in row.items()})
P
