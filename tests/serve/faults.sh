#!/bin/bash
# Faults around the server: schemas that cannot be met, templates that fail, connections without end, a log
# on a full disk, a model file that vanishes and is cut short. KERMES_CONNECTIONS: how many (1000).
. "$(dirname "$0")/serve.bash"
cp "$root/models/kermes-tiny.gguf" "$tmp/model.gguf"
log=/dev/full
[ -w "$log" ] || log=/dev/null
many=${KERMES_CONNECTIONS:-1000}
start_models -m "$tmp/model.gguf" --connections $((many + 100)) --log $log
python3 "$(dirname "$0")/faults.py" "$url" "$tmp/model.gguf" "$many" || { cat "$tmp/err"; exit 1; }
stop_server TERM

# A device that fails in the middle of answers: they go on elsewhere, to the letter.
export KERMES_FAULT_STEP=40
start_server --devices cpu,cpu --parallel 4
unset KERMES_FAULT_STEP
python3 "$(dirname "$0")/faults.py" "$url" lost || { cat "$tmp/err"; exit 1; }
grep -q 'going on with the CPU' "$tmp/err" || { echo "no device failed"; exit 1; }
stop_server TERM
exit 0
