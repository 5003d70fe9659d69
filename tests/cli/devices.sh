#!/bin/bash
# kermes devices: text, JSON, and a device that is not there.
. "$(dirname "$0")/lib.bash"

expect 0 devices
for word in CPU cores kernels BLAS GPU Devices; do
    says out "$word"
done

expect 0 devices --json --quiet
json_says kermes:string machine.cpu:string machine.cores:number machine.kernels:string \
    machine.memory_bytes:number machine.blas.available:boolean gpu.available:boolean \
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

# Without BLAS it says why.
KERMES_BLAS=none expect 0 devices --json
json_says machine.blas.available=false machine.blas.name:string
