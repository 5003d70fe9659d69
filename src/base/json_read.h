/* JSON from files of others: parsed strictly (no duplicate keys, no NUL, valid UTF-8, nothing
 * after the value), and members read with their type and range checked. Every error is one line
 * that names the file. */
#ifndef KM_BASE_JSON_READ_H
#define KM_BASE_JSON_READ_H
#include "base/error.h"
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* `shown` names the text in messages. The caller frees the value with json_decref. */
json_t *km_json_parse(const void *text, size_t n, const char *shown, km_error *err);
json_t *km_json_load(const char *path, km_error *err); /* at most 1 GiB */

/* Member `key` of the object o. Absent or null leaves *value as it is, so that it can hold the
 * default; the wrong type or a value outside lo..hi (inclusive) is an error. */
km_status km_json_int(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *value,
                      const char *shown, km_error *err);
km_status km_json_real(const json_t *o, const char *key, double lo, double hi, double *value,
                       const char *shown, km_error *err);
km_status km_json_bool(const json_t *o, const char *key, bool *value, const char *shown,
                       km_error *err);
km_status km_json_string(const json_t *o, const char *key, const char **value, const char *shown,
                         km_error *err); /* *value lives as long as o */

#endif
