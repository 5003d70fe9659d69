#!/bin/bash
# Ways to the server: TLS, a unix socket, sockets that systemd opened; compressed answers; and what SIGHUP
# reads again.
. "$(dirname "$0")/serve.bash"
here=$(dirname "$0")

# TLS, with a certificate that is replaced while the server runs.
certificate() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "/CN=$1" \
        -addext subjectAltName=DNS:localhost -keyout "$tmp/key.pem" -out "$tmp/cert.pem" >/dev/null 2>&1
}
if "$kermes" serve --help | grep -q tls-cert && command -v openssl >/dev/null && certificate first; then
    start_server --tls-cert "$tmp/cert.pem" --tls-key "$tmp/key.pem" --log "$tmp/log"
    python3 "$here/ways.py" tls "$url" "$tmp/cert.pem" first || exit 1
    certificate second
    mv "$tmp/log" "$tmp/log.old"
    kill -HUP "$server"
    python3 "$here/ways.py" tls "$url" "$tmp/cert.pem" second || exit 1
    grep -q '"/health"' "$tmp/log" || { echo "the log was not opened again"; exit 1; }
    echo "no certificate" >"$tmp/cert.pem"
    kill -HUP "$server"
    python3 "$here/ways.py" plain "$url" || exit 1
    stop_server TERM
    grep -q 'the certificate stays as it was' "$tmp/err" || { echo "a broken certificate is not told"; exit 1; }
    "$kermes" serve -m "$root/models/kermes-tiny.gguf" --port 0 --tls-cert "$tmp/cert.pem" --tls-key "$tmp/key.pem" \
        >"$tmp/out" 2>"$tmp/err" && { echo "a broken certificate was taken"; exit 1; }
    grep -q 'cannot use the certificate' "$tmp/err" || { echo "not told why:"; cat "$tmp/err"; exit 1; }
else
    echo "TLS is left out: no openssl command"
fi

# A unix socket; one that a dead server left behind is in nobody's way.
wait_for_socket() {
    for _ in $(seq 600); do
        python3 "$here/ways.py" health "unix:$tmp/socket" 2>/dev/null && return 0
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    echo "nobody answers at the socket:"
    cat "$tmp/err"
    exit 1
}
python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' "$tmp/socket"
"$kermes" serve -m "$root/models/kermes-tiny.gguf" --listen "unix:$tmp/socket" >"$tmp/out" 2>"$tmp/err" &
server=$!
wait_for_socket
python3 "$here/ways.py" chat "unix:$tmp/socket" || exit 1
stop_server TERM
[ ! -e "$tmp/socket" ] || { echo "the socket is left behind"; exit 1; }

# Sockets that are open already, as systemd hands them over.
python3 "$here/ways.py" activate "$tmp/socket" "$kermes" serve -m "$root/models/kermes-tiny.gguf" >"$tmp/out" 2>"$tmp/err" &
server=$!
wait_for_socket
python3 "$here/ways.py" chat "unix:$tmp/socket" || exit 1
stop_server TERM

# gzip, whole and in streams, for those who ask for it.
start_server --compress always
python3 "$here/ways.py" gzip "$url" || exit 1
stop_server TERM
start_server
python3 "$here/ways.py" nogzip "$url" || exit 1
stop_server TERM

# Searching: an index of embeddings that the server itself gave, by texts and by vectors.
start_server
python3 "$here/search.py" make "$url" "$tmp/vectors.fvecs" || exit 1
stop_server TERM
"$kermes" compress "$tmp/vectors.fvecs" -o "$tmp/texts.kmx" --metric cosine --quiet >/dev/null || exit 1
start_server --index "texts=$tmp/texts.kmx" --index "other=$tmp/texts.kmx"
python3 "$here/search.py" ask "$url" || exit 1
stop_server TERM
"$kermes" serve -m "$root/models/kermes-tiny.gguf" --index "$tmp/texts.kmx" >"$tmp/out" 2>"$tmp/err" && exit 1
grep -q 'NAME=FILE' "$tmp/err" || { echo "an index without a name is taken"; exit 1; }
exit 0
