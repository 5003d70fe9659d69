/* km_ctx_new: the one call that turns a device's name into a context on it. */
#include "backend/backend.h"

km_ctx *km_ctx_new(const char *device, int threads) {
    km_error err = {0};
    if (!device) {
        km_public_fail(KM_ERR_NULL, "context: no device named");
        return NULL;
    }
    if (threads < 0 || threads > 4096) {
        km_public_fail(KM_ERR_RANGE, "context: %d threads; 0 (one per core) to 4096 are possible",
                       threads);
        return NULL;
    }
    km_device *d = km_device_find(device, &err);
    km_ctx *ctx = d ? km_ctx_make(d, threads, &err) : NULL;
    km_last_error_set(&err);
    return ctx;
}
