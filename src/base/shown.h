/* Text from a file, made fit for an error message: a name in there may hold anything. */
#ifndef KM_BASE_SHOWN_H
#define KM_BASE_SHOWN_H
#include <stddef.h>

#define KM_SHOWN 80

/* The first bytes of s, control characters and half characters replaced by '?', cut with "..." */
const char *km_shown_bytes(char out[KM_SHOWN], const char *s, size_t n);
const char *km_shown(char out[KM_SHOWN], const char *s);

#endif
