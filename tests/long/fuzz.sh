#!/usr/bin/env bash
# Every fuzz target with clang's libFuzzer for a minute, in a build of its own beside this one.
# Skipped where clang cannot link a fuzzer.
set -euo pipefail

command -v clang >/dev/null || { echo "no clang: skipped"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { (void)d; return n < 0; }' >"$work/a.c"
clang -fsanitize=fuzzer "$work/a.c" -o "$work/a" 2>/dev/null || { echo "no libFuzzer: skipped"; exit 77; }

build=$PWD/fuzz-clang
cmake -S "$SRC_DIR" -B "$build" -G Ninja -DKERMES_FUZZ=ON -DCMAKE_C_COMPILER=clang \
    -DKERMES_CUDA=OFF -DKERMES_TESTS=ON -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_C_FLAGS_DEBUG="-O1 -g" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake --build "$build" --target fuzzers >"$work/log" 2>&1 || { tail -50 "$work/log"; exit 1; }
cd "$build"
ctest --output-on-failure -R '^fuzz/' --no-tests=error
