#!/bin/bash
# kermes run and kermes chat on two ranks over MPI, which share one model: the text of one rank, said
# once; and ranks that cannot share it, that fail or that die, all of which ends with one line.
. "$(dirname "$0")/lib.bash"

command -v mpirun >/dev/null || exit 77
[ -e "$(dirname "$KERMES")/kermes-mpi.so" ] || exit 77
[ -z "${TSAN_OPTIONS:-}" ] || exit 77 # MPI's own threads are not instrumented
model=$SRC_DIR/models/kermes-tiny.gguf

# MPI keeps memory to the end; leaks of ours are looked for in tests of one rank. The model is small,
# so a rank has one thread.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none
mpi=(timeout 120 mpirun --bind-to none)

# ranks N CODE ARGUMENTS...: kermes on N ranks with the input that stands in $work/in
: >"$work/in"
ranks() {
    local n=$1 wanted=$2 code=0
    shift 2
    "${mpi[@]}" -n "$n" "$KERMES" "$@" >"$work/out" 2>"$work/err" <"$work/in" || code=$?
    [ "$code" -eq "$wanted" ] || fail "$n ranks: kermes $*: exit code $code, not $wanted"
}
# One line of Kermes's own; what mpirun adds is its business.
one_line() {
    [ "$(grep -c '^kermes: ' "$work/err")" -eq 1 ] || fail "not one line of error"
    says err "$1"
}
ranks 2 0 devices || exit 77 # an mpirun that cannot start anything here

share=(-m "$model" --split tensor --device cpu --threads 1 --quiet)
whole=(-m "$model" --device cpu --threads 1 --quiet)
same() { # same ARGUMENTS...: two ranks print what one does
    expect 0 run "${whole[@]}" "$@"
    cp "$work/out" "$work/one"
    ranks 2 0 run "${share[@]}" "$@"
    cmp -s "$work/out" "$work/one" || fail "two ranks answer otherwise"
    ! grep -q '^kermes: ' "$work/err" || fail "--quiet printed to stderr"
}
same --chat --prompt 'Name three colours.' --seed 3 --draft lookup --cache-type q8_0

printf 'Who are you?\nWhat is 3 + 4?\n' >"$work/in"
ranks 2 0 chat "${share[@]}" --temperature 0
says out "Kermes trained"
says out "3 plus 4 is 7."
: >"$work/in"

ranks 2 0 run "${share[@]}" --prompt 'What is' -n 4 --json
json_says tokens=4 device='cpu, 2 ranks'
[ "$(grep -c '"text"' "$work/out")" -eq 1 ] || fail "more than one rank printed"

# One rank has all of it, and says so.
expect 0 run -m "$model" --split tensor --device cpu --prompt 'What is' -n 4
says err "there is one rank, which gets all of the model"

# ---- What cannot be ----

ranks 3 1 run "${share[@]}" --prompt a
one_line "3 ranks cannot share 2 key/value heads; 2 is the most for this model"
[ ! -s "$work/out" ] || fail "printed to stdout"
ranks 2 1 run "${share[@]}" -m "$work/nothing.gguf" --prompt a # before they know of each other
one_line "nothing.gguf"
mkdir "$work/0" "$work/1"
cp "$model" "$work/0/m.gguf"
expect 0 convert "$model" "$work/1/m.gguf" --type f16 --quiet
! "${mpi[@]}" -n 2 sh -c 'cd "$1/$OMPI_COMM_WORLD_RANK" && shift && exec "$@"' sh "$work" "$KERMES" run \
    "${share[@]}" -m m.gguf --prompt a >"$work/out" 2>"$work/err" </dev/null || fail "two models as one"
one_line "rank 1 has another m.gguf than rank 0"
ranks 2 1 run "${share[@]}" --prompt a --device cuda:77
one_line "kermes: "
expect_error 2 run -m "$model" --prompt a --split rows
expect_error 2 run -m "$model" --prompt a --split tensor --devices cpu,ref
expect_error 2 run -m "$model" --prompt a --split tensor --gpu-layers 2
expect_error 2 run -m "$model" --prompt a --comm mpi

# ---- A rank that fails, or dies ----

# as_ranks SCRIPT: two ranks of a shell that sets something up for one of them
as_ranks() {
    "${mpi[@]}" -n 2 sh -c "$1; exec \"\$@\"" sh "$KERMES" "${@:2}" >"$work/out" 2>"$work/err" \
        <"$work/in"
}
! as_ranks '[ "$OMPI_COMM_WORLD_RANK" = 0 ] || export KERMES_FAULT_STEP=5' \
    run "${share[@]}" --prompt 'What is' -n 30 || fail "a rank that failed was not missed"
one_line "rank 1: cpu: a fault was asked for"

mkfifo "$work/fifo"
sleep 60 >"$work/fifo" & # nobody types anything
typist=$!
"${mpi[@]}" -n 2 sh -c "echo \$\$ >'$work/pid.'\$OMPI_COMM_WORLD_RANK; exec \"\$@\"" sh "$KERMES" \
    chat "${share[@]}" >"$work/out" 2>"$work/err" <"$work/fifo" &
job=$!
for _ in $(seq 100); do
    [ -s "$work/pid.1" ] && break
    sleep 0.1
done
sleep 1
kill -9 "$(cat "$work/pid.1")" || fail "there is no second rank"
! wait "$job" || fail "a dead rank was not missed"
kill "$typist"
