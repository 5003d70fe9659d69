#!/bin/bash
# Every dialect of the server against a real model: whole answers and streams, errors, cancelling, the
# prefix cache, and an end that lets answers finish.
. "$(dirname "$0")/serve.bash"
start_server --parallel 4 --queue 8 --log "$tmp/log"
python3 "$(dirname "$0")/api.py" "$url" || exit 1
python3 "$(dirname "$0")/responses.py" "$url" || exit 1
stop_server TERM

# The log is lines of JSON, without what was said.
python3 - "$tmp/log" <<'PYTHON' || exit 1
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert len(lines) > 20 and all({"time", "path", "status", "seconds"} <= set(l) for l in lines), lines[:3]
assert any(l["status"] == 499 for l in lines), "no client that left"
assert "secret words" not in open(sys.argv[1]).read()
PYTHON
