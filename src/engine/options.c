/* Structs that grow: what an older program does not know of keeps its default. */
#include "engine/engine.h"
#include <string.h>

km_status km_take_options(const char *call, void *out, size_t bytes, const void *given) {
    size_t size = 0;
    if (!given) return KM_OK;
    memcpy(&size, given, sizeof size);
    if (size < sizeof size || size > bytes)
        return km_public_fail(KM_ERR_RANGE,
                              "%s: options of %zu bytes, where this version knows %zu; take them "
                              "from their _defaults call",
                              call, size, bytes);
    memcpy(out, given, size);
    memcpy(out, &bytes, sizeof bytes);
    return KM_OK;
}

void km_give_result(void *to, const void *from, size_t bytes) {
    size_t size = 0;
    if (!to) return;
    memcpy(&size, to, sizeof size);
    if (size < sizeof size || size > bytes) size = bytes;
    memcpy(to, from, size);
    memcpy(to, &size, sizeof size);
}

km_status km_told(const char *call, const km_error *err) {
    if (err->code == KM_OK) return KM_OK;
    (void)call;
    km_last_error_set(err);
    return err->code;
}
