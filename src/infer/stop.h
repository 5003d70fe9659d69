/* Texts at which a generation stops. Text comes in pieces, and a stop may begin in one piece and
 * end in another: what may be its beginning is held back until that is decided. */
#ifndef KM_INFER_STOP_H
#define KM_INFER_STOP_H
#include "base/error.h"
#include "base/text.h"

typedef struct km_stop km_stop;

/* Copies the n texts; an empty one is an error. NULL with *err set. */
km_stop *km_stop_new(const char *const *texts, size_t n, km_error *err);
void km_stop_free(km_stop *s);  /* NULL is fine */
void km_stop_reset(km_stop *s); /* to the beginning of a text */

/* Takes a piece and adds to *out what can be shown by now. True when a stop is complete: the first
 * one to be so, which is not shown, and neither is what follows it. */
bool km_stop_put(km_stop *s, const char *text, size_t bytes, km_text *out);
/* The text has ended without a stop: what was held back is text after all. */
void km_stop_end(km_stop *s, km_text *out);
/* Which of the texts it was that stopped it; -1: none. */
int km_stop_which(const km_stop *s);

#endif
