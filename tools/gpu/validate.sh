#!/bin/bash
# SPDX-License-Identifier: MIT
# On a machine with a GPU: builds, runs every test that needs no other OpenCL
# implementation than those found, and writes the cross-vendor record.
#
# usage: [SETS="small medium"] [BENCH=0] [LIMIT=SECONDS] [OPTIONS="--rounds 2"] tools/gpu/validate.sh OUT_FOLDER [FOLDER_WITH_DEBS]
#
# Where there is an nvcc, CUDA is built too, for the architectures ARCHS alone (90a);
# SANITIZE=1 runs the checkers of compute-sanitizer over its kernels first.
#
# Packages that the machine lacks are unpacked beside the build, not installed: those of
# tools/setup.sh, of which CUDA needs libzstd-dev and zstd.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$1
debs=${2:-}
work=${TMPDIR:-/tmp}/attn-gpu
mkdir -p "$out" "$work"

# shellcheck source=tools/gpu/machine.sh
. tools/gpu/machine.sh
[ -z "$debs" ] || unpack_packages "$work" "$debs"
name_opencl "$work"

cuda=(-Dcuda=auto)
export PATH=$PATH:/usr/local/cuda/bin
if command -v nvcc > /dev/null; then cuda=(-Dcuda=enabled "-Dnvcc_archs=${ARCHS:-90a}"); fi
[ -f "$work/build/build.ninja" ] || meson setup "$work/build" "${cuda[@]}" > "$out/meson.txt" 2>&1 ||
    { cat "$out/meson.txt"; exit 1; }
ninja -C "$work/build" > "$out/ninja.txt" 2>&1 || { tail -40 "$out/ninja.txt"; exit 1; }
"$work/build/tools/attn-info" | tee "$out/attn-info.txt"

# A fault of a kernel is told apart from a wrong result before anything else runs.
if [ "${SANITIZE:-0}" = 1 ]; then
    for tool in memcheck racecheck synccheck initcheck; do
        timeout 300 compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9 \
            "$work/build/tools/attn-validate" --device cuda:0 --rounds 1 --repeat 1 \
            --cases tests/cases/tiny.txt > "$out/sanitize-$tool.txt" 2>&1 ||
            echo "compute-sanitizer $tool: exit $?, see sanitize-$tool.txt"
        tail -3 "$out/sanitize-$tool.txt"
    done
fi

# What an application asks of the back end in a context of its own.
for test in "$work"/build/tests/test_cuda_*; do
    [ -f "$test" ] || continue
    name=$(basename "$test")
    timeout 120 "$test" > "$out/$name.txt" 2>&1 || echo "$name: exit $? (77: skipped), see $name.txt"
done

# Speed first, on a quiet machine; then every variant against the oracle and device
# against device, two sets of problems side by side.
tools=$work/build/tools
for device in $([ "${BENCH:-1}" = 0 ] || "$tools/attn-info" | sed -n 's/^\(opencl:[0-9]*\|cuda:[0-9]*\|host\)$/\1/p'); do
    timeout 100 "$tools/attn-bench" --device "$device" > "$out/bench-${device/:/-}.txt" || true
    cut -c1-260 "$out/bench-${device/:/-}.txt"
done
if [ "${BENCH:-1}" != 0 ] && [ ${#cuda[@]} = 2 ]; then
    cc -O2 -Iinclude tools/gpu/launch_cost.c -L"$work/build/src" -Wl,-rpath,"$work/build/src" \
        -lattn -ldl -lm -o "$work/launch_cost"
    timeout 100 "$work/launch_cost" | tee "$out/launch-cost.txt"
fi
stress=100 # once is enough for what belongs to no set
for set in ${SETS-small medium}; do
    # shellcheck disable=SC2086 # options are words
    timeout "${LIMIT:-420}" "$tools/attn-validate" --cases "tests/cases/$set.txt" --json \
        --stress $stress ${OPTIONS:-} > "$out/validate-$set.json" &
    stress=0
done
wait
python3 - "$out"/validate-*.json <<'P'
import json, sys
for path in sys.argv[1:]:
    try:
        report = json.load(open(path))
        print(path.rsplit("/", 1)[1], {k: report[k] for k in ("passed", "failed", "skipped", "says no")})
        for row in report["results"]:
            if row.get("failed") or row.get("outcome") == "failed":
                print("  ", json.dumps(row)[:400])
    except (OSError, ValueError) as fault:    # none was written, or not to its end
        print(path, fault)
P
# The record: tools/gpu/record.py --write NAME "$out"/validate-*.json, on the same sources.
