#!/bin/sh
# Rooms are one-way, by what files include and by the symbols that their objects ask for; only the
# command prints, and the library never ends the process.
set -u
cd "$SRC_DIR" || exit 1
build=$(dirname "${KERMES:-build/test/kermes}")
failed=0

# The order is the build's: KERMES_ROOMS, then what stands on the library.
rooms=$(sed -n '/^set(KERMES_ROOMS/,/)/p' CMakeLists.txt | tr -d '()' | tr '\n' ' ')
rooms="${rooms#set}"
for room in docs serve cli; do
    case " $rooms " in
        *" $room "*) ;;
        *) rooms="$rooms $room" ;;
    esac
done
for folder in src/*/; do
    room=$(basename "$folder")
    case " $rooms " in
        *" $room "*) ;;
        *)
            echo "src/$room is not in KERMES_ROOMS of CMakeLists.txt"
            failed=1
            ;;
    esac
done

report() {
    [ -n "$2" ] || return 0
    echo "$1"
    echo "$2" | sed 's/^/    /'
    failed=1
}

# Includes. Tests are let in nowhere; the public header is everybody's.
includes() {
    awk -v rooms="$rooms" '
    BEGIN { n = split(rooms, room, " "); for (i = 1; i <= n; i++) order[room[i]] = i }
    match($0, /^ *# *include "[a-z_]+\//) {
        to = substr($0, RSTART, RLENGTH - 1)
        sub(/.*"/, "", to)
        split(substr(FILENAME, index(FILENAME, "src/")), path, "/")
        if (!(to in order) || order[to] > order[path[2]])
            print FILENAME ":" FNR ": " path[2] " includes " to
    }' "$@"
}

# shellcheck disable=SC2046 # names of ours, without spaces
report "a room includes a later one:" \
    "$(includes $(find src -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh'))"

# Symbols, of objects whose sources are still there.
asked() {
    awk -v rooms="$rooms" '
    BEGIN { n = split(rooms, room, " "); for (i = 1; i <= n; i++) order[room[i]] = i }
    {
        file = $1
        sub(/:.*/, "", file)
        sub(/.*\.dir\/src\//, "", file)
        sub(/\.o$/, "", file)
        from = file
        sub(/\/.*/, "", from)
        if ($(NF - 1) ~ /^[TDRBVWC]$/) home[$NF] = from
        else if ($(NF - 1) == "U") use[++uses] = from " " $NF " " file
    }
    END {
        ends = "^(_?exit|_Exit|quick_exit|abort|__assert_fail|errx?|verrx?)$"
        prints = "^(stdout|stderr|(__)?v?printf(_chk)?|puts|putchar|perror|warnx?|vwarnx?|v?syslog)$"
        for (i = 1; i <= uses; i++) {
            split(use[i], word, " ")
            to = word[2] in home ? home[word[2]] : ""
            if (to != "" && order[to] > order[word[1]])
                print "src/" word[3] ": " word[2] " is of " to
            if (to == "" && word[1] != "cli" && word[2] ~ prints) print "src/" word[3] ": prints by " word[2]
            if (to == "" && word[1] != "cli" && word[2] ~ ends) print "src/" word[3] ": ends by " word[2]
        }
    }'
}

# The checks must see what they are for.
sample=$(mktemp -d) || exit 1
trap 'rm -rf "$sample"' EXIT
mkdir -p "$sample/src/base"
echo '#include "cli/args.h"' >"$sample/src/base/x.c"
[ -n "$(includes "$sample/src/base/x.c")" ] || { echo "a wrong include is not seen"; failed=1; }
[ "$(printf '%s\n' 'b.dir/src/cli/a.c.o:0 T km_a' 'b.dir/src/base/x.c.o: U km_a' \
    'b.dir/src/base/x.c.o: U puts' 'b.dir/src/base/x.c.o: U abort' | asked | wc -l)" = 3 ] ||
    { echo "a wrong symbol is not seen"; failed=1; }

if ! command -v nm >/dev/null 2>&1 || [ ! -d "$build/CMakeFiles" ]; then
    [ $failed = 0 ] || exit 1
    echo "skipped: includes are right; no nm or no objects to look at symbols"
    exit 77
fi
find "$build/CMakeFiles" -name '*.c.o' -path '*.dir/src/*' | while read -r object; do
    source=src/${object#*.dir/src/}
    [ ! -f "${source%.o}" ] || echo "$object"
done >"$sample/objects"
if [ "$(wc -l <"$sample/objects")" -lt 300 ]; then
    echo "only $(wc -l <"$sample/objects") objects in $build"
    failed=1
fi
report "symbols that a room must not ask for:" "$(xargs nm -A <"$sample/objects" 2>/dev/null | asked | sort -u)"
exit $failed
