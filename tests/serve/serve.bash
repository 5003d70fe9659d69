# For the tests of `kermes serve`: starts one with the small model of the repository and waits until it
# answers. Sets $url and $server; stops it at the end.
set -u
kermes=${KERMES:?}
root=${SRC_DIR:-.}
tmp=$(mktemp -d) || exit 1
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; wait; rm -rf "$tmp"' EXIT
command -v python3 >/dev/null 2>&1 || { echo "skipped: no python3"; exit 77; }
if "$kermes" serve --help 2>&1 | grep -q 'this build has no server'; then
    echo "skipped: built without libevent"
    exit 77
fi

# start_server OPTIONS...: the small model
start_server() {
    start_models -m "$root/models/kermes-tiny.gguf" "$@"
}

# start_models OPTIONS...: on any free port
start_models() {
    : >"$tmp/err" # before the server does it: what an earlier one said must not be read
    "$kermes" serve --port 0 "$@" >"$tmp/out" 2>"$tmp/err" &
    server=$!
    wait_for_server
}

wait_for_server() {
    for _ in $(seq 600); do
        url=$(sed -n 's,.* served at \(http[^ ]*\)/$,\1,p' "$tmp/err" 2>/dev/null)
        [ -z "$url" ] || return 0
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    echo "the server did not start:"
    cat "$tmp/err"
    exit 1
}

# stop_server SIGNAL: waits for its end; its exit code must be 0
stop_server() {
    kill "-${1:-TERM}" "$server"
    wait "$server"
    code=$?
    server=
    [ "$code" -eq 0 ] || { echo "the server ended with $code:"; cat "$tmp/err"; exit 1; }
}
