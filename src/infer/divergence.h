/* How far a model's predictions are from another's: the other's are saved in a file once, token by
 * token of a text, and compared with as often as one likes. docs/formats/logits.md describes it. */
#ifndef KM_INFER_DIVERGENCE_H
#define KM_INFER_DIVERGENCE_H
#include "infer/perplexity.h"

/* What the predictions are of; two runs can be compared when theirs are the same. */
typedef struct km_logits_about {
    int64_t vocab, context, rows; /* rows: predictions */
    uint64_t text;                /* a hash of the token ids and where pieces begin */
} km_logits_about;
km_logits_about km_logits_of(const km_net *m, const km_ids *ids, const km_windows *o);

/* ---- Saving: `row` of km_windows with the writer as its user ---- */

typedef struct km_logits_writer km_logits_writer;
km_logits_writer *km_logits_create(const char *path, const km_logits_about *about, km_error *err);
km_status km_logits_put(void *writer, const float *logits, int32_t came, km_error *err);
/* The file appears when all rows were put; anything else is an error. Frees it either way. */
km_status km_logits_commit(km_logits_writer *w, km_error *err);
void km_logits_abort(km_logits_writer *w); /* NULL is fine */

/* ---- Comparing: likewise; the result is kermes.h's ---- */

typedef struct km_comparison km_comparison;
km_comparison *km_compare_open(const char *path, const km_logits_about *about, km_error *err);
km_status km_compare_row(void *comparison, const float *logits, int32_t came, km_error *err);
km_status km_compare_result(km_comparison *c, km_divergence *out, km_error *err);
void km_compare_close(km_comparison *c); /* NULL is fine */

#endif
