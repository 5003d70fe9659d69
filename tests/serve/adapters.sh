#!/bin/bash
# Adapters (LoRA) behind one server: by name and by list, mixed in one batch, refused where they are not there.
. "$(dirname "$0")/serve.bash"
py=$(dirname "$0")/adapters.py
tiny=$root/models/kermes-tiny.gguf
python3 "$py" make "$tmp/red" 1 0.3 && python3 "$py" make "$tmp/blue" 2 0.6 || exit 1
loras=(--lora "red=$tmp/red" --lora "blue=$tmp/blue:0.5")
start_server "${loras[@]}" --parallel 10 --keep 16 --reproducible
python3 "$py" "$url" one || { cat "$tmp/err"; exit 1; }
stop_server TERM

# The second level of the cache, and sessions: each with the adapters that read them.
start_server "${loras[@]}" --parallel 1 --keep 1 --second-cache 64 --reproducible
python3 "$py" "$url" shelf || { cat "$tmp/err"; exit 1; }
stop_server TERM
start_server "${loras[@]}" --sessions "$tmp/kept" --reproducible
python3 "$py" "$url" save >"$tmp/saved" || { cat "$tmp/err"; exit 1; }
stop_server TERM
start_server "${loras[@]}" --sessions "$tmp/kept" --keep 1 --parallel 1 --reproducible
python3 "$py" "$url" restore >"$tmp/restored" || { cat "$tmp/err"; exit 1; }
stop_server TERM
cmp "$tmp/saved" "$tmp/restored" || { echo "a restored session gives another text"; exit 1; }

cp "$tiny" "$tmp/one.gguf" && cp "$tiny" "$tmp/two.gguf" || exit 1
start_models -m "$tmp/one.gguf" -m "$tmp/two.gguf" --lora "two/red=$tmp/red"
python3 "$py" "$url" several || { cat "$tmp/err"; exit 1; }
stop_server TERM

"$kermes" serve --new-key alice 2>"$tmp/alice" | sed 's/$/ models=red/' >"$tmp/keys" || exit 1
start_server "${loras[@]}" --keys "$tmp/keys"
python3 "$py" "$url" key "$(tail -n 1 "$tmp/alice")" || { cat "$tmp/err"; exit 1; }
stop_server TERM

# Refused before anything is served: one clear line each.
refused() {
    what=$1
    shift
    "$kermes" serve --port 0 "$@" >"$tmp/out" 2>"$tmp/err" && { echo "taken: $*"; exit 1; }
    grep -q "$what" "$tmp/err" || { echo "$*: $(cat "$tmp/err")"; exit 1; }
    [ "$(wc -l <"$tmp/err")" -eq 1 ] || { echo "more than a line: $(cat "$tmp/err")"; exit 1; }
}
mkdir "$tmp/empty"
refused 'cannot read the adapter' -m "$tiny" --lora "x=$tmp/none"
refused 'adapter_config.json' -m "$tiny" --lora "x=$tmp/empty"
refused 'give NAME=PATH' -m "$tiny" --lora "$tmp/red"
refused 'give NAME=PATH' -m "$tiny" --lora "=$tmp/red"
refused 'a scale is a number' -m "$tiny" --lora "x=$tmp/red:0"
refused "are called 'red'" -m "$tiny" "${loras[@]}" --lora "red=$tmp/blue"
refused "are called 'kermes-tiny'" -m "$tiny" --lora "kermes-tiny=$tmp/red"
refused 'of which model' -m "$tmp/one.gguf" -m "$tmp/two.gguf" --lora "red=$tmp/red"
refused 'no such model' -m "$tiny" --lora "other/red=$tmp/red"
exit 0
