/* Text that grows, for building reports in memory before they are written in one go. The first
 * allocation that fails sticks: later calls do nothing, and km_text_ok tells at the end. */
#ifndef KM_BASE_TEXT_H
#define KM_BASE_TEXT_H
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct km_text { /* all-zero is a valid empty text */
    char *data;          /* NUL-terminated once something was put; NULL before */
    size_t len, cap;
    bool failed;
} km_text;

void km_text_put(km_text *t, const char *s, size_t n);
void km_text_add(km_text *t, const char *s);
void km_text_printf(km_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void km_text_vprintf(km_text *t, const char *fmt, va_list ap);
/* Adds s with & < > " ' as entities, so that it is safe in HTML text and attributes. Control
 * characters and bytes that are not UTF-8 become U+FFFD. */
void km_text_escape(km_text *t, const char *s);
const char *km_text_str(const km_text *t); /* never NULL */
bool km_text_ok(const km_text *t);
void km_text_free(km_text *t);

/* Numbers for people, into buf; each returns buf. */
#define KM_NUMBER_TEXT 32
const char *km_format_number(char buf[KM_NUMBER_TEXT], double v);  /* "0.0123", "1.23", "1234" */
const char *km_format_si(char buf[KM_NUMBER_TEXT], double v);      /* 1500 -> "1.5k" */
const char *km_format_binary(char buf[KM_NUMBER_TEXT], double v);  /* 65536 -> "64K" */
const char *km_format_bytes(char buf[KM_NUMBER_TEXT], double v);   /* 1572864 -> "1.5 MiB" */
const char *km_format_seconds(char buf[KM_NUMBER_TEXT], double s); /* 0.0015 -> "1.50 ms" */

#endif
