#!/usr/bin/env bash
# 10,000 random schedules of sequences against one sequence at a time (infer/schedules tries few).
program=$(dirname "$KERMES")/tests/test_infer_schedules
[ -x "$program" ] || { echo "no $program: skipped"; exit 77; }
KERMES_SCHEDULES=${KERMES_SCHEDULES:-10000} exec "$program"
