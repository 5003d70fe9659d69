#!/bin/bash
# The lines that README and the docs tell people to type, run as they stand, each page in a folder of
# its own that holds what a clone does. tests/docs/plan.tsv says which are not simply run, and why.
#
# Usage: lines.sh [PAGE...]     KERMES, SRC_DIR as for all tests; KERMES_TEST_LONG: the long ones too
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build=$(cd "$(dirname "$KERMES")" && pwd)
failed=0 ran=0 left=0
limit=300
[ -z "${KERMES_TEST_LONG:-}" ] || limit=3000

# Commands of a page: the lines after "$ " of blocks, and all lines of sh blocks; lines that end with
# \ or stand in open quotes go on. One command a record, its newlines as \x01.
commands_of() {
    awk '
        function flush_line() { if (line != "") print line; line = "" }
        /^```/ { if (inside) { flush_line(); inside = 0 } else { inside = 1; kind = substr($0, 4) } next }
        !inside { next }
        {
            text = $0
            if (line == "") {
                if (substr(text, 1, 2) == "$ ") text = substr(text, 3)
                else if (kind != "sh") next
                if (text ~ /^#/ || text ~ /^[ \t]*$/) next
                line = text
            } else line = line "\001" text
            quotes = gsub(/\047/, "\047", line)
            if (quotes % 2 == 0 && line !~ /\\$/) flush_line()
        }' "$1"
}

class_of() { # the class of a line, from the plan
    local pattern class
    while IFS=$'\t' read -r pattern class _; do
        case $pattern in '#'* | '') continue ;; esac
        if [[ $1 =~ $pattern ]]; then
            echo "$class"
            return
        fi
    done <"$SRC_DIR/tests/docs/plan.tsv"
    echo run
}

# What a clone holds, what the page takes for granted, and the command under both of its names.
prepare() {
    local place=$1
    mkdir -p "$place/build/release" "$place/bin" "$place/texts" "$place/home/.local"
    ln -s "$SRC_DIR"/{models,scripts,examples,docs,include,README.md,tests} "$place/"
    ln -s "$build/examples" "$build/kermes" "$place/build/release/"
    ln -s "$build/kermes" "$place/bin/kermes"
    cp "$SRC_DIR/models/kermes-tiny.gguf" "$place/model.gguf"
    cat "$SRC_DIR"/docs/*.md >"$place/book.txt"
    head -c 300 "$place/book.txt" >"$place/letter.txt"
    head -c 300 "$place/book.txt" | tee "$place/code.txt" "$place/mine.txt" >"$place/question.txt"
    printf 'root ::= "yes" | "no"\n' >"$place/yes.gbnf"
    (cd "$place" && "$KERMES" convert model.gguf tiny --quiet &&
        "$KERMES" compress tiny/model.safetensors --tensor model.embed_tokens.weight \
            -o tiny/v.kmx --quiet && "$KERMES" decompress tiny/v.kmx -o vectors.npy --quiet &&
        cp vectors.npy q.npy && cp vectors.npy more.npy && rm -r tiny) >/dev/null || exit 1
    # The last C program of the page, under the name by which its commands call it.
    awk '/^```c$/ { on = 1; text = ""; next } /^```/ { on = 0 } on { text = text $0 "\n" }
        END { printf "%s", text }' "$2" >"$place/fit.c"
    # Installing is done by what the Makefile calls; it is built already.
    cat >"$place/bin/make" <<MAKE
#!/bin/sh
for word in "\$@"; do case \$word in PREFIX=*) prefix=\${word#PREFIX=} ;; esac; done
[ "\$1" = install ] && cmake --install "$build" --prefix "\${prefix:-$place/prefix}" >/dev/null
MAKE
    chmod +x "$place/bin/make"
}


page() {
    local page=$1 place=$work/$(basename "$1" .md) line class
    prepare "$place" "$page"
    : >"$place/.script"
    while IFS= read -r line; do
        class=$(class_of "$line")
        case $line in "make install"*) class=install ;; esac
        case $class in
            long) [ -n "${KERMES_TEST_LONG:-}" ] || class=never ;;
            gpu) "$KERMES" devices --json 2>/dev/null | grep -q '"cuda:0"' || class=never ;;
            mpi) command -v mpirun >/dev/null && [ -e "$build/kermes-mpi.so" ] || class=never ;;
            install) [ -e "$build/libkermes.so" ] && command -v pkg-config cc >/dev/null || class=never ;;
        esac
        if [ "$class" = never ]; then
            left=$((left + 1))
            continue
        fi
        [ "$class" != check ] || line=$(sed 's/\(kermes [a-z]*\).*/\1 --help >\/dev\/null/' <<<"${line%%$'\001'*}")
        ran=$((ran + 1))
        {
            printf 'echo %q >.last\n' "$line"
            printf '%s\n' "${line//$'\001'/$'\n'}"
        } >>"$place/.script"
    done < <(commands_of "$page")
    (
        cd "$place" || exit 1
        export HOME=$place/home KERMES_MODELS=$place/models KERMES_HISTORY= PATH=$place/bin:$PATH
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        export OMPI_MCA_rmaps_base_oversubscribe=1 TERM=dumb
        timeout "$limit" bash -e -o pipefail .script \
            >.out 2>.err </dev/null
    ) && return
    failed=1
    echo "$page: this line failed: $(cat "$place/.last" 2>/dev/null)" >&2
    tail -n 5 "$place/.out" "$place/.err" >&2
}

if [ $# -eq 0 ]; then set -- "$SRC_DIR"/README.md "$SRC_DIR"/docs/*.md "$SRC_DIR"/CONTRIBUTING.md; fi
for one in "$@"; do page "$one"; done
echo "$ran lines were run, $left left out"
exit $failed
