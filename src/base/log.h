/* Notes for the person running the program ("attention has no f64 kernel on cpu; using ref").
 * The library prints nothing: a sink set by the caller (kermes.h: km_set_log) receives them. */
#ifndef KM_BASE_LOG_H
#define KM_BASE_LOG_H
#include "kermes.h"

void km_note(km_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
