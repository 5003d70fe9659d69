/* A model that ranks share, run from one of them. Rank 0 has the sequences, reads prompts, chooses
 * tokens and talks to people; it leads. The others follow: each has its share of the model, a cache
 * of its own heads and a plan, and does to them what rank 0 tells it. One message goes out before
 * each step: what has happened to the cache since the last one, and the step's tokens and places.
 * So all ranks run the same steps, and what is chosen, and how, is rank 0's business alone. */
#ifndef KM_INFER_FOLLOW_H
#define KM_INFER_FOLLOW_H
#include "infer/plan.h"

typedef struct km_lead km_lead;

/* ---- Rank 0, for batch.c. A NULL leader has nobody to tell: all of it does nothing. ---- */

/* *out NULL where the model is whole. The others make their caches. */
km_status km_lead_begin(const km_net *m, const km_cache_options *o, km_lead **out, km_error *err);
void km_lead_end(km_lead *l); /* and let go of them */

/* What was done to a sequence of the cache, with success; told with the next step. */
typedef enum km_lead_what {
    KM_LEAD_JOIN,
    KM_LEAD_FORK, /* n: from which */
    KM_LEAD_LEAVE,
    KM_LEAD_RESERVE,
    KM_LEAD_ADD,
    KM_LEAD_CUT
} km_lead_what;
void km_lead_note(km_lead *l, km_lead_what what, int sequence, int64_t n);

/* The step that comes now: arguments as for km_plan_few, km_plan_choose and km_plan_prompt. The
 * model's context has the error. */
km_status km_lead_few(km_lead *l, const int32_t *ids, const int32_t *rows, int64_t n);
km_status km_lead_choose(km_lead *l, const int32_t *ids, const int32_t *rows, int64_t n,
                         int64_t steps, km_chooser *const *chooser);
km_status km_lead_prompt(km_lead *l, const int32_t *ids, int64_t n, int sequence, int64_t position,
                         bool logits);

/* Sends the followers home: km_follow returns. Nothing, where the model is whole. */
void km_lead_dismiss(const km_net *m);

/* ---- The other ranks ---- */

/* Does what rank 0 says until it is dismissed. The error of a step that failed here. */
km_status km_follow(km_net *m, km_error *err);

#endif
