#!/bin/bash
# Several models behind one server: loaded when they are asked for, unloaded when idle or when another one
# needs the memory; a broken one fails for its own requests alone.
. "$(dirname "$0")/serve.bash"
mkdir "$tmp/models"
tiny=$root/models/kermes-tiny.gguf
cp "$tiny" "$tmp/models/red.gguf"
cp "$tiny" "$tmp/models/blue.gguf"
cp "$tiny" "$tmp/models/gone.gguf"
echo "no model" >"$tmp/models/broken.gguf"

# By memory: one of them fits at a time, with a cache of one megabyte.
start_models --models "$tmp/models" --memory 3 --cache-memory 1 --parallel 2 --keep-alive -1
rm "$tmp/models/gone.gguf"
python3 "$(dirname "$0")/models.py" "$url" memory "$server" "$tmp/models" || { cat "$tmp/err"; exit 1; }
stop_server TERM
grep -q 'broken.gguf is left out' "$tmp/err" || { echo "no note about the broken file:"; cat "$tmp/err"; exit 1; }

# By time, and by what keys may use.
"$kermes" serve --new-key alice 2>"$tmp/alice" | sed 's/$/ models=red/' >"$tmp/keys" || exit 1
"$kermes" serve --new-key bob >>"$tmp/keys" 2>"$tmp/bob" || exit 1
start_models -m "$tmp/models/red.gguf" -m "$tmp/models/blue.gguf" --keep-alive 300ms --keys "$tmp/keys"
python3 "$(dirname "$0")/models.py" "$url" time "$(tail -n 1 "$tmp/alice")" "$(tail -n 1 "$tmp/bob")" || { cat "$tmp/err"; exit 1; }
stop_server INT

# A server that ends while a model is being loaded ends all the same.
start_models --models "$tmp/models"
python3 "$(dirname "$0")/models.py" "$url" leave || exit 1
stop_server TERM

# Refused before anything is served: one clear line each.
refused() {
    what=$1
    shift
    "$kermes" serve --port 0 "$@" >"$tmp/out" 2>"$tmp/err" && { echo "taken: $*"; exit 1; }
    grep -q "$what" "$tmp/err" || { echo "$*: $(cat "$tmp/err")"; exit 1; }
}
mkdir "$tmp/empty" "$tmp/more"
cp "$tiny" "$tmp/more/red.gguf"
refused 'no model in' --models "$tmp/empty"
refused 'cannot read the folder' --models "$tmp/none"
refused "two models are called 'red'" -m "$tmp/models/red.gguf" -m "$tmp/more/red.gguf"
refused 'single model' --models "$tmp/models" --name x
refused 'keep-alive' -m "$tiny" --keep-alive soon
refused 'none.gguf' -m "$tiny" -m "$tmp/none.gguf"
exit 0
