/* The op table and the one path every op takes: km_apply checks a call against its row, makes the
 * outputs, runs a kernel where the operands are, and records the call when a gradient will be
 * wanted. A gradient rule reads a node and hands gradients on with km_grad_add. */
#ifndef KM_OPS_OP_H
#define KM_OPS_OP_H
#include "backend/backend.h"

/* What a shape rule decides. */
typedef struct km_outputs {
    int n;
    km_dtype dtype[KM_MAX_OUTPUTS];
    km_shape shape[KM_MAX_OUTPUTS];
    /* Lay a (B, H, T, D) output out in memory as (B, T, H, D), so that joining the heads again
     * is a view. */
    bool heads_inside[KM_MAX_OUTPUTS];
} km_outputs;

/* One recorded call. Tensor structs live in the step's arena or are kept, so shapes are always
 * there; the data only of those inputs and outputs the row says it saves. */
typedef struct km_node {
    struct km_node *prev; /* recorded before this one */
    km_op op;
    int n_in, n_out;
    km_tensor **in;
    unsigned *version; /* of each input's storage when recorded */
    km_tensor *out[KM_MAX_OUTPUTS];
    unsigned out_version[KM_MAX_OUTPUTS];
    km_tensor *grad[KM_MAX_OUTPUTS]; /* of the outputs, while pending; NULL where none arrived */
    km_params p;
    const km_custom_op *custom;
    uint32_t save_in, save_out; /* whose data is held for the rule: bit sets, from the row */
    bool done;
} km_node;

/* Input 32 and later go with all of them. */
static inline bool km_saves_in(const km_node *n, int i) {
    return n->in[i] && (i < 32 ? (n->save_in >> i) & 1u : n->save_in == ~0u);
}
static inline bool km_saves_out(const km_node *n, int i) { return (n->save_out >> i) & 1u; }

/* How far a fast kernel may be from the reference; see km_tolerance. */
typedef enum km_tol {
    KM_TOL_EXACT, /* same value after one rounding: copies, comparisons, relu */
    KM_TOL_ELEM,  /* one or two roundings: 1e-6 relative in f32 */
    KM_TOL_TRANS, /* exp, tanh and friends: 1e-5 relative in f32 */
    KM_TOL_SLOPE, /* as TRANS, against the incoming gradient: slopes cross zero */
    KM_TOL_SUM,   /* sums: grows with the square root of the length, against the largest term */
    KM_TOL_BITS,  /* products of operands that may be rounded to 8 bits */
    KM_TOL_WORDS, /* likewise to 16 (ctx->activations) */
    KM_TOL_RANDOM /* random numbers: the same sequence, rounded differently */
} km_tol;

enum {
    KM_OP_ELEMENTWISE = 1, /* inputs broadcast to out's shape by strides */
    KM_OP_STRIDED = 2, /* kernels take inputs with any strides; else inputs are made contiguous */
    KM_OP_MATRIX = 4,  /* inputs are matrices: strides as matmul wants them */
    KM_OP_VIEW = 8,    /* no kernel */
    KM_OP_GPU_ALONE = 16,     /* only GPUs use it, so on the host the reference serves on purpose */
    KM_OP_BACKWARDS = 32,     /* kernels take negative strides, too */
    KM_OP_HEADS = 64,         /* inputs (B, H, T, D): any strides but 1 along D */
    KM_OP_ROWS = 128,         /* inputs (rows, n) of floats: any stride along rows, 1 along n */
    KM_OP_IN_PLACE = 256,     /* reads what its outputs hold and changes it */
    KM_OP_SCALES_OUT = 512,   /* reads what its output holds where f[KM_F_BETA] is not 0 */
    KM_OP_BLOCK_LAYER = 1024, /* a layer with weights in blocks: inputs may be rounded */
    KM_OP_WHOLE = 2048,       /* sums over all elements of its inputs */
    KM_OP_ANY_GRADIENT = 4096 /* the rule does without the first output's gradient */
};

typedef km_status (*km_infer_fn)(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                 const km_params *p, km_outputs *out);
typedef void (*km_rule_fn)(km_ctx *ctx, km_node *n);

typedef struct km_op_row {
    const char *name;
    const char *formula; /* for people: the docs' op list */
    int min_in, max_in;  /* inputs needed and allowed; max_in -1 for any number */
    uint32_t dtypes;     /* of the first input (of the output, for fills) */
    uint32_t flags;
    km_infer_fn infer;          /* checks what is special to the op, fills the outputs */
    km_rule_fn grad;            /* NULL: not differentiable */
    uint32_t save_in, save_out; /* bit sets: whose data the rule reads */
    uint32_t changes;           /* bit set: inputs that the kernel changes */
    void (*saves)(km_node *n);  /* narrows n->save_in and save_out where it depends on the call */
    km_tol tol;
} km_op_row;

const km_op_row *km_op_get(km_op op);

/* Runs an op. in[] may hold NULL for optional inputs; p may be NULL. Fills out[] (may be NULL) with
 * all outputs and returns the first; NULL when the context failed. */
km_tensor *km_apply(km_ctx *ctx, km_op op, km_tensor *const *in, int n_in, const km_params *p,
                    km_tensor **out);
/* Runs an op into an existing tensor (of the right shape), unrecorded. */
km_status km_apply_into(km_ctx *ctx, km_op op, km_tensor *const *in, int n_in, const km_params *p,
                        km_tensor *out);
/* Runs an op on a given device, for ops without inputs. */
km_tensor *km_apply_on(km_ctx *ctx, km_device *device, km_op op, km_tensor *const *in, int n_in,
                       const km_params *p, km_tensor **out);

/* A new tensor filled with `value` on a given device. */
km_tensor *km_fill_on(km_ctx *ctx, km_device *device, km_dtype dtype, km_shape shape, double value);

/* Shorthands for the common arities. */
km_tensor *km_apply1(km_ctx *ctx, km_op op, km_tensor *a, const km_params *p);
km_tensor *km_apply2(km_ctx *ctx, km_op op, km_tensor *a, km_tensor *b, const km_params *p);

/* ---- Checks shared by shape rules; each returns KM_OK or fails the context ---- */

/* Argument i (from 0) is there, is of this context, and has not been freed. */
km_status km_want_input(km_ctx *ctx, const char *name, int i, const km_tensor *t);
km_status km_want_dtype(km_ctx *ctx, const char *name, const char *arg, const km_tensor *t,
                        uint32_t dtypes);
km_status km_want_same_dtype(km_ctx *ctx, const char *name, const km_tensor *a, const km_tensor *b);
km_status km_want_shape(km_ctx *ctx, const char *name, const char *arg, const km_tensor *t,
                        km_shape shape);
km_status km_want_axis(km_ctx *ctx, const char *name, int axis, km_shape shape, int *out);
/* On the host: every index in [0, limit) or equal to `allowed` (pass -1 to limit for none). On a
 * GPU nothing is read; kernels there guard themselves. */
km_status km_want_indices(km_ctx *ctx, const char *name, const km_tensor *index, int64_t limit,
                          int64_t allowed, bool has_allowed);

/* ---- Gradient rules ---- */

bool km_recording(const km_ctx *ctx, km_tensor *const *in, int n_in);
/* Records a call; outputs become dependent on it. Fails the context when out of memory. */
void km_record(km_ctx *ctx, km_op op, km_tensor *const *in, int n_in, const km_params *p,
               km_tensor *const *out, int n_out, const km_custom_op *custom);
void km_node_release(km_ctx *ctx, km_node *n); /* drops saved data and pending gradients */
/* Hands the gradient g on to `input` of a node; summed down if the input was broadcast, cast if
 * its dtype differs. Does nothing for inputs that need none. */
void km_grad_add(km_ctx *ctx, km_tensor *input, km_tensor *g);
/* The pending gradient of `input`, as a buffer the caller may add to (zeros when nothing has come
 * yet): used by slices, so that parts of one tensor share one gradient. NULL on failure. */
km_tensor *km_grad_buffer(km_ctx *ctx, km_tensor *input);
bool km_grad_held(const km_tensor *input); /* a gradient has come already */
/* Sums g over the axes along which `shape` was broadcast. */
km_tensor *km_sum_to(km_ctx *ctx, km_tensor *g, km_shape shape);

static inline bool km_needs(const km_node *n, int i) {
    return i < n->n_in && n->in[i] && n->in[i]->requires_grad;
}

/* t on a device: itself when it is there, else a recorded copy. */
km_tensor *km_move(km_ctx *ctx, km_tensor *t, km_device *device);
/* Strided copy of one tensor into another of the same shape. */
km_status km_copy_into(km_ctx *ctx, km_tensor *src, km_tensor *dst);

/* ---- One checked call, on the device that holds its operands (run.c) ---- */

/* Outputs are there already. Unrecorded. */
km_status km_run(km_ctx *ctx, km_op op, km_tensor *const *in, int n_in, const km_params *p,
                 km_tensor *const *out, int n_out);
/* t itself, or a contiguous copy of it, off the tape. NULL with the error set. */
km_tensor *km_to_contiguous(km_ctx *ctx, km_tensor *t);

#endif
