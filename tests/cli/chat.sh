#!/bin/bash
# kermes chat without a terminal: questions are lines, only answers go to stdout, conversations are
# saved and loaded, and whatever comes in is dealt with.
. "$(dirname "$0")/lib.bash"
export KERMES_MODELS=$work/models KERMES_HISTORY=

# A model whose answers are noise: 256 tokens, the bytes, trained for one step.
for _ in $(seq 300); do echo 'a line of text to learn from'; done >"$work/text"
expect 0 train --data "$work/text" --out "$work/run" --tokenizer bytes --layers 1 --heads 2 \
    --dim 16 --context 512 --batch 1 --steps 1 --eval-every 0 --device cpu --threads 1 --quiet
model=$work/run/model

# talk CODE INPUT ARGUMENTS...: runs kermes chat over the input
talk() {
    local wanted=$1 input=$2 code=0
    shift 2
    printf "$input" | "$KERMES" chat -m "$model" --template chatml --threads 1 "$@" \
        >"$work/out" 2>"$work/err" || code=$?
    [ "$code" -eq "$wanted" ] || fail "chat $*: exit code $code, not $wanted"
}

talk 0 'hi\n' -n 8 --quiet
[ -s "$work/out" ] || fail "no answer"
[ ! -s "$work/err" ] || fail "--quiet printed to stderr"
[ "$(tail -c 1 "$work/out" | od -An -tx1 | tr -d ' ')" = 0a ] || fail "no newline after the answer"
cp "$work/out" "$work/first"
talk 0 'hi' -n 8 --quiet
cmp -s "$work/out" "$work/first" || fail "the last line's newline made a difference"
talk 0 'hi\n' -n 8 --quiet --seed 2
! cmp -s "$work/out" "$work/first" || fail "another seed gave the same answer"
talk 0 'hi\n' -n 4 --stats
says err "answer 4 tokens"
says err "first token after"

# What is asked: lines, joined lines, blocks, a slash; and blank lines are nothing.
talk 0 'one\n\n  \na \\\nb\n"""c\nd\n"""\n"""e"""\n//f\n' -n 2 --json --quiet --system 'Be brief.'
json_says model device messages.0.role=system 'messages.0.content=Be brief.' messages.1.content=one \
    messages.2.role=assistant answers.0.tokens=2 answers.0.end=tokens messages.9.content=/f
grep -q '"content": "a \\nb"' "$work/out" || fail "lines were not joined"
grep -q '"content": "c\\nd"' "$work/out" || fail "a block is not one question"
grep -q '"content": "e"' "$work/out" || fail "a block on one line is not a question"

# The conversation so far is not read again.
talk 0 'one\ntwo\n' -n 3 --json --quiet
json_says answers.0.reused=0
grep -q '"reused": [1-9][0-9]' "$work/out" || fail "the second question read everything again"

# Commands.
talk 0 '/help\n' --quiet
talk 0 '/help\n/stats\n/system\n/system Be kind.\n/system\n/quit\nnot asked\n'
says err "/retry"
says err "context: 0 of 512 tokens"
says err "there is no system message"
says err "Be kind."
[ ! -s "$work/out" ] || fail "commands printed to stdout"
talk 0 'one\n/retry\n' -n 8 --quiet
[ "$(sort -u "$work/out" | wc -l)" -ge 2 ] || fail "/retry gave the same answer"
talk 1 '/retry\n/nonsense\n/sav x\n/save\n/quit now\n'
says err "there is no answer to give again"
says err "did you mean /save?"
says err "/save needs a file"
says err "/quit takes nothing after it"

talk 0 '/settings\n/set repeat_penalty 1.25\n/set temp 0.5\n/settings\n/clear\n/stats\n/bye\nnot asked\n'
grep -q '  repeat-penalty *1$' "$work/err" || fail "what is off is not shown as its flag says it"
grep -q '  repeat-penalty *1.25$' "$work/err" && grep -q '  temperature *0.5$' "$work/err" || fail "/set changed nothing"
says err "context: 0 of 512 tokens"
talk 1 '/set temperature\n/set temperature hot\n/set warmth 1\n'
says err "/set temperature needs a value"
says err "unknown setting 'warmth'"

# Conversations in files.
talk 0 "one\n/save $work/talk.json\n/clear\ntwo\n/load $work/talk.json\nthree\n" -n 3 --json --quiet
json_says messages.0.content=one messages.2.content=three
"$json_check" "$work/talk.json" format version=1 messages.0.role=user messages.1.role=assistant ||
    fail "the saved file is not as it should be"
refuse() { # refuse TEXT MESSAGE
    printf '%s' "$1" >"$work/bad.json"
    talk 1 "one\n/load $work/bad.json\n/save $work/after.json\n" -n 2
    says err "$2"
    "$json_check" "$work/after.json" messages.0.content=one || fail "a refused file changed the talk"
}
good='{"format": "kermes conversation", "version": 1, "messages": '
refuse '' "is no JSON"
refuse '[1, 2' "is no JSON"
refuse '{}' "is no conversation that /save wrote"
refuse '{"format": "kermes conversation", "version": 2, "messages": []}' "does not know"
refuse "$good 3}" "has no list of messages"
refuse "$good [3]}" "message 1 is not a role and a content"
refuse "$good [{\"role\": \"user\", \"content\": 3}]}" "message 1 is not a role and a content"
refuse "$good [{\"role\": \"tool\", \"content\": \"\"}]}" "message 1 is of 'tool'"
refuse "$good [{\"role\": \"assistant\", \"content\": \"\"}]}" "user and assistant take turns"
refuse "$good [{\"role\": \"user\", \"content\": \"a\\u0000\"}]}" "has a NUL in it"
refuse "$good [{\"role\": \"user\", \"content\": \"a\"}]}" "ends with a question"
refuse "$(printf '[%.0s' $(seq 100000))" "is no JSON"
talk 1 "/load $work/none.json\n/save $work/none/x.json\n/load $work\n"

# More than the context holds: an error with both counts, or the oldest goes.
long=$(printf 'x%.0s' $(seq 600))
talk 1 "$long\nhi\n" -n 3 --json
says err "tokens and the context 512"
json_says messages.0.content=hi
turn=$(printf 'y%.0s' $(seq 120))
talk 1 "$turn\n$turn\n$turn\n$turn\n" -n 4
says err "tokens and the context 512"
talk 0 "$turn\n$turn\n$turn\n$turn\n" -n 4 --shift
says err "left out"
talk 0 'hi\n' --context 64
says err "(the context of 64 tokens is full"

# Odd input.
talk 0 'a\xff\xfeb\x00c\xc3\n\r\n' -n 2 --json --quiet
grep -q 'a\\uFFFD\|a�' "$work/out" || fail "bytes that are no UTF-8 were not replaced"
head -c 3000000 /dev/zero | tr '\0' z >"$work/huge"
code=0
"$KERMES" chat -m "$model" --template chatml --quiet <"$work/huge" >"$work/out" 2>"$work/err" || code=$?
[ "$code" -eq 1 ] || fail "a huge line: exit code $code"
says err "tokens and the context 512"
head -c 17000000 /dev/zero | tr '\0' z >"$work/huge"
"$KERMES" chat -m "$model" --template chatml --quiet <"$work/huge" >"$work/out" 2>"$work/err"
says err "longer than 16 MiB"
talk 0 '' -n 2
talk 0 '"""never closed\nmore' -n 2 --json --quiet
json_says 'messages.0.role=user'

# Grammars, schemas, stops and biases.
printf 'root ::= "yes" | "no"\n' >"$work/yes.gbnf"
talk 0 'hi\nho\n' --grammar "$work/yes.gbnf" --quiet
[ "$(grep -cx 'yes\|no' "$work/out")" -eq 2 ] || fail "the grammar was not kept to"
talk 0 'hi\n' --json-schema '{"enum": [1, "two"]}' --quiet
grep -qx '1\|"two"' "$work/out" || fail "the schema was not kept to"
printf '{"type": "integer", "minimum": 5, "maximum": 7}' >"$work/schema"
talk 0 'hi\n' --json-schema "$work/schema" --quiet
grep -qx '[567]' "$work/out" || fail "the schema in a file was not kept to"
talk 0 'hi\n' -n 6 --logit-bias q=50 --quiet
grep -qx qqqqqq "$work/out" || fail "the bias did nothing"
talk 0 'hi\n' -n 6 --logit-bias 113=50 --stop qqq --json --quiet
json_says answers.0.end=stop answers.0.tokens=3
printf 'root ::= "a' >"$work/bad.gbnf"
talk 1 '' --grammar "$work/bad.gbnf"
says err "bad.gbnf"
talk 1 '' --logit-bias 256=1
says err "there is no token 256"
talk 1 '' --logit-bias 'ab=1'
says err "is not one token but 2 (97, 98)"
talk 2 '' --logit-bias 5
talk 2 '' --grammar a --json-schema b
talk 2 '' --mirostat 1
says err "there are 0 (off) and 2"

# Which model: the only one, the newest, a name, or none.
expect_error 1 chat
says err "no model is named and there is none in $work/models"
expect_error 1 chat -m "$model"
says err "choose one with --template NAME"
expect_error 1 chat -m "$model" --template nonsense
mkdir "$work/models"
expect 0 convert "$model" "$work/models/old.gguf" --quiet
touch -d '2001-01-01' "$work/models/old.gguf"
expect 0 chat --template chatml
says err "the model is $work/models/old.gguf"
mkdir "$work/models/deep"
cp "$work/models/old.gguf" "$work/models/deep/new.gguf"
expect 0 chat --template chatml
says err "the model is $work/models/deep/new.gguf, the newest of 2 there"
expect 0 chat --template chatml -m old
says err "the model is $work/models/old.gguf"
expect 0 run --prompt hi -n 3 --quiet
expect_error 1 run -m none --prompt hi

# Guesses, and a device that fails in the middle: the conversation is the same.
tiny=$SRC_DIR/models/kermes-tiny.gguf
both='Hello.\nAnd what is the capital of Norway?\n'
model=$tiny talk 0 "$both" --template chatml --device cpu --temperature 0 -n 12 --quiet
cp "$work/out" "$work/first"
model=$tiny talk 0 "$both" --device cpu --temperature 0 -n 12 --stats --draft "$tiny"
cmp -s "$work/out" "$work/first" || fail "--draft changed the conversation"
says err "guesses were right"
model=$tiny KERMES_FAULT_STEP=9 talk 0 "$both" --devices cpu,cpu --temperature 0 -n 12 --draft lookup
cmp -s "$work/out" "$work/first" || fail "a fault changed the conversation"
says err "a fault was asked for; going on with the CPU"
