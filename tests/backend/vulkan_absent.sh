#!/bin/bash
# Without a loader or a device, Vulkan is named as missing in one line, and everything else works.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAIL: $*" >&2
    cat "$work/out" "$work/err" >&2
    exit 1
}
"$KERMES" devices >"$work/out" 2>"$work/err" || fail "devices"
if grep -q 'no Vulkan backend' "$work/out"; then
    grep -q '^Vulkan    .*built with' "$work/out" || fail "a build without Vulkan does not say why"
    echo "skipped: $(grep 'no Vulkan backend' "$work/out")"
    exit 77
fi

export KERMES_LIBVULKAN=/nowhere/libvulkan.so.1
"$KERMES" devices >"$work/out" 2>"$work/err" || fail "devices without a loader"
grep -q '^Vulkan    no Vulkan: KERMES_LIBVULKAN names /nowhere/libvulkan.so.1' "$work/out" ||
    fail "a missing loader is not named"
for device in vulkan vulkan:1; do
    "$KERMES" devices --device $device >"$work/out" 2>"$work/err" && fail "$device without a loader"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$device: not one line"
    grep -q 'no Vulkan' "$work/err" || fail "$device: the loader is not named"
done

export KERMES_LIBVULKAN=libm.so.6
"$KERMES" devices --device vulkan >"$work/out" 2>"$work/err" && fail "a library that is no loader"
grep -q 'lacks vkGetInstanceProcAddr' "$work/err" || fail "a library that is no loader is not told"

# A loader without any driver.
unset KERMES_LIBVULKAN
if KERMES_LIBVULKAN='' VK_ICD_FILENAMES=/nowhere.json VK_DRIVER_FILES=/nowhere.json "$KERMES" devices --device vulkan \
    >"$work/out" 2>"$work/err"; then
    fail "vulkan without a driver"
fi
grep -q 'Vulkan' "$work/err" || fail "a missing driver is not told"
VK_ICD_FILENAMES=/nowhere.json VK_DRIVER_FILES=/nowhere.json "$KERMES" verify --op add --quick --quiet --device auto \
    >"$work/out" 2>"$work/err" || fail "the CPU without Vulkan"
exit 0
