#!/bin/bash
# /web/: the page for browsers, from a folder, with the headers that isolate it; nothing else of the disk.
. "$(dirname "$0")/serve.bash"
mkdir "$tmp/web"
echo '<p>the page</p>' >"$tmp/web/index.html"
echo 'export {};' >"$tmp/web/kermes.js"
echo 'secret' >"$tmp/secret.js"
echo 'notes' >"$tmp/web/notes.txt"
start_server --web "$tmp/web"
python3 - "$url" <<'PYTHON' || exit 1
import sys, urllib.error, urllib.request

def get(path):
    try:
        with urllib.request.urlopen(sys.argv[1] + path) as r:
            return r.status, r.headers, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.headers, e.read().decode()

status, headers, text = get("/web/")
assert status == 200 and "the page" in text, (status, text)
assert headers["Cross-Origin-Opener-Policy"] == "same-origin" and headers["Cross-Origin-Embedder-Policy"] == "require-corp"
status, headers, text = get("/web/kermes.js")
assert status == 200 and headers["Content-Type"].startswith("text/javascript") and text == "export {};\n"
for path in ("/web/notes.txt", "/web/none.js", "/web/../secret.js", "/web/..%2fsecret.js", "/web/%2e%2e/secret.js", "/web//etc/passwd", "/web/.js/../../secret.js"):
    status, _, text = get(path)
    assert status == 404 and "secret" not in text, (path, status, text)
PYTHON
stop_server TERM
