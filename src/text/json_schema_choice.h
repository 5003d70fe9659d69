/* Choices between schemas: what can be proven about oneOf.
 *
 * A text written under one branch must not be valid under another. The proof is about what our
 * grammar writes on one side (members that the schema names, and no others unless it says so) and
 * about what a validator takes on the other (anything that no keyword forbids). It is found where
 * types, constants, bounds or lengths differ, or those of a property that one of the two requires,
 * or where a property that one requires is forbidden in the other. Formats and patterns prove
 * nothing. */
#ifndef KM_TEXT_JSON_SCHEMA_CHOICE_H
#define KM_TEXT_JSON_SCHEMA_CHOICE_H
#include <jansson.h>
#include <stdbool.h>

/* Whether the value is surely not valid under the schema. */
bool km_schema_rejects(const json_t *root, const json_t *schema, const json_t *value);

/* Whether nothing that is written under a is valid under b, provably. Takes its work from *steps;
 * nothing is proven when they are used up. */
#define KM_SCHEMA_STEPS 100000
bool km_schema_excludes(const json_t *root, const json_t *a, const json_t *b, int *steps);

/* The schema with its reference and allOf worked in, as a new one; NULL where they cannot be. */
json_t *km_schema_flat(const json_t *root, const json_t *schema);

/* The branches of anyOf or oneOf (key), each a schema for itself: joined with what stands beside
 * the choice, held to the values of its discriminator, and for oneOf so that no text fits two. A
 * member that one branch requires is left out of the others where that tells them apart. NULL and
 * why: it cannot be done, and what would help. */
#define KM_SCHEMA_WHY 256
json_t *km_schema_branches(const json_t *root, const json_t *schema, const char *key,
                           char why[KM_SCHEMA_WHY]);

#endif
