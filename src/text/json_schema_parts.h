/* Pieces of grammars that schemas are made of: characters in JSON strings, patterns, whole numbers
 * between bounds. */
#ifndef KM_TEXT_JSON_SCHEMA_PARTS_H
#define KM_TEXT_JSON_SCHEMA_PARTS_H
#include "base/error.h"
#include "base/text.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Adds text as a GBNF literal, quotes and all. */
void km_gbnf_literal(km_text *out, const char *s, size_t n);

/* How many characters texts have; most -1: any number. */
typedef struct km_lengths {
    int64_t least, most;
} km_lengths;

/* Adds what a regular expression (of ECMAScript, as schemas have it) matches within a JSON string,
 * without the quotes around it, and says how long that can be. NULL, or why it is not possible. */
const char *km_gbnf_pattern(km_text *out, const char *pattern, size_t n, km_lengths *lengths);

/* Adds the whole numbers from lo to hi. */
void km_gbnf_integers(km_text *out, int64_t lo, int64_t hi);

/* ---- Formats of strings and numbers, as patterns and bounds ---- */

/* Whether we know the format at all: whatever it is about, it can be held to. */
bool km_schema_format_known(const char *name);

/* The pattern of a format of strings; NULL where there is none, or nothing to hold to. Everything
 * that a pattern matches has the format; some are narrower, so that what fits them suits the
 * stricter readers too (docs/inference.md). */
const char *km_schema_format_pattern(const char *name);

/* The bounds of a format of integers, such as int32; false where it is none. */
bool km_schema_format_bounds(const char *name, double *lo, double *hi);

#endif
