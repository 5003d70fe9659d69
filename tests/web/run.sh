#!/bin/bash
# The tests of a WebAssembly build that is there (build/wasm, by `make wasm`): under Node, and the page in
# Chromium. `make test` builds none, since that takes minutes: it is `make test-long` that does.
set -u
root=${SRC_DIR:?}
web=${KERMES_WEB:-$root/build/wasm/web}
[ -f "$web/kermes-wasm.wasm" ] || { echo "skipped: no WebAssembly build here (make wasm)"; exit 77; }
command -v node >/dev/null || { echo "skipped: no Node (Debian: nodejs)"; exit 77; }
node "$root/tests/web/node.mjs" "$web" "${KERMES:?}" "$root/models/kermes-tiny.gguf" || exit 1
if [ -f "$web/../tests/verify.js" ]; then
    # Emscripten 3.1.6 takes a Node that can fetch for a browser.
    node -e 'delete globalThis.fetch; require(process.argv[1])' "$(realpath "$web/../tests/verify.js")" 16 || exit 1
fi
gzip -9 -c "$web/kermes-wasm.wasm" "$web/kermes-wasm.js" | wc -c | {
    read -r size
    echo "the module has $size bytes, packed by gzip"
    [ "$size" -le 2000000 ] || { echo "FAIL: more than 2 MB"; exit 1; }
} || exit 1
if [ ! -x /usr/bin/chromedriver ] || ! /usr/bin/python3 -c "import selenium" 2>/dev/null; then
    echo "the page was not tested: no chromium-driver, or no python3-selenium"
    exit 0
fi
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
HOME=$tmp timeout 300 /usr/bin/python3 "$root/tests/web/page.py" "$web" "$tmp" ${KERMES_SHOTS:+"$KERMES_SHOTS"}
