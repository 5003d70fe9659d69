#!/bin/sh
# clang-tidy finds no bug (.clang-tidy lists what it looks for) in the sources that differ from the
# last commit but one; tests/long/tidy.sh asks about all of them. TIDY_BASE: differ from what.
set -u
cd "$SRC_DIR" || exit 1
build=$(dirname "${KERMES:-build/test/kermes}")
most=8 # files; a large change is left to the long test
command -v clang-tidy >/dev/null 2>&1 || { echo "skipped: no clang-tidy"; exit 77; }
[ -f "$build/compile_commands.json" ] || { echo "skipped: no compile_commands.json in $build"; exit 77; }

if [ "${TIDY_ALL:-}" ]; then
    files=$(find src -name '*.c')
    most=100000
else
    base=${TIDY_BASE:-HEAD~1}
    git rev-parse -q --verify "$base" >/dev/null 2>&1 ||
        { echo "skipped: clang-tidy, since git knows no $base to compare with"; exit 77; }
    files=$({ git diff --name-only --diff-filter=d "$base" -- src
        git ls-files --others --exclude-standard -- src; } | grep '\.c$' | sort -u)
fi
# What is compiled several times or not at all on this machine is not asked about.
files=$(for file in $files; do
    grep -q "/$file\"" "$build/compile_commands.json" && echo "$file"
done | grep -v '/cpu/simd/' | head -n "$most")
[ -n "$files" ] || exit 0

log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
echo "$files" | xargs -n 4 -P "$(nproc 2>/dev/null || echo 2)" clang-tidy -p "$build" --quiet >"$log" 2>&1
found=$(grep -E '(error|warning):' "$log" | sort -u)
[ -z "$found" ] && exit 0
echo "$found"
exit 1
