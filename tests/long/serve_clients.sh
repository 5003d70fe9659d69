#!/bin/bash
# The official clients of OpenAI, Anthropic and Ollama, and Prometheus' parser, in a virtual environment of
# their own. Skipped where they cannot be fetched.
. "$(dirname "$0")/../serve/serve.bash"
python3 -m venv "$tmp/venv" >/dev/null 2>&1 || { echo "skipped: no python3-venv"; exit 77; }
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --timeout 20 --retries 1 \
    openai anthropic ollama prometheus_client >"$tmp/pip" 2>&1 || { echo "skipped: pip could not fetch the clients"; exit 77; }
start_server
"$tmp/venv/bin/python" "$(dirname "$0")/../serve/clients.py" "$url" || exit 1
stop_server TERM
