/* The formats that schemas give to strings and numbers, as patterns and bounds. */
#ifndef KM_TEXT_JSON_SCHEMA_FORMAT_H
#define KM_TEXT_JSON_SCHEMA_FORMAT_H
#include <stdbool.h>
#include <stdint.h>

/* Whether we know the format at all: whatever it is about, it can be held to. */
bool km_schema_format_known(const char *name);

/* The pattern of a format of strings; NULL where there is none, or nothing to hold to. Everything
 * that a pattern matches has the format; some are narrower, so that what fits them suits the
 * stricter readers too (docs/inference.md). */
const char *km_schema_format_pattern(const char *name);

/* The bounds of a format of integers, such as int32; false where it is none. */
bool km_schema_format_bounds(const char *name, double *lo, double *hi);

#endif
