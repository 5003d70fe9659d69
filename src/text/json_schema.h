/* JSON schemas as grammars: a model held to one writes JSON that the schema accepts.
 *
 * Known are type, enum, const; properties, required and additionalProperties; items, prefixItems,
 * minItems, maxItems; minLength, maxLength, pattern, and the formats of json_schema_format.c;
 * minimum, maximum and their exclusive forms for integers; anyOf, allOf, and oneOf where the
 * branches provably exclude each other (json_schema_choice.h) or have a discriminator; $ref within
 * the document. A keyword that would be ignored otherwise is an error that says where it stands;
 * notes such as title and default may be there.
 *
 * A format that is not known is noted (km_set_log) and not held to; an error if `strict`.
 *
 * Members come in the order of the schema; others follow them only where additionalProperties is
 * there and allows it, or where the schema names no members at all. */
#ifndef KM_TEXT_JSON_SCHEMA_H
#define KM_TEXT_JSON_SCHEMA_H
#include "text/grammar.h"
#include <jansson.h>

/* Adds the schema as GBNF to *out. */
km_status km_json_schema_gbnf(const json_t *schema, bool strict, km_text *out, km_error *err);
/* The same, parsed; the text of a schema, or "{}" for any JSON value. */
km_grammar *km_json_schema_grammar(const char *text, size_t bytes, bool strict, km_error *err);

#endif
