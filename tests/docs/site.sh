#!/bin/bash
# The docs as a site: every page is there, every link between them leads somewhere.
set -u
command -v python3 >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 "$SRC_DIR/scripts/make-docs" "$work" >"$work/out" 2>&1 || { cat "$work/out" >&2; exit 1; }
for page in index start cli inference training vectors cuda include-kermes-h; do
    [ -s "$work/$page.html" ] || { echo "there is no $page.html" >&2; exit 1; }
done
grep -q 'kermes pull' "$work/sections.js" || { echo "the search does not know kermes pull" >&2; exit 1; }
! grep -l '<script src="\?http\|href="\?http[^>]*stylesheet' "$work"/*.html || exit 1 # it needs nothing else
# A link that leads nowhere is found.
cp -r "$SRC_DIR"/{docs,include,README.md,CONTRIBUTING.md,CHANGELOG.md} "$work/"
mkdir -p "$work/scripts" && cp "$SRC_DIR/scripts/make-docs" "$work/scripts/"
echo '[x](nowhere.md) and [y](cli.md#no-such-heading)' >>"$work/docs/start.md"
python3 "$work/scripts/make-docs" "$work/site" >"$work/out" 2>&1 && { echo "a broken link passed" >&2; exit 1; }
grep -q 'nowhere.md leads nowhere' "$work/out" && grep -q 'no such heading' "$work/out"
