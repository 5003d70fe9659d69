#!/bin/bash
# kermes devices: text, JSON, and a device that is not there.
. "$(dirname "$0")/lib.bash"

expect 0 devices
for word in CPU cores kernels BLAS products GPU Devices; do
    says out "$word"
done

expect 0 devices --json --quiet
json_says kermes:string machine.cpu:string machine.cores:number machine.kernels:string \
    machine.memory_bytes:number machine.blas.available:boolean machine.products:string gpu.available:boolean \
    gpu.summary:string gpu.driver.present:boolean gpu.gpus:array devices.0=ref devices.1=cpu asked=auto device:string
[ ! -s "$work/err" ] || fail "--quiet printed to stderr"

for device in ref cpu; do
    expect 0 devices --device "$device" --json
    json_says "device=$device" "asked=$device"
done

expect_error 1 devices --device cuda:99

# gpu and metal are the same accelerator, where there is one.
code=0
"$KERMES" devices --device metal --json >"$work/out" 2>"$work/err" || code=$?
if "$KERMES" devices --device gpu --json >"$work/gpu" 2>/dev/null; then
    [ "$code" -eq 0 ] || fail "--device metal fails beside a GPU"
    json_says asked=metal
    says err "metal is cuda:"
    cp "$work/gpu" "$work/out"
    json_says asked=gpu
else
    [ "$code" -eq 1 ] || fail "--device metal without a GPU: exit code $code"
    says err "kermes: devices: metal: Kermes has no Metal backend"
fi

# A lower kernel set than the best may be asked for.
KERMES_ISA=base expect 0 devices --json
json_says machine.kernels=base

# Who serves products is a table over kernels and sizes.
KERMES_BLAS=none KERMES_ISA=base expect 0 devices
says out "products  f32: own kernels (base)"

# Without BLAS it says why.
KERMES_BLAS=none expect 0 devices --json
json_says machine.blas.available=false machine.blas.name:string

# A library that takes this CPU for an old one is told better, and does not serve where that fails. A
# stand-in says as its core what OPENBLAS_CORETYPE was when it was loaded, or what it is made to say.
cat >"$work/blas.c" <<'E'
#include <stdlib.h>
#include <string.h>
static char core[64] = "Prescott";
__attribute__((constructor)) static void begin(void) {
    const char *told = getenv("OPENBLAS_CORETYPE"), *deaf = getenv("DEAF_CORE");
    if (told) strncpy(core, told, sizeof core - 1);
    if (deaf) strncpy(core, deaf, sizeof core - 1);
}
char *openblas_get_corename(void) { return core; }
char *openblas_get_config(void) { return "OpenBLAS 9.9.9 DYNAMIC_ARCH"; }
void openblas_set_num_threads(int n) { (void)n; }
void cblas_sgemm(void) {}
E
unset OPENBLAS_CORETYPE KERMES_BLAS
expect 0 devices
cp "$work/out" "$work/cpu"
if grep -q ' AVX2 ' "$work/cpu" &&
    cc -shared -fPIC -o "$work/libopenblas.so.0" "$work/blas.c" 2>/dev/null; then
    best=Haswell
    if grep -q ' AVX-512' "$work/cpu"; then best=SkylakeX; fi
    export LD_LIBRARY_PATH=$work
    expect 0 devices
    says out "BLAS      OpenBLAS 9.9.9 $best"
    DEAF_CORE=Prescott expect 0 devices
    says out "BLAS      none; own kernels serve: OpenBLAS 9.9.9 Prescott, which leaves"
    says out "this CPU's AVX2 unused; try OPENBLAS_CORETYPE=$best"
    DEAF_CORE=Prescott expect 0 devices --json
    json_says machine.blas.available=false
    OPENBLAS_CORETYPE=Zen expect 0 devices
    says out "OpenBLAS 9.9.9 Zen"
    DEAF_CORE=Prescott KERMES_BLAS=$work/libopenblas.so.0 expect 0 devices --json
    json_says machine.blas.available=true
fi
