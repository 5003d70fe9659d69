#!/bin/sh
# Commands are written on the public header: a file of src/cli, but for bench/ and verify.c, which look
# inside to measure and to check, includes kermes.h, other files of cli, and what knows no engine (base,
# report), and asks for no other symbol of ours. `serve` may ask for the server's room.
set -u
cd "$SRC_DIR" || exit 1
build=$(dirname "${KERMES:-build/test/kermes}")
failed=0

report() {
    [ -n "$2" ] || return 0
    echo "$1"
    echo "$2" | sed 's/^/    /'
    failed=1
}

# Names of files of ours that a command's source, or a header that it reads, includes and may not.
includes() {
    awk '
    match($0, /^ *# *include "[a-z_]+\//) {
        to = substr($0, RSTART, RLENGTH - 1)
        sub(/.*"/, "", to)
        file = substr(FILENAME, index(FILENAME, "src/"))
        if (to ~ /^(base|report|cli)$/) next
        if (to == "serve" && file == "src/cli/serve.c") next
        print FILENAME ":" FNR ": includes " to
    }
    /^ *# *include "cli\/bench\// { print FILENAME ":" FNR ": includes a benchmark" }' "$@"
}

# $1: the names that kermes.h declares; stdin: nm -A of all objects of ours.
asked() {
    awk -v header="$1" '
    BEGIN { while ((getline name <header) > 0) public[name] = 1 }
    {
        file = $1
        sub(/:.*/, "", file)
        sub(/.*\.dir\/src\//, "", file)
        sub(/\.o$/, "", file)
        from = file
        sub(/\/.*/, "", from)
        if ($(NF - 1) ~ /^[TDRBVWC]$/) home[$NF] = from
        else if ($(NF - 1) == "U" && from == "cli") use[++uses] = file " " $NF
    }
    END {
        for (i = 1; i <= uses; i++) {
            split(use[i], word, " ")
            to = word[2] in home ? home[word[2]] : ""
            if (to == "" || to ~ /^(base|report|cli)$/ || word[2] in public) continue
            if (word[1] ~ /^cli\/bench\// || word[1] == "cli/verify.c") continue
            if (to == "serve" && word[1] == "cli/serve.c") continue
            print "src/" word[1] ": " word[2] " is of " to ", and not in kermes.h"
        }
    }'
}

sample=$(mktemp -d) || exit 1
trap 'rm -rf "$sample"' EXIT
{
    sed -n 's/^KM_API .*[ *]\(km_[a-z0-9_]*\)(.*/\1/p' include/kermes.h
    sed -n 's/^    X(km_[a-z0-9_]*, \(km_[a-z0-9_]*\)[,)].*/\1_sized/p' include/kermes.h
} | sort -u >"$sample/public"
[ "$(wc -l <"$sample/public")" -ge 200 ] || {
    echo "only $(wc -l <"$sample/public") functions found in kermes.h"
    failed=1
}

# The checks must see what they are for.
mkdir -p "$sample/src/cli"
printf '#include "base/text.h"\n#include "vector/index.h"\n' >"$sample/src/cli/x.c"
[ "$(includes "$sample/src/cli/x.c" | wc -l)" = 1 ] || { echo "a wrong include is not seen"; failed=1; }
[ "$(printf '%s\n' 'b.dir/src/vector/a.c.o:0 T km_a' 'b.dir/src/vector/a.c.o:0 T km_index_open' \
    'b.dir/src/cli/x.c.o: U km_a' 'b.dir/src/cli/x.c.o: U km_index_open' \
    'b.dir/src/cli/bench/y.c.o: U km_a' | asked "$sample/public" | wc -l)" = 1 ] ||
    { echo "a wrong symbol is not seen"; failed=1; }

# shellcheck disable=SC2046 # names of ours, without spaces
report "a command includes more than kermes.h:" \
    "$(includes $(find src/cli -name '*.[ch]' ! -path 'src/cli/bench/*' ! -name verify.c | sort))"

if ! command -v nm >/dev/null 2>&1 || [ ! -d "$build/CMakeFiles" ]; then
    [ $failed = 0 ] || exit 1
    echo "skipped: includes are right; no nm or no objects to look at symbols"
    exit 77
fi
find "$build/CMakeFiles" -name '*.c.o' -path '*.dir/src/*' | while read -r object; do
    source=src/${object#*.dir/src/}
    [ ! -f "${source%.o}" ] || echo "$object"
done >"$sample/objects"
if [ "$(grep -c '/src/cli/' "$sample/objects")" -lt 30 ]; then
    echo "only $(grep -c '/src/cli/' "$sample/objects") objects of commands in $build"
    failed=1
fi
report "a command asks for more than kermes.h:" \
    "$(xargs nm -A <"$sample/objects" 2>/dev/null | asked "$sample/public" | sort -u)"
exit $failed
