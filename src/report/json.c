/* Helpers over Jansson. */
#include "report/json.h"
#include "base/alloc.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

json_t *km_json_number(double v, int digits) {
    if (!isfinite(v)) return json_null();
    char text[64];
    snprintf(text, sizeof text, "%.*g", digits, v);
    return json_real(strtod(text, NULL));
}

json_t *km_json_count(double v) {
    return fabs(v) < 9e18 ? json_integer((json_int_t)v) : json_null();
}

json_t *km_json_text(const char *s) {
    json_t *v = json_string(s);
    if (v) return v;
    char *copy = km_strdup(s);
    if (!copy) return NULL;
    for (char *p = copy; *p; p++)
        if ((unsigned char)*p >= 0x80) *p = '?';
    v = json_string(copy);
    km_free(copy);
    return v;
}

bool km_json_print(const json_t *v, FILE *out) {
    if (!v || json_dumpf(v, out, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) != 0) return false;
    return fputc('\n', out) != EOF;
}

char *km_json_give(json_t *v) {
    char *text = v ? json_dumps(v, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) : NULL;
    char *own = text ? km_strdup(text) : NULL; /* the heap's one door */
    free(text);
    json_decref(v);
    return own;
}

double km_json_number_at(const json_t *v, const char *key) {
    const json_t *f = json_object_get(v, key);
    return json_is_number(f) ? json_number_value(f) : NAN;
}

const char *km_json_text_at(const json_t *v, const char *key) {
    const char *s = json_string_value(json_object_get(v, key));
    return s ? s : "";
}
