#!/bin/sh
# Compiles one source of GPU kernels, or takes what was compiled before from the same contents: by nvcc's
# version, its flags, and the bytes of the source and of all that it includes, wherever they lie. So a second
# clone or build folder compiles only what differs. Kept for 30 days after the last use.
#
# Usage: fatbin.sh TOP FATBIN SOURCE NVCC FLAG...     TOP: the folder of all sources; KERMES_KERNEL_CACHE: the
#                                                     folder of what is kept (~/.cache/kermes/kernels); empty: none
set -eu
top=$1 fatbin=$2 source=$3
shift 3
compile() { "$@" -MD -MF "$fatbin.d" -MT "$fatbin" -o "$fatbin" "$source"; }
home=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
kept=${KERMES_KERNEL_CACHE-${home:+$home/kermes/kernels}}
{ [ -n "$kept" ] && command -v sha256sum >/dev/null 2>&1 && mkdir -p "$kept" 2>/dev/null && [ -w "$kept" ]; } || {
    compile "$@"
    exit
}
relative() { # paths below TOP as ./PATH
    awk -v top="$top/" '{ while ((i = index($0, top)) > 0) $0 = substr($0, 1, i - 1) "./" substr($0, i + length(top)); print }'
}
sum() { sha256sum | cut -c1-64; }
key=$({ "$1" --version && echo "$@" | relative && sum <"$source"; } | sum)

cd "$top"
for entry in "$kept/$key"/*/; do
    [ -e "$entry/kernels" ] && sha256sum --status -c "$entry/includes" 2>/dev/null || continue
    cp "$entry/kernels" "$fatbin"
    awk -v top="$top" -v fatbin="$fatbin" 'function escaped(s) { gsub(/ /, "\\\\ ", s); return s }
        BEGIN { printf "%s:", escaped(fatbin) }
        { path = substr($0, 67); if (path ~ /^[.]\//) path = top substr(path, 2); printf " %s", escaped(path) }
        END { print "" }' "$entry/includes" >"$fatbin.d"
    touch "$kept/$key"
    exit
done
compile "$@"

# Kept under another name first, so that nobody meets half of it; a failure costs only the next compilation.
new=$kept/.new-$$
{
    mkdir "$new" && cp "$fatbin" "$new/kernels" &&
        sed '1s/^[^:]*: *//; s/\\$//; s/\\ /\x01/g' "$fatbin.d" | tr -s ' \t' '\n\n' | sed -n 's/\x01/ /g; /./p' | relative |
        sort -u | tr '\n' '\0' | xargs -0 sha256sum >"$new/includes" &&
        mkdir -p "$kept/$key" && mv -T "$new" "$kept/$key/$(sum <"$new/includes")"
} 2>/dev/null || rm -rf "$new"
find "$kept" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} + 2>/dev/null || true
