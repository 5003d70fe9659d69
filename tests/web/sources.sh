#!/bin/bash
# What can be told of the page without building it: its scripts parse, they call what the module exports,
# the types name what the API has, and nothing comes from another place.
set -u
cd "${SRC_DIR:?}" || exit 1
failed=0
fail() {
    echo "FAIL: $1"
    failed=1
}
for name in $(grep -oh '_web_[a-z_]*(' web/engine.js | tr -d '(' | sort -u); do
    grep -qE "^WEB .*[ *]${name#_}\(" web/engine/*.c || fail "engine.js calls $name, which web/engine does not export"
done
for name in $(sed -n 's/^WEB .*[ *]\(web_[a-z_]*\)(.*/\1/p' web/engine/*.c); do
    grep -q "_$name(" web/engine.js || fail "web/engine exports $name, which engine.js does not call"
done
for name in $(sed -n '/^export class Kermes/,$s/^  \(async \|static async \)\?\([a-z][A-Za-z]*\)(.*{.*/\2/p' web/kermes.js); do
    grep -qE "^  (static )?$name\(" web/kermes.d.ts || fail "kermes.d.ts does not tell of Kermes.$name"
done
for name in $(grep -oE '\$\("[a-z_-]+"\)' web/page.js | cut -d'"' -f2 | sort -u); do
    case $name in *-) continue ;; esac # a part of several names
    grep -q "id=\"$name\"" web/index.html || fail "page.js looks for #$name, which index.html has not"
done
if grep -nE '(https?:)?//[a-z0-9.-]+\.[a-z]{2,}' web/*.js web/*.html web/*.css web/*.ts | grep -v 'www.w3.org/2000/svg'; then
    fail "the page names another server"
fi
if grep -n '#include "' web/engine/*.c web/engine/*.h | grep -v '"web.h"\|"kermes.h"'; then
    fail "web/engine stands on kermes.h alone"
fi
if command -v node >/dev/null; then
    for file in web/*.js; do node --check --input-type=module <"$file" || fail "$file does not parse"; done
else
    echo "scripts were not parsed: no Node"
fi
exit $failed
