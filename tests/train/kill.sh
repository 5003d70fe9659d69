#!/bin/bash
# kermes train, killed with -9 at random moments again and again: it always resumes, and ends with
# the same weights and losses, bit by bit, as a run that was left alone.
. "$(dirname "$0")/../cli/lib.bash"

settings=(--demo --layers 1 --heads 2 --dim 16 --context 16 --batch 4 --steps 40 --warmup 5
    --dropout 0.1 --eval-every 8 --eval-batches 4 --save-every 3 --log-every 5 --threads 2
    --device cpu --quiet)

now() { date +%s%N; }

start=$(now)
expect 0 train "${settings[@]}" --out "$work/whole"
span=$((($(now) - start) / 1000000)) # milliseconds of a run in one go

RANDOM=${KERMES_KILL_SEED:-7}
kills=0 done=no
for round in $(seq 60); do
    [ -e "$work/parts/run.json" ] && how=(--resume) || how=("${settings[@]}")
    "$KERMES" train --out "$work/parts" "${how[@]}" --quiet >"$work/out" 2>"$work/err" &
    pid=$!
    sleep "$(printf '0.%03d' $((RANDOM % (span * 9 / 10 + 1) % 1000)))"
    if { [ "$round" -le 12 ] || [ "$kills" -eq 0 ]; } && kill -9 "$pid" 2>/dev/null; then kills=$((kills + 1)); fi
    code=0
    wait "$pid" 2>/dev/null || code=$?
    # Over before the first kill: such a run shows nothing, so another one begins.
    if [ "$code" -eq 0 ] && [ "$kills" -eq 0 ] && [ "$round" -le 40 ]; then
        rm -rf "$work/parts"
        continue
    fi
    case $code in
        0) done=yes && break ;;
        137) ;;
        # Killed in the moment between the last file and the end: there was nothing left to do.
        1) grep -q "ended after 40 steps" "$work/err" || fail "round $round: exit code $code"
            done=yes && break ;;
        *) fail "round $round: exit code $code" ;;
    esac
done
[ "$done" = yes ] || fail "it never came to its end"
[ "$kills" -gt 0 ] || fail "no run was killed: this test tested nothing"

for file in model/model.safetensors best/model.safetensors step-40/optimizer.safetensors; do
    cmp -s "$work/whole/$file" "$work/parts/$file" || fail "$file differs after $kills kills"
done
losses() { sed -E 's/,"(tokens_per_s|mfu|seconds)":[^,}]*//g' "$1"; }
diff <(losses "$work/whole/log.jsonl") <(losses "$work/parts/log.jsonl") >"$work/out" ||
    fail "the logs differ after $kills kills"
left=$(find "$work/parts" -name '.kermes-*' | wc -l)
[ "$left" -eq 0 ] || fail "temporary files were left behind"
