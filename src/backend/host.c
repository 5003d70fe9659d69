/* The two devices whose memory is ordinary memory. They differ in their kernels alone. */
#include "backend/host.h"
#include "base/alloc.h"
#include <string.h>

static void *host_alloc(void *owner, size_t bytes) {
    (void)owner;
    return km_alloc_aligned(bytes);
}

static void host_free(void *owner, void *p, size_t bytes) {
    (void)owner;
    km_free_aligned(p, bytes);
}

static km_status host_open(km_lane *lane, km_error *err) {
    (void)err;
    lane->pool.raw_alloc = host_alloc;
    lane->pool.raw_free = host_free;
    return KM_OK;
}

static void host_close(km_lane *lane) { (void)lane; }

static km_status host_copy(km_lane *lane, void *dst, const void *src, size_t bytes) {
    (void)lane;
    memcpy(dst, src, bytes);
    return KM_OK;
}

static km_status host_sync(km_lane *lane) {
    (void)lane;
    return KM_OK;
}

const km_device_ops km_host_ops = {.open = host_open, .close = host_close, .upload = host_copy,
                                   .download = host_copy, .sync = host_sync};
