/* Strict JSON over Jansson. */
#include "base/json_read.h"
#include "base/file.h"
#include "base/shown.h"

#define MAX_FILE ((size_t)1 << 30)

json_t *km_json_parse(const void *text, size_t n, const char *shown, km_error *err) {
    json_error_t at;
    json_t *v = json_loadb(n ? text : "", n, JSON_REJECT_DUPLICATES, &at);
    if (v) return v;
    char why[KM_SHOWN];
    if (json_error_code(&at) == json_error_out_of_memory)
        km_error_set(err, KM_ERR_MEMORY, "'%s': out of memory while reading JSON", shown);
    else
        km_error_set(err, KM_ERR_FORMAT, "'%s' is not valid JSON: line %d, column %d: %s", shown,
                     at.line, at.column, km_shown(why, at.text));
    return NULL;
}

json_t *km_json_load(const char *path, km_error *err) {
    km_map m;
    if (km_map_open(&m, path, err) != KM_OK) return NULL;
    json_t *v = NULL;
    if (m.size > MAX_FILE)
        km_error_set(err, KM_ERR_FORMAT,
                     "'%s' is not JSON that Kermes reads: %zu bytes are too many", path, m.size);
    else
        v = km_json_parse(m.data, m.size, path, err);
    if (km_map_done(&m, KM_OK, err) == KM_OK) return v;
    json_decref(v);
    return NULL;
}

static const char *type_name(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "true or false";
    case JSON_NULL: break;
    }
    return "null";
}

static km_status wrong_type(const char *key, const char *want, const json_t *got, const char *shown,
                            km_error *err) {
    return km_error_set(err, KM_ERR_FORMAT, "'%s': \"%s\" must be %s, not %s", shown, key, want,
                        type_name(got));
}

static const json_t *member(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return v && !json_is_null(v) ? v : NULL;
}

km_status km_json_int(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *value,
                      const char *shown, km_error *err) {
    const json_t *v = member(o, key);
    if (!v) return KM_OK;
    if (!json_is_integer(v)) return wrong_type(key, "a whole number", v, shown, err);
    int64_t n = json_integer_value(v);
    if (n < lo || n > hi)
        return km_error_set(err, KM_ERR_FORMAT, "'%s': \"%s\" is %lld, not between %lld and %lld",
                            shown, key, (long long)n, (long long)lo, (long long)hi);
    *value = n;
    return KM_OK;
}

km_status km_json_real(const json_t *o, const char *key, double lo, double hi, double *value,
                       const char *shown, km_error *err) {
    const json_t *v = member(o, key);
    if (!v) return KM_OK;
    if (!json_is_number(v)) return wrong_type(key, "a number", v, shown, err);
    double n = json_number_value(v);
    if (!(n >= lo && n <= hi))
        return km_error_set(err, KM_ERR_FORMAT, "'%s': \"%s\" is %g, not between %g and %g", shown,
                            key, n, lo, hi);
    *value = n;
    return KM_OK;
}

km_status km_json_bool(const json_t *o, const char *key, bool *value, const char *shown,
                       km_error *err) {
    const json_t *v = member(o, key);
    if (!v) return KM_OK;
    if (!json_is_boolean(v)) return wrong_type(key, "true or false", v, shown, err);
    *value = json_is_true(v);
    return KM_OK;
}

km_status km_json_string(const json_t *o, const char *key, const char **value, const char *shown,
                         km_error *err) {
    const json_t *v = member(o, key);
    if (!v) return KM_OK;
    if (!json_is_string(v)) return wrong_type(key, "a string", v, shown, err);
    *value = json_string_value(v);
    return KM_OK;
}
