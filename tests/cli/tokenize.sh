#!/bin/bash
# kermes tokenize: text to ids and back, training, and what is refused.
. "$(dirname "$0")/lib.bash"
fixtures="$SRC_DIR/tests/fixtures/token"

# Text on the line, in a file and on standard input give the same ids.
expect 0 tokenize --tokenizer bytes "Hi é"
[ "$(cat "$work/out")" = "72 105 32 195 169" ] || fail "wrong bytes"
printf 'Hi é' >"$work/text"
expect 0 tokenize --tokenizer bytes --file "$work/text" --ids
[ "$(cat "$work/out")" = "72 105 32 195 169" ] || fail "wrong bytes from a file"
printf 'Hi é' | "$KERMES" tokenize --tokenizer bytes >"$work/out" 2>"$work/err" || fail "standard input"
[ "$(cat "$work/out")" = "72 105 32 195 169" ] || fail "wrong bytes from standard input"

printf 'Hi é' | "$KERMES" tokenize -m bytes --ids --no-special >"$work/out" 2>"$work/err" ||
    fail "-m, as other commands have it"
[ "$(cat "$work/out")" = "72 105 32 195 169" ] || fail "wrong bytes with -m"

# And back.
"$KERMES" tokenize --tokenizer bytes --decode <"$work/out" >"$work/back" || fail "decoding"
cmp -s "$work/back" "$work/text" || fail "the text did not come back"
expect 0 tokenize --tokenizer bytes --decode "[72, 105]"
[ "$(cat "$work/out")" = "Hi" ] || fail "ids with commas"

expect 0 tokenize --tokenizer "$fixtures/llama3.json" --json "kalo 12 x"
json_says tokens:number bytes=9 ids:array ids.0=500
expect 0 tokenize --tokenizer "$fixtures/llama3.json" --no-special --count --json "kalo"
json_says tokens:number bytes=4
expect 0 tokenize --tokenizer "$fixtures/llama3.json" --pieces "kalo"
says out "'<|begin_of_text|>'"
expect 0 tokenize --tokenizer bytes --pieces "é"
says out "'\\xc3'"
expect 0 tokenize --tokenizer bytes --count ""
[ "$(cat "$work/out")" = 0 ] || fail "an empty text has tokens"

# Training: the result can be used, and is the same again on another number of threads.
expect 0 tokenize --train 400 --out "$work/bpe.json" "$fixtures/text.txt"
says out "400 tokens"
expect 0 tokenize --train 400 --threads 1 --out "$work/again.json" --json <"$fixtures/text.txt" \
    "$fixtures/text.txt"
json_says kind=bpe vocab=400 bytes:number seconds:number
cmp -s "$work/bpe.json" "$work/again.json" || fail "training differs between numbers of threads"
expect 0 tokenize --tokenizer "$work/bpe.json" --file "$fixtures/text.txt"
cp "$work/out" "$work/ids"
expect 0 tokenize --tokenizer "$work/bpe.json" --decode --file "$work/ids"
cmp -s "$work/out" "$fixtures/text.txt" || fail "the text did not come back"
expect 0 tokenize --train chars --out "$work/chars.json" "$fixtures/text.txt"
expect 0 tokenize --train bytes --out "$work/bytes.json"
expect 0 tokenize --tokenizer "$work/bpe.json" --out "$work/copy.json"
cmp -s "$work/copy.json" "$work/bpe.json" || fail "a copy differs"

# What is wrong is said in one line.
expect_error 2 tokenize "text"
says err "which tokenizer?"
expect_error 2 tokenize --train 300 "$fixtures/text.txt"
says err "--out FILE"
expect_error 2 tokenize --train many --out "$work/x.json" "$fixtures/text.txt"
says err "'many'"
expect_error 2 tokenize --tokenizer bytes --count --decode 1
expect_error 2 tokenize --tokenizer bytes --file "$work/text" text
expect_error 1 tokenize --train 100 --out "$work/x.json" "$fixtures/text.txt"
says err "257 at least"
expect_error 1 tokenize --train 300 --out "$work/x.json" /dev/null
expect_error 1 tokenize --train 300 --out "$work/nowhere/x.json" "$fixtures/text.txt"
says err "does not exist"
[ ! -e "$work/x.json" ] || fail "a failed training left a file"
expect_error 1 tokenize --tokenizer "$work/missing.json" text
says err "missing.json"
expect_error 1 tokenize --tokenizer "$work/text" text
says err "not a tokenizer.json"
expect_error 1 tokenize --tokenizer "$work/chars.json" "kalo @ mi"
says err "'@' (U+0040) at byte 5 (line 1, column 6)"
expect_error 1 tokenize --tokenizer bytes --decode 72 256
says err "id 256 is no token"
expect_error 1 tokenize --tokenizer bytes --decode seven
says err "no id at byte 0"
