#!/bin/bash
# kermes info: every kind it knows, as text and as JSON, and one line for what it does not know.
. "$(dirname "$0")/lib.bash"
fixtures=$SRC_DIR/tests/fixtures

expect 0 info "$fixtures/models/gpt2"
for words in 'a model in a folder' 'gpt2, 2 layers, 4 heads' 'parameters in 28 tensors' 'F32'; do
    says out "$words"
done
expect 0 info "$fixtures/models/gpt2" --json --quiet
json_says kermes:string kind=folder tensors:number parameters:number bytes:number files=1 \
    types.F32.tensors=28 model.architecture=gpt2 model.layers=2 model.cache_bytes:number \
    metadata.format=pt
[ ! -s "$work/err" ] || fail "--quiet printed to stderr"

expect 0 info "$fixtures/models/llama.gguf"
for words in 'GGUF version 3' 'llama, 2 layers' 'llama.rope.freq_base = 10000'; do
    says out "$words"
done
expect 0 info "$fixtures/models/llama.gguf" --json --tensors --context 100
json_says kind=gguf version=3 model.architecture=llama model.kv_heads=2 model.cache_context=100 \
    tensor_list.20.name:string tensor_list.0.shape:array tensor_list.0.bytes:number \
    model.cache_type=f16 model.memory_bytes:number
expect 0 info "$fixtures/models/llama.gguf" --context 100 --cache-type q8_0
says out '100 tokens in q8_0'
expect_error 2 info "$fixtures/models/llama.gguf" --cache-type q8
says err 'unknown cache type'

expect 0 info "$fixtures/formats/every.gguf" --tensors
says out 'of.IQ4_XS'
says out 't.strings = ["","a","bcd"]'
says out 'Kermes cannot run it'
expect 0 info "$fixtures/formats/every.safetensors" --tensors
says out 'F8_E4M3'
says out '1 x 2 x 3 x 2 x 1'
expect 0 info "$fixtures/formats/model.safetensors.index.json"
says out 'safetensors in 2 files'
expect 0 info "$fixtures/formats/every.safetensors" --json
json_says kind=safetensors types.F8_E4M3.tensors=1 metadata.text:string
expect 0 info "$fixtures/models/gpt2/config.json" --json
json_says kind=config model.architecture=gpt2
expect 0 info "$fixtures/token/gpt2.json" --json
json_says kind=tokenizer tokenizer.kind=bpe tokenizer.tokens:number

# A folder whose model Kermes cannot run is described all the same, with the reason.
mkdir "$work/mamba"
echo '{"model_type": "mamba"}' >"$work/mamba/config.json"
cp "$fixtures/models/gpt2/model.safetensors" "$work/mamba"
expect 0 info "$work/mamba"
says out "Kermes cannot run it: '$work/mamba/config.json': models of type 'mamba'"

# The line itself.
expect_error 2 info
expect_error 2 info a b
expect_error 2 info --tensor "$fixtures/models/gpt2"
says err '--tensors'
expect 0 info --help
says out 'Examples:'

# What is no file of a known kind, or damaged.
expect_error 1 info "$work/none"
says err 'No such file'
: >"$work/empty"
expect_error 1 info "$work/empty"
says err 'is empty; Kermes knows safetensors, GGUF'
noise 3000 | tr '{G' 'xx' >"$work/noise"
expect_error 1 info "$work/noise"
says err 'no file that Kermes knows'
echo '{"a": 1}' >"$work/other.json"
expect_error 1 info "$work/other.json"
says err 'is JSON, but'
echo '{"a": ' >"$work/half.json"
expect_error 1 info "$work/half.json"
says err 'not valid JSON'
mkdir "$work/bare"
expect_error 1 info "$work/bare"
says err 'holds no config.json'
echo '[1]' >"$work/bare/config.json"
expect 0 info "$work/bare"
says out 'Kermes cannot run it'
for file in models/llama.gguf formats/every.safetensors; do
    for size in 3 30 300 1000; do
        head -c $size "$fixtures/$file" >"$work/cut.${file##*.}"
        expect_error 1 info "$work/cut.${file##*.}"
    done
done
