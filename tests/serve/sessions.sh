#!/bin/bash
# Sessions that clients save by name: saved, listed, restored by another server, damaged, deleted; each key's own.
. "$(dirname "$0")/serve.bash"
py=$(dirname "$0")/sessions.py
try() {
    python3 "$py" "$url" "$@" || { cat "$tmp/err"; exit 1; }
}
start_server --sessions "$tmp/kept"
try save
stop_server TERM

start_server --sessions "$tmp/kept"
try restore >"$tmp/restored"
stop_server TERM
start_server
try plain >"$tmp/plain"
cmp "$tmp/plain" "$tmp/restored" || { echo "a restored session gives another text"; exit 1; }
try none
stop_server TERM

printf 'xxxx' | dd of="$tmp/kept/0000000000000000/trip.1.session" bs=1 seek=2000 conv=notrunc 2>/dev/null
start_server --sessions "$tmp/kept"
try damaged
stop_server TERM

for name in alice bob; do "$kermes" serve --new-key $name >>"$tmp/keys" 2>"$tmp/$name" || exit 1; done
start_server --sessions "$tmp/kept" --keys "$tmp/keys"
try keys "$(tail -n 1 "$tmp/alice")" "$(tail -n 1 "$tmp/bob")"
stop_server TERM

"$kermes" serve --port 0 -m "$root/models/kermes-tiny.gguf" --sessions "$tmp/keys" >"$tmp/out" 2>"$tmp/err" && exit 1
grep -q 'cannot keep sessions' "$tmp/err" || { cat "$tmp/err"; exit 1; }
exit 0
