/* Trial calls for every op: shapes, layouts and values that have caught bugs in engines like this
 * one. `kermes verify` runs them on a device against ref, and the gradient tests run those of
 * differentiable ops in f64 against finite differences. */
#ifndef KM_OPS_CASES_H
#define KM_OPS_CASES_H
#include "ops/op.h"

typedef enum km_values {
    KM_V_NORMAL,   /* N(0, 1) */
    KM_V_POSITIVE, /* [0.2, 2.2) */
    KM_V_NONZERO,  /* [0.3, 2.3), either sign */
    KM_V_UNIT,     /* [0, 1) */
    KM_V_OFFSET,   /* 1000 + N(0, 1) */
    KM_V_SPECIAL,  /* zeros, infinities, NaN, huge, tiny, denormal, and ordinary ones between */
    KM_V_LOW,      /* N(0, 1) with some -inf, as a mask leaves them */
    KM_V_INDEX,    /* integers in [0, limit) */
    KM_V_BOOL,
    KM_V_DERIVED /* made by `derive` */
} km_values;

typedef enum km_case_layout {
    KM_L_PLAIN,
    KM_L_TURNED, /* last two axes swapped in memory */
    KM_L_STEP,   /* every second element of a longer last axis */
    KM_L_OFFSET, /* a part of a longer first axis */
    KM_L_REPEAT, /* the first axis is one slice, repeated */
    KM_L_HEADS,  /* (B, H, T, D) over memory laid out (B, T, H, D) */
    KM_L_BACK    /* the last axis from its end: a negative stride */
} km_case_layout;

typedef struct km_case_in {
    km_shape shape;
    km_values values;
    km_case_layout layout;
    int dtype;     /* a km_dtype, or -1 for the case's own */
    int64_t limit; /* of indices */
    bool absent;   /* an optional input left out */
} km_case_in;

#define KM_CASE_INPUTS 10

typedef struct km_case {
    km_op op;
    int n_in;
    km_case_in in[KM_CASE_INPUTS];
    km_params p;
    uint32_t dtypes;  /* to try */
    bool no_gradient; /* values that finite differences cannot be taken at, or too slow to */
    bool kept;        /* by quick runs too, however large: it reaches kernels that others do not */
    /* Fills in[] entries marked KM_V_DERIVED (on ref), from the others. */
    void (*derive)(km_ctx *ctx, const struct km_case *c, km_tensor **in);
} km_case;

/* Calls fn for every case of `op` in a fixed order; stops early when it returns false. */
typedef bool (*km_case_fn)(void *user, const km_case *c);
void km_cases_each(km_op op, km_case_fn fn, void *user);

/* Those of KM_OP_ATTEND, as one list. */
void km_cases_attend(km_case_fn fn, void *user);
/* Those of quantised layers with one row of x and long rows of weights. False: stopped early. */
bool km_cases_one_row(km_op op, km_case_fn fn, void *user);
void km_cases_sample(km_case_fn fn, void *user); /* of KM_OP_SAMPLE */
void km_cases_logprobs(km_case_fn fn, void *user);
void km_cases_scan_codes(km_case_fn fn, void *user);
void km_cases_encode_levels(km_case_fn fn, void *user);
void km_cases_encode_trellis(km_case_fn fn, void *user);

/* The memory behind input i (before its layout is applied), filled, on ref. Same seed, same bits. */
km_tensor *km_case_base(km_ctx *ctx, const km_case *c, int i, km_dtype dtype, uint64_t seed);
/* The input itself: the layout's view of its base. Recorded when base requires a gradient. */
km_tensor *km_case_view(km_ctx *ctx, const km_case *c, int i, km_tensor *base);
/* "a [5, 7], b [7] turned": what the case is, for messages. */
const char *km_case_text(char *buf, size_t size, const km_case *c);

#endif
