#!/bin/sh
# Every environment variable of ours that the library, the command or a script reads is in the docs.
set -u
cd "$SRC_DIR" || exit 1
read_by() { # what is read by getenv, or set in a script as ${KERMES_X...}
    grep -rhoE '(getenv|env_[a-z]+|km_env[a-z_]*)\("KERMES_[A-Z0-9_]+"' src bench | grep -oE 'KERMES_[A-Z0-9_]+'
    grep -hoE '\$\{?KERMES_[A-Z0-9_]+' scripts/* 2>/dev/null | grep -oE 'KERMES_[A-Z0-9_]+'
    grep -rhoE '"KERMES_[A-Z0-9_]+"' src | grep -oE 'KERMES_[A-Z0-9_]+'
}
names=$(read_by | sort -u)
[ "$(echo "$names" | wc -l)" -ge 15 ] || { echo "only found: $names"; exit 1; }
failed=0
for name in $names; do
    grep -rqwE "$name" docs README.md CONTRIBUTING.md || {
        echo "$name is in no page of docs/: say what it does, in docs/cli.md or the page it belongs to"
        failed=1
    }
done
# And the other way round: what the pages name is read somewhere.
for name in $(grep -rhoE '\bKERMES_[A-Z0-9_]+\b' docs README.md | sort -u); do
    grep -rqw "$name" src include cmake CMakeLists.txt CMakePresets.json scripts bench tests python 2>/dev/null || {
        echo "$name is in the docs and read nowhere"
        failed=1
    }
done
exit $failed
