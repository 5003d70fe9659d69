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

/* The first `size` bytes of *own (of `bytes`) as a caller's struct of that size, which is 0 where own's is
 * and nothing was to be told. */
static inline km_status km_hand_out(void *out, size_t size, const void *own, size_t bytes,
                                    const char *what) {
    size_t told;
    if (!out) return km_public_fail(KM_ERR_NULL, "%s: no place for it", what);
    if (size < sizeof size)
        return km_public_fail(KM_ERR_RANGE, "%s has a size of %zu; give its sizeof", what, size);
    memset(out, 0, size);
    if (size > bytes)
        return km_public_fail(KM_ERR_RANGE,
                              "%s has a size of %zu; this library knows %zu bytes of it: it is "
                              "older than the program",
                              what, size, bytes);
    memcpy(&told, own, sizeof told);
    memcpy(out, own, size);
    if (told) memcpy(out, &size, sizeof size);
    return told ? KM_OK : km_last_status();
}
#define KM_HAND_OUT(out, size, own, type) km_hand_out(out, size, own, sizeof(type), #type)

/* The other way, by the size in it: the first bytes of *own into *to, as many as its size says. NULL is fine. */
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
