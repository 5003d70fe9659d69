#!/bin/bash
# kermes pull, models and rm, against a hub of our own on this machine: files in pieces, redirects,
# connections that are cut, servers that lie, and stores that other programs have left.
. "$(dirname "$0")/lib.bash"
command -v python3 >/dev/null || exit 77
HF_ENDPOINT=http://127.0.0.1:1 KERMES_PULL_NO_WAIT=1 "$KERMES" pull a/b 2>&1 | grep -q 'this build cannot pull' && exit 77

hub=$work/hub
tiny=$SRC_DIR/models/kermes-tiny.gguf
for owner in good cut busy liar sizes escape paged plain dead gated round; do
    mkdir -p "$hub/$owner/model-GGUF"
    cp "$tiny" "$hub/$owner/model-GGUF/model-Q8_0.gguf"
done
cp "$tiny" "$hub/good/model-GGUF/model-Q4_K.gguf"
cp "$tiny" "$hub/good/model-GGUF/model-Q4_K_M-00001-of-00002.gguf"
printf 'second part' >"$hub/good/model-GGUF/model-Q4_K_M-00002-of-00002.gguf"
echo '# words' >"$hub/good/model-GGUF/README.md"
mkdir -p "$hub/good/folder" "$hub/good/nothing" "$hub/garbage/x"
echo '{"model_type": "llama"}' >"$hub/good/folder/config.json"
head -c 5000 /dev/urandom >"$hub/good/folder/model.safetensors"
echo words >"$hub/good/nothing/README.txt"

python3 "$SRC_DIR/tests/support/hub.py" "$hub" "$work/ports" 2>/dev/null &
server=$!
trap 'kill $server; rm -rf "$work"' EXIT
for _ in $(seq 100); do [ -s "$work/ports" ] || sleep 0.1; done
read -r port cdn <"$work/ports" || fail "the hub did not start"
export HF_ENDPOINT=http://127.0.0.1:$port/ KERMES_MODELS=$work/models KERMES_PULL_PIECE=100000
export KERMES_PULL_NO_WAIT=1 HOME=$work/home no_proxy='*'
unset HF_TOKEN HF_HOME HF_HUB_CACHE OLLAMA_MODELS CURL_CA_BUNDLE SSL_CERT_FILE

same() { cmp -s "$tiny" "$work/models/$1" || fail "$1 is not the file of the hub"; }
gone() { [ -z "$(find "$work/models" "$work/evil.gguf" -name "$1" 2>/dev/null)" ] || fail "$1 is there"; }
requests() { grep -c "$1" "$hub/requests"; }

# A file by its kind of weights, in pieces from where the hub points to, and its parts.
expect 0 pull good/model-GGUF:Q8_0
same model-Q8_0.gguf
[ "$(requests '^cdn .*bytes=[1-9]')" -ge 9 ] || fail "not in pieces"
gone '*.part*'
expect 0 pull good/model-GGUF:q8_0
says err "is here already"
expect 0 pull good/model-GGUF --json --quiet
json_says files.1.bytes=11 files.0.was_here=false
same model-Q4_K_M-00001-of-00002.gguf
expect_error 1 pull good/model-GGUF:Q2_K
says err "has no Q2_K; there are model-Q4_K"
expect 0 pull good/folder --dry-run
gone folder/model.safetensors
expect 0 pull good/folder
cmp -s "$hub/good/folder/model.safetensors" "$work/models/folder/model.safetensors" || fail "the folder"
expect_error 1 pull good/nothing
says err "holds no model"
expect 0 pull "http://127.0.0.1:$port/good/model-GGUF/resolve/main/model-Q8_0.gguf" -o "$work/other"
cmp -s "$tiny" "$work/other/model-Q8_0.gguf" || fail "by an address"
expect 0 pull --list
says out "smollm2"

# What goes wrong on the way is made up for.
rm -r "$work/models"
expect 0 pull cut/model-GGUF
same model-Q8_0.gguf
rm -r "$work/models"
expect 0 pull busy/model-GGUF
same model-Q8_0.gguf
says err "the server asks to wait"
rm -r "$work/models"
expect 0 pull paged/model-GGUF
same model-Q8_0.gguf
rm -r "$work/models"
expect 0 pull plain/model-GGUF
same model-Q8_0.gguf

# What was broken off is gone on with, by the pieces that are there.
rm -r "$work/models"
expect 1 pull dead/model-GGUF
says err "the same command goes on"
[ -s "$work/models/model-Q8_0.gguf.part" ] || fail "nothing was kept"
gone model-Q8_0.gguf
rm -r "$hub/dead"
: >"$hub/requests"
mv "$work/models/model-Q8_0.gguf.part" "$work/models/keep.part"
mv "$work/models/model-Q8_0.gguf.part.map" "$work/models/keep.map"
grep -q '^10*$' "$work/models/keep.map" || fail "the first piece is not marked: $(cat "$work/models/keep.map")"
mv "$work/models/keep.part" "$work/models/model-Q8_0.gguf.part"
mv "$work/models/keep.map" "$work/models/model-Q8_0.gguf.part.map"
expect 0 pull good/model-GGUF:Q8_0
says err "going on after"
same model-Q8_0.gguf
[ "$(requests '^cdn .*bytes=0-99999')" -eq 0 ] || fail "a piece was fetched twice"

# A token goes to the hub and to nobody else.
: >"$hub/requests"
rm -r "$work/models"
expect_error 1 pull gated/model-GGUF
says err "it needs a token: set HF_TOKEN"
HF_TOKEN=secret expect 0 pull gated/model-GGUF
same model-Q8_0.gguf
grep -q '^hub .*Bearer secret' "$hub/requests" || fail "the hub got no token"
! grep -q '^cdn .*Bearer' "$hub/requests" || fail "the token followed a redirect"

# Lies are found out, and leave nothing behind.
rm -r "$work/models"
expect_error 1 pull liar/model-GGUF
says err "is not what the hub says it is"
gone 'model-*'
expect_error 1 pull sizes/model-GGUF
says err "in the hub's list"
gone 'model-*.gguf'
expect_error 1 pull escape/model-GGUF
says err "which would leave the folder; nothing was fetched"
gone 'evil*'
expect_error 1 pull round/model-GGUF
says err "too many redirects"
expect_error 1 pull garbage/x
expect_error 1 pull nobody/nothing
says err "there is no such thing (404)"
HF_ENDPOINT=http://127.0.0.1:1 expect 1 pull good/model-GGUF --quiet
for wrong in nothing '../x/y' 'a/b/c' 'a/b:' 'a/..' '-x' ftp://x/y 'http://u:p@host/x' 'a/b:c/d'; do
    expect_error 2 pull -- "$wrong"
done
expect_error 2 pull
HF_ENDPOINT=file:///etc expect_error 2 pull good/model-GGUF
expect_error 1 pull "http://127.0.0.1:$port/.."

# A full disk is said, and what is there is kept. (A limit on the size of files stands for it.)
mkdir -p "$work/full"
(trap '' XFSZ && ulimit -f 200 && expect 1 pull good/model-GGUF:Q8_0 -o "$work/full") || exit 1
says err "cannot write"

# Over https: nothing of a hub with a certificate that nobody vouches for, all of one that a named bundle does.
if command -v openssl >/dev/null; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1 \
        -addext subjectAltName=IP:127.0.0.1 -keyout "$work/key" -out "$work/bundle" 2>/dev/null
    cat "$work/key" "$work/bundle" >"$work/pem"
    python3 "$SRC_DIR/tests/support/hub.py" "$hub" "$work/tls" "$work/pem" 2>/dev/null &
    trap 'kill $server $!; rm -rf "$work"' EXIT
    for _ in $(seq 100); do [ -s "$work/tls" ] || sleep 0.1; done
    read -r tls _ <"$work/tls" || fail "the hub over https did not start"
    rm -rf "$work/models"
    HF_ENDPOINT=https://127.0.0.1:$tls expect_error 1 pull good/model-GGUF:Q8_0
    says err "its certificate is not trusted"
    gone 'model-*'
    SSL_CERT_FILE=$work/nothing HF_ENDPOINT=https://127.0.0.1:$tls expect_error 1 pull good/model-GGUF:Q8_0
    says err "SSL_CERT_FILE names a bundle"
    SSL_CERT_FILE=$work/bundle HF_ENDPOINT=https://127.0.0.1:$tls expect 0 pull good/model-GGUF:Q8_0
    same model-Q8_0.gguf
fi

# ---- models and rm ----
rm -rf "$work/models"
expect 0 models
says out "no models in $work/models"
expect 0 pull good/model-GGUF:Q8_0 --quiet
expect 0 pull good/model-GGUF --quiet
expect 0 pull good/folder --quiet
digest=$(sha256sum "$tiny" | cut -d' ' -f1)
mkdir -p "$HOME/.ollama/models/manifests/registry.ollama.ai/library/tiny" "$HOME/.ollama/models/blobs" \
    "$HOME/.lmstudio/models/us/tiny" "$HOME/.cache/huggingface/hub/models--us--tiny/snapshots/abc"
cp "$tiny" "$HOME/.ollama/models/blobs/sha256-$digest"
printf '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:%s"}]}' \
    "$digest" >"$HOME/.ollama/models/manifests/registry.ollama.ai/library/tiny/latest"
echo '{' >"$HOME/.ollama/models/manifests/registry.ollama.ai/library/tiny/broken"
cp "$tiny" "$HOME/.lmstudio/models/us/tiny/tiny-q8.gguf"
ln -s "$tiny" "$HOME/.cache/huggingface/hub/models--us--tiny/snapshots/abc/t.gguf"
expect 0 models
says out "ollama: tiny:latest"
says out "lm-studio: us/tiny/tiny-q8.gguf"
says out "huggingface: us/tiny/t.gguf"
says out "model-Q8_0.gguf"
! grep -q '00002-of' "$work/out" || fail "a later part is listed"
expect 0 models --json
json_says models.0.name models.0.architecture
expect 0 run -m "$HOME/.ollama/models/blobs/sha256-$digest" a -n 1 --quiet
expect_error 2 rm model-Q8_0
says err "--yes is needed"
expect_error 1 rm model --yes
says err "could be several models"
expect_error 1 rm tiny --yes # others' models are theirs
expect 0 rm model-Q4_K_M --yes
gone 'model-Q4_K_M*'
expect 0 rm folder --yes
gone folder
expect 0 rm model-Q8_0 --yes
[ -z "$(ls "$work/models")" ] || fail "something is left: $(ls "$work/models")"
expect_error 1 rm ../hub --yes

expect 0 doctor
says out "processor"
expect 0 doctor --json
json_says well=true checks.0.what=processor
