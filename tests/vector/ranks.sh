#!/bin/bash
# kermes compress on two ranks over MPI: a manifest of two indexes with the same anchors, which is
# searched as one, merged into one, and finds what an index of one rank finds.
. "$(dirname "$0")/../cli/lib.bash"

command -v mpirun >/dev/null || exit 77
[ -e "$(dirname "$KERMES")/kermes-mpi.so" ] || exit 77
[ -z "${TSAN_OPTIONS:-}" ] || exit 77 # MPI's own threads are not instrumented

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
cd "$work" || exit 1
raw=(--dim 16 --dtype u8)
noise 48000 >base.raw
head -c 3200 base.raw >few.raw
settings=(base.raw "${raw[@]}" --bytes 12 --anchors 16 --device cpu --threads 1)

expect 0 compress "${settings[@]}" -o one.kmx --json
one=$(sed -n 's/.*"energy": \([0-9.]*\).*/\1/p' out)
one_recall=$(sed -n 's/.*"recall@10": \([0-9.]*\).*/\1/p' out)
ranks 2 compress "${settings[@]}" -o two.kmx --json || fail "two ranks failed"
json_says vectors=3000 parts=2 anchors=16
two=$(sed -n 's/.*"energy": \([0-9.]*\).*/\1/p' out)
awk -v a="$one" -v b="$two" 'BEGIN { exit !(a / b < 1.02 && b / a < 1.02) }' ||
    fail "energies differ: $one and $two"
[ -s two-0.kmx ] && [ -s two-1.kmx ] || fail "an index is missing"

# The same queries against all parts: the recall of one index, to what other sums in learning change.
two_recall=$(sed -n 's/.*"recall@10": \([0-9.]*\).*/\1/p' out)
json_says recall_queries=1000
awk -v a="$one_recall" -v b="$two_recall" \
    'BEGIN { exit !(a > 0.3 && b > 0.3 && a - b < 0.03 && b - a < 0.03) }' ||
    fail "recall is told as $one_recall by one rank and $two_recall by two"
expect 0 info two.kmx
says out 'recall@10 0.'
told=$(sed -n 's/.*recall@10 \([0-9.]*\).*/\1/p' out)
awk -v a="$told" -v b="$two_recall" 'BEGIN { exit !(a - b < 0.001 && b - a < 0.001) }' ||
    fail "info tells a recall of $told, compress told $two_recall"
ranks 3 compress base.raw "${raw[@]}" --recall 0.9 --anchors 16 --device cpu --threads 1 \
    -o asked.kmx --json || fail "three ranks with --recall failed"
reached=$(sed -n 's/.*"recall@10": \([0-9.]*\).*/\1/p' out)
awk -v r="$reached" 'BEGIN { exit !(r >= 0.89) }' || fail "asked for 0.9, told '$reached'"

expect 0 info two.kmx --verify --json
json_says kind=index index.vectors=3000 index.parts=2
expect 0 search two.kmx --queries few.raw "${raw[@]}" -k 1
same=$(awk '$1 == $3' out | wc -l)
[ "$same" -ge 190 ] || fail "only $same of 200 vectors found themselves"
cp out manifest.txt
expect 0 merge two.kmx -o merged.kmx --quiet
expect 0 search merged.kmx --queries few.raw "${raw[@]}" -k 1
diff out manifest.txt >/dev/null || fail "the merged index finds others than its parts"
expect_error 1 delete two.kmx --ids 1
says err 'manifest'

# A part that is another one, or missing, is noticed; so is an error that one rank finds.
cp one.kmx two-1.kmx
expect_error 1 search two.kmx --queries few.raw "${raw[@]}"
says err 'is not the part'
rm two-1.kmx
expect_error 1 search two.kmx --queries few.raw "${raw[@]}"
head -c 160 /dev/zero >nan.raw
printf '\0\0\300\177' | dd of=nan.raw bs=1 seek=84 conv=notrunc 2>err
! ranks 2 compress nan.raw --dim 4 -o bad.kmx || fail "a NaN was accepted"
[ "$(grep -c '^kermes: ' err)" -eq 1 ] || fail "not one line of error"
says err 'vector 5'
[ ! -e bad.kmx ] || fail "a manifest was left"
