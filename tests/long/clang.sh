#!/bin/sh
# All sources compile with clang, without a warning: the library, the command, tests and benchmarks.
set -u
cd "$SRC_DIR" || exit 1
build=$(dirname "${KERMES:-build/release/kermes}")
command -v clang >/dev/null 2>&1 || { echo "skipped: no clang"; exit 77; }
[ -f "$build/compile_commands.json" ] || { echo "skipped: no compile_commands.json in $build"; exit 77; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

# Each C source once, with the flags it is built with, but by clang and for its warnings alone.
sed -n 's/^ *"command": "\(.*\)",*$/\1/p' "$build/compile_commands.json" | sed 's/\\"/"/g' |
    sed -E 's/ -Winvalid-pch//; s/ -include [^ ]*cmake_pch\.h(xx)?//' | # which are gcc's own
    sed -nE 's/ -o [^ ]+//; s/^([^ ]*ccache )?[^ ]+ (.*) -c ([^ ]+\.c)$/\3 \2/p' |
    sort -u -k1,1 >"$tmp/sources"
count=$(wc -l <"$tmp/sources")
[ "$count" -ge 400 ] || { echo "only $count sources in $build/compile_commands.json"; exit 1; }
while read -r source flags; do
    echo "cd '$build' && clang $flags -Werror -fsyntax-only '$source'"
done <"$tmp/sources" >"$tmp/commands"
xargs -d '\n' -n 1 -P "$(nproc 2>/dev/null || echo 2)" sh -c <"$tmp/commands" >"$tmp/log" 2>&1
if grep -qE '(error|warning):' "$tmp/log"; then
    grep -E '(error|warning):' "$tmp/log" | sort -u | head -40
    exit 1
fi
