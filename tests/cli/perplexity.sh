#!/bin/bash
# kermes perplexity: predictions saved and compared, importance matrices for kermes convert.
. "$(dirname "$0")/lib.bash"

model=$work/model
cp -r "$SRC_DIR/tests/fixtures/models/llama" "$model"
printf 'abcdefghijklmnopqrstuvwxyz .\n' >"$work/letters.txt"
expect 0 tokenize --train chars --out "$model/tokenizer.json" "$work/letters.txt"
printf 'the sea is calm. the wind is low. a boat goes by.\n' >"$work/text"
printf 'another text of other words, and longer than the first one was.' | tr -d , >"$work/other"

# Saved by one type and compared with another.
expect 0 perplexity -m "$model" --file "$work/text" --context 8 --save-logits "$work/saved"
expect 0 perplexity -m "$model" --file "$work/text" --context 8 --against "$work/saved" --json
json_says divergence.mean:number divergence.same_top:number divergence.p99:number
expect 0 convert "$model" "$work/bf16" --type bf16
expect 0 perplexity -m "$model" --file "$work/text" --context 4000 --json
json_says context=12 context_asked=4000
says err "--context 4000 is beyond the model's context of 12 tokens"
expect 0 perplexity -m "$work/bf16" --file "$work/text" --context 8 --against "$work/saved"
says out 'same likeliest token'

# Token by token, as text is written.
expect 0 perplexity -m "$model" --file "$work/text" --context 8 --against "$work/saved" --decode --json
json_says divergence.mean:number tokens:number
expect_error 2 perplexity -m "$model" --file "$work/text" --decode --imatrix-out "$work/im.gguf"

# A device that fails in the middle: all of it again with the CPU.
tiny=$SRC_DIR/models/kermes-tiny.gguf # layers on two devices are a file's
expect 0 perplexity -m "$tiny" --file "$work/text" --context 8 --decode --device cpu
cp "$work/out" "$work/whole"
export KERMES_FAULT_STEP=5
expect 0 perplexity -m "$tiny" --file "$work/text" --context 8 --decode --devices cpu,cpu
says err 'a fault was asked for; going on with the CPU'
cmp -s "$work/out" "$work/whole" || fail "another perplexity after a fault"
unset KERMES_FAULT_STEP

# What was saved of another text, or in other pieces, is no measure.
expect_error 1 perplexity -m "$model" --file "$work/other" --context 8 --against "$work/saved"
says err 'another text'
expect_error 1 perplexity -m "$model" --file "$work/text" --context 6 --against "$work/saved"
expect_error 1 perplexity -m "$model" --file "$work/text" --context 8 --pieces 2 --against "$work/saved"
expect_error 1 perplexity -m "$model" --file "$work/text" --context 8 --against "$work/text"
says err 'no saved predictions'

# An importance matrix, in both forms, and what convert makes of it.
for form in gguf dat; do
    expect 0 perplexity -m "$model" --file "$work/text" --context 8 --pieces 3 \
        --imatrix-out "$work/im.$form" --json
    json_says imatrix_layers:number
    expect 0 convert "$model" "$work/weighed-$form.gguf" --type q8_0 --no-tokenizer \
        --imatrix "$work/im.$form"
done
expect_error 1 perplexity -m "$model" --file "$work/text" --imatrix-out "$work/no/folder.gguf"
