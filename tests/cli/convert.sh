#!/bin/bash
# kermes convert: there and back, targets that stay as they were, and lines that are wrong.
. "$(dirname "$0")/lib.bash"
models=$SRC_DIR/tests/fixtures/models

for model in gpt2 llama; do
    expect 0 convert "$models/$model" "$work/$model.gguf"
    says out "$work/$model.gguf: $model with"
    expect 0 convert "$work/$model.gguf" "$work/$model/" --json
    json_says kermes:string from=gguf to=folder "architecture=$model" tensors:number \
        parameters:number bytes:number tokens=0 "out=$work/$model"
    expect 0 info "$work/$model" --json
    json_says kind=folder "model.architecture=$model"
    # What came from a folder and went back into one has the same bytes.
    expect 0 convert "$models/$model" "$work/$model-copy"
    cmp -s "$work/$model/model.safetensors" "$work/$model-copy/model.safetensors" ||
        fail "$model: the way through GGUF changed something"
done

# Types.
expect 0 convert "$models/llama" "$work/f16.gguf" --type f16
expect 0 info "$work/f16.gguf" --json
json_says types.F16.tensors=16 types.F32.tensors=5
expect 0 convert "$models/llama" "$work/bf16" --type bf16
expect 0 info "$work/bf16" --json
json_says types.BF16.tensors=21
expect_error 2 convert "$models/llama" "$work/x.gguf" --type f17
says err "did you mean 'f16'"

# Types of a few bits, and the target behind -o.
expect 0 convert "$models/llama" -o "$work/q8.gguf" --type Q8_0 --json
json_says type=q8_0 to=gguf
expect 0 convert "$work/q8.gguf" "$work/again.gguf" --type q4_k_m --threads 2
expect 0 convert "$work/q8.gguf" "$work/kept.gguf"
cmp -s "$work/q8.gguf" "$work/kept.gguf" || fail "a copy without --type changed something"
expect 0 convert "$work/q8.gguf" "$work/q8-folder" --type f32
expect_error 2 convert "$models/llama" "$work/folder" --type q8_0
says err 'a target whose name ends in .gguf'
expect_error 2 convert "$models/llama" "$work/x.gguf" --type f16 --imatrix "$work/none"
says err '--imatrix needs'
expect_error 1 convert "$models/llama" "$work/x.gguf" --type q8_0 --imatrix "$work/none"
expect_error 2 convert "$models/llama" -o "$work/x.gguf" "$work/y.gguf"

# A target that is there stays, unless --force is given; then it is replaced as a whole.
before=$(cksum <"$work/f16.gguf")
expect_error 1 convert "$models/gpt2" "$work/f16.gguf"
says err '--force'
[ "$(cksum <"$work/f16.gguf")" = "$before" ] || fail "a target was changed without --force"
expect 0 convert "$models/gpt2" "$work/f16.gguf" --force
touch "$work/bf16/of-before"
expect_error 1 convert "$models/gpt2" "$work/bf16"
expect 0 convert "$models/gpt2" "$work/bf16" --force
[ ! -e "$work/bf16/of-before" ] || fail "a replaced folder kept a file"
expect_error 1 convert "$models/gpt2" "$work/bf16/config.json" --force
says err 'is a file, and the result would be a folder'
mkdir "$work/folder.gguf"
expect_error 1 convert "$models/gpt2" "$work/folder.gguf" --force
expect_error 1 convert "$work/bf16" "$work/bf16/" --force
says err 'into itself'

# A disk that is full: nothing changes, and nothing is left behind.
before=$(cd "$work" && find . | sort | cksum)
for out in "$work/f16.gguf" "$work/bf16" "$work/new.gguf" "$work/new"; do
    (
        ulimit -f 8
        trap '' XFSZ
        expect_error 1 convert "$models/gpt2" "$out" --force --type f32
        says err 'cannot write'
    ) || exit 1
done
[ "$(cd "$work" && find . | sort | cksum)" = "$before" ] || fail "a failed conversion left files"
expect 0 info "$work/f16.gguf"
expect 0 info "$work/bf16"

# The line itself, and what is no model.
expect_error 2 convert
expect_error 2 convert "$models/gpt2"
expect_error 2 convert "$models/gpt2" "$work/y.gguf" --tokenizer a --no-tokenizer
expect 0 convert --help
says out 'Examples:'
expect_error 1 convert "$work/none" "$work/y.gguf"
expect_error 1 convert "$models/gpt2/model.safetensors" "$work/y.gguf"
says err 'give its folder'
expect_error 1 convert "$models/gpt2" "$work/no/such/y.gguf"
expect_error 1 convert "$SRC_DIR/tests/fixtures/formats/every.gguf" "$work/y"
[ ! -e "$work/y" ] && [ ! -e "$work/y.gguf" ] || fail "a refused conversion left a target"
