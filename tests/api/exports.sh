#!/bin/sh
# The shared library exports what kermes.h declares, all of it and nothing else, under a versioned
# soname, and asks for no library at load time that a machine may lack.
set -u
lib=${KERMES_LIB:-$(dirname "${KERMES:-.}")/libkermes.so}
header=${SRC_DIR:-.}/include/kermes.h
command -v nm >/dev/null 2>&1 || { echo "skipped: no nm"; exit 77; }
[ -e "$lib" ] || { echo "skipped: no $lib"; exit 77; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
failed=0

# Every declaration begins with KM_API, and its name is the first word before a parenthesis; those of
# structs by value are in a list, X(struct, call).
{
    sed -n 's/^KM_API .*[ *]\(km_[a-z0-9_]*\)(.*/\1/p' "$header"
    sed -n 's/^    X(km_[a-z0-9_]*, \(km_[a-z0-9_]*\)[,)].*/\1_sized/p' "$header"
} | sort >"$tmp/declared"
nm -D --defined-only "$lib" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' |
    grep -v -E '^(_init|_fini|__asan_|__ubsan_|__tsan_|__odr_asan|_bss_|_edata|_end|__bss_start)' |
    sort >"$tmp/exported"

if [ "$(wc -l <"$tmp/declared")" -lt 100 ]; then
    echo "only $(wc -l <"$tmp/declared") declarations found in $header"
    failed=1
fi
if ! comm -13 "$tmp/declared" "$tmp/exported" >"$tmp/extra" || [ -s "$tmp/extra" ]; then
    echo "exported, but not declared in kermes.h:"
    cat "$tmp/extra"
    failed=1
fi
comm -23 "$tmp/declared" "$tmp/exported" >"$tmp/missing"
if [ -s "$tmp/missing" ]; then
    echo "declared in kermes.h, but not exported:"
    cat "$tmp/missing"
    failed=1
fi
if [ "$(uniq -d "$tmp/declared")" ]; then
    echo "declared twice: $(uniq -d "$tmp/declared")"
    failed=1
fi

# Each under the version that cmake/kermes.map gives it.
if nm -D --defined-only "$lib" | awk '$3 ~ /^km_/ && $3 !~ /@@KERMES_[0-9]+$/ { print $3; bad = 1 } END { exit !bad }'; then
    echo "exported without a version"
    failed=1
fi

if command -v readelf >/dev/null 2>&1; then
    major=$(sed -n 's/^#define KM_VERSION_MAJOR //p' "$header")
    readelf -d "$lib" >"$tmp/dynamic"
    grep -q "SONAME.*\[libkermes\.so\.$major\]" "$tmp/dynamic" || {
        echo "the soname is not libkermes.so.$major:"
        grep SONAME "$tmp/dynamic"
        failed=1
    }
    if grep -E 'NEEDED.*(libcuda|libcublas|libnvidia|libnccl|openblas|libmpi)' "$tmp/dynamic"; then
        echo "a library that is to be opened at run time is needed at load time"
        failed=1
    fi
fi
exit $failed
