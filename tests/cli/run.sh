#!/bin/bash
# kermes run and kermes perplexity: one answer, one number, and one clear line for what does not fit.
. "$(dirname "$0")/lib.bash"

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

expect_error 2 run
says err "--model PATH is missing"
expect_error 2 run -m "$model"
says err "give one of --prompt TEXT and --file FILE"
expect_error 2 run -m "$model" --prompt a --template chatml
says err "--template needs --chat"
expect_error 2 run -x
expect_error 1 run -m "$work/no.gguf" --prompt a
expect_error 1 run -m "$model" --prompt abcabc --context 4
says err "the prompt has 6 tokens and the model's context 4"
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
