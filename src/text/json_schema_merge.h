/* Schemas together: what $ref points to, and one schema that says what two say. */
#ifndef KM_TEXT_JSON_SCHEMA_MERGE_H
#define KM_TEXT_JSON_SCHEMA_MERGE_H
#include <jansson.h>
#include <stdbool.h>

/* The schema that a reference such as "#/$defs/point" names; NULL and *wrong says why. */
const json_t *km_schema_find(const json_t *root, const char *reference, const char **wrong);

/* Whether a schema says anything, beside notes such as title, description and definitions. */
bool km_schema_says(const json_t *schema);

/* What a schema without a type is about, by its keywords; NULL: anything. */
const char *km_schema_implied_type(const json_t *schema);

/* A keyword that restricts values and that we do not know; NULL: there is none. */
const char *km_schema_foreign(const json_t *schema);

/* A new schema that holds where both do. NULL, or why there is none; *both is then NULL. */
const char *km_schema_merge(const json_t *root, const json_t *a, const json_t *b, json_t **both);

#endif
