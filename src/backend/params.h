/* The settings of a call, and the names of the whole and real numbers that an op reads: what
 * op_list.h tells about each op, under one name for shape rules, gradients and kernels alike. */
#ifndef KM_BACKEND_PARAMS_H
#define KM_BACKEND_PARAMS_H
#include "kermes.h"

/* All zero by default. */
typedef struct km_params {
    int axis;      /* in [0, ndim) */
    uint32_t axes; /* bit set of reduced axes */
    bool keepdim, causal, accumulate;
    km_act act;
    int64_t n[4]; /* by KM_N_..., below */
    double f[6];  /* by KM_F_... */
    uint64_t seed, stream;
    km_dtype dtype; /* of the output, for fills and casts */
    km_shape shape; /* of the output, for fills and views */
} km_params;

/* Fills, and elementwise ops with numbers. */
enum { KM_F_VALUE };            /* full, masked_fill, add_scalar, mul_scalar, pow_scalar */
enum { KM_F_LO, KM_F_HI };      /* uniform, clamp */
enum { KM_F_START, KM_F_STEP }; /* arange */
enum { KM_F_MEAN, KM_F_SD };    /* normal */
enum { KM_F_DROP };             /* dropout: the probability of a 0 */
enum { KM_N_DIAGONAL };         /* triu, tril */
enum { KM_N_CORRECTION };       /* var */
enum { KM_N_SLICE_START, KM_N_SLICE_STEP }; /* slice */

/* Products and norms. */
enum { KM_F_ALPHA, KM_F_BETA }; /* matmul: alpha a b + beta out */
enum { KM_N_BOTH };             /* linear, linear_dx, linear_dw, mlp: there is a second output */
enum { KM_N_LAYERS };           /* linears: 1 to 3 */
enum { KM_F_EPS };              /* norms */

/* Indices and order. */
enum { KM_N_TABLE_ROWS };          /* embedding_grad */
enum { KM_N_ROOM };                /* masked_select, nonzero: rows of the result */
enum { KM_N_TOP_K, KM_N_FALLING }; /* sort: the first k; 1: the largest first */
enum { KM_N_FROM_END };            /* cumsum */
enum { KM_N_CLASSES };             /* one_hot */

/* Attention. */
enum { KM_N_ROPE_DIMS, KM_N_ROPE_PAIRS, KM_N_ROPE_INVERSE }; /* rope; pairs: km_rope_pairs */
enum { KM_F_ROPE_BASE };
enum { KM_F_SCALE };                               /* attention, attention_qkv, attend */
enum { KM_N_HEADS, KM_N_KV_HEADS, KM_N_HEAD_DIM }; /* attention_qkv; the first two of attend, too */
enum { KM_N_WINDOW = 2, KM_N_ROTATION };           /* attend: 0: none; dims | km_rope_pairs << 32 */
enum { KM_F_ATTEND_BASE = 1, KM_F_SOFTCAP, KM_F_ATTEND_EPS, KM_F_MAGNITUDE }; /* attend; 0: none */

/* Losses and choosing. */
enum { KM_N_IGNORE, KM_N_REDUCTION, KM_N_WITH_GRADIENT }; /* cross_entropy; reduction: all losses */
enum { KM_N_DX_AT, KM_N_DW_AT, KM_N_FACTOR_AT }; /* linear_cross_entropy: outputs; 0: none */
enum { KM_N_PENALTIES };                         /* sample: some row has penalties */
enum { KM_N_TOP, KM_N_TOKENS };                  /* logprobs */

/* Optimisers. */
enum { KM_F_LR };                           /* sgd, adamw */
enum { KM_F_MOMENTUM = 1, KM_F_SGD_DECAY }; /* sgd */
enum {
    KM_F_BETA1 = 1,
    KM_F_BETA2,
    KM_F_ADAM_EPS,
    KM_F_ADAM_DECAY
};                                  /* adamw; betas: optim_control */
enum { KM_N_NESTEROV };             /* sgd */
enum { KM_N_STEP, KM_N_DECOUPLED }; /* adamw: t from 1; decay of the weights */
enum { KM_N_FIRST = 2 };            /* sgd, adamw: the control's first tensor */
enum { KM_F_MAX_NORM };             /* optim_control; 0: any */
enum { KM_N_GROWTH };               /* optim_control: good steps; 0: never */

/* Vectors. */
enum { KM_N_NOTED, KM_N_QUICK };                             /* nearest */
enum { KM_N_CELLS };                                         /* cell_sums */
enum { KM_N_NEAREST, KM_N_PRODUCT, KM_N_EXACT, KM_N_CHUNK }; /* scan_codes */
enum { KM_F_LOST };
enum { KM_N_CODE_BYTES, KM_N_DIM, KM_N_CLASS_BITS, KM_N_MOST }; /* encode_levels, encode_trellis */
enum { KM_F_LOW, KM_F_SCALE_STEP };

enum { KM_N_COMM_OP }; /* a sum over ranks as a kernel (comm.c) */

#endif
