#!/bin/bash
# Under the validation layers: nothing to complain about in a few ops, in two steps of training and in a
# model's answer, which is that of the CPU.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work
fail() {
    echo "FAIL: $*" >&2
    cat "$work/out" "$work/err" >&2
    exit 1
}
if ! "$KERMES" devices --device vulkan >"$work/out" 2>"$work/err"; then
    echo "skipped: $(cat "$work/err")"
    exit 77
fi
if ! ls /usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json >/dev/null 2>&1; then
    echo "skipped: no validation layers are installed"
    exit 77
fi
model=$SRC_DIR/models/kermes-tiny.gguf
run=(run -m "$model" --temperature 0 -n 8 --quiet "I") # long enough to be replayed
"$KERMES" "${run[@]}" --device cpu >"$work/cpu" 2>"$work/err" || fail "the CPU's answer"

export VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation
clean() {
    ! grep -qiE 'VUID|validation (error|warning)' "$work/out" "$work/err" || fail "the layers complain: $1"
}
for op in copy softmax sample nearest cell_sums scan_codes encode_levels; do
    "$KERMES" verify --device vulkan --quick --quiet --op $op >"$work/out" 2>"$work/err" || fail "$op"
    clean $op
done
"$KERMES" "${run[@]}" --device vulkan >"$work/out" 2>"$work/err" || fail "an answer"
clean "an answer"
# From here on as on the least of devices.
export KERMES_VULKAN_LIMITS=least
"$KERMES" devices --device vulkan >"$work/devices" 2>"$work/err" || fail "devices"
grep -q 'subgroups of [0-9]*, 16 KiB of shared memory' "$work/devices" || fail "limits are not clamped"
for op in encode_trellis embedding_grad; do
    "$KERMES" verify --device vulkan --quick --quiet --op $op >"$work/verified" 2>"$work/err" || fail "$op"
    ! grep -qiE 'VUID|validation (error|warning)' "$work/verified" "$work/err" || fail "the layers complain: $op"
done
"$KERMES" train --demo --out "$work/run" --layers 1 --heads 1 --dim 16 --context 16 --batch 2 --steps 2 --eval-batches 1 \
    --device vulkan --json >"$work/trained" 2>"$work/err" || fail "two steps of training"
! grep -qiE 'VUID|validation (error|warning)' "$work/trained" "$work/err" || fail "the layers complain: training"
cmp -s "$work/cpu" "$work/out" || fail "another answer than the CPU's: $(cat "$work/cpu")"
exit 0
