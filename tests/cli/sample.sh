#!/bin/bash
# kermes sample: text from a small model, the same from the same seed, as text and as JSON; and one
# clear line for everything that does not fit.
. "$(dirname "$0")/lib.bash"

# A model of 29 tokens with a tokenizer of 29 characters.
model=$work/model
mkdir "$model"
cp "$SRC_DIR"/tests/fixtures/models/gpt2/{config.json,model.safetensors} "$model"
printf 'abcdefghijklmnopqrstuvwxyz .,' >"$work/letters.txt"
expect 0 tokenize --train chars --out "$model/tokenizer.json" "$work/letters.txt"

sample() { # sample ARGUMENTS...: what is printed, without notes
    expect 0 sample --model "$model" --device cpu --quiet "$@"
    [ ! -s "$work/err" ] || fail "--quiet printed to stderr"
}

sample --prompt abc --tokens 40
[ "$(wc -c <"$work/out")" -eq 44 ] || fail "not the prompt, 40 characters and a newline"
head -c 3 "$work/out" | grep -qx abc || fail "the prompt is not printed first"
cp "$work/out" "$work/first"
sample --prompt abc --tokens 40
cmp -s "$work/out" "$work/first" || fail "the same seed gave another text"
sample --prompt abc --tokens 40 --seed 2
! cmp -s "$work/out" "$work/first" || fail "another seed gave the same text"
sample --prompt abc --tokens 40 --only-new
tail -c 41 "$work/first" | cmp -s - "$work/out" || fail "--only-new is not the text without the prompt"

# Without chance, whatever is left in by the other settings, and whatever the seed.
sample --prompt abc --tokens 20 --temperature 0
cp "$work/out" "$work/greedy"
for more in "--seed 7" "--top-k 5" "--top-p 0.5" "--min-p 0.1"; do
    sample --prompt abc --tokens 20 --temperature 0 $more
    cmp -s "$work/out" "$work/greedy" || fail "$more changed what greedy choice gives"
done
for one in "--top-k 1" "--top-p 0.000001" "--min-p 1"; do
    sample --prompt abc --tokens 20 $one
    cmp -s "$work/out" "$work/greedy" || fail "$one is not the greedy choice"
done

expect 0 sample --model "$model" --device cpu --prompt abc --tokens 5 --json --quiet
json_says text prompt tokens=5 prompt_tokens=3 ended seed=1 tokens_per_s device=cpu
sample --tokens 0 --prompt ab
[ "$(cat "$work/out")" = ab ] || fail "no tokens are not no text"
sample --tokens 3 --dtype bf16

# A training run's folder stands for its model.
mkdir "$work/run"
cp -r "$model" "$work/run/model"
expect 0 sample --model "$work/run" --device cpu --prompt abc --tokens 40
cmp -s "$work/out" "$work/first" || fail "the run's model gave another text"
says err "$work/run/model"

# The same model as a GGUF file, used where it lies.
expect 0 convert "$model" "$work/model.gguf" --no-tokenizer --quiet
model=$work/model.gguf sample --tokenizer "$model/tokenizer.json" --prompt abc --tokens 40
cmp -s "$work/out" "$work/first" || fail "the GGUF file gave another text"

KERMES_MODELS=$work/none expect_error 1 sample
says err "no model is named and there is none in $work/none"
expect_error 2 sample --model "$model" --top-p 0
expect_error 2 sample --model "$model" --dtype int4
expect_error 1 sample --model "$work/nothing"
says err "there is no model"
expect_error 1 sample --model "$model" --device cpu --prompt 'a prompt longer than the context'
says err "the prompt has 32 tokens and the model's context 12"
expect_error 1 sample --model "$model" --device cpu --prompt 'A'
expect_error 1 sample --model "$model" --device cpu --lora "$work/nothing"

# A config that does not fit the weights, and a file cut short.
sed 's/"n_positions": 12/"n_positions": 13/' "$SRC_DIR/tests/fixtures/models/gpt2/config.json" \
    >"$model/config.json"
expect_error 1 sample --model "$model" --device cpu
says err "the tensor 'transformer.wpe.weight' is [12, 16], but the config makes it [13, 16]"
cp "$SRC_DIR/tests/fixtures/models/gpt2/config.json" "$model/config.json"
head -c 20000 "$SRC_DIR/tests/fixtures/models/gpt2/model.safetensors" >"$model/model.safetensors"
expect_error 1 sample --model "$model" --device cpu
