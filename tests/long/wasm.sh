#!/bin/bash
# `make wasm` from nothing, the module's own tests under Node, every op against the reference, and the page
# in a headless Chromium. About 6 CPU minutes, most of them Emscripten's.
set -eu
cd "${SRC_DIR:?}"
command -v emcc >/dev/null || { echo "skipped: no Emscripten (Debian: emscripten)"; exit 77; }
command -v node >/dev/null || { echo "skipped: no Node (Debian: nodejs)"; exit 77; }
make wasm
cmake --build --preset wasm --target kermes_wasm_verify
tests/web/run.sh
