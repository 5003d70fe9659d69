#!/bin/bash
# kermes run and kermes perplexity: one answer, one number, and one clear line for what does not fit.
. "$(dirname "$0")/lib.bash"
export KERMES_MODELS=$work/models

# A model of 29 tokens with a tokenizer of 29 characters.
model=$work/model
mkdir "$model"
cp "$SRC_DIR"/tests/fixtures/models/gpt2/{config.json,model.safetensors} "$model"
printf 'abcdefghijklmnopqrstuvwxyz .,' >"$work/letters.txt"
expect 0 tokenize --train chars --out "$model/tokenizer.json" "$work/letters.txt"

expect 0 sample --model "$model" --device cpu --prompt abc --tokens 8 --temperature 0 --only-new
cp "$work/out" "$work/greedy"
expect 0 run -m "$model" --prompt abc -n 8 --temperature 0 --quiet
cmp -s "$work/out" "$work/greedy" || fail "another text than that of kermes sample"
[ ! -s "$work/err" ] || fail "--quiet printed to stderr"
printf abc >"$work/prompt"
expect 0 run --model "$model" --file "$work/prompt" --tokens 8 --temperature 0
cmp -s "$work/out" "$work/greedy" || fail "another text for the prompt in a file"
expect 0 run -m "$model" --prompt abc -n 5 --temperature 0 --json
json_says text tokens=5 prompt_tokens=3 prompt_tokens_per_s decode_tokens_per_s ended

json_says first_token_seconds:number end=tokens
expect 0 run -m "$model" --prompt abc -n 40 --temperature 0 --json
json_says tokens=10 end=context # a context of 12: the last token is not read any more
says err "the answer ends where the context of 12 tokens is full"
expect 0 run -m "$model" --prompt abc -n 40 --temperature 0 --shift --json
json_says tokens=40 end=tokens

# What was read is kept in a file, for the same model.
for reused in 0 4; do
    expect 0 run -m "$model" --prompt abcab -n 2 --temperature 0 --session "$work/session" \
        --no-reread --json
    json_says reused=$reused prompt_tokens=5
done
expect 0 run -m "$model" --prompt abcab -n 2 --cache-type f32 --quiet
expect_error 1 run -m "$model" --prompt abcab -n 2 --cache-type f32 --session "$work/session"
head -c 200 "$work/session" >"$work/broken"
expect_error 1 run -m "$model" --prompt abcab -n 2 --session "$work/broken"
expect_error 2 run -m "$model" --prompt a --cache-type int4
says err "--cache-type takes f32, f16, bf16, q8_0 or q4_0, not 'int4'"

# What the sampling flags do to the text.
run() { expect 0 run -m "$model" --prompt abc --quiet "$@"; }
run -n 6 --logit-bias z=99
grep -qx zzzzzz "$work/out" || fail "the bias did nothing"
run -n 6 --logit-bias z=99 --logit-bias y=98 --repeat-penalty 5 --repeat-last 1 --temperature 0
grep -qx zyzyzy "$work/out" || fail "the repeat penalty did nothing"
run -n 9 --logit-bias z=50 --logit-bias y=45 --frequency-penalty 3 --temperature 0
grep -qx 'z\{2,3\}y[yz]*' "$work/out" || fail "the frequency penalty did nothing"
run -n 4 --logit-bias z=99 --logit-bias y=90 --presence-penalty 20 --temperature 0
grep -qx zyzz "$work/out" || fail "the presence penalty did nothing"
run -n 8 --logit-bias z=99 --stop zzzz
[ "$(cat "$work/out")" = "" ] || fail "the text to stop at was shown"
run -n 8 --logit-bias z=99 --stop zzzz --stop zz
run -n 8 --mirostat 2 --mirostat-tau 2 --mirostat-eta 0.5
run -n 8 --typical 0.5 --dry-multiplier 1 --dry-base 2 --dry-allowed-length 1
printf 'root ::= ("a" | "bc")+ "."\n' >"$work/g.gbnf"
run -n 9 --grammar "$work/g.gbnf"
grep -qx '\(a\|bc\)*\(b\|\.\|\)' "$work/out" || fail "the grammar was not kept to"
expect_error 2 run -m "$model" --prompt a --logit-bias 3=nan
expect_error 1 run -m "$model" --prompt a --grammar "$work/none"
expect_error 1 run -m "$model" --prompt a --json-schema '{"type": 5}'
expect_error 1 run -m "$model" --prompt a --json-schema '{"format": "phone"}' --strict-schema
says err "at #: format 'phone' is not known here"
expect_error 1 run -m "$model" --prompt a --json-schema '{"oneOf": [{}, {"type": "null"}]}'
says err "at #: oneOf: branches 0 and 1 may hold together"
expect_error 2 run -m "$model" --prompt a --strict-schema
says err "goes with --json-schema"

expect_error 1 run --prompt a
says err "no model is named and there is none in $work/models"
expect_error 2 run
says err "there is no prompt: the input is empty"
expect_error 2 run -m "$model"
says err "there is no prompt: the input is empty"
expect_error 2 run -m "$model" --prompt a --file "$work/prompt"
says err "give one prompt"
expect_error 2 run -m "$model" --prompt a abc
says err "give one prompt"
mkdir "$work/empty"
expect_error 1 run -m "$work/empty" abc
says err "the folder '$work/empty' holds no model"
expect_error 1 run -m "$work/letters.txt" abc
says err "is a text file; a model is a GGUF file or a folder"
printf '\x89PNG\r\n\x1a\n\0\0' >"$work/picture"
expect_error 1 run -m "$work/picture" abc
says err "is a PNG picture; a model is"
expect_error 1 run -m nowhere abc
says err "there is no model 'nowhere': no such file, and no model of that name in $work/models"

# The habits people bring: words of the line, a pipe, short flags, names without .gguf.
same() { cmp -s "$work/out" "$work/greedy" || fail "another text for $*"; }
mkdir -p "$work/models/deep"
cp "$SRC_DIR/models/kermes-tiny.gguf" "$work/models/deep/Tiny-One.gguf"
cp "$work/models/deep/Tiny-One.gguf" "$work/no-name"
expect 0 run "$model" abc -n 8 --temp 0 --quiet
same "words"
expect 0 run -m "$model" -p abc --max-tokens 8 --temp=0 -t 1 -s 3 --quiet
same "short flags"
echo abc | "$KERMES" run -m "$model" -n 8 --temp 0 --quiet >"$work/out" || fail "a pipe failed"
same "a pipe"
"$KERMES" run -m "$model" --file - -n 8 --temp 0 --quiet <"$work/prompt" >"$work/out" ||
    fail "--file - failed"
same "--file -"
expect 0 run -m "$work/models/deep/Tiny-One" a -n 1 --quiet # .gguf is added
expect 0 run -m "$work/no-name" a -n 1 --quiet              # known by its first bytes
expect 0 run -m tiny a -n 1 --quiet
expect 0 run tiny-one a b -n 1 --json --quiet
json_says 'prompt=a b'
cp "$work/no-name" "$work/models/tiny-two.gguf"
expect_error 1 run -m tiny a -n 1
says err "'tiny' could be"
rm -r "$work/models"

# A loop is ended, and said; never with --json.
expect 0 run -m "$model" --prompt abc --logit-bias z=99 -n 2000 --shift
says err "the text repeats itself and was ended"
[ "$(wc -c <"$work/out")" -lt 500 ] || fail "a loop went on"
expect 0 run -m "$model" --prompt abc --logit-bias z=99 -n 600 --shift --json
json_says tokens=600
expect 0 run -m "$model" --prompt abc --logit-bias z=99 -n 600 --shift --allow-loops --quiet
[ "$(wc -c <"$work/out")" -eq 601 ] || fail "--allow-loops did nothing"
expect_error 2 run -m "$model" --prompt a --template chatml
says err "--template needs --chat"
expect_error 2 run -x
expect_error 1 run -m "$work/no.gguf" --prompt a
expect_error 1 run -m "$model" --prompt abcabc --context 4
says err "the prompt has 6 tokens and the model's context 4"
# More context than the model has is said, and is in the figures.
expect 0 run -m "$model" --prompt abc -n 2 --temperature 0 --context 4000 --json
json_says context=12 context_asked=4000
says err "--context 4000 is beyond the model's context of 12 tokens, which is used"
expect 0 run -m "$model" --prompt abc -n 2 --temperature 0 --context 8 --json
json_says context=8 context_asked=8
[ ! -s "$work/err" ] || fail "a context that fits was remarked on"
expect_error 2 run -m "$model" --prompt abc --no-reread
says err "--no-reread needs --session"
# A session that is gone on with says what reading everything at once says, answers among it.
tiny=$SRC_DIR/models/kermes-tiny.gguf
first=$(head -c 300 "$SRC_DIR/README.md" | tr -d '\n')
expect 0 run -m "$tiny" --device cpu --prompt "$first" -n 30 --temperature 0 --past-end --quiet \
    --session "$work/talk"
more="$first$(cat "$work/out"), and then"
expect 0 run -m "$tiny" --device cpu --prompt "$more" -n 40 --temperature 0 --past-end --quiet
cp "$work/out" "$work/at_once"
cp "$work/talk" "$work/talk2"
expect 0 run -m "$tiny" --device cpu --prompt "$more" -n 40 --temperature 0 --past-end --quiet \
    --session "$work/talk"
cmp -s "$work/out" "$work/at_once" || fail "--session changed the text"
expect 0 run -m "$tiny" --device cpu --prompt "$more" -n 4 --temperature 0 --session "$work/talk2" \
    --no-reread --json
json_says reused:number
expect_error 1 run -m "$model" --file "$work/none"

printf 'abc abc, the cat.' >"$work/text"
expect 0 perplexity -m "$model" --file "$work/text" --context 8 --json
json_says perplexity loss tokens=14 context=8
expect 0 perplexity -m "$model" --file "$work/text"
says out "over 15 tokens"
says out "in pieces of 12"
expect_error 2 perplexity -m "$model"
says err "--file FILE is missing"
printf a >"$work/text"
expect_error 1 perplexity -m "$model" --file "$work/text"
says err "nothing to predict"

# Where layers go: two devices in one run give the text of one; a plan that cannot be is refused.
tiny=$SRC_DIR/models/kermes-tiny.gguf
expect 0 run -m "$tiny" --device cpu --prompt abc -n 8 --temperature 0 --quiet
cp "$work/out" "$work/whole"
expect 0 run -m "$tiny" --devices cpu,cpu --prompt abc -n 8 --temperature 0
cmp -s "$work/out" "$work/whole" || fail "two parts say something else than the whole"
says err "memory on cpu: "
says err " layers, weights "
export KERMES_GPU_MEMORY=1
expect 0 run -m "$tiny" --device ref --prompt abc -n 1 --temperature 0 --json
json_says device=cpu
expect_error 1 run -m "$tiny" --device ref --gpu-layers 1 --prompt abc --quiet
says err "not enough memory: "
export KERMES_GPU_MEMORY=100G
expect 0 run -m "$tiny" --device ref --gpu-layers 1 --prompt abc -n 1 --temperature 0
says err ": fits in 107 GB"
unset KERMES_GPU_MEMORY
expect 0 run -m "$tiny" --activations 8 --prompt abc -n 1 --temperature 0
expect_error 2 run -m "$tiny" --activations 12 --prompt abc
says err "--activations takes 8 or 16, not 12"
expect_error 2 run -m "$tiny" --gpu-layers many --prompt abc
says err "--gpu-layers takes a number or auto"
expect_error 2 run -m "$tiny" --devices cpu,,cpu --prompt abc
expect_error 1 run -m "$model" --devices cpu,cpu --prompt abc --quiet
says err "only a GGUF file can be split"

# Guesses change nothing but the time; a device that fails in the middle leaves the text as it is.
expect 0 run -m "$tiny" --device cpu --prompt abc -n 40 --temperature 0 --quiet
cp "$work/out" "$work/whole"
for draft in lookup "$tiny"; do
    expect 0 run -m "$tiny" --device cpu --prompt abc -n 40 --temperature 0 --quiet --draft "$draft"
    cmp -s "$work/out" "$work/whole" || fail "--draft $draft changed the text"
done
expect 0 run -m "$tiny" --device cpu --prompt abc -n 40 --seed 5 --past-end --quiet
cp "$work/out" "$work/drawn"
expect 0 run -m "$tiny" --device cpu --prompt abc -n 40 --seed 5 --past-end --draft "$tiny"
cmp -s "$work/out" "$work/drawn" || fail "--draft changed the text that was drawn"
says err "guesses were right (100%)"
expect 0 run -m "$tiny" --device cpu --prompt abc -n 40 --temperature 0 --draft "$tiny" --json
json_says guessed:number accepted:number
expect_error 1 run -m "$tiny" --device cpu --prompt abc --quiet --draft "$model"
says err "has other tokens than the model"
export KERMES_FAULT_STEP=4
expect 0 run -m "$tiny" --devices cpu,cpu --prompt abc -n 40 --temperature 0
cmp -s "$work/out" "$work/whole" || fail "a fault in the middle changed the text"
says err "a fault was asked for; going on with the CPU"
expect_error 1 run -m "$tiny" --device cpu --prompt abc -n 40 --temperature 0 --json --quiet
unset KERMES_FAULT_STEP
