/* Error values: the names and texts of the status list, and the rule that the first
 * error stays. */
#include "base/error.h"
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *text;
} status_info[] = {
#define KM_STATUS_ROW(name, text) {#name, text},
    KM_STATUS_LIST(KM_STATUS_ROW)
#undef KM_STATUS_ROW
};
static const size_t status_count = sizeof status_info / sizeof status_info[0];

const char *km_status_name(km_status s) {
    return (size_t)s < status_count ? status_info[s].name : "ERR_UNKNOWN";
}

const char *km_status_text(km_status s) {
    return (size_t)s < status_count ? status_info[s].text : "unknown error";
}

km_status km_error_setv(km_error *err, km_status code, const char *fmt, va_list ap) {
    if (!err || err->code != KM_OK || code == KM_OK) return code;
    err->code = code;
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    if (n < 0) snprintf(err->text, sizeof err->text, "%s", km_status_text(code));
    /* A cut message says so, or its last number could be read as a whole one. */
    if (n >= (int)sizeof err->text) strcpy(err->text + sizeof err->text - 4, "...");
    return code;
}

km_status km_error_set(km_error *err, km_status code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    km_error_setv(err, code, fmt, ap);
    va_end(ap);
    return code;
}

km_status km_no_memory(km_error *err) { return km_error_set(err, KM_ERR_MEMORY, "out of memory"); }

km_status km_no_memory_for(km_error *err, const char *fmt, ...) {
    char what[KM_ERROR_TEXT];
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(what, sizeof what, fmt, ap) < 0) what[0] = 0;
    va_end(ap);
    return km_error_set(err, KM_ERR_MEMORY, "out of memory for %s", what);
}

/* ---- The last failure of a thread ---- */

static _Thread_local km_error last_error;

km_status km_last_status(void) { return last_error.code; }
const char *km_last_error(void) { return last_error.text; }

void km_last_error_set(const km_error *err) {
    if (err->code != KM_OK) last_error = *err;
}

km_status km_public_fail(km_status code, const char *fmt, ...) {
    va_list ap;
    last_error = (km_error){0};
    va_start(ap, fmt);
    km_error_setv(&last_error, code, fmt, ap);
    va_end(ap);
    return code;
}

km_status km_told(const km_error *err) {
    km_last_error_set(err);
    return err->code;
}

km_status km_missing(const char *call) {
    return km_public_fail(KM_ERR_NULL, "%s: an argument is missing or negative", call);
}
