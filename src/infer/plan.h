/* Running tokens through a model: rows of any sequences in, logits on the host out. A step of a few
 * rows is built once for each number of rows, captured, and replayed from then on; a prompt's chunk
 * is built as it comes. */
#ifndef KM_INFER_PLAN_H
#define KM_INFER_PLAN_H
#include "infer/cache.h"
#include "ops/infer.h"

#define KM_PROMPT_CHUNK 512 /* tokens of a prompt that are run at once */

typedef struct km_plan km_plan;

/* The model and the cache must outlive it. NULL with the context's error set. */
km_plan *km_plan_new(km_ctx *ctx, km_model *m, km_cache *cache);
void km_plan_free(km_plan *p); /* NULL is fine */

/* n (1 to KM_FEW_ROWS) rows, each the next token of another sequence: rows[2 * i] and rows[2 * i + 1]
 * are its sequence and position. The logits of all come to (n, vocab). Pages are there already. */
km_status km_plan_few(km_plan *p, const int32_t *ids, const int32_t *rows, int64_t n, float *logits);
/* n tokens of one sequence from a position on; the logits after the last, or of none (NULL). */
km_status km_plan_prompt(km_plan *p, const int32_t *ids, int64_t n, int sequence, int64_t position,
                         float *logits);
/* Where the last logits of km_plan_few(n) lie on the device, f32 (n, vocab): overwritten by the next
 * call. For choosing tokens there. */
km_tensor *km_plan_logits(const km_plan *p, int64_t n);

#endif
