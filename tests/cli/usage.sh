#!/bin/bash
# Help, versions and wrong usage: exit codes and messages.
. "$(dirname "$0")/lib.bash"

expect 0 --version
grep -qx 'kermes [0-9]*\.[0-9]*\.[0-9]*' "$work/out" || fail "no version"

expect 0 --help
cp "$work/out" "$work/help"
commands=$(sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' "$work/help")
[ "$(echo "$commands" | wc -l)" -ge 23 ] || fail "'kermes --help' lists few commands: $commands"
expect 0 help
cmp -s "$work/out" "$work/help" || fail "'kermes help' differs from 'kermes --help'"
expect 0 -h

for command in $commands; do
    expect 0 "$command" --help
    says out "Usage: kermes $command"
    says out "Examples:"
    for option in json quiet help; do
        says out "--$option"
    done
    computes=0
    grep -q -- '--device NAME' "$work/out" && computes=1
    cp "$work/out" "$work/help"
    expect 0 help "$command"
    cmp -s "$work/out" "$work/help" || fail "'kermes help $command' differs from --help"
    [ ! -s "$work/err" ] || fail "help printed to stderr"

    expect_error 2 "$command" --no-such-option
    says err "--no-such-option"
    expect_error 2 "$command" --jsno
    says err "did you mean --json?"
    expect_error 2 "$command" -x
    [ "$computes" -eq 1 ] || continue
    expect_error 2 "$command" --device toaster
    says err "'toaster'"
    expect_error 2 "$command" --device metal --no-such-option
    says err "--no-such-option" # the device is a known one
    expect_error 2 "$command" --device
    says err "needs a value"
done
[ "$(grep -lE -- '--device NAME' <(for c in $commands; do "$KERMES" "$c" --help; done))" ] ||
    fail "no command has a --device"

expect 2
says err "Usage: kermes COMMAND"
[ ! -s "$work/out" ] || fail "usage went to stdout"
expect_error 2 devcies
says err "did you mean 'devices'?"
expect_error 2 xyzzy
says err "kermes --help"
expect_error 2 help xyzzy
expect_error 2 --verbose

# What could not be written is a failure, not a silent success.
if [ -w /dev/full ]; then
    code=0
    "$KERMES" --help >/dev/full 2>"$work/err" || code=$?
    [ "$code" -eq 1 ] || fail "a full disk: exit code $code"
    says err "kermes: cannot write the output"
fi
