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
set -u
tools=$1 out=$2 limit=$3
shift 3
reports=$(mktemp -d)
sizes=b1,hq1,hkv1,lq9,lk9,d64
problems=(softmax_fwd:f32,$sizes softmax_bwd:f32,$sizes,grad=q
          linear_fwd:f32,$sizes,causal linear_bwd:f32,$sizes,causal,grad=q)

for device in $("$tools/attn-info" | sed -n 's/^\(opencl:[0-9]*\|cuda:[0-9]*\|host\)$/\1/p' |
                grep -E "${ONLY:-.}"); do
    for variant in $(for problem in "${problems[@]}"; do
                         "$tools/attn-info" --explain "$problem" --device "$device" --json
                     done | grep -oP '"name":\s*"\K[^"]+'); do
        timeout "$limit" "$tools/attn-validate" --device "$device" --variant "$variant" --json \
            --stress 10 "$@" > "$reports/validate-${device/:/-}-$variant.json" 2> /dev/null &
    done
done
[ -n "${ONLY:-}" ] || timeout "$limit" "$tools/attn-validate" --json --rounds 1 --stress 0 --cases tiny \
    --variant softmax_fwd_tile --variant softmax_fwd_tile_gpu --variant softmax_fwd_tile_cpu \
    --variant softmax_fwd_split > "$reports/validate-across-devices.json" 2> /dev/null &
wait
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
