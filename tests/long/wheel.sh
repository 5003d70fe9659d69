#!/bin/bash
# The Python wheel as users meet it: one py3-none file with a manylinux tag, installed in bare virtual
# environments, here and, where this is root with debootstrap, in Debian 11, 12 and 13.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
skip() {
    echo "skipped: $1"
    exit 77
}
python=${KERMES_PYTHON:-python3}
"$python" -m venv "$work/try" 2>/dev/null || skip "no python3-venv"
"$work/try/bin/pip" download -q --no-deps -d "$work" cffi 2>/dev/null || skip "no package index in reach"

PYTHON=$python "$SRC_DIR/scripts/wheel" "$work/dist"
wheel=$(ls "$work"/dist/kermes-*.whl)
case $wheel in
    *-py3-none-manylinux*) ;;
    *) echo "$wheel is not a py3-none-manylinux wheel" && exit 1 ;;
esac
if [ "$(uname -m)" = x86_64 ]; then
    case $wheel in
        *manylinux_2_[12][0-9]_* | *manylinux_2_3[01]_*) ;;
        *) echo "$wheel asks for more than glibc 2.31" && exit 1 ;;
    esac
fi

cat >"$work/smoke.py" <<'PYTHON'
import os
import sys
import numpy as np
import kermes
assert os.path.dirname(kermes.__file__).startswith(sys.prefix), kermes.__file__
x = np.random.default_rng(0).normal(size=(500, 16)).astype("float32")
assert np.allclose((kermes.tensor(x) @ x.T).numpy(), x @ x.T, rtol=1e-3, atol=1e-3)
index = kermes.Index.build(x, bytes=8)
assert index.search(x[:3], k=4)[0].shape == (3, 4)
m = kermes.Model(sys.argv[1], device="cpu")
answer = m.chat("What is the capital of France?", temperature=0, max_tokens=40)
assert "Paris" in answer, answer
print("python", sys.version.split()[0], "kermes", kermes.__version__, answer)
PYTHON

model=$SRC_DIR/models/kermes-tiny.gguf
"$work/try/bin/pip" install -q "$wheel"
(cd / && env -u PYTHONPATH -u KERMES_LIBRARY PATH=/nowhere "$work/try/bin/python" "$work/smoke.py" "$model")

if [ "$(id -u)" -ne 0 ] || ! command -v debootstrap >/dev/null 2>&1; then
    echo "not run: Debian 11, 12 and 13, which need root and debootstrap"
    exit 0
fi
for suite in bullseye bookworm trixie; do
    root=${KERMES_DEBIAN_ROOTS:-$work}/$suite
    if [ ! -e "$root/usr/bin/python3" ]; then
        mkdir -p "$root"
        debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$suite" "$root" \
            >"$work/log" 2>&1 || {
            tail -n 3 "$work/log"
            skip "debootstrap cannot make $suite here"
        }
    fi
    ! chroot "$root" sh -c 'command -v cc || command -v gcc' || exit 1 # bare: no compiler
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    [ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    mkdir -p "$root/kermes"
    cp "$wheel" "$work/smoke.py" "$model" "$root/kermes/"
    chroot "$root" sh -c "cd /kermes && rm -rf v && python3 -m venv v && v/bin/pip install -q kermes-*.whl &&
        v/bin/python smoke.py kermes-tiny.gguf"
done
