#!/bin/bash
# /v1/rerank over a small model with a ranking head; one without says so (tests/serve/api.py).
. "$(dirname "$0")/serve.bash"
py=$(dirname "$0")/rerank.py
python3 "$py" make "$root/models/kermes-tiny.gguf" "$tmp/ranker.gguf" || exit 1
start_models -m "$tmp/ranker.gguf"
python3 "$py" "$url" || { cat "$tmp/err"; exit 1; }
stop_server TERM
exit 0
