#!/bin/bash
# kermes verify: one op, all output forms, and what it refuses. The whole table is checked
# elsewhere.
. "$(dirname "$0")/lib.bash"

expect 0 verify --device cpu --op add --quiet
says out "all passed"

expect 0 verify --device cpu --op softmax
says out "softmax"
says out "tolerance"
says out "pass"
says out "all passed"

expect 0 verify --device=cpu --op=relu --seed=7 --json
json_says device=cpu seed=7 failed=0 passed=true checks:number results.0.op=relu \
    results.0.dtype:string results.0.cases:number results.0.max_error:number \
    results.0.mean_error:number results.0.tolerance:number results.0.passed=true \
    results.0.fallback:boolean results.0.formula:string

expect 0 verify --device cpu --op matmul --quick --json
json_says quick=true passed=true results.0.op=matmul

expect_error 2 verify --op sofmax
says err "did you mean 'softmax'?"
expect_error 2 verify --seed x
expect_error 2 verify extra
expect_error 1 verify --device cuda:99 --op add
