#!/bin/bash
# All GPU kernels down to PTX, not optimised, for the two architectures that sources tell apart: what only a
# code generator sees, such as operands of inline assembly. `make test` only reads them where no GPU is.
nvcc=$(command -v nvcc || ls -d /usr/local/cuda*/bin/nvcc /opt/cuda/bin/nvcc 2>/dev/null | head -n 1)
[ -n "$nvcc" ] || { echo "skipped: no nvcc"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export nvcc work SRC_DIR
ptx() { # ptx SOURCE: for the architectures that it names in its first lines, or for both
    local only arch
    only=$(head -n 5 "$1" | sed -n 's/.*km-arch: *\([0-9a-f, ]*[0-9af]\).*/\1/p' | tr ',' ' ')
    for arch in ${only:-80 90a}; do
        "$nvcc" -ptx --std=c++17 -Xcicc -O0 -arch="compute_$arch" -I "$SRC_DIR/src" -I "$SRC_DIR/include" \
            -o "$work/$(basename "$1" .cu)-$arch.ptx" "$1" || { echo "ptx: $1 for $arch"; return 1; }
    done
}
export -f ptx
find "$SRC_DIR/src/backend/cuda/kernels" -name '*.cu' -print0 | xargs -0 -n 1 -P "$(nproc)" bash -c 'ptx "$1"' ptx || exit 1
made=$(ls "$work" | wc -l)
echo "ptx: $made modules"
[ "$made" -gt 60 ]
