/* What the op `sample` is told: a row of settings and a row of memory for each row of logits. Rows
 * are copied into kernels' memory as they are, so the layout is the same on every device. */
#ifndef KM_BACKEND_SAMPLE_H
#define KM_BACKEND_SAMPLE_H
#include <stdint.h>

enum {                        /* f32, what to do */
       KM_SAMPLE_TEMPERATURE, /* below 1e-6: the likeliest */
       KM_SAMPLE_TOP_K,       /* 0: all */
       KM_SAMPLE_TOP_P,       /* 1: all */
       KM_SAMPLE_MIN_P,       /* 0: all */
       KM_SAMPLE_REPEAT,      /* of tokens among the last ones: x > 0 ? x / r : x r; 1: off */
       KM_SAMPLE_FREQUENCY,   /* x -= f n, n being how often it is among them */
       KM_SAMPLE_PRESENCE,    /* x -= q */
       KM_SAMPLE_LAST,        /* how many are the last ones; at most KM_SAMPLE_RING */
       KM_SAMPLE_TOKENS,      /* ids below this may be chosen; 0: all */
       KM_SAMPLE_MASK,        /* 1 + the row of masks that says which may be; 0: all */
       KM_SAMPLE_BIASED,      /* not 0: some of the biases are this row's */
       KM_SAMPLE_SETTINGS = 12
};

/* Masks, biases: inputs of the op (op_list.h). */
static inline const int32_t *km_sample_mask(const float *settings, const int32_t *masks,
                                            int64_t n_masks, int64_t words) {
    int64_t row = (int64_t)settings[KM_SAMPLE_MASK] - 1;
    return masks && row >= 0 && row < n_masks ? masks + row * words : 0;
}

#define KM_LOGPROBS_TOP 32 /* of the likeliest tokens that the op logprobs tells, at most */

#define KM_SAMPLE_RING 256
enum {                         /* i32, what was */
       KM_SAMPLE_SEED,         /* 64 bits, the low ones first */
       KM_SAMPLE_DRAWS = 2,    /* 64 bits: numbers drawn so far */
       KM_SAMPLE_SEEN = 4,     /* tokens seen so far; the ring holds the last of them */
       KM_SAMPLE_TOKEN_AT = 5, /* token i at KM_SAMPLE_TOKEN_AT + i % KM_SAMPLE_RING */
       KM_SAMPLE_STATE = KM_SAMPLE_TOKEN_AT + KM_SAMPLE_RING
};

#endif
