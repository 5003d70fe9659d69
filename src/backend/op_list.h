/* Every op there is, by name. The rest of an op's row (shape rule, dtypes, gradient, tolerance)
 * is in src/ops/table.c; its kernels are in each backend's table under the same name.
 *
 * After each op: its inputs -> outputs, and the fields of km_params it reads (params.h; KM_N_ and KM_F_
 * are left out here). A trailing ? marks an
 * input that may be NULL. "(strided)" means that kernels get inputs with any strides; all other
 * inputs arrive contiguous. Outputs are contiguous unless noted. A shape in (..) is row-major. */
#ifndef KM_BACKEND_OP_LIST_H
#define KM_BACKEND_OP_LIST_H

/* Of the ops that only running models use (ops/infer.h). */
#define KM_FEW_ROWS                                                                                \
    16 /* up to so many rows, kernels stream the weights; above, they work in tiles */
#define KM_KV_PAGE 64 /* tokens in a page of the cache */

#define KM_OP_LIST(X)                                                                                \
    /* Fills. Output only. */                                                                        \
    X(FULL, full)       /* VALUE; out may be strided */                                              \
    X(ARANGE, arange)   /* START, STEP */                                                            \
    X(UNIFORM, uniform) /* LO, HI, seed, stream: lo + (hi-lo)*unit, element i: rng.h */              \
    X(NORMAL, normal)   /* MEAN, SD, seed, stream */                                                 \
    /* x (strided) -> out, any dtype to any dtype, out may be strided too. Float to integer        \
     * truncates and saturates (NaN gives 0); anything to bool is x != 0. */ \
    X(COPY, copy) X(CAST, cast)                                                                    \
    /* Binary elementwise: a, b (strided, broadcast strides already set to out's shape, so both    \
     * have out's rank and dims) -> out. out may be the very tensor a, strides and all. */         \
    X(ADD, add) X(SUB, sub) X(MUL, mul) X(DIV, div) X(POW, pow)                                    \
    X(MAXIMUM, maximum) X(MINIMUM, minimum)                                                        \
    X(EQ, eq) X(NE, ne) X(LT, lt) X(LE, le) X(GT, gt) X(GE, ge) /* out is bool */                  \
    /* Unary elementwise: x (strided) -> out */                                                    \
    X(NEG, neg) X(ABS, abs) X(SQRT, sqrt) X(RSQRT, rsqrt) X(EXP, exp) X(LOG, log)                  \
    X(SIN, sin) X(COS, cos) X(TANH, tanh) X(SIGMOID, sigmoid) X(RELU, relu)                        \
    X(GELU, gelu) X(GELU_ERF, gelu_erf) X(SILU, silu)                                              \
    X(CLAMP, clamp)           /* LO, HI */                                               \
    X(ADD_SCALAR, add_scalar) /* VALUE */                                                           \
    X(MUL_SCALAR, mul_scalar) /* VALUE; out may be the very tensor x */                             \
    X(POW_SCALAR, pow_scalar) /* VALUE: x^VALUE */                                                   \
    /* Gradients of unary ops: dy, x or y (both strided) -> dx */                                  \
    X(ABS_GRAD, abs_grad)           /* dy, x: dy * sign(x), sign(0) = 0 */                         \
    X(SQRT_GRAD, sqrt_grad)         /* dy, y: dy / (2y) */                                         \
    X(RSQRT_GRAD, rsqrt_grad)       /* dy, y: -dy * y^3 / 2 */                                     \
    X(SIN_GRAD, sin_grad)           /* dy, x: dy * cos(x) */                                       \
    X(COS_GRAD, cos_grad)           /* dy, x: -dy * sin(x) */                                      \
    X(TANH_GRAD, tanh_grad)         /* dy, y: dy * (1 - y^2) */                                    \
    X(SIGMOID_GRAD, sigmoid_grad)   /* dy, y: dy * y * (1 - y) */                                  \
    X(RELU_GRAD, relu_grad)         /* dy, y: y > 0 ? dy : 0 */                                    \
    X(GELU_GRAD, gelu_grad)         /* dy, x */                                                    \
    X(GELU_ERF_GRAD, gelu_erf_grad) /* dy, x */                                                    \
    X(SILU_GRAD, silu_grad)         /* dy, x */                                                    \
    X(CLAMP_GRAD, clamp_grad)       /* dy, x; LO, HI: lo <= x <= hi ? dy : 0 */          \
    X(WHERE, where)             /* cond (bool), a, b (all strided, broadcast as above) -> out */   \
    X(MASKED_FILL, masked_fill) /* x, mask (bool; both strided, broadcast); VALUE */          \
    X(TRIU, triu) X(TRIL, tril) /* x (..., r, c); DIAGONAL: keep j-i >= (<=) it, else 0 */  \
    X(DROPOUT, dropout) /* x; DROP p, seed, stream: element i lives if its unit number >= p */     \
    /* Reductions: x (strided) -> out; axes is a bit set; out has the kept axes in order (size-1   \
     * axes are kept in place of the reduced ones when keepdim). Sums accumulate in f32 or better  \
     * (f64 for f64) and are pairwise or blocked, never one long chain. */                         \
    X(SUM, sum) X(MEAN, mean) X(MAX, max) X(LOGSUMEXP, logsumexp)                                  \
    X(VAR, var)         /* CORRECTION */                                                      \
    X(SUMSQ, sumsq)     /* sum of x^2; out f32 (f64 for f64) */                                    \
    X(ARGMAX, argmax)   /* one axis; out i64; the first of equals; NaN counts as largest */        \
    /* a (batch..., m, k), b (batch..., k, n) of equal rank (2 to 5), batch axes broadcast by      \
     * strides; in each matrix one of the two strides is 1 (or the matrix has one row or column    \
     * there) and the other is at least the row's length. ALPHA, BETA: out = alpha a b + \
     * beta out (beta 0 does not read out). */                                                     \
    X(MATMUL, matmul)                                                                              \
    /* x (rows, in), w (out, in) as in matmul's matrices (strides), b? (out) -> y (rows, out), and \
     * pre (rows, out) when n_out is 2 (BOTH, or when recording): the value before act. act. */                              \
    X(LINEAR, linear)                                                                              \
    /* The gradients of linear layers; dy (rows, out) is that of act's input.                      \
     * linear_dx: dy, w (out, in), pre? (rows, in) -> dx (rows, in) = (dy w) act'(pre), where pre, \
     *   when there, is what act was given in the layer before; and the column sums of dx (in),    \
     *   that layer's bias gradient, when n_out is 2 (BOTH). act (never relu).                     \
     * linear_dw: dy, x (rows, in) -> dw (out, in) = dy^T x, and the column sums of dy (out) when  \
     *   n_out is 2 (BOTH). */                                                                     \
    X(LINEAR_DX, linear_dx) X(LINEAR_DW, linear_dw)                                                \
    /* Weights of a few bits (block dtypes), which are contiguous.                                 \
     * dequantise: x -> out; dtype, a float. quantise: x (float) -> out; dtype, a block dtype.     \
     * quant_linear: x (rows, in), w (out, in) of a block dtype, b? (out) -> y (rows, out); act.   \
     *   A device may round x to 8 bits in blocks of 32 first: that is what its tolerance allows.  \
     * quant_embedding: table (v, c) of a block dtype, ids (...) -> (..., c); dtype, a float. */   \
    X(DEQUANTISE, dequantise) X(QUANTISE, quantise)                                                \
    X(QUANT_LINEAR, quant_linear)                                                                  \
    /* Layers of a model that only runs; w of a block dtype, f32, f16 or bf16, whatever x is.      \
     * linears: x (rows, in), then LAYERS (1 to 3) times w (out, in), b? (out) -> as many            \
     *   y (rows, out). gated: x, g (out, in), u? (out, in) -> act(x g^T) * (x u^T) (rows, out);   \
     *   without u, g's first half is g and its second u; act. x may be rounded as above. */       \
    X(LINEARS, linears) X(GATED, gated)                                                            \
    /* Adapters (LoRA) of rows that each have their own: y (rows, out), x (rows, in), mix (rows,   \
     *   slots), slot (ranks) i32, a (ranks, in), b (ranks, out) -> y + sum over r of              \
     *   mix[row, slot[r]] (x . a[r]) b[r]. A term whose mix is 0 is left out, and so is one of a  \
     *   slot that mix does not have. */                                                           \
    X(LOW_RANK, low_rank)                                                                          \
    X(QUANT_EMBEDDING, quant_embedding)                                                            \
    /* x (any); axis -> out. Contiguous: view as (outer, n, inner). */                             \
    X(SOFTMAX, softmax) X(LOG_SOFTMAX, log_softmax)                                                \
    X(SOFTMAX_GRAD, softmax_grad)         /* dy, y: y * (dy - sum(dy*y)) */                        \
    X(LOG_SOFTMAX_GRAD, log_softmax_grad) /* dy, y: dy - exp(y) * sum(dy) */                       \
    /* Norms over the last axis: x (rows..., n), w (n), b? (n); mean and rstd (rows) are f32, or   \
     * f64 for f64. EPS. */                                                                   \
    X(LAYER_NORM, layer_norm)         /* x, w, b? -> y, mean, rstd */                              \
    X(LAYER_NORM_GRAD, layer_norm_grad) /* dy, x, w, mean, rstd, dsum? -> dx, dw, db:              \
                                         * dsum, when there, is added to dx */                     \
    X(RMS_NORM, rms_norm)             /* x, w -> y, rstd */                                        \
    X(RMS_NORM_GRAD, rms_norm_grad)   /* dy, x, w, rstd, dsum? -> dx, dw */                        \
    X(ADD_LAYER_NORM, add_layer_norm) /* x, residual, w, b? -> y, sum, mean, rstd */               \
    X(ADD_RMS_NORM, add_rms_norm)     /* x, residual, w -> y, sum, rstd */                         \
    /* Indices are i32 or i64. The host checks their range before the kernel where it can see      \
     * them (km_check_indices); a kernel on a GPU must not read out of bounds for a bad one. */    \
    X(EMBEDDING, embedding)           /* table (v, c), ids (...) -> (..., c) */                    \
    X(EMBEDDING_GRAD, embedding_grad) /* dy (..., c), ids -> dtable (v, c); accumulate: add to     \
                                       * what out holds. Same bits every run. */                   \
    X(GATHER, gather)           /* x, index; axis -> out like index */                             \
    X(SCATTER_ADD, scatter_add) /* x, index, src; axis -> out like x. Same bits every run. */      \
    X(SCATTER, scatter)         /* likewise, but puts; of equal indices the last one counts */     \
    X(INDEX_SELECT, index_select) /* x, index (n); axis */                                         \
    X(CONCAT, concat)           /* n_in parts (strided); axis */                                   \
    /* What a mask (bool, of x's shape) picks, in row-major order; a result has room for ROOM of    \
     * them: those beyond are left out, and zeros fill what is left.                               \
     * masked_select: x, mask -> (ROOM). masked_scatter: x, mask, src (n) -> x with the places that \
     * mask picks replaced by src, as far as it goes. nonzero: x -> i64 (ROOM, x's rank): where x   \
     * is not 0 (NaN is not). */                                                                   \
    X(MASKED_SELECT, masked_select) X(MASKED_SCATTER, masked_scatter) X(NONZERO, nonzero)          \
    /* Order along axis. sort: x -> the first TOP_K of it in rising (or FALLING) order, and    \
     * their places, i64; equals stay in order, NaN is larger than all. cumsum: x -> sums up to    \
     * each element (or FROM_END). one_hot: ids -> (..., CLASSES); dtype. */                 \
    X(SORT, sort) X(CUMSUM, cumsum) X(ONE_HOT, one_hot)                                            \
    /* x (batch..., T, d), positions? (T), divisors? f32 (ROPE_DIMS / 2); even; ROPE_PAIRS:\
     * km_rope_pairs, ROPE_INVERSE 1 for the gradient, ROPE_BASE. positions NULL:   \
     * 0, 1, 2, ... divisors: the frequency of pair i is divided by the ith. */                    \
    X(ROPE, rope)                                                                                  \
    /* q (B, H, Tq, D), k, v (B, Hkv, Tk, D): any strides but 1 along D -> o (B, H, Tq, D),        \
     * lse (B, H, Tq) f32 (f64 for f64) = log sum exp of the scaled scores; a query that sees no   \
     * key gives o = 0, lse = -inf. causal, SCALE. o's strides may be those of a              \
     * (B, Tq, H, D) tensor: kernels write o through its strides. */                               \
    X(ATTENTION, attention)                                                                        \
    X(ATTENTION_GRAD, attention_grad) /* do, q, k, v, o, lse (strides likewise) -> dq, dk, dv,     \
                                       * whose strides may be any with 1 along D */                \
    /* Attention of a running model, and none of it on the tape (backend/attend.h names the inputs):  \
     * q (rows, H D), k, v (rows, Hkv D), each with any stride along rows and 1 along the other;    \
     * cache_k, cache_v (pages, Hkv, KM_KV_PAGE, D) f32, f16, bf16, q8_0 or q4_0, changed in place; \
     * rows i32 (rows, 2): sequence, position; table i32 (sequences, max_pages); q_norm?, k_norm?  \
     * f32 (D), divisors? f32 -> (rows, H D). HEADS H, KV_HEADS Hkv, WINDOW (0: none), ROTATION rotated \
     * dims | km_rope_pairs << 32, SCALE, ATTEND_BASE of rope (0: none), SOFTCAP (0: none),  \
     * ATTEND_EPS of the norms, MAGNITUDE what rotated elements are multiplied by (0: 1). All rows are put \
     * into the cache before any looks at it. A row whose position is negative or whose sequence or \
     * pages do not exist is not kept and gives 0. */                                               \
    X(ATTEND, attend)                                                                              \
    /* logits f32 (rows, v), settings f32 (rows, KM_SAMPLE_SETTINGS), state i32 (rows,             \
     * KM_SAMPLE_STATE) (backend/sample.h) -> ids i32 (rows), the state after. Penalties, then      \
     * temperature, the k likeliest (the lowest ids of equals), of those the likeliest that reach   \
     * top-p of their sum, of those what is at least min-p of the first; the first of them, by id,  \
     * at which the sum of probabilities exceeds the number drawn. NaN is never chosen; -1 when     \
     * there is nothing to choose from. PENALTIES 1: some row has some. masks?, biases? (infer.h): \
     * biases are added before penalties, and what no mask lets through is left out after them. */ \
    X(SAMPLE, sample)                                                                              \
    /* logits f32 (rows, v), which i32 (n, 2): row and token -> f32 (n, 1 + TOP): their log        \
     * softmax and that of the TOP likeliest, ids i32 (n, TOP). TOKENS: of v, the first so many. A  \
     * row or token that is not there gives NaN. */                                                \
    X(LOGPROBS, logprobs)                                                                          \
    /* logits (rows, v), targets (rows) -> loss (), lse (rows), and dlogits (rows, v) when n_out   \
     * is 3 (WITH_GRADIENT): the gradient for an incoming gradient of 1. IGNORE, REDUCTION:            \
     * km_reduction. */                                                                            \
    X(CROSS_ENTROPY, cross_entropy)                                                                \
    X(CROSS_ENTROPY_GRAD, cross_entropy_grad) /* dloss (), logits, targets, lse -> dlogits */      \
    X(MSE, mse) X(BCE, bce_with_logits)       /* x, target -> loss (); REDUCTION */        \
    X(MSE_GRAD, mse_grad) X(BCE_GRAD, bce_with_logits_grad) /* dloss (), x, target -> dx */        \
    /* Optimiser steps over k tensors at once: all contiguous; p of one dtype, g of the same or    \
     * f32; m, v and w f32 (f64 for f64). w? is the f32 weight behind a 16-bit p: it is updated,   \
     * and p is its rounding. Outputs may be the very inputs: this is how parameters are updated;  \
     * of a tensor they are p and those of m, v, w that are there. With one input more, control    \
     * (control.h) gives lr, scales, a multiplier of g, a flag that makes the step a no-op, and,   \
     * from tensor FIRST on, each tensor's own factor of lr and weight decay.                       \
     * sgd: k times p, g, m?, w?, then control? -> p, m?, w?. LR, MOMENTUM, SGD_DECAY: weight  \
     *   decay, NESTEROV: d = g + decay p; m = momentum m + d; p -= lr (m, or nesterov: d +   \
     *   momentum m).                                                                              \
     * adamw: k times p, g, m, v, w?, then control? -> p, m, v, w?. LR, BETA1,      \
     *   BETA2, ADAM_EPS, ADAM_DECAY, STEP t from 1, DECOUPLED 1 for decay of the weights   \
     *   (AdamW), 0 for decay through the gradient (Adam): m = beta1 m + (1 - beta1) d; v = beta2  \
     *   v + (1 - beta2) d^2; p -= lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) +       \
     *   decay p). */                                                                              \
    X(SGD, sgd) X(ADAMW, adamw)                                                                    \
    /* k tensors, each of any float dtype -> (chunks) f32 (f64 if the first is): sums of squares   \
     * of every KM_SUMSQ_CHUNK elements of each tensor, tensor after tensor. The same bits each   \
     * run. */                                                                                     \
    X(SUMSQ_CHUNKS, sumsq_chunks)                                                                  \
    /* sums (n), knobs (KM_KNOBS), control -> control, all f32, of the step about to be made: the  \
     * norm from the sums, its clip factor, whether it is finite, the count of steps, the loss     \
     * scale. MAX_NORM (0: any), BETA1, BETA2, GROWTH good steps after which the  \
     * loss scale doubles (0: it never changes). The control's tensors stay. */                    \
    X(OPTIM_CONTROL, optim_control)                                                                \
    /* Vector quantisation (ops/nearest.h); none of it on the tape.                                \
     * nearest: x (n, d), c (k, d) f32, k >= 1, work? u8 -> id (n) i32, dist (n) f32: argmin and    \
     *   min over j of |x_i - c_j|^2; the lower of equal ids; NaN is larger than all. Which of two  \
     *   centres is nearer is decided in f32: within its rounding it may be either. work is the     \
     *   device's own, changed in place: notes on x, made unless NOTED says that they are there.     \
     *   QUICK 1: dist may be of the precision of the device's fast products.                       \
     * cell_sums: x (n, d), id (n) i32, weight? f32 (n), dist? f32 (n) -> sum (k, d) of weight * x, \
     *   mass (k) of weights, count (k), spread (k) of dist, f32; CELLS k. Rows with another id are  \
     *   left out. Same bits every run. */                                                          \
    X(NEAREST, nearest) X(CELL_SUMS, cell_sums)                                                    \
    /* query (q, d), codes u8 (n, stride), scale u8 (n), cell i32 (n), place i32 (d + 1), amp (d),  \
     * tables (10, 256), centre (cells, d), with trellises rate i32 (d) and windows (9, 4096)       \
     * -> id i32 (q, k), dist (q, k): of every query the k                                         \
     * nearest coded rows (ops/scan_codes.h tells what a row is). NEAREST k, PRODUCT 1: minus the inner    \
     * product, EXACT 1: all in f32, CHUNK rows decoded at a time (0: any), LOST what a row's scale    \
     * squared adds to its squared distance. */                                                     \
    X(SCAN_CODES, scan_codes)                                                                      \
    /* z (n, d), square (n), bits i32 (d), at i32 (groups of 8, 8), amp (d), tables (9, 256); or   \
     * z (n, w), square (n), amp (w), rate i32 (w), classes i32 (k, 2), water (k), tables (9, 4096)\
     * -> codes u8 (n, bytes): turned residuals encoded (ops/encode_codes.h). CODE_BYTES, DIM: the \
     * residuals' dimension, LOW the lowest scale, SCALE_STEP the step between scales' logarithms; and  \
     * CLASS_BITS of a class' number, MOST columns of the largest class. */                         \
    X(ENCODE_LEVELS, encode_levels) X(ENCODE_TRELLIS, encode_trellis)                              \
    /* Views, ops composed of others, and the user's own: no kernels. */                                                 \
    X(SLICE, slice) X(PERMUTE, permute) X(RESHAPE, reshape) X(BROADCAST, broadcast)                \
    X(ATTENTION_QKV, attention_qkv) X(LINEAR_CROSS_ENTROPY, linear_cross_entropy) X(MLP, mlp)      \
    X(CUSTOM, custom)

typedef enum km_op {
#define KM_OP_ENUM(NAME, name) KM_OP_##NAME,
    KM_OP_LIST(KM_OP_ENUM)
#undef KM_OP_ENUM
        KM_OP_COUNT
} km_op;

#endif
