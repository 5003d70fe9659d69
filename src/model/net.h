/* Nets: the layers and weights of a decoder of the architectures in arch.h, all of them or, over
 * several devices, a part. One code serves training and inference; the difference is the tape,
 * dropout, and a cache of keys and values. (A km_model of kermes.h is a net ready for use, with its
 * tokenizer, template and devices: src/engine.)
 *
 *     km_net *m = km_net_new(ctx, &config, KM_BF16);
 *     km_net_init(m, seed);
 *     m->train = true;
 *     km_tensor *loss = km_net_loss(ctx, m, ids, targets);
 *     km_backward(ctx, loss);                                   // gradients in m->params
 */
#ifndef KM_MODEL_NET_H
#define KM_MODEL_NET_H
#include "model/config.h"
#include "model/share.h"
#include "nn/nn.h"
#include <stdatomic.h>

#define KM_IGNORE_TARGET (-100) /* a target that counts for nothing, as in Hugging Face */

/* Where the tokens of a running model's step are; made by infer/cache.h. */
typedef struct km_net_place {
    const km_nn_kv *kv; /* one a layer; NULL: no cache, ids are (B, T), and only at.mix is read */
    km_nn_place at;     /* at.last: of the result */
    const atomic_bool
        *cancel; /* looked at between layers: true ends the step there, without a result
                                * and without an error; NULL: nobody cancels */
} km_net_place;

typedef struct km_net {
    km_ctx *ctx;
    km_config config; /* complete */
    km_dtype dtype;
    km_param_list params; /* named as in Hugging Face, in order of use */
    bool train;           /* dropout is on */
    bool every_target;    /* no target is KM_IGNORE_TARGET: saves a pass over gradients */
    bool recompute;       /* blocks keep only their inputs and run again in backward */

    km_nn_embedding wte, wpe; /* tokens; positions (gpt2 only) */
    km_nn_block *block;       /* config.layers of them */
    km_nn_norm norm;          /* the last one */
    km_nn_linear head;        /* w is wte.w when tied */
    int lora_rank;            /* 0: no low-rank corrections (lora.h) */
    double lora_alpha;
    struct {              /* that run beside the weights (adapters.h); of the first part */
        uint64_t changes; /* so many so far */
        uint64_t
            print[KM_ADAPTER_SLOTS]; /* a number that tells one from others; 0: an empty slot */
    } adapters;
    km_tensor *q_rows,
        *k_rows;         /* rotary: positions of (token, head) rows, as attention wants them */
    km_tensor *divisors; /* of a stretched rotation's frequencies; or NULL */
    bool borrowed;       /* parameters came from a source: they cannot be trained or saved */

    /* A model over several devices is a chain of parts (parts.h), each with layers first .. last - 1
     * in a context of its own. One that is whole is its only part. */
    int first, last;
    struct km_net *next; /* the part that goes on from here; or NULL */
    bool own_ctx;        /* the context goes with the part */

    /* A model that ranks hold together (share.h): config is that of this rank's share. */
    km_comm *comm; /* not owned; NULL: the model is whole */
    km_share share;
} km_net;

/* A model with parameters of zero on the context's device; NULL with the context's error set. */
km_net *km_net_new(km_ctx *ctx, const km_config *c, km_dtype dtype);
/* A model for inference whose parameters exist already. */
typedef struct km_net_source {
    km_nn_source params;
    km_rope_pairs pairs;   /* how the rows of q and k lie */
    const float *divisors; /* (rope_dims / 2), for KM_ROPE_DIVISORS */
    int first, last;       /* only these layers, and what stands before the first and after the last
                            * layer of all; last 0: all */
    km_comm *comm;         /* ranks that hold the model together; NULL: this one has it all */
    km_share share;        /* what this one gets of it */
} km_net_source;
km_net *km_net_from(km_ctx *ctx, const km_config *c, km_dtype dtype, const km_net_source *source);
void km_net_free(km_net *m); /* NULL is fine; before its context; the parts after it go too */
/* GPT-2's initialisation: N(0, 0.02), projections into the residual stream smaller by
 * sqrt(2 layers), biases 0, norms 1. Element i of a parameter is a function of seed, the
 * parameter's name and i alone: the same on every device and, up to rounding, in every dtype. */
km_status km_net_init(km_net *m, uint64_t seed);
/* One parameter drawn so, from N(0, sd). */
void km_param_normal(km_ctx *ctx, km_param *p, uint64_t seed, double sd);

/* ids (B, T) i32 or i64 on the model's device, T at most config.context.
 * -> (B, T, dim), after the last norm. With a place in a cache, ids are (rows), each a token of some sequence,
 * and the result is (rows, dim), or that of the last few rows; nothing is then recorded, no dropout
 * applied, and no element of a tensor read on the host, so that the step can be captured.
 * A part that does not begin with layer 0 takes what the part before it gave in place of ids, and
 * one that does not end with the last layer gives the residual stream after its own last. */
km_tensor *km_net_forward(km_ctx *ctx, km_net *m, km_tensor *ids, const km_net_place *place);
/* hidden (..., dim) -> (..., vocab); where ranks share the model, all of them call it. */
km_tensor *km_net_logits(km_ctx *ctx, km_net *m, km_tensor *hidden);
/* Mean cross-entropy of the next tokens, a scalar; ids and targets (B, T). */
km_tensor *km_net_loss(km_ctx *ctx, km_net *m, km_tensor *ids, km_tensor *targets);

/* Freezes (or frees) parameters whose names fit the pattern (nn/param.h); how many did. */
int km_net_freeze(km_net *m, const char *pattern, bool frozen);
/* Floating-point operations of one token in training, forward and backward, at sequence length T:
 * 6 per weight in a product, and attention's 12 layers (H D) T, halved where it is causal. */
double km_net_flops_per_token(const km_net *m, int64_t t);

#endif
