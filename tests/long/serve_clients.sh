#!/bin/bash
# The official clients of OpenAI, Anthropic and Ollama, programs built on them, Prometheus' parser, and
# schemathesis over our own OpenAPI document, in a virtual environment of their own. Skipped where they
# cannot be fetched. KERMES_CLIENTS: an environment that has them already.
. "$(dirname "$0")/../serve/serve.bash"
here=$(dirname "$0")/../serve
venv=${KERMES_CLIENTS:-$tmp/venv}
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv" >/dev/null 2>&1 || { echo "skipped: no python3-venv"; exit 77; }
    "$venv/bin/pip" install -q --disable-pip-version-check --timeout 20 --retries 1 \
        openai anthropic ollama prometheus_client litellm langchain-openai llm instructor 'pydantic-ai-slim[openai]' schemathesis \
        >"$tmp/pip" 2>&1 || { echo "skipped: pip could not fetch the clients"; exit 77; }
fi
start_server --sessions "$tmp/sessions"
"$venv/bin/python" "$here/clients.py" "$url" || exit 1
"$venv/bin/python" "$here/frameworks.py" "$url" "$tmp" "$venv/bin" || exit 1
# No model that runs here ranks: 501 is the answer that /v1/rerank has to give.
(cd "$tmp" && "$venv/bin/schemathesis" run "$url/openapi.json" --exclude-path /v1/rerank --max-examples "${KERMES_EXAMPLES:-50}" --seed 1 \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
    --suppress-health-check all --no-color) || exit 1
stop_server TERM
