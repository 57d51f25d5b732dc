#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs attn-validate once a device, all devices at the same time, since compiling for one
# takes a single core: what validate.sh does in turn, for a first look.
#
# usage: tools/gpu/parallel.sh TOOLS OUT SECONDS ARGUMENT...    every argument for attn-validate
set -u
tools=$1 out=$2 limit=$3
shift 3
for device in $("$tools/attn-info" | sed -n 's/^\(opencl:[0-9]*\|cuda:[0-9]*\|host\)$/\1/p'); do
    timeout "$limit" "$tools/attn-validate" --device "$device" --json "$@" \
        > "$out/validate-${device/:/-}.json" 2> "$out/validate-${device/:/-}.err" &
done
wait
python3 - "$out"/validate-*.json <<'P'
import json, sys
for path in sys.argv[1:]:
    try:
        report = json.load(open(path))
        print(path.rsplit("/", 1)[1], {k: report[k] for k in ("passed", "failed", "skipped", "says no")})
        for row in report["results"]:
            if row.get("outcome") == "failed":
                print("  ", row.get("device"), row.get("variant"), row.get("problem"), str(row.get("what"))[:300])
    except ValueError as fault:
        print(path, fault)
P
