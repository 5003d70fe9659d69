# Helpers for the scripts here: run the command, and say what was wrong before failing.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The checker of JSON files is built beside the command.
json_check=$(dirname "$KERMES")/tests/test_cli_json_file

fail() {
    echo "$0: $*" >&2
    echo "--- stdout" >&2
    head -c 2000 "$work/out" >&2
    echo "--- stderr" >&2
    head -c 2000 "$work/err" >&2
    exit 1
}

# expect CODE ARGUMENTS...: runs kermes, keeps what it prints, and wants that exit code
expect() {
    local wanted=$1 code=0
    shift
    "$KERMES" "$@" >"$work/out" 2>"$work/err" </dev/null || code=$?
    [ "$code" -eq "$wanted" ] || fail "kermes $*: exit code $code, not $wanted"
}

# A usage error or failure is one line on stderr and nothing on stdout.
expect_error() {
    expect "$@"
    [ ! -s "$work/out" ] || fail "kermes ${*:2}: printed to stdout"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "kermes ${*:2}: not one line on stderr"
    head -c 8 "$work/err" | grep -q '^kermes: ' || fail "kermes ${*:2}: no 'kermes: ' in front"
}

# noise BYTES: the same bytes in each run, so that what a test finds in them is found again
noise() {
    LC_ALL=C awk -v n="$1" 'BEGIN { srand(11); while (n-- > 0) printf "%c", int(256 * rand()) }'
}

says() { # says FILE TEXT
    grep -qF -- "$2" "$work/$1" || fail "$1 does not say: $2"
}

json_says() { # json_says PATH...: of what was printed to stdout
    "$json_check" "$work/out" "$@" || fail "JSON is not as it should be"
}
