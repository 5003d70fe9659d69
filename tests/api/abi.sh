#!/bin/sh
# Programs linked to the interface that tests/api/abi.txt records go on working with this one. Both are
# declarations; each becomes a library whose functions do nothing, with debug information, and abidiff
# compares the two: functions, and every struct and enum that they reach. Functions that are new are fine.
set -u
cd "$SRC_DIR" || exit 1
cc=${CC:-cc}
command -v abidiff >/dev/null 2>&1 || { echo "skipped: no abidiff (abigail-tools)"; exit 77; }
command -v "$cc" >/dev/null 2>&1 || { echo "skipped: no C compiler"; exit 77; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

stub() { # stub DECLARATIONS NAME: a library of them
    {
        echo '#include <stdbool.h>'
        echo '#include <stddef.h>'
        echo '#include <stdint.h>'
        echo '#define KM_API __attribute__((visibility("default")))'
        awk '
        /^KM_API / { inside = 1 }
        inside && /;[ \t]*$/ { sub(/;[ \t]*$/, " { __builtin_trap(); }"); inside = 0 }
        { gsub(/__attribute__\(\(format\([^)]*\)\)\)/, ""); print }' "$1"
    } >"$tmp/$2.c"
    mkdir -p "$tmp/$2"
    "$cc" -std=gnu11 -g -O0 -w -fPIC -shared -Wl,-soname,libkermes.so \
        -o "$tmp/$2/libkermes.so" "$tmp/$2.c" || {
        echo "the declarations in $1 do not compile as a library"
        exit 1
    }
}
differs() { # differs OLD NEW: what an old program would notice, to $tmp/report
    abidiff --no-added-syms "$tmp/$1/libkermes.so" "$tmp/$2/libkermes.so" >"$tmp/report" 2>&1
}

scripts/record-abi - >"$tmp/now.h" || exit 1
stub "$tmp/now.h" now

# The check must see what it is for: a function less, a member more, and none of it with one function more.
grep -v 'km_version(' "$tmp/now.h" >"$tmp/less.h"
sed 's/^    km_metric metric;/    int more; km_metric metric;/' "$tmp/now.h" >"$tmp/member.h"
{ cat "$tmp/now.h"; echo 'KM_API int km_added(void);'; } >"$tmp/more.h"
for sample in less member more; do stub "$tmp/$sample.h" $sample; done
differs now less && { echo "a function that is gone is not seen"; exit 1; }
differs now member && { echo "a struct that has changed is not seen"; exit 1; }
differs now more || { echo "a new function counts as a change:"; cat "$tmp/report"; exit 1; }

stub tests/api/abi.txt recorded
differs recorded now && exit 0
cat "$tmp/report"
echo "kermes.h has changed for programs that were linked to it. Where that is meant: scripts/record-abi,"
echo "a line in CHANGELOG.md, and after a release a new major version (CMakeLists.txt, kermes.map)."
exit 1
