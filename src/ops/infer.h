/* Ops that a model's step is made of when it only runs: few, each doing much, and none of them on
 * the tape. Positions come from tensors, so that a step can be captured once for a shape and
 * replayed for every token. */
#ifndef KM_OPS_INFER_H
#define KM_OPS_INFER_H
#include "backend/op_list.h"
#include "kermes.h"

/* n (1 to 3) layers over one x (rows, in): out[i] = x w[i]^T + b[i]; b, or any b[i], may be NULL. */
km_status km_linears(km_ctx *ctx, km_tensor *x, km_tensor *const *w, km_tensor *const *b, int n,
                     km_tensor **out);

/* act(x gate^T) * (x up^T), x (rows, in). up NULL: gate holds both, its first half the gate. */
km_tensor *km_gated(km_ctx *ctx, km_tensor *x, km_tensor *gate, km_tensor *up, km_act act);

/* y (rows, out) + sum over r of mix[row, slot[r]] (x . a[r]) b[r], all f32 but slot i32 (ranks): what
 * adapters add to a layer whose result is y. x (rows, in), mix (rows, slots), a (ranks, in), b (ranks,
 * out). The host leaves out terms whose mix is 0, and a row's result does not depend on its neighbours;
 * a GPU computes all of them, by products. */
km_tensor *km_low_rank(km_ctx *ctx, km_tensor *y, km_tensor *x, km_tensor *mix, km_tensor *slot,
                       km_tensor *a, km_tensor *b);

/* How a layer attends. */
typedef struct km_attend_spec {
    int heads, kv_heads;
    double scale;     /* of scores */
    double softcap;   /* > 0: scores are softcap tanh(score / softcap) */
    int64_t window;   /* > 0: a query sees itself and the window - 1 keys before it */
    double rope_base; /* 0: no rotation */
    int rope_dims;    /* of a head that are rotated; 0: all */
    km_rope_pairs pairs;
    km_tensor *divisors;        /* f32 (rope_dims / 2): frequencies are divided by them; or NULL */
    double rope_magnitude;      /* rotated elements are multiplied by it; 0: 1 */
    km_tensor *q_norm, *k_norm; /* f32 (D): RMS norm of each head before rotation; or NULL */
    double eps;
} km_attend_spec;

/* Puts the rows' keys and values into the cache and attends: q (rows, H D), k, v (rows, Hkv D), each
 * row's elements side by side -> (rows, H D). cache_k, cache_v (pages, Hkv, KM_KV_PAGE, D) of f32,
 * f16, bf16, q8_0 or q4_0 are written in place. rows i32 (rows, 2): of each its sequence and
 * position; table i32 (sequences, pages of one): where a sequence's tokens lie. A row sees the
 * tokens of its sequence up to its own position, those of this call among them. */
km_tensor *km_attend(km_ctx *ctx, const km_attend_spec *spec, km_tensor *q, km_tensor *k,
                     km_tensor *v, km_tensor *cache_k, km_tensor *cache_v, km_tensor *rows,
                     km_tensor *table);

/* The next token of each row of logits f32 (rows, v): i32 (rows). settings f32 (rows,
 * KM_SAMPLE_SETTINGS) and state i32 (rows, KM_SAMPLE_STATE) are those of backend/sample.h; *after
 * receives the state with the token in it, for the next call. penalties: some row has them. */
km_tensor *km_sample_rows(km_ctx *ctx, km_tensor *logits, km_tensor *settings, km_tensor *state,
                          bool penalties, km_tensor **after);
/* The same under masks i32 (m, words) and biases i32 (b, 3), or NULL: bit i % 32 of word i / 32 of a row's
 * mask (settings[KM_SAMPLE_MASK]) says that token i may be chosen, and to the logits of biases' rows and
 * tokens (0, 1) the float whose bits are 2 is added first; no two are of one token of a row. */
km_tensor *km_sample_edited(km_ctx *ctx, km_tensor *logits, km_tensor *settings, km_tensor *state,
                            bool penalties, km_tensor *masks, km_tensor *biases, km_tensor **after);

/* Of rows and tokens which i32 (n, 2) of logits f32 (rows, v): the logarithms of their softmax over the
 * first `tokens` (0: all) -> f32 (n, 1 + top): of the token named, and of the `top` likeliest, whose ids
 * *best receives: i32 (n, top), the lowest of equals first. NaN counts as -infinity. */
km_tensor *km_logprobs(km_ctx *ctx, km_tensor *logits, km_tensor *which, int64_t tokens,
                       int64_t top, km_tensor **best);

/* As km_rope, with the frequency of pair i divided by divisors[i]: f32 (n_dims / 2), or NULL. */
km_tensor *km_rope_divided(km_ctx *ctx, km_tensor *x, km_tensor *positions, km_tensor *divisors,
                           km_rope_pairs pairs, double base, int n_dims);

#endif
