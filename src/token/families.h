/* How the families of byte-level BPE cut text, by the names that GGUF files give them. */
#ifndef KM_TOKEN_FAMILIES_H
#define KM_TOKEN_FAMILIES_H
#include <jansson.h>
#include <stdbool.h>

typedef struct km_family {
    const char *names;      /* with spaces between and around them */
    const char *pattern[7]; /* regular expressions, one after the other */
    bool ignore_merges;     /* a piece that is a token is that token */
    bool add_bos;           /* when the file does not say */
    bool nfc;               /* text is normalised first */
} km_family;

const km_family *km_family_find(const char *name); /* NULL: unknown */
/* The pre_tokenizer section of a family; NULL when out of memory. */
json_t *km_family_section(const km_family *f);
const km_family *km_family_list(int *n); /* all of them */

#endif
