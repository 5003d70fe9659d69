/* JSON reports: a few helpers over Jansson for what it leaves to its callers. */
#ifndef KM_REPORT_JSON_H
#define KM_REPORT_JSON_H
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* A number with at most `digits` significant digits (noise beyond them helps nobody); null for
 * NaN and the infinities, which JSON cannot say. */
json_t *km_json_number(double v, int digits);
/* A whole number: bytes, elements; null for NaN and the infinities. */
json_t *km_json_count(double v);
/* A string; bytes that are not UTF-8 are replaced by '?', where Jansson would give NULL. */
json_t *km_json_text(const char *s);
/* The number, or the text, under a key of a report; NaN and "" where there is none. */
double km_json_number_at(const json_t *v, const char *key);
const char *km_json_text_at(const json_t *v, const char *key);
/* Writes the value, indented, with a final newline; false when it is NULL or writing failed. */
bool km_json_print(const json_t *v, FILE *out);
/* The same as a text for the caller of the library (km_string_free); v goes. NULL: v is, or there is no
 * memory. */
char *km_json_give(json_t *v);

/* What this machine has to compute with (machine.c): CPU, cores, kernel set, BLAS, memory. */
json_t *km_machine_json(void);

#endif
