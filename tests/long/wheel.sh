#!/bin/bash
# The Python wheel as users meet it: one py3-none file with a manylinux tag, installed in bare virtual
# environments, here and, where this is root with debootstrap, in Debian 11, 12 and 13.
# KERMES_WHEEL: a wheel that is made already; KERMES_DEBIAN_ROOTS: a folder with roots to use and keep.
set -eu
work=$(mktemp -d)
. "$SRC_DIR/tests/long/debian_root.sh"
trap 'debian_roots_end; rm -rf "$work"' EXIT
skip() {
    echo "skipped: $1"
    exit 77
}
python=${KERMES_PYTHON:-python3}
"$python" -m venv "$work/try" 2>/dev/null || skip "no python3-venv"
"$work/try/bin/pip" download -q --no-deps -d "$work" cffi 2>/dev/null || skip "no package index in reach"

wheel=${KERMES_WHEEL:-}
if [ -z "$wheel" ]; then
    PYTHON=$python "$SRC_DIR/scripts/wheel" "$work/dist"
    wheel=$(ls "$work"/dist/kermes-*.whl)
fi
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
pieces = list(m.chat("Who are you?", stream=True, temperature=0, max_tokens=20))
assert len(pieces) > 1, pieces
w = kermes.ones((16, 2))
w.requires_grad = True
(kermes.tensor(x) @ w).mean().backward()
assert np.allclose(w.grad.numpy()[:, 0], x.mean(0) / 2, atol=1e-5)
open("text.txt", "w").write("the sea is wide and the sky is high. " * 400)
told = []
r = kermes.train(data="text.txt", out="run", tokenizer="bytes", layers=1, dim=32, heads=2, context=32, batch=4,
                 steps=20, log_every=5, eval_every=0, device="cpu", on_step=told.append)
assert r.end == "done" and told[-1].step == 20 and told[-1].train_loss < told[0].train_loss, told
assert kermes.Model("run/model", device="cpu").generate("the sea", max_tokens=5)
print("python", sys.version.split()[0], "kermes", kermes.__version__, answer)
PYTHON

model=$SRC_DIR/models/kermes-tiny.gguf
"$work/try/bin/pip" install -q "$wheel"
(cd "$work" && env -u PYTHONPATH -u KERMES_LIBRARY PATH=/nowhere "$work/try/bin/python" "$work/smoke.py" "$model")

if [ "$(id -u)" -ne 0 ] || ! command -v debootstrap >/dev/null 2>&1; then
    echo "not run: Debian 11, 12 and 13, which need root and debootstrap"
    exit 0
fi
for suite in bullseye bookworm trixie; do
    root=$(debian_root "$suite") || skip "debootstrap cannot make $suite here"
    ! chroot "$root" sh -c 'command -v cc || command -v gcc' || exit 1 # bare: no compiler
    rm -rf "$root/try"
    mkdir -p "$root/try"
    cp "$wheel" "$work/smoke.py" "$model" "$root/try/"
    echo "== Debian $suite"
    chroot "$root" sh -c "cd /try && HOME=/try python3 -m venv v && v/bin/pip install -q kermes-*.whl &&
        v/bin/python smoke.py kermes-tiny.gguf && v/bin/pip uninstall -q -y kermes && ! v/bin/python -c 'import kermes' 2>/dev/null"
    rm -rf "$root/try"
done
