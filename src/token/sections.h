/* Looking into the sections of a tokenizer.json. */
#ifndef KM_TOKEN_SECTIONS_H
#define KM_TOKEN_SECTIONS_H
#include "token/internal.h"

const char *km_section_type(const json_t *section); /* "" for null */
/* Whether the section is of this type, or a Sequence with one of it. */
bool km_section_has(const json_t *section, const char *type);

#endif
