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

grep -q ', quartiles ' "$page" || fail "the page does not tell the spread of rounds"
json_says results.1.seconds_q1:number results.1.seconds_median:number results.1.seconds_q3:number \
    results.1.seconds_max:number
for op in add sub mul pow log sigmoid; do
    grep -q "\"op\": \"$op\"" "$work/out" || fail "$op is not measured"
done

# Other suites are the same code over other ops: with sanitizers these two do.
tiny=$SRC_DIR/models/kermes-tiny.gguf
if [ -n "${ASAN_OPTIONS:-}" ]; then
    expect 0 bench --memory --pool $small --json
    expect 0 bench decode prompt batch -m "$tiny" --context 8 --prompt 12 --batch 3 $small --json --device cpu
    expect_error 2 bench matmull
    exit 0
fi

# Rows of a length of choice; of large products plain C does the first rows, and says so.
expect 0 bench rows --sizes 10000 --columns 3000 $small --json
json_says results.0.op=softmax results.0.shape=3x3000 results.0.size=9000
expect 0 bench rows --sizes 2K --columns 4096 $small
says out "1x2048"
says out quartiles
expect_error 2 bench matmul --columns 64
says err "goes with the suites rows and reduce"
expect_error 2 bench rows --columns 0
expect 0 bench matmul --sizes 1100 $small --json --device cpu
json_says results.0.engine=naive results.0.part="the first 221 rows" results.1.engine=openblas

for suite in rows reduce; do
    expect 0 bench $suite --sizes 2K $small --json
    json_says results.0.suite=$suite
done
expect 0 bench attention --sizes 32 $small --json
json_says results.0.op=forward
expect 0 bench matmul --sizes 32 $small --json --device ref
json_says device=ref results.4.engine=ref

# Memory of a step, op by op, and the pool; by option and by suite.
expect 0 bench --memory --pool $small --json --html "$page"
json_says limits.fma_gflops:null memory.device=cpu memory.layers=2 memory.peak_bytes:number \
    memory.peak_index:number memory.peak_op:string memory.before_bytes:number \
    memory.at_peak.0.op:string memory.at_peak.0.bytes:number memory.at_peak.0.buffers:number \
    memory.timeline.0.op=before memory.timeline.0.index=0 memory.timeline.1.op:string \
    memory.timeline.1.bytes:number memory.timeline.1.live:number \
    memory.timeline.1.gradient_of:null pool.devices.0.device=cpu \
    pool.devices.0.sizes.0.bytes=256 pool.devices.0.sizes.0.pool_ns:number \
    pool.devices.0.sizes.0.system_ns:number pool.devices.0.sizes.0.ratio:number \
    pool.devices.0.steady.system_allocations=0 pool.devices.0.steady.heap_allocations=0
grep -q 'class="stack' "$page" || fail "the page does not show the memory of a step"
expect 0 bench memory $small --device ref
says out "Memory of a training step"
says out "at most, in op"

# Over threads; the page draws a curve where there is more than one count. Sanitizers would
# take minutes over its sizes.
if [ -z "${ASAN_OPTIONS:-}${TSAN_OPTIONS:-}" ]; then
    expect 0 bench scaling --quick --quiet --threads 1 --json --html "$page"
    json_says scaling.figures.0.threads=1 scaling.figures.0.fma_gflops:number \
        scaling.figures.0.ops.0.op="matmul f32 1024" scaling.figures.0.ops.0.times=1.0 \
        scaling.figures.0.ops.0.rate:number scaling.figures.0.ops.0.of_limit:number \
        scaling.figures.0.ops.1.limit:null limits.fma_gflops:null
    grep -q 'Scaling over threads' "$page" || fail "the page does not tell the scaling"
fi

# A report from a results file; from one that is damaged or something else an error.
expect 0 bench --from "$SRC_DIR/bench/results/nvidia-h200.json"
says out "targets met"
says out "matmul f32 1024"
echo '{"gpu": 7, "kermes": [{"name": "<x>", "us": "y"}, 3, {}], "checks": [{"result": []}],
       "torch": {}, "targets": [], "bench": {"memory": {"ops": 1e300, "timeline": [1]},
       "pool": {"devices": [{"sizes": 3}, null]}}}' >"$work/odd.json"
expect 0 bench --from "$work/odd.json"
expect 0 bench --from "$work/odd.json" --html "$page"
grep -q 'lt;x&gt;' "$page" || fail "a name from the file is missing or not escaped"
[ "$(tail -n 1 "$page")" = "</html>" ] || fail "the page was cut short"
echo '{"kermes": [' >"$work/cut.json"
expect_error 1 bench --from "$work/cut.json"
expect_error 1 bench --from "$SRC_DIR/bench/results/intel-xeon-processor.json"
says err "not a results file of scripts/gpu-check"
expect_error 1 bench --from "$work/nothing.json"
expect_error 2 bench --from "$work/odd.json" --json

# A page that cannot be written is known before anything is measured.
expect_error 1 bench matmul --sizes 64 $small --html "$work/nowhere/bench.html"
says err "nowhere"
expect_error 2 bench matmull
says err "did you mean 'matmul'?"
expect_error 2 bench --sizes 64
expect_error 2 bench matmul rows --sizes 64
expect_error 2 bench step --sizes 64
expect_error 2 bench --pool --sizes 64
expect_error 2 bench matmul --sizes 0
expect_error 2 bench --repeat 0
expect_error 2 bench --threads 99999
expect_error 1 bench matmul --sizes 64 $small --device cuda:99

# Running models: random weights in a known shape, and a file; what does not go together.
expect 0 bench decode prompt batch -m "$tiny" --context 8 --prompt 12 --batch 3 $small --json --device cpu
json_says device=cpu model:string weights_bytes:number limits.read_gbs:number memory.0.layers:number memory.0.streamed_layers=0 \
    results.0.job=decode results.0.tokens_per_s:number results.0.bytes_per_token:number \
    results.0.of_limit:number results.0.ops.0.op:string results.0.ops.0.us:number \
    results.1.job=prompt results.1.tokens=12 results.1.tflops:number \
    results.2.job=batch results.2.sequences=3
expect 0 bench decode -m "$tiny" --context 8 --quick --json --device cpu # rounds not said: limits are measured all the same
! grep -q '"read_gbs": 0.0' "$work/out" || fail "no limit was measured"
expect 0 bench batch -m "$tiny" --context 8 --batch 4,1,2 $small --json --device cpu --html "$work/curve.html"
json_says results.0.sequences=1 results.1.sequences=2 results.2.sequences=4 results.2.tokens_per_s:number
grep -q 'Tokens a second' "$work/curve.html" || fail "the page has no curve"
expect 0 bench batch -m "$tiny" --context 8 --batch 1,2 $small --device cpu
says out "batches after 8 tokens, all sequences together"
expect_error 2 bench batch -m "$tiny" --batch 0
expect 0 bench decode -m "$tiny" --context 8 --devices cpu,cpu $small
says out "cpu 2 + cpu 2: weights"
says out "of the memory's speed"
expect_error 2 bench decode
expect_error 2 bench decode -m "$tiny" --shape smollm2-135m
expect_error 2 bench decode matmul -m "$tiny"
expect_error 2 bench matmul -m "$tiny"
expect_error 1 bench decode --shape smollm $small
says err "no shape 'smollm'"
expect_error 1 bench decode --shape smollm2-135m --context 9000 $small
says err "the model's context is 8192"
