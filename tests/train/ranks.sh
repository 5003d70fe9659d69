#!/bin/bash
# kermes train on two ranks over MPI: the losses of one rank with the same batch in all, validation
# too; resuming on ranks; and errors that one rank finds.
. "$(dirname "$0")/../cli/lib.bash"

command -v mpirun >/dev/null || exit 77
[ -e "$(dirname "$KERMES")/kermes-mpi.so" ] || exit 77
[ -z "${TSAN_OPTIONS:-}" ] || exit 77 # MPI's own threads are not instrumented

settings=(--data "$work/text.txt" --layers 2 --heads 2 --dim 16 --context 16 --steps 12
    --warmup 3 --lr 1e-2 --eval-every 4 --eval-batches 6 --save-every 6 --log-every 3
    --device cpu --threads 1)
expect 0 train --demo --out "$work/made" --steps 1 --layers 1 --heads 1 --dim 8 --context 8 --quiet
head -c 20000 "$work/made/demo.txt" >"$work/text.txt"

# MPI keeps memory to itself until the end, which a leak checker need not hear of.
# ranks N ARGUMENTS...: kermes on N ranks, as root where the tests run as root. MPI keeps memory to
# the end; leaks of ours are looked for in tests of one rank.
ranks() {
    local n=$1
    shift
    ASAN_OPTIONS=detect_leaks=0 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_ALLOW_RUN_AS_ROOT=1 \
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none \
        timeout 240 mpirun -n "$n" --bind-to none "$KERMES" "$@" \
        >"$work/out" 2>"$work/err" </dev/null
}
ranks 2 devices >/dev/null || exit 77 # an mpirun that cannot start anything here

expect 0 train "${settings[@]}" --batch 4 --out "$work/one" --quiet
ranks 2 train "${settings[@]}" --batch 2 --out "$work/two" --json || fail "two ranks failed"
[ "$(wc -l <"$work/out")" -eq 1 ] || fail "more than one rank printed"
json_says step=12 val_loss:number

# Losses to five digits, line by line: sums over ranks round differently.
losses() {
    sed -nE 's/.*"step":([0-9]+),"(train|val)_loss":([0-9.]+).*/\1 \2 \3/p' "$1/log.jsonl" |
        awk '{printf "%s %s %.4f\n", $1, $2, $3}'
}
diff <(losses "$work/one") <(losses "$work/two") >"$work/out" || fail "the losses differ"
[ "$(losses "$work/two" | wc -l)" -eq 7 ] || fail "lines are missing in the log"

# Resuming on two ranks; the batch of a rank belongs to the run.
ranks 2 train "${settings[@]}" --batch 2 --out "$work/part" --steps 6 --quiet ||
    fail "two ranks failed"
expect_error 1 train --out "$work/part" --resume --steps 12 --batch 4
says err "--batch"
ranks 2 train --out "$work/part" --resume --steps 12 --quiet || fail "resuming on two ranks failed"

# What one rank finds wrong ends all of them, with one line.
! ranks 2 train "${settings[@]}" --batch 2 --out "$work/two" || fail "a taken folder was accepted"
[ "$(grep -c '^kermes: ' "$work/err")" -eq 1 ] || fail "not one line of error"
says err "holds a run already"
