#!/bin/bash
# Who may ask: keys with limits and expiry, read again when the file changes; hosts and origins; addresses
# that others can reach.
. "$(dirname "$0")/serve.bash"
"$kermes" serve --new-key alice >"$tmp/keys" 2>"$tmp/alice" || exit 1
"$kermes" serve --new-key old 2>"$tmp/old" | sed 's/$/ expires=2001-01-01/' >>"$tmp/keys" || exit 1
alice=$(tail -n 1 "$tmp/alice")
old=$(tail -n 1 "$tmp/old")
grep -q "$alice" "$tmp/keys" && { echo "the file holds the key itself"; exit 1; }

start_server --keys "$tmp/keys"
"$kermes" serve --new-key bob >>"$tmp/keys" 2>"$tmp/bob"
bob=$(tail -n 1 "$tmp/bob")
kill -HUP "$server"
python3 "$(dirname "$0")/keys.py" "$url" "$alice" "$old" "$bob" || exit 1
echo "broken line" >>"$tmp/keys" # the keys stay as they were
kill -HUP "$server"
sleep 0.2
python3 "$(dirname "$0")/keys.py" "$url" "$alice" "$old" "$bob" || exit 1
stop_server INT
grep -q "keys, line 4" "$tmp/err" || { echo "no note about the broken line:"; cat "$tmp/err"; exit 1; }

# What a key may: so many tokens of an answer, so many requests at once, some models.
for limits in "few tokens=3" "one parallel=1" "other models=another"; do
    "$kermes" serve --new-key "${limits%% *}" 2>"$tmp/${limits%% *}" | sed "s/\$/ ${limits#* }/" >>"$tmp/limited" || exit 1
done
start_server --keys "$tmp/limited"
python3 "$(dirname "$0")/limits.py" "$url" "$server" "$(tail -n 1 "$tmp/few")" "$(tail -n 1 "$tmp/one")" "$(tail -n 1 "$tmp/other")" || exit 1
wait "$server" || { echo "the server did not end well:"; cat "$tmp/err"; exit 1; }
server=

start_server --allow-origin https://app.example --allow-host kermes.lan
python3 "$(dirname "$0")/keys.py" "$url" || exit 1
stop_server TERM

# Refused before a model is served: one clear line each.
refused() {
    what=$1
    shift
    "$kermes" serve -m "$root/models/kermes-tiny.gguf" "$@" >"$tmp/out" 2>"$tmp/err" && { echo "taken: $*"; exit 1; }
    if ! grep -q "$what" "$tmp/err" || [ "$(grep -c '^kermes: ' "$tmp/err")" -lt 1 ]; then
        echo "$*: $(cat "$tmp/err")"
        exit 1
    fi
}
refused 'can be reached by others' --listen 0.0.0.0:0
refused 'no address' --insecure --listen nonsense
refused 'cannot open\|no such file\|No such file' --keys "$tmp/none"
: >"$tmp/empty"
refused 'no keys' --keys "$tmp/empty"
refused 'needs --tls-cert' --tls-cert "$tmp/none"
refused 'cannot write the log' --log "$tmp/no/such/folder/log"
refused 'without spaces' --new-key 'a b'
exit 0
