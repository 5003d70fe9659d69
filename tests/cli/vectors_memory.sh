#!/bin/bash
# The budget of compress is what the kernel counts as the process's own memory, and is kept; one that is
# too small is refused with the smallest that works. KERMES_LONG_MEMORY=1: also files of 615 MB and 2 GB.
. "$(dirname "$0")/lib.bash"
cd "$work" || exit 1

# peak FILE DIM BUDGET DTYPE: compresses within so many MiB, looking at RssAnon all the time
peak() {
    local most=0 now pid
    "$KERMES" compress "$1" --dim "$2" --dtype "$4" -o out.kmx --memory "$3M" --quiet >out 2>err </dev/null &
    pid=$!
    while now=$(awk '/^RssAnon/ {print $2}' "/proc/$pid/status" 2>/dev/null) && [ -n "$now" ]; do
        [ "$now" -le "$most" ] || most=$now
        sleep 0.01
    done
    wait "$pid" || fail "compress within $3 MiB failed"
    echo "$1 of $(stat -c %s "$1") bytes: $((most / 1024)) of $3 MiB"
    [ "$most" -gt 0 ] || fail "RssAnon could not be read"
    [ "$most" -le "$(($3 * 1024))" ] || fail "a budget of $3 MiB, $((most / 1024)) MiB in memory"
}

if grep -aq __asan_init "$KERMES" || grep -aq __tsan_init "$KERMES"; then
    echo "skipped: a sanitizer takes memory of its own"
    exit 0
fi
head -c 12M /dev/urandom >base.raw
peak base.raw 128 28 u8
head -c 24M /dev/urandom >base.raw
peak base.raw 768 56 u8
expect_error 1 compress base.raw --dim 128 --dtype u8 -o out.kmx --memory 20M
says err 'vectors of 128 dimensions take at least 26 MiB'
expect_error 1 compress base.raw --dim 128 --dtype u8 -o out.kmx --memory 64M --anchors 60000
says err 'and as many anchors take at least'
if [ -n "${KERMES_LONG_MEMORY:-}" ]; then
    # Bytes that are those of an f32 between 0.04 and 8, or of its opposite, wherever they stand.
    f32='[\075*32][\076*32][\077*32][\100*32][\275*32][\276*32][\277*32][\300*32]'
    head -c 615M /dev/urandom | tr '\000-\377' "$f32" >base.raw
    peak base.raw 768 64 f32
    head -c 2G /dev/urandom | tr '\000-\377' "$f32" >base.raw
    peak base.raw 512 256 f32
fi
