/* Structs of kermes.h that may grow: they begin with `size`, which tells how much of one the caller
 * knows. What it does not know keeps its default. */
#ifndef KM_BASE_SIZED_H
#define KM_BASE_SIZED_H
#include "base/error.h"
#include <string.h>

/* *own (of `bytes`), which holds the defaults, takes over what *given has. NULL: it stays. A size of 0,
 * or one beyond this library's, is KM_ERR_RANGE. */
static inline km_status km_take_sized(void *own, size_t bytes, const void *given, const char *what,
                                      km_error *err) {
    size_t size;
    if (!given) return KM_OK;
    memcpy(&size, given, sizeof size);
    if (size < sizeof size || size > bytes)
        return km_error_set(
            err, KM_ERR_RANGE,
            "%s has a size of %zu; this library knows %zu bytes of it: take it from "
            "its _defaults() call or set size to its sizeof",
            what, size, bytes);
    memcpy(own, given, size);
    memcpy(own, &bytes, sizeof bytes);
    return KM_OK;
}

/* The other way: the first bytes of *own into *to, as many as its size says. NULL is fine. */
static inline void km_give_sized(void *to, const void *own, size_t bytes) {
    size_t size;
    if (!to) return;
    memcpy(&size, to, sizeof size);
    if (size < sizeof size) return;
    memcpy((char *)to + sizeof size, (const char *)own + sizeof size,
           (size < bytes ? size : bytes) - sizeof size);
}

/* Whether a struct to be filled has a size that makes sense. */
static inline km_status km_check_sized(const void *to, size_t bytes, const char *what,
                                       km_error *err) {
    size_t size = bytes;
    if (to) memcpy(&size, to, sizeof size);
    if (size >= sizeof size && size <= bytes) return KM_OK;
    return km_error_set(err, KM_ERR_RANGE, "%s has a size of %zu; set it to its sizeof, %zu", what,
                        size, bytes);
}

#endif
