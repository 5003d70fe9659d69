#!/bin/bash
# A GPU that is lost in the middle of a command: the command does its work again on the CPU, says so, and
# gives what the CPU alone gives. Training goes on from its last checkpoint. KERMES_FALLBACK=0 forbids it.
. "$(dirname "$0")/lib.bash"
cd "$work" || exit 1
export XDG_CACHE_HOME=$work
if ! "$KERMES" devices --device vulkan >out 2>err || ! grep -q 'vulkan:0' out; then
    echo "skipped: $(cat err)"
    exit 77
fi
raw=(--dim 16 --dtype u8)
noise 4800 >base.raw # 300 rows
head -c 320 base.raw >few.raw

# lost SUBMISSION ARGUMENTS...: that submission of work finds the device gone
lost() {
    local at=$1
    shift
    export KERMES_FAULT_VULKAN=QueueSubmit:$at
    expect 0 "$@" --device vulkan
    unset KERMES_FAULT_VULKAN
    says err 'the device was lost'
}

expect 0 compress base.raw "${raw[@]}" -o want.kmx --device cpu
lost 1 compress base.raw "${raw[@]}" -o got.kmx
says err 'all of it again with the CPU'
cmp -s want.kmx got.kmx || fail "another index"
export KERMES_FALLBACK=0 KERMES_FAULT_VULKAN=QueueSubmit:1
expect 1 compress base.raw "${raw[@]}" -o none.kmx --device vulkan --quiet
unset KERMES_FALLBACK KERMES_FAULT_VULKAN
[ ! -e none.kmx ] || fail "an index all the same"

expect 0 search want.kmx --queries few.raw "${raw[@]}" -k 3
cp out want
lost 0 search want.kmx --queries few.raw "${raw[@]}" -k 3
cmp -s want out || fail "other answers"

expect 0 recall want.kmx --base base.raw --queries few.raw "${raw[@]}" --device cpu --json
sed -n 's/.*\("recall@[0-9]*": [0-9.]*\).*/\1/p' out >want
lost 0 recall want.kmx --base base.raw --queries few.raw "${raw[@]}" --json
sed -n 's/.*\("recall@[0-9]*": [0-9.]*\).*/\1/p' out | cmp -s want - || fail "another recall"

expect 0 add want.kmx few.raw "${raw[@]}" -o more.kmx --device cpu
lost 0 add want.kmx few.raw "${raw[@]}" -o got.kmx
cmp -s more.kmx got.kmx || fail "another index after add"

head -c 6000 "$SRC_DIR/README.md" >text
run=(train --data text --layers 1 --heads 1 --dim 16 --context 16 --batch 2 --steps 12 --save-every 4
    --eval-every 0 --log-every 2)
expect 0 "${run[@]}" --out whole --device cpu --json
json_says step=12 train_loss:number
loss=$(sed -n 's/.*"train_loss": \([0-9.]*\).*/\1/p' out)
lost 30 "${run[@]}" --out moved
says err 'going on with the CPU, from its checkpoint step-'
says out 'going on after step'
says out 'done after 12 steps'
[ -s moved/model/model.safetensors ] || fail "no model"
awk -v a="$loss" '/^done/ { sub(",", "", $6); d = a - $6; exit !(d < 0.01 && d > -0.01) }' out || fail "not near $loss"
lost 2 "${run[@]}" --out begun
says err 'going on with the CPU, from the beginning'
says out 'done after 12 steps'
export KERMES_FALLBACK=0 KERMES_FAULT_VULKAN=QueueSubmit:30
expect_error 1 "${run[@]}" --out stopped --device vulkan --quiet
