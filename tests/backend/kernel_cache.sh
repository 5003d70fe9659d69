#!/bin/sh
# cmake/fatbin.sh: GPU kernels are compiled once for the same contents, wherever these lie, and anew when
# the source, a header, a flag or nvcc changes. nvcc here is a stand-in that counts how often it compiles.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export RAN="$work/ran" KERMES_KERNEL_CACHE="$work/kept" NVCC_VERSION=1
mkdir -p "$work/one/src" "$work/in another place"
cat >"$work/nvcc" <<'NVCC'
#!/bin/sh
[ "$1" != --version ] || { echo "nvcc $NVCC_VERSION" && exit; }
echo ran >>"$RAN"
while [ $# -gt 1 ]; do
    case $1 in -MF) deps=$2 ;; -MT) target=$2 ;; -o) out=$2 ;; esac
    shift
done
header=$(dirname "$1")/a.cuh
! grep -q error "$1" || exit 1
cat "$1" "$header" >"$out"
printf '%s : %s \\\n    %s\n' "$target" "$1" "$header" | sed 's/\([^:\\ ]\) \([^:\\ ]\)/\1\\ \2/g' >"$deps"
NVCC
chmod +x "$work/nvcc"
echo 'kernel' >"$work/one/src/x.cu"
echo 'header' >"$work/one/src/a.cuh"
cp -r "$work/one/src" "$work/in another place/"

compiled() { # compiled TIMES FOLDER [FLAG...]: kernels of the folder, and nvcc has run this often by now
    wanted=$1 top=$work/$2
    shift 2
    rm -f "$top/x.fatbin"
    "$SRC_DIR/cmake/fatbin.sh" "$top" "$top/x.fatbin" "$top/src/x.cu" "$work/nvcc" -O3 -I "$top/src" "$@"
    [ "$(wc -l <"$RAN")" -eq "$wanted" ] || { echo "$top: nvcc ran $(wc -l <"$RAN") times, not $wanted" && exit 1; }
    cat "$top/src/x.cu" "$top/src/a.cuh" | cmp - "$top/x.fatbin"
    tr -d '\\\n' <"$top/x.fatbin.d" | grep -qF "$top/src/a.cuh" || { echo "no dependencies" && cat "$top/x.fatbin.d" && exit 1; }
}
compiled 1 one
compiled 1 one
compiled 1 "in another place"
compiled 2 one -lineinfo
echo 'another header' >"$work/one/src/a.cuh"
compiled 3 one
compiled 3 "in another place" # what was kept first is still there
echo 'another kernel' >"$work/one/src/x.cu"
compiled 4 one
NVCC_VERSION=2
compiled 5 one
KERMES_KERNEL_CACHE=
compiled 6 one
KERMES_KERNEL_CACHE=$work/kept

# A source that does not compile fails, and nothing of it is kept; half an entry is no entry.
echo 'error' >"$work/one/src/x.cu"
for _ in 1 2; do
    ! "$SRC_DIR/cmake/fatbin.sh" "$work/one" "$work/one/x.fatbin" "$work/one/src/x.cu" "$work/nvcc" -O3 || exit 1
done
echo 'kernel' >"$work/one/src/x.cu"
find "$work/kept" -name includes -exec sh -c 'echo >"$1"' sh {} \;
compiled 9 one
