#!/bin/sh
# All sources are laid out by .clang-format. Versions differ in details, so only the one that laid
# them out is asked: 14, Debian 12's.
set -u
cd "$SRC_DIR" || exit 1
version=14
tool=
for name in clang-format-$version clang-format; do
    if command -v $name >/dev/null 2>&1 && $name --version | grep -q "version $version\."; then
        tool=$name
        break
    fi
done
[ -n "$tool" ] || { echo "skipped: no clang-format $version"; exit 77; }

bad=$(find include src tests bench examples -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' |
    xargs -n 50 -P 2 "$tool" --dry-run 2>&1 | sed -n 's/^\([^:]*:[0-9]*\):.*warning:.*/\1/p' | sort -u)
[ -z "$bad" ] && exit 0
echo "not laid out; make format does it:"
echo "$bad" | head -30 | sed 's/^/    /'
exit 1
