#!/bin/bash
# The commands on vectors, from raw numbers to answers and back, as a user would type them.
. "$(dirname "$0")/lib.bash"
cd "$work" || exit 1
raw=(--dim 16 --dtype u8)
n=3000
compared=() # vectors made for the purpose
if [ -n "${ASAN_OPTIONS:-}" ]; then # all of it takes long under a sanitizer
    n=400
    compared=(base.raw "${raw[@]}" --anchors 20)
fi
noise $((16 * n)) >base.raw
head -c 3200 base.raw >few.raw       # 200 of them

# From vectors to an index
expect 0 compress base.raw "${raw[@]}" -o v.kmx --bytes 16 --json --quiet
json_says kermes:string vectors=$n dim=16 code_bytes:number bytes:number bytes_per_vector:number \
    ratio:number energy:number mse:number recall@10:number anchors:number seconds:number
expect 0 compress base.raw "${raw[@]}" -o dense.kmx --bytes 12 --mode dense --metric cosine
says out "dense.kmx: $n vectors of 16 dimensions"
says out 'times smaller'
expect 0 compress base.raw "${raw[@]}" -o small.kmx --mode anchors-only --anchors 20 --quiet
[ ! -s out ] || fail "--quiet printed"
expect 0 compress base.raw "${raw[@]}" -o by-recall.kmx --recall 0.8 --metric ip --rerank int8
expect 0 compress few.raw "${raw[@]}" -o kept.kmx --bytes 4 --rerank f16 --anchors 4
expect 0 compress few.raw "${raw[@]}" -o tuned.kmx --anchors 20 --robust mean --cooling exponential:0.5 \
    --temperature 0.25 --momentum 0.2 --maintain-every 2 --merge 1 --split 3 --tolerance 0 --rounds 9 \
    --verbose --json
json_says training:array training.0.temperature=0.25 training.1.temperature=0.125 training.0.merged:number
says err 'reassigned'
merged=$(sed -n 's/.*"anchors": \([0-9]*\),.*/\1/p' out | head -1)
[ "$merged" -lt 20 ] || fail "--merge 1 left all of 20 anchors"

# Finding: queries from a file, the line and stdin; every form of output
expect 0 search v.kmx --queries few.raw "${raw[@]}" -k 3
[ "$(wc -l <out)" -eq 600 ] || fail "not three answers for each query"
same=$(awk '$2 == 1 && $1 == $3' out | wc -l)
[ "$same" -ge 190 ] || fail "only $same of 200 vectors found themselves"
expect 0 search v.kmx --query '1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16' -k 2 --json
json_says k=2 metric=l2 queries.0.ids:array queries.0.distances:array
echo '[1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16]' | "$KERMES" search v.kmx --queries - -k 1 >out 2>err ||
    fail "queries over stdin"
[ "$(wc -l <out)" -eq 1 ] || fail "not one answer"
expect 0 decompress v.kmx -o back.npy --ids 0-99 --ids-out ids.npy --json
json_says vectors=100 dim=16
expect 0 info back.npy --json
json_says kind=vectors rows.vectors=100 rows.dim=16 rows.dtype=f32
"$KERMES" search v.kmx --queries - -k 1 <back.npy >out 2>err || fail ".npy over stdin"
[ "$(wc -l <out)" -eq 100 ] || fail "not 100 answers"
expect 0 search v.kmx --queries back.npy -k 5 --format npy -o found.npy
expect 0 info found.npy --json
json_says rows.vectors=100 rows.dim=5 rows.dtype=i64
[ -s found-distances.npy ] || fail "no distances"
expect 0 search v.kmx --queries back.npy -k 5 --format ivecs -o found.ivecs
[ "$(stat -c %s found.ivecs)" -eq 2400 ] || fail "ivecs of a wrong size"
expect 0 search v.kmx --queries few.raw "${raw[@]}" -k 4 --allow 5,7-8 --probe 1000
[ "$(awk '$3 != 5 && $3 != 7 && $3 != 8' out | wc -l)" -eq 0 ] || fail "--allow let others through"
expect 0 search kept.kmx --queries few.raw "${raw[@]}" -k 1 --exact-rerank
[ "$(awk '$1 == $3 && $4 == 0' out | wc -l)" -eq 200 ] || fail "re-ranking is not exact"
expect 0 search v.kmx --queries few.raw "${raw[@]}" -k 1 --exact-rerank --base base.raw
[ "$(awk '$1 == $3 && $4 == 0' out | wc -l)" -eq 200 ] || fail "re-ranking by --base is not exact"

# Measuring and describing
expect 0 recall v.kmx --base base.raw --queries few.raw "${raw[@]}" -k 10 --json
json_says recall@1:number recall@10:number recall@100:number bytes_per_vector:number \
    code_bytes:number mse:number qps:number latency_p50:number latency_p99:number
expect 0 recall v.kmx --base base.raw --queries few.raw "${raw[@]}" --probe 2
says out 'queries/s'
# The page: curves of both kinds of codes and of what others reached on data of this name.
mkdir page
echo '{"quality": [{"data": "few", "engine": "<other>", "code_bytes": 8, "bytes_per_vector": 9, "recall@10": 0.5},
    {"data": "few", "engine": "<other>", "code_bytes": 4, "recall@10": 0.4}, {"data": 3}, 7,
    {"data": "elsewhere", "engine": "unseen", "code_bytes": 8, "recall@10": 0.9}]}' >others.json
expect 0 recall kept.kmx --base few.raw --queries few.raw "${raw[@]}" --html page/recall.html --beside others.json
page=page/recall.html
for text in 'Kermes vector index' '<svg' 'fast' 'dense' 'lt;other&gt;' 'codes of 4 bytes'; do
    grep -qF "$text" $page || fail "the page of an index has no $text"
done
! grep -q 'unseen' $page || fail "the page tells of other data"
[ "$(tail -n 1 $page)" = "</html>" ] || fail "the page was cut short"
[ "$(ls page)" = recall.html ] || fail "something else was left beside the page"
echo '{"quality": [' >cut.json
expect 1 recall kept.kmx --base few.raw --queries few.raw "${raw[@]}" --html $page --beside cut.json
says err 'cut.json'
expect 1 recall kept.kmx --base few.raw --queries few.raw "${raw[@]}" --html none/recall.html
says err 'none/recall.html'
expect 0 info v.kmx --verify
says out 'blocks are as they were written'
expect 0 info kept.kmx --json
json_says kind=index index.vectors=200 index.rerank=f16 index.metric=l2 index.sections.0.name:string
expect 0 compare --small --device cpu --json --robust trimmed --momentum 0.3 --temperature 0.8 \
    --cooling exponential:0.7 --maintain-every 3 --tolerance 0.001
json_says vectors=1000 dim=64 cpu.anchors:number training:array training.0.reassigned:number
says out '"temperature": 0.56,'
expect_error 2 compare --small --large
says err "--small and --large exclude each other"
hostile() { # hostile COMMAND...: knobs of training that make no sense, one clear line each
    expect_error 2 "$@" --robust median
    says err "--robust is huber, trimmed or mean, not 'median'"
    for bad in exponential exponential: exponential:1 exponential:0 exponential:0.5x \
        exponential:nan fast; do
        expect_error 2 "$@" --cooling "$bad"
        says err "--cooling is linear or exponential:R"
    done
    for bad in '--momentum 1' '--momentum x' '--temperature 2' '--temperature 0' '--tolerance -1' \
        '--tolerance nan' '--maintain-every -2' '--maintain-every x' '--merge 0' '--merge 2' \
        '--merge inf' '--split 0.9' '--split nan' '--split' '--rounds 0'; do
        # shellcheck disable=SC2086
        expect_error 2 "$@" $bad
        says err "${bad% *}"
    done
}
hostile compare
hostile compress base.raw "${raw[@]}" -o x.kmx
[ ! -e x.kmx ] || fail "an index was made all the same"
expect 0 compare --small --device cpu --verbose --html rounds.html --merge 0.5 --split 2
says err '    1          0.5'
says err 'converged after'
says out 'converged after'
for text in 'Energy by round' 'Temperature by round' '<svg'; do
    grep -qF "$text" rounds.html || fail "the page has no $text"
done
expect_error 1 compare --small --device cpu --html none/rounds.html
expect 0 compare "${compared[@]}" --device cpu --json --rounds 2
json_says cpu.seconds:number cpu.energy:number cpu.rounds:number gpu_missing:string

# Changing
expect 0 delete v.kmx --ids 3,10-19 --json
json_says deleted=11 vectors=$((n - 11))
expect_error 1 delete v.kmx --ids 3
says err 'no vector with id 3'
expect 0 delete v.kmx --ids 3,20 --missing-ok --compact
expect 0 search v.kmx --queries few.raw "${raw[@]}" -k 1
[ "$(awk '$3 == 3 || ($3 >= 10 && $3 <= 20)' out | wc -l)" -eq 0 ] || fail "deleted vectors found"
expect 0 add v.kmx few.raw "${raw[@]}" --json
json_says added=200 vectors=$((n + 188)) next_id=$((n + 200))
seq 100000 100199 >ids.txt
expect 0 add v.kmx few.raw "${raw[@]}" --ids ids.txt -o more.kmx --json
json_says vectors=$((n + 388)) next_id=100200
expect_error 1 add more.kmx few.raw "${raw[@]}" --ids ids.txt
says err 'already'
expect 0 compress few.raw "${raw[@]}" -o other.kmx --bytes 8 --ids ids.txt --quiet
expect 0 merge v.kmx other.kmx -o both.kmx --json
json_says vectors=$((n + 388))
expect_error 1 merge v.kmx v.kmx -o twice.kmx
says err "merge: 'v.kmx': there is a vector with id 0 already"
expect 0 merge v.kmx v.kmx -o twice.kmx --shift-ids --json
json_says vectors=$((2 * (n + 188))) next_id=$((2 * (n + 200)))
expect 0 search twice.kmx --queries few.raw "${raw[@]}" -k 4
[ "$(awk -v id=$((n + 200)) '$1 == 0 && ($3 == 0 || $3 == id)' out | wc -l)" -eq 2 ] ||
    fail "a vector and its moved twin are not found together"
expect 0 decompress both.kmx -o all.npy --dtype f16
[ "$(stat -c %s all.npy)" -eq $((128 + (n + 388) * 32)) ] || fail "all.npy has a wrong size"
expect 0 decompress both.kmx --anchors anchors.npy --assignments of.npy --json
json_says out:null vectors=$((n + 388)) dim=16 anchors:number
[ "$(stat -c %s of.npy)" -eq $((128 + (n + 388) * 4)) ] || fail "of.npy has a wrong size"
expect 0 decompress small.kmx --anchors anchors.npy --assignments of.npy -o back.npy --ids 0-9
says out 'anchors.npy: 20 anchors of 16 dimensions'
says out 'of.npy: anchors of 10 vectors'
row=$(od -An -t d4 -j 128 -N 4 of.npy | tr -d ' ')
cmp -s <(tail -c +$((129 + row * 64)) anchors.npy | head -c 64) <(tail -c +129 back.npy | head -c 64) ||
    fail "a vector without a code is not the anchor it is assigned to"
expect_error 1 decompress small.kmx --assignments none/of.npy
expect_error 1 decompress small.kmx --assignments of.npy --ids 999999
says err 'no vector with id 999999'

# The line
expect_error 2 compress base.raw
expect_error 2 compress -o x.kmx
expect_error 2 compress base.raw "${raw[@]}" -o x.kmx --mode quick
says err 'fast, dense, anchors-only'
expect_error 2 compress base.raw "${raw[@]}" -o x.kmx --metric l1
expect_error 2 compress base.raw "${raw[@]}" -o x.kmx --anchors many
expect_error 2 search v.kmx
expect_error 2 search v.kmx --queries few.raw --format npy
expect_error 2 search v.kmx --queries few.raw --format xml
expect_error 2 recall v.kmx --base base.raw
expect_error 2 delete v.kmx
expect_error 2 merge v.kmx
expect_error 2 decompress v.kmx
for command in compress search add delete merge decompress recall compare; do
    expect 0 $command --help
    says out 'Examples:'
done
