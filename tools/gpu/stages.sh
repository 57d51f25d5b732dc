#!/bin/bash
# SPDX-License-Identifier: MIT
# What a machine with a GPU is for, in stages that share one build, for where it is at hand for
# minutes: each says in a line or table what came of it, all reports go into one archive.
#
# usage: tools/gpu/stages.sh OUT FOLDER_WITH_DEBS STAGE...    (a folder that is not there: none)
#
#   validate  every variant of every device against the oracle, device against device
#   faults    the fault families, rows of many gigabytes among them, side by side, on all devices
#             or DEVICES; FAMILIES='sizes|memory': those alone; each until FAULTS seconds (200)
#   sanitize  compute-sanitizer's four checkers over all CUDA kernels
#   two       two GPUs in one process
#   micro     the rates and latencies that the kernels rest on (micro.sh)
#   launch    what a planned launch takes of the host, and a first use
#   opencl    NVIDIA's OpenCL beside CUDA
#   crossover from what length on linear attention is faster than softmax
#   gradients the backward beside PyTorch's
#   linear    linear attention: the shapes of docs/performance.md, cold, with the rates
#   lengths   the same from 4k to 64k tokens (LENGTHS): whether time grows as they do
#   SET       a table of torch_sdpa.py: forward, gqa, bias, f32, decode, or several as a,b
#
# OPTIONS of torch_sdpa.py come from TORCH (--timing single). The build and the tests of
# validate.sh come first, where there is no build yet, unless BUILT names a folder that prebuild.sh
# made elsewhere of the same sources.
set -u
export PATH=$PATH:/usr/local/cuda/bin
cd "$(dirname "$0")/../.." || exit 1
out=$1 debs=$2
shift 2
work=${TMPDIR:-/tmp}/attn-gpu
reports=$(mktemp -d)
mkdir -p "$out"

# shellcheck source=tools/gpu/machine.sh
. tools/gpu/machine.sh
if [ -n "${BUILT:-}" ]; then
    [ -f "$BUILT/tools/attn-info" ] || { echo "no build in $BUILT"; exit 1; }
    [ "$(cat "$BUILT/sources")" = "$(python3 tools/gpu/record.py --digest)" ] ||
        { echo "the build in $BUILT is of other sources than these"; exit 1; }
    mkdir -p "$work/build"
    cp -r "$BUILT"/* "$work/build/"
    [ ! -d "$debs" ] || [ -d "$work/root" ] || unpack_packages "$work" "$debs"
elif [ ! -f "$work/build/tools/attn-info" ]; then
    [ -d "$debs" ] || debs=
    BENCH=0 SETS="" bash tools/gpu/validate.sh "$reports/build" "$debs" || exit 1
else
    ninja -C "$work/build" > "$reports/ninja.txt" 2>&1 || { tail -30 "$reports/ninja.txt"; exit 1; }
fi
name_opencl "$work"
arch=$(gcc -dumpmachine)
export LD_LIBRARY_PATH=$work/root/usr/lib/$arch:/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}
export ATTN_CUBLAS_LIB=${ATTN_CUBLAS_LIB:-/usr/local/cuda/lib64}
cudnn=$(python3 -c 'import nvidia.cudnn; print(list(nvidia.cudnn.__path__)[0] + "/lib")' 2> /dev/null)
[ -z "$cudnn" ] || export ATTN_CUDNN_LIB=${ATTN_CUDNN_LIB:-$cudnn}
tools=$work/build/tools tests=$work/build/tests

validate() {
    ONLY=cuda bash tools/gpu/parallel.sh "$tools" "$reports" "${VALIDATE:-300}" --rounds 2 --repeat 2 \
        --cases medium --cases tests/cases/tensor_cores.txt --cases tests/cases/cudnn.txt \
        --cases tests/cases/warpgroups.txt \
        --cases gradients --cases tests/cases/tensor_core_gradients.txt \
        --cases tests/cases/gradients_once.txt \
        --cases linear --cases tests/cases/linear_chunks.txt \
        --cases tests/cases/linear_wgmma_gradients.txt \
        --cases tests/cases/dropout.txt &
    ONLY='opencl|host' bash tools/gpu/parallel.sh "$tools" "$reports" "${VALIDATE:-300}" --rounds 1 --repeat 2 \
        --cases tiny --cases tests/cases/tiny_gradients.txt --cases tests/cases/tiny_linear.txt \
        --cases tests/cases/tiny_dropout.txt &
    timeout "${VALIDATE:-300}" "$tools/attn-validate" --json --rounds 1 --stress 0 --device cuda:0 \
        --variant softmax_fwd_wgmma --cases tests/cases/tall.txt \
        > "$reports/validate-tall.json" 2> /dev/null &
    timeout "${VALIDATE:-300}" "$tools/attn-validate" --json --rounds 2 --stress 0 --device cuda:0 \
        --variant linear_bwd_chunk --variant linear_bwd_wgmma --cases tests/cases/linear_like.txt \
        > "$reports/validate-like.json" 2> /dev/null &
    POCL_CACHE_DIR=$(mktemp -d) timeout "${VALIDATE:-300}" "$tools/attn-validate" --json --rounds 1 --stress 0 --device cuda:0,opencl:0 \
        --cases tests/cases/many_heads.txt \
        > "$reports/validate-many-heads.json" 2> /dev/null &
    POCL_CACHE_DIR=$(mktemp -d) timeout "${VALIDATE:-300}" "$tools/attn-validate" --json --rounds 1 --stress 0 --cases tiny \
        --variant softmax_fwd_tile --variant softmax_fwd_tile_gpu --variant softmax_fwd_mma \
        --variant softmax_fwd_tile_cpu --variant softmax_fwd_split \
        > "$reports/validate-across-devices.json" 2> /dev/null
    wait
    python3 -c 'import json, sys; r = json.load(open(sys.argv[1])); print("across devices", {
        k: r[k] for k in ("passed", "failed", "skipped")})' "$reports/validate-across-devices.json"
    for tar in "$reports"/reports-*.tar; do tar -C "$reports" -xf "$tar" && rm "$tar"; done
}

# The host runs them everywhere else.
faults() {
    for test in "$tests"/test_faults_*; do
        [ -f "$test" ] || continue
        [[ $test =~ ${FAMILIES:-.} ]] || continue
        for device in ${DEVICES:-$("$tools/attn-info" | grep -xE '(opencl|cuda):[0-9]+')}; do
            (
                log=$reports/$(basename "$test")-${device/:/-}.txt
                FAULT_DEVICES=$device timeout "${FAULTS:-200}" "$test" > "$log" 2>&1
                echo "exit $? of $device $(basename "$test"), $(grep -c '^\[       OK' "$log") right" \
                    "$(grep -hE '^\[  (PASSED|FAILED)|ERROR|SKIPPED' "$log" | tr '\n' ' ' | cut -c1-600)"
            ) &
        done
    done
    wait
}

# One checker over one variant and a piece of the cases, until a point in time.
check() {
    local tool=$1 variant=$2 left=$((until - $(date +%s)))
    local log=$reports/sanitize-$1-$2-$(basename "$3").txt
    timeout $((left > 1 ? left : 1)) compute-sanitizer --tool "$tool" --report-api-errors no \
        --error-exitcode 9 "$tools/attn-validate" --device cuda:0 --rounds 1 --repeat 1 --stress 0 \
        --variant "$variant" --cases "$3" > "$log" 2>&1
    echo "exit $?" >> "$log"
}

# What came of all pieces of one checker and one variant.
checked() {
    python3 - "$1" "$2" "$reports"/sanitize-"$1"-"$2"-*.txt <<'P'
import collections, re, sys
exits, found, passed, first = collections.Counter(), 0, 0, ""
for path in sys.argv[3:]:
    log = open(path, errors="replace").read()
    exits[re.findall(r"^exit (\d+)", log, re.M)[-1]] += 1
    found += sum(int(n) for n in re.findall(r"SUMMARY: (\d+)", log))
    passed += sum(int(n) for n in re.findall(r"^(\d+) passed,", log, re.M))
    fault = re.search(r"^========= .*(error|hazard|barrier|invalid|uninit)(.*\n){11}", log, re.M | re.I)
    first = first or (fault and "SUMMARY" not in fault[0].splitlines()[0] and fault[0]) or ""
print(sys.argv[1], sys.argv[2], "reports:", found, "passed:", passed, "pieces by exit status:", dict(exits))
print(first, end="")
P
}

# All checkers over each variant that is ours and matches VARIANTS, cases in pieces of PIECE (8),
# as many at once as there are cores; what has not ended after SANITIZE seconds (420) is told as
# exit 124.
sanitize() {
    export reports tools until=$(($(date +%s) + ${SANITIZE:-420}))
    export -f check
    local sizes=f16,b1,hq1,hkv1,lq9,lk9,d64 operation pieces=$work/pieces
    rm -rf "$pieces" && mkdir -p "$pieces"
    for name in tiny tensor_cores warpgroups tiny_gradients tensor_core_gradients gradients_once \
        tiny_linear linear_chunks linear_wgmma_gradients tiny_dropout; do
        for operation in softmax_fwd softmax_bwd linear_fwd linear_bwd; do
            grep "^$operation:" "tests/cases/$name.txt" |
                split -d -l "${PIECE:-8}" - "$pieces/$operation-$name-"
        done
    done
    for tool in ${CHECKERS:-racecheck synccheck memcheck initcheck}; do
        for problem in softmax_fwd:$sizes softmax_bwd:$sizes,grad=q linear_fwd:$sizes,causal \
            linear_bwd:$sizes,causal,grad=q; do
            "$tools/attn-info" --device cuda:0 --json --explain "$problem" | python3 -c 'import json, sys
for v in json.load(sys.stdin)["variants"]:
    if "cudnn" not in v["name"]: print(*sys.argv[1:], v["name"])' "$tool" "${problem%%:*}"
        done
    done | grep -E "${VARIANTS:-.}" > "$work/checks"
    while read -r tool operation variant; do
        for piece in "$pieces/$operation"-*; do echo "$tool $variant $piece"; done
    done < "$work/checks" | xargs -P "$(nproc)" -L 1 bash -c 'check "$@"' check
    while read -r tool operation variant; do checked "$tool" "$variant"; done < "$work/checks"
    nvcc -arch=sm_90a -std=c++17 -I cuda_kernels tools/gpu/initcheck_copies.cu -o "$work/copies" &&
        for by in threads copies; do
            echo "initcheck of what $by wrote: $(compute-sanitizer --tool initcheck "$work/copies" "$by" 2>&1 |
                grep -E 'SUMMARY|^[a-z]*: ' | tr '\n' ' ')"
        done
}

two() {
    for test in devices linear; do
        timeout 200 "$tests/test_cuda_$test" > "$reports/two-$test.txt" 2>&1
        echo "two devices, $test: exit $?"
        tail -4 "$reports/two-$test.txt"
    done
}

micro() {
    timeout 300 bash tools/gpu/micro.sh "$reports"
}

launch() {
    cc -O2 -Iinclude tools/gpu/launch_cost.c -L"$work/build/src" \
        -Wl,-rpath,"$work/build/src" -lattn -ldl -lm -o "$work/launch_cost" &&
        timeout 100 "$work/launch_cost" | tee "$reports/launch-cost.txt"
}

opencl() {
    for row in cuda:0,softmax_fwd_tile opencl:0,softmax_fwd_tile_gpu; do
        timeout 60 "$tools/attn-bench" --device "${row%,*}" --variant "${row#*,}" --timing single \
            softmax_fwd:{f32,f16},b4,hq32,hkv32,lq4096,lk4096,d64 \
            softmax_fwd:{f32,f16},b4,hq16,hkv16,lq4096,lk4096,d128 |
            tee "$reports/bench-${row%:*}.txt" | cut -c1-200
    done
}

crossover() {
    for row in cuda:0,bf16 cuda:0,f32 opencl:0,f32; do
        timeout 60 python3 tools/crossover.py "$tools" "${row%,*}" "${row#*,}" |
            tee -a "$reports/crossover.csv"
    done
}

gradients() {
    # shellcheck disable=SC2086 # options are words
    timeout 200 python3 tools/gpu/torch_gradients.py "$work/build/src/libattn.so" \
        ${GRADIENTS:-} --json "$reports/torch-gradients.json" | tee "$reports/torch-gradients.md"
}

linear() {
    for options in causal causal,phi=elu1,normalize; do
        timeout 150 "$tools/attn-bench" --device cuda:0 --timing single --cold \
            --variant linear_fwd_chunk --variant linear_fwd_recurrent --variant linear_fwd_wgmma \
            linear_fwd:{f32,bf16},b4,hq16,hkv16,lq4096,lk4096,d64,$options \
            linear_fwd:{f32,bf16},b1,hq8,hkv8,lq16384,lk16384,d64,$options \
            linear_fwd:{f32,bf16},b8,hq16,hkv16,lq2048,lk2048,d128,$options \
            linear_fwd:{f32,bf16},b1,hq16,hkv16,lq4096,lk4096,d128,$options \
            linear_fwd:{f32,bf16},b2,hq16,hkv16,lq2048,lk2048,d256,$options \
            linear_fwd:{f32,bf16},b16,hq16,hkv16,lq4096,lk4096,d64,$options \
            linear_fwd:{f32,bf16},b1,hq1,hkv1,lq32768,lk32768,d64,$options \
            linear_fwd:{f32,bf16},b32,hq32,hkv32,lq1,lk1,d128,$options,state
    done | tee "$reports/bench-linear.txt" | cut -c1-200
    timeout 200 "$tools/attn-bench" --device cuda:0 --timing single --cold \
        --variant linear_bwd_chunk --variant linear_bwd_wgmma \
        linear_bwd:{f32,bf16},b4,hq16,hkv16,lq4096,lk4096,d64,causal{,\,phi=elu1\,normalize},grad=q+k+v \
        linear_bwd:{f32,bf16},b1,hq8,hkv8,lq16384,lk16384,d64,causal,grad=q+k+v \
        linear_bwd:{f32,bf16},b8,hq16,hkv16,lq2048,lk2048,d128,causal,grad=q+k+v \
        linear_bwd:{f32,bf16},b1,hq16,hkv16,lq4096,lk4096,d128,causal,grad=q+k+v \
        linear_bwd:{f32,bf16},b2,hq16,hkv16,lq2048,lk2048,d256,causal,grad=q+k+v \
        linear_bwd:{f32,bf16},b16,hq16,hkv16,lq4096,lk4096,d64,causal,grad=q+k+v \
        linear_bwd:{f32,bf16},b1,hq1,hkv1,lq32768,lk32768,d64,causal,grad=q+k+v |
        tee "$reports/bench-linear-gradients.txt" | cut -c1-200
}

lengths() {
    local pass length grad=
    for pass in fwd bwd; do
        [ $pass = fwd ] || grad=,grad=q+k+v
        # shellcheck disable=SC2046 # problems are words
        timeout 100 "$tools/attn-bench" --device cuda:0 --timing single --cold --min-time 0.2 --csv \
            --variant linear_${pass}_wgmma $(for type in f32 bf16; do
                for length in ${LENGTHS:-4096 8192 16384 32768 65536}; do
                    echo "linear_$pass:$type,b1,hq32,hkv32,lq$length,lk$length,d64,causal$grad"
                done
            done)
    done > "$reports/lengths.csv"
    python3 - "$reports/lengths.csv" <<'P'
import csv, re, sys
first = {}
for row in csv.DictReader(open(sys.argv[1])):
    if not row["ms"] or row["ms"] == "ms":
        continue
    kind, length = re.match(r"(\w+:\w+),.*,lq(\d+),", row["problem"]).groups()
    us = float(row["ms"]) * 1000
    first.setdefault(kind, us / int(length))
    print(f"{kind:18} {length:>6} {us:9.1f} us {us / int(length) / first[kind]:6.3f} a token")
P
}

torch() {
    local sets=()
    for set in ${1//,/ }; do sets+=(--set "$set"); done
    # shellcheck disable=SC2086 # options are words
    timeout 500 python3 tools/gpu/torch_sdpa.py "$work/build/src/libattn.so" "${sets[@]}" \
        ${TORCH:---timing single} --json "$reports/torch-$1.json" | tee "$reports/torch-$1.md"
}

for stage in "$@"; do
    echo "== $stage, $(date +%T)"
    case $stage in
    validate | faults | sanitize | two | micro | launch | opencl | crossover | gradients | linear | lengths)
        $stage ;;
    *) torch "$stage" ;;
    esac
done
tar -C "$reports" -cf "$out/reports-$$.tar" .
