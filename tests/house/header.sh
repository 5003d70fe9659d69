#!/bin/sh
# Every function of the public header has a comment: beside it, above it, or above the group of
# lines without a blank one that it stands in.
set -u
cd "$SRC_DIR" || exit 1

bare() {
    awk '
    function closed() { return }
    /^[ \t]*$/ { spoken = 0 }                       # a blank line ends a group
    /\/\*|\/\// { spoken = 1 }
    in_comment { spoken = 1 }
    /\/\*/ && !/\*\// { in_comment = 1 }
    /\*\// { in_comment = 0 }
    /^KM_API(_INLINE)? / { name = $0; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name); line = FNR; waiting = 1; silent = !spoken }
    waiting && /;/ { if (silent && !/\/\*|\/\//) print FILENAME ":" line ": " name; waiting = 0 }
    ' "$@"
}

sample=$(mktemp) || exit 1
trap 'rm -f "$sample"' EXIT
printf '/* Says it. */\nKM_API int km_a(void);\nKM_API int km_b(void);\n\nKM_API int km_c(void);\nKM_API int km_d(int x,\n    int y); /* d */\n' >"$sample"
[ "$(bare "$sample" | sed 's/.*: //' | tr '\n' ' ')" = "km_c " ] || {
    echo "the check does not see its own sample: $(bare "$sample")"
    exit 1
}
found=$(bare include/*.h)
[ -z "$found" ] || {
    echo "public functions without a word about them:"
    echo "$found"
    exit 1
}
