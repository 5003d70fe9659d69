/* km_ctx_new: the one call that turns a device's name into a context on it; and the error of calls
 * that have no context to keep it. */
#include "backend/backend.h"

static _Thread_local km_error last_error;

const char *km_last_error(void) { return last_error.text; }
km_status km_last_status(void) { return last_error.code; }

void km_last_error_set(const km_error *err) { last_error = *err; }

km_ctx *km_ctx_new(const char *device, int threads) {
    last_error = (km_error){0};
    if (!device || threads < 0 || threads > 4096) {
        km_error_set(&last_error, device ? KM_ERR_RANGE : KM_ERR_NULL,
                     device ? "context: %d threads; 0 (one per core) to 4096 are possible"
                            : "context: no device named",
                     threads);
        return NULL;
    }
    km_device *d = km_device_find(device, &last_error);
    return d ? km_ctx_make(d, threads, &last_error) : NULL;
}
