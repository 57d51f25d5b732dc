#!/bin/sh
# SPDX-License-Identifier: MIT
# tests/fuzz.sh: builds the fuzz targets with clang and its sanitizers and runs each.
#
# usage: tests/fuzz.sh [SECONDS [TARGET...]]    from the root of the tree; 60; text npy args
#
# A corpus that grows lies in build-fuzz/corpus; a finding is a file crash-... there,
# with its report on the terminal. The small corpus that the tests replay is
# tests/fuzz/TARGET; after a run that found new ground, make it again:
#
#   build-fuzz/fuzz_text -set_cover_merge=1 -max_len=160 NEW_FOLDER build-fuzz/corpus/text
set -eu
seconds=${1:-60}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- text npy args
CC=${CC:-clang}
export CC
checks=-fsanitize=address,undefined

if [ ! -d build-fuzz ]; then
    meson setup build-fuzz --buildtype=debugoptimized -Dopencl=disabled -Ddocs=disabled \
        -Db_sanitize=address,undefined -Db_lundef=false -Db_ndebug=false \
        -Dc_args=-fsanitize=fuzzer-no-link >/dev/null
fi
ninja -C build-fuzz src/libattn.a >/dev/null
openmp=$(grep -q -- '-fopenmp' build-fuzz/build.ninja && echo -fopenmp || true)

for target; do
    library=build-fuzz/src/libattn.a
    [ "$target" = npy ] && library=tools/npy.c
    $CC -std=c11 -g -O1 -fsanitize=fuzzer $checks -fno-sanitize-recover=all -Iinclude -Itools \
        -D_POSIX_C_SOURCE=200809L "tests/fuzz_$target.c" $library -lm -ldl -lpthread $openmp \
        -o "build-fuzz/fuzz_$target"
    mkdir -p "build-fuzz/corpus/$target"
    echo "fuzz_$target: $seconds s"
    # no environment: what is compared with it would get into the corpus
    env -i PATH="$PATH" UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
        "build-fuzz/fuzz_$target" -max_total_time="$seconds" -max_len=200 -timeout=10 \
        -print_final_stats=1 -verbosity=0 -artifact_prefix="build-fuzz/corpus/crash-$target-" \
        "build-fuzz/corpus/$target" "tests/fuzz/$target"
done
