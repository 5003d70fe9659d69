#!/bin/sh
# No two types share a name: every struct, union, enum and typedef in src and include is defined
# once, those of a single file too. So a wrong call does not compile, and a search finds one thing.
set -u
cd "$SRC_DIR" || exit 1

# "NAME FILE:LINE" of each definition: a tag with a body, or a typedef of more than a tag of the same
# name. What begins in the first column counts, since the layout is tested; the branches of one
# #if are one definition.
definitions() {
    awk '
    function defined(name, line) {
        if (other_branch && (FILENAME, name) in seen) return
        seen[FILENAME, name] = 1
        print name, FILENAME ":" line
    }
    FNR == 1 { in_typedef = other_branch = 0 }
    /^# *(else|elif)/ { other_branch = 1 }
    /^# *endif/ { other_branch = 0 }
    { sub(/ __attribute__\(\(.*\)\)/, "") }
    /^(typedef )?(struct|union|enum)( [a-z_A-Z0-9]+)? \{/ {
        is_typedef = $1 == "typedef"
        tag = $(2 + is_typedef) == "{" ? "" : $(2 + is_typedef)
        start = FNR
        if (tag != "") defined(tag, start)
        if (is_typedef && match($0, /\} [a-z_A-Z0-9]+;/)) {
            name = substr($0, RSTART + 2, RLENGTH - 3)
            if (name != tag) defined(name, start)
        } else
            in_typedef = is_typedef
        next
    }
    in_typedef && /^\}/ {
        in_typedef = 0
        name = $NF
        sub(/(\[[^]]*\])?;.*/, "", name)
        if ($2 != name ";" ) { name = $2; sub(/(\[[^]]*\])?;.*/, "", name) }
        if (name != tag) defined(name, start)
        next
    }
    /^typedef .*\(\*[a-z_A-Z0-9]+\)\(/ { # a pointer to a function
        match($0, /\(\*[a-z_A-Z0-9]+\)\(/)
        defined(substr($0, RSTART + 2, RLENGTH - 4), FNR)
        next
    }
    /^typedef .*;/ {
        line = $0
        sub(/(\[[^]]*\])?;.*/, "", line)
        sub(/\(.*/, "", line) # a function
        n = split(line, word, " ")
        sub(/^\*+/, "", word[n])
        if (!(n == 4 && word[2] ~ /^(struct|union|enum)$/ && word[3] == word[n])) defined(word[n], FNR)
    }' "$@"
}

# shellcheck disable=SC2046 # names of ours, without spaces
twice() {
    definitions "$@" | sort -u | awk '
        $1 != name { if (n > 1) print where; name = $1; where = $1 ":"; n = 0 }
        { where = where " " $2; n++ }
        END { if (n > 1) print where }'
}

# The check itself must see what it is for.
sample=$(mktemp -d) || exit 1
trap 'rm -rf "$sample"' EXIT
printf 'typedef struct km_one {\n    int a;\n} km_one;\nstruct two {\n};\ntypedef enum { A } three;\n' >"$sample/a.c"
printf 'typedef struct km_one km_one;\ntypedef int (*two)(int);\ntypedef int three[4];\n' >"$sample/b.h"
[ "$(twice "$sample/a.c" "$sample/b.h" | sed 's/:.*//' | tr '\n' ' ')" = "three two " ] || {
    echo "the check does not see its own samples"
    exit 1
}

# shellcheck disable=SC2046
found=$(twice $(find include src -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh'))
[ -z "$found" ] || {
    echo "types that share a name; give each its own:"
    echo "$found"
    exit 1
}
