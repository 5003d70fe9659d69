#!/bin/bash
# What shells complete, and the manual pages: both from the tables that --help comes from.
. "$(dirname "$0")/lib.bash"
export KERMES_MODELS=$work/models HOME=$work
mkdir "$KERMES_MODELS"
cp "$SRC_DIR/models/kermes-tiny.gguf" "$KERMES_MODELS/Tiny.gguf"

offers() { # offers WANTED WORDS...: among what is offered for the words
    local wanted=$1
    shift
    expect 0 complete -- "$@"
    grep -qxF -- "$wanted" "$work/out" || fail "'$*' does not offer $wanted"
}
offers run ru
offers chat ''
offers --temperature run --temp
offers --device verify --dev
offers cpu bench --device ''
offers Tiny.gguf chat -m ''
offers Tiny.gguf chat T
offers Tiny.gguf rm ''
offers Tiny.gguf perplexity --model T
offers fish completion f
offers train help tr
expect 0 complete -- run --file ''
[ ! -s "$work/out" ] || fail "files are the shell's to offer"
expect 0 complete -- nonsense --x ''
expect 0 complete --

for shell in bash zsh fish; do
    expect 0 completion $shell
    says out "kermes complete"
done
expect_error 2 completion tcsh
expect_error 2 completion
expect 0 completion bash
found=$(PATH=$(dirname "$KERMES"):$PATH bash -c ". '$work/out'; COMP_WORDS=(kermes verify --quie); COMP_CWORD=2
    _kermes; echo \"\${COMPREPLY[*]}\"")
[ "$found" = --quiet ] || fail "bash completes to '$found'"

# Pages: one for each command, without anything that troff complains of.
"$SRC_DIR/scripts/make-man" "$KERMES" "$work/man" || fail "make-man failed"
expect 0 man --names
while read -r name; do
    [ -s "$work/man/kermes-$name.1" ] || fail "there is no page of $name"
done <"$work/out"
grep -q 'SH DETAILS' "$work/man/kermes-pull.1" || fail "docs/cli.md is not in the page of pull"
grep -qF '\-\-context' "$work/man/kermes-run.1" || fail "an option is missing"
grep -q km_ctx_new "$work/man/kermes.3" || fail "the header is not in kermes.3"
if command -v groff >/dev/null; then
    for page in "$work"/man/*; do
        groff -man -Tutf8 -Kutf8 -ww -Wbreak -z "$page" 2>"$work/err" || fail "groff: $page"
        [ ! -s "$work/err" ] || fail "groff complains of $page"
    done
fi
