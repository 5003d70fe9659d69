#!/bin/bash
# kermes bench: small runs of each suite, JSON, the HTML page, and what it refuses. Speed itself
# is not a test.
. "$(dirname "$0")/lib.bash"

small="--quick --repeat 1 --quiet --threads 2"

expect 0 bench matmul --sizes 48,64 $small
says out "GFLOP/s"
says out "Limits measured here"

page=$work/page/bench.html
mkdir "$work/page"
echo old >"$page"
expect 0 bench elementwise --sizes 1K,3000 $small --json --html "$page"
json_says kermes:string device:string threads=2 quick=true machine.cores:number \
    limits.fma_gflops:number limits.copy_gbs:number limits.read_gbs:number \
    results.0.suite=elementwise results.0.op=add results.0.engine=naive results.0.size=1024 \
    results.0.rate:number results.0.rate_median:number results.0.rounds=1 \
    results.1.engine=cpu results.1.speedup:number results.1.of_limit:number \
    targets.0.name:string targets.0.met:null targets.0.why:string \
    peak_memory_bytes:number exp_max_ulp:number
head -c 15 "$page" | grep -q '<!DOCTYPE html>' || fail "the page does not start as one"
[ "$(tail -n 1 "$page")" = "</html>" ] || fail "the page was cut short"
grep -q '<svg' "$page" || fail "the page has no chart"
[ "$(ls -A "$work/page")" = bench.html ] || fail "something else was left beside the page"

for suite in rows reduce; do
    expect 0 bench $suite --sizes 2K $small --json
    json_says results.0.suite=$suite
done
expect 0 bench attention --sizes 32 $small --json
json_says results.0.op=forward
expect 0 bench matmul --sizes 32 $small --json --device ref
json_says device=ref results.4.engine=ref

# A page that cannot be written is known before anything is measured.
expect_error 1 bench matmul --sizes 64 $small --html "$work/nowhere/bench.html"
says err "nowhere"
expect_error 2 bench matmull
says err "did you mean 'matmul'?"
expect_error 2 bench --sizes 64
expect_error 2 bench matmul rows --sizes 64
expect_error 2 bench step --sizes 64
expect_error 2 bench matmul --sizes 0
expect_error 2 bench --repeat 0
expect_error 2 bench --threads 99999
expect_error 1 bench matmul --sizes 64 $small --device cuda:99
