#!/bin/sh
# GPU kernels that come apart, in kermes-cuda.so: a build without kernels takes them where they fit it,
# and says why where they do not. What is in the module here is made up: nothing runs it.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset KERMES_CUDA_MODULE
note() { # the kernels of `kermes devices`
    "$KERMES" devices --json --quiet | grep -A 3 '"kernels": {' | tr -d '\n'
}
case $(note) in *'"present": true'*) echo "skipped: this build has GPU kernels inside" && exit 77 ;; esac
note | grep -q 'no kermes-cuda.so (package kermes-cuda)' || { echo "no advice: $(note)"; exit 1; }

expect() { # expect FILE PRESENT TEXT
    got=$(KERMES_CUDA_MODULE=$1 note)
    case $got in
        *"\"present\": $2"*"$3"*) ;;
        *) echo "$1: expected $2, '$3', got $got" && exit 1 ;;
    esac
}
expect "$work/nowhere.so" false nowhere.so
echo 'no shared object' >"$work/text.so"
expect "$work/text.so" false 'text.so'

make_module() { # make_module FILE CHECKSUM
    cat >"$work/module.c" <<C
typedef struct { const char *name; const void *data; unsigned long size; } module;
static const module table[] = {{"fill", "no kernels", 10}};
const struct { const char *sources, *note; int count; const module *table; }
    km_cuda_module_kernels = {"$2", "sm_80", 1, table};
C
    ${CC:-cc} -shared -fPIC -o "$1" "$work/module.c"
}
make_module "$work/older.so" 0123
expect "$work/older.so" false 'another version of Kermes'
echo 'int nothing;' >"$work/module.c"
${CC:-cc} -shared -fPIC -o "$work/other.so" "$work/module.c"
expect "$work/other.so" false 'another version of Kermes'
make_module "$work/kermes-cuda.so" "$(cat "$(dirname "$KERMES")/cuda/sources.sha256")"
expect "$work/kermes-cuda.so" true "sm_80, from $work/kermes-cuda.so"

# It is found where packages put it: bin/kermes and lib/kermes/kermes-cuda.so.
mkdir -p "$work/usr/bin" "$work/usr/lib/kermes"
cp "$KERMES" "$work/usr/bin/kermes"
cp "$work/kermes-cuda.so" "$work/usr/lib/kermes/"
KERMES=$work/usr/bin/kermes
note | grep -q '"present": true' || { echo "not found in lib/kermes: $(note)"; exit 1; }
