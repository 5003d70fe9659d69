/* Structs that grow: what an older program does not know of keeps its default. */
#include "base/sized.h"
#include "engine/engine.h"

km_status km_take_options(const char *call, void *out, size_t bytes, const void *given) {
    km_error err = {0};
    if (km_take_sized(out, bytes, given, "options", &err) == KM_OK) return KM_OK;
    return km_public_fail(err.code, "%s: %s", call, err.text);
}
