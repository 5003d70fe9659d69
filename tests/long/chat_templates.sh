#!/usr/bin/env bash
# Models' own chat templates against Jinja2, where they can be had: a folder of *.jinja files in
# KERMES_TEMPLATES (the source package of llama-cpp-python holds some seventy, in
# vendor/llama.cpp/models/templates), and a Python with jinja2 and transformers in KERMES_PYTHON.
set -euo pipefail
python=${KERMES_PYTHON:-python3}
templates=${KERMES_TEMPLATES:-}
if [[ ! -d $templates ]]; then
    echo "skipped: KERMES_TEMPLATES names no folder of templates"
    exit 77
fi
if ! "$python" -c 'import jinja2, transformers' 2>/dev/null; then
    echo "skipped: $python lacks jinja2 or transformers"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" "$SRC_DIR/scripts/fixtures/make_chat.py" --same "$templates"
"$python" "$SRC_DIR/scripts/fixtures/make_chat.py" --real "$templates" "$work/real.json"
KERMES_CHAT_FIXTURES=$work/real.json "$(dirname "$KERMES")/tests/test_text_chat_template"
