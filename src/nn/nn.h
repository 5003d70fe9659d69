/* Layers: plain structs of parameters with one forward function each. A layer's tensors belong to
 * the km_param_list given when it was made; the struct only points at them, so it may be copied.
 * Every forward takes and returns tensors of the step and records itself on the tape as ops do. */
#ifndef KM_NN_NN_H
#define KM_NN_NN_H
#include "comm/comm.h"
#include "nn/param.h"

/* Where parameters come from that exist already: a kept tensor for a name, in any dtype that the
 * layer's op takes, or NULL with the context's error set. The list of parameters will own it. */
typedef struct km_nn_source {
    km_tensor *(*take)(void *user, km_ctx *ctx, const char *name, km_shape shape);
    void *user;
} km_nn_source;

/* How layers are made: where their parameters go, and in which dtype. */
typedef struct km_nn {
    km_ctx *ctx;
    km_param_list *params;
    km_dtype dtype;
    const km_nn_source *from; /* NULL: new ones, of zeros */
} km_nn;

/* Dropout is on when a positive rate is given; the rate is the caller's, who knows whether this is
 * training. x itself when p is 0. */
km_tensor *km_nn_dropout(km_ctx *ctx, km_tensor *x, double p);

/* ---- Linear: act(x W^T + b + scale (x A^T) B^T) ---- */

typedef struct km_nn_lora { /* a low-rank correction; a is NULL when there is none */
    km_tensor *a, *b;       /* (rank, in), (out, rank) */
    double scale;           /* alpha / rank */
} km_nn_lora;

#define KM_ADAPTER_SLOTS 32 /* adapters that a model has at once, at most */

/* Corrections by adapters of a model that runs: of each rank its slot, row of A, and column of B with
 * alpha / rank in it; all adapters of the layer together, one after the other. */
typedef struct km_nn_low {
    km_tensor *slot;  /* kept: i32 (ranks); NULL: no adapter changes the layer */
    km_tensor *a, *b; /* kept: f32 (ranks, in), (ranks, out) */
} km_nn_low;

typedef struct km_nn_linear {
    km_tensor *w, *b; /* (out, in); (out) or NULL */
    km_nn_lora lora;
    km_nn_low low;
} km_nn_linear;

/* Parameters "<name>.weight" and, with bias, "<name>.bias". */
km_nn_linear km_nn_linear_new(const km_nn *nn, int64_t in, int64_t out, bool bias,
                              const char *name);
km_tensor *km_nn_linear_forward(km_ctx *ctx, const km_nn_linear *l, km_tensor *x, km_act act);
struct km_nn_place;
/* The same for rows of a running model, each corrected by its own mix of adapters, if at->mix says so. */
km_tensor *km_nn_linear_run(km_ctx *ctx, const km_nn_linear *l, km_tensor *x, km_act act,
                            const struct km_nn_place *at);
/* y, what the layer makes of x, with these corrections; y itself where there are none. */
km_tensor *km_nn_adapted(km_ctx *ctx, const km_nn_linear *l, km_tensor *x, km_tensor *y,
                         const struct km_nn_place *at);
/* act(x w^T + b): a linear layer that is not one, such as a tied head. */
km_tensor *km_nn_product(km_ctx *ctx, km_tensor *x, km_tensor *w, km_tensor *b, km_act act);

/* ---- Embedding: row ids[i] of a table ---- */

typedef struct km_nn_embedding {
    km_tensor *w; /* (rows, dim) */
} km_nn_embedding;

km_nn_embedding km_nn_embedding_new(const km_nn *nn, int64_t rows, int64_t dim, const char *name);
km_tensor *km_nn_embedding_forward(km_ctx *ctx, const km_nn_embedding *e, km_tensor *ids);

/* ---- LayerNorm and RMSNorm over the last axis ---- */

typedef enum km_nn_norm_kind { KM_NN_LAYER_NORM, KM_NN_RMS_NORM } km_nn_norm_kind;

typedef struct km_nn_norm {
    km_nn_norm_kind kind;
    km_tensor *w, *b; /* (dim); b NULL for RMSNorm and without bias */
    double eps;
} km_nn_norm;

km_nn_norm km_nn_norm_new(const km_nn *nn, km_nn_norm_kind kind, int64_t dim, bool bias, double eps,
                          const char *name);
km_tensor *km_nn_norm_forward(km_ctx *ctx, const km_nn_norm *n, km_tensor *x);
/* norm(x + *residual) in one pass; *residual becomes x + *residual. */
km_tensor *km_nn_norm_add(km_ctx *ctx, const km_nn_norm *n, km_tensor *x, km_tensor **residual);

/* ---- Attention: causal, multi-head or grouped ---- */

/* Keys and values of the tokens seen so far, for one layer: pages of a pool. */
typedef struct km_nn_kv {
    km_tensor *k, *v; /* kept, (pages, Hkv, KM_KV_PAGE, D), of a dtype of their own */
} km_nn_kv;

/* Which tokens the rows of a running model's step are; the same for all layers (ops/infer.h). */
typedef struct km_nn_place {
    km_tensor *rows;  /* kept i32 (rows, 2): sequence, position */
    km_tensor *table; /* kept i32 (sequences, pages of one) */
    int64_t last;     /* only so many rows at the end are wanted of the layer; 0: all */
    km_tensor *mix;   /* kept f32 (rows, slots): how much of each adapter a row has; NULL: none */
} km_nn_place;
/* Whether rows of the step may have corrections of the layer. */
static inline bool km_nn_is_adapted(const km_nn_linear *l, const km_nn_place *at) {
    return at && at->mix && l->low.slot;
}
/* x (rows, C), or its last rows where no more are wanted. */
km_tensor *km_nn_last(km_ctx *ctx, const km_nn_place *at, km_tensor *x);

typedef struct km_nn_attention {
    km_nn_linear qkv;     /* (H + 2 Hkv) D wide, used when q.w is NULL */
    km_nn_linear q, k, v; /* or one each */
    km_nn_linear proj;
    int heads, kv_heads;
    int64_t head_dim;
    double rope_base; /* 0: no rotation */
    int rope_dims;    /* of a head that are rotated; 0: all */
    km_rope_pairs pairs;
    km_tensor *rope_divisors;   /* kept f32 (dims / 2): frequencies are divided by them; or NULL */
    double rope_magnitude;      /* rotated elements are multiplied by it; 0: 1 */
    km_nn_norm q_norm, k_norm;  /* of each head, before rotation; w NULL: none */
    double scale;               /* of scores; 0: 1 / sqrt(head_dim) */
    double softcap;             /* > 0: scores are softcap tanh(score / softcap) */
    int64_t window;             /* > 0: a query sees itself and the window - 1 keys before it */
    km_tensor *q_rows, *k_rows; /* kept i32, for rotation: the position of each (token, head) row,
                                   * (context * heads) and (context * kv_heads); not owned. NULL:
                                   * made when needed. A running model does not need them. */
} km_nn_attention;

/* Without kv: x (B, T, C) -> (B, T, C). With it, x (rows, C) -> (rows, C): the rows' keys and values
 * are put into the cache and each sees those of its sequence up to its own; off the tape. at->last
 * rows are returned. */
km_tensor *km_nn_attention_forward(km_ctx *ctx, const km_nn_attention *a, km_tensor *x,
                                   const km_nn_kv *kv, const km_nn_place *at);

/* ---- MLP: down(gelu(up(x))), or down(act(gate(x)) * up(x)) ---- */

typedef struct km_nn_mlp {
    km_nn_linear up, down;
    km_nn_linear gate; /* w NULL: none, and GELU */
    bool joined;       /* up makes gate and up, side by side */
    km_act act;        /* of the gate; KM_ACT_NONE: SiLU */
} km_nn_mlp;

/* at: of a running model's rows, as in attention; or NULL. */
km_tensor *km_nn_mlp_forward(km_ctx *ctx, const km_nn_mlp *m, km_tensor *x, const km_nn_place *at);

/* ---- Transformer block ----
 * The residual stream runs as two tensors, `x` and what is still to be added to it, so that every
 * sum is made inside the norm that follows: a block takes *x and its pending delta, and leaves
 * *x and a new delta. The first block of a model has no delta (NULL). */

typedef struct km_nn_block {
    km_nn_norm norm1, norm2;
    km_nn_norm post1, post2; /* of what attention and MLP give; w NULL: none */
    km_nn_attention attention;
    km_nn_mlp mlp;
    km_comm *ranks; /* each has some heads and some columns of the MLP: what attention and MLP give
                     * is added up over them, off the tape; NULL: all are here */
} km_nn_block;

/* x = *residual + delta; x += dropout(post1(attention(norm1 x))); returns dropout(post2(mlp(norm2
 * x))), which is still to be added, and leaves *residual = x. delta may be NULL. */
km_tensor *km_nn_block_forward(km_ctx *ctx, const km_nn_block *b, km_tensor *delta,
                               km_tensor **residual, const km_nn_kv *kv, const km_nn_place *at,
                               double dropout);
/* The block's linear layers, those that it has, into out; returns how many. */
#define KM_NN_BLOCK_LINEARS 8
int km_nn_block_linears(km_nn_block *b, km_nn_linear *out[KM_NN_BLOCK_LINEARS]);
bool km_nn_block_trains(const km_nn_block *b); /* whether any of its parameters wants a gradient */

#endif
