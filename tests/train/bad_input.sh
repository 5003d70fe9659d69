#!/bin/bash
# What kermes train is given and cannot use: one clear line each, and nothing is written over.
. "$(dirname "$0")/../cli/lib.bash"

small=(--layers 1 --heads 2 --dim 16 --context 16 --batch 2 --steps 4 --device cpu --threads 2)
cd "$work" || exit 1
expect 0 train --demo --out good "${small[@]}" --json
[ "$(wc -l <out)" -eq 1 ] || fail "--json printed more than a line"
json_says step=4 train_loss:number val_loss:number tokens_per_s:number seconds:number end=done

# The text
: >empty.txt
printf 'tiny' >tiny.txt
printf 'all is well\nuntil here: \xff and on' >broken.txt
mkdir folder
expect_error 1 train --data empty.txt --out x "${small[@]}"
says err "'empty.txt' is empty"
expect_error 1 train --data tiny.txt --out x "${small[@]}"
says err "--context 16 takes at least 17"
expect_error 1 train --data good/demo.txt --out x "${small[@]}" --context 4000000
says err "a shorter context"
expect_error 1 train --data broken.txt --out x "${small[@]}"
says err "broken.txt' is not UTF-8: byte 24, in line 2, is 0xFF"
expect 0 train --data broken.txt --out bytes "${small[@]}" --tokenizer bytes --quiet --val 0
expect_error 1 train --data nowhere.txt --out x "${small[@]}"
says err "cannot open 'nowhere.txt'"
expect_error 1 train --data folder --out x "${small[@]}"
says err "holds no text"
expect_error 1 train --data good/demo.txt --tokenizer nowhere.json --out x "${small[@]}"
says err "nowhere.json"
[ ! -e x/run.json ] || fail "a run that could not begin left its mark"

# The line
expect_error 2 train
says err "--out DIR"
expect_error 2 train --out x
says err "--data FILE"
expect_error 2 train --data good/demo.txt --out x --dim 100 --heads 3
says err "heads"
expect_error 2 train --data good/demo.txt --out x --steps 0
expect_error 2 train --data good/demo.txt --out x --lr fast
expect_error 2 train --data good/demo.txt --out x --layer 3
says err "did you mean --layers?"
expect_error 2 train --data good/demo.txt --out x --dtype f64
expect_error 2 train --data good/demo.txt --out x --model gpt-2
expect_error 2 train --data good/demo.txt --out x --tokenizer bpe:12
expect_error 2 train --data good/demo.txt --out x --lora-rank 4
expect_error 1 train --data good/demo.txt --out x --init folder --device cpu
expect 0 train --data good/demo.txt --out tuned --init good --steps 2 --device cpu --quiet
expect_error 1 train --data good/demo.txt --out x --config nowhere.json
printf '{"steps": "many"}' >bad.json
expect_error 1 train --data good/demo.txt --out x --config bad.json
says err '"steps" must be a whole number'
printf '{"layers": 1, "heads": 2, "dim": 16, "context": 16, "batch": 2, "steps": 3}' >good.json
expect 0 train --data good/demo.txt --out from --config good.json --device cpu --json
json_says step=3

# Folders that are taken
sum=$(find good -type f -exec md5sum {} + | sort)
expect_error 1 train --demo --out good "${small[@]}"
says err "holds a run already"
expect_error 1 train --out good --resume
says err "a larger --steps goes on"
expect_error 1 train --out good --resume --steps 9 --dim 32
says err "--resume cannot change --dim"
expect_error 1 train --out nowhere --resume
says err "no run to resume"
mkdir -p other/model && expect_error 1 train --data good/demo.txt --out other "${small[@]}"
says err "holds something else already (model)"

# Checkpoints that are damaged, foreign, or do not fit
cp -r good bad && printf x | dd of=bad/step-4/model.safetensors bs=1 seek=2000 conv=notrunc 2>err
expect_error 1 train --out bad --resume --steps 9
says err "the checksum of model.safetensors is wrong"
rm -r bad && cp -r good bad && echo '{}' >bad/step-4/state.json
expect_error 1 train --out bad --resume --steps 9
says err "no checkpoint"
rm -r bad && cp -r good bad && echo '{"dim": 3' >bad/run.json
expect_error 1 train --out bad --resume --steps 9
cp -r good/model init && sed -i 's/"n_embd": 16/"n_embd": 32/' init/config.json
expect_error 1 train --data good/demo.txt --out x --init init --steps 2 --device cpu
cp good/model/config.json init/ && head -c 300 good/model/model.safetensors >init/model.safetensors
expect_error 1 train --data good/demo.txt --out x --init init --steps 2 --device cpu
says err "init"
[ "$sum" = "$(find good -type f -exec md5sum {} + | sort)" ] || fail "a good run was changed"

# A mad learning rate
expect_error 1 train --data good/demo.txt --out mad "${small[@]}" --steps 200 --lr 1e5 \
    --optimizer sgd --grad-clip 0 --warmup 0 --quiet
says err "--lr 100000 is too high"

# No space: files may not grow beyond 16 KiB, and the signal for it is ignored
expect_error 1 train --demo --out full "${small[@]}" --device cuda:99
(
    trap '' XFSZ
    ulimit -f 16
    expect_error 1 train --data good/demo.txt --cache good/cache --out tight "${small[@]}" --quiet
    says err "cannot write"
    says err "File too large"
) || exit 1
[ ! -d tight/model ] || fail "a model that did not fit is there"
