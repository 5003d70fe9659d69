/* Errors: one code and one line of text that says what, where and what to do. The codes are
 * the X-macro list in kermes.h. The library never prints, exits or aborts. */
#ifndef KM_BASE_ERROR_H
#define KM_BASE_ERROR_H
#include "kermes.h"
#include <stdarg.h>

#define KM_ERROR_TEXT 512

typedef struct km_error {
    km_status code;
    char text[KM_ERROR_TEXT];
} km_error;

/* Sets *err (NULL is fine) if it holds no error yet, and returns `code`: the first one stays. */
km_status km_error_set(km_error *err, km_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
km_status km_error_setv(km_error *err, km_status code, const char *fmt, va_list ap);
/* KM_ERR_MEMORY: "out of memory", and for what ("the checkpoint", "'%s'"). */
km_status km_no_memory(km_error *err);
km_status km_no_memory_for(km_error *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* What km_last_status and km_last_error say from now on in this thread; nothing, for KM_OK. */
void km_last_error_set(const km_error *err);
/* The same for a public call that fails here; returns `code`. */
km_status km_public_fail(km_status code, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Tells how a public call went: km_last_error says it from now on, unless *err is KM_OK; its code. */
km_status km_told(const km_error *err);
/* A public call without something that it needs: KM_ERR_NULL. */
km_status km_missing(const char *call);

#endif
