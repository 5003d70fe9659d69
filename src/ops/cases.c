/* The list of trial calls, op by op: the families have a file each. Sizes are small and odd on
 * purpose: fast kernels break at the edges of their blocks. */
#include "ops/cases_put.h"

void km_cases_each(km_op op, km_case_fn fn, void *user) {
    km_case_sink s = {fn, user, true};
    switch (op) {
    case KM_OP_FULL:
    case KM_OP_ARANGE:
    case KM_OP_UNIFORM:
    case KM_OP_NORMAL: km_cases_fills(&s, op); break;
    case KM_OP_COPY:
    case KM_OP_CAST: km_cases_copies(&s, op); break;
    case KM_OP_ADD:
    case KM_OP_SUB:
    case KM_OP_MUL:
    case KM_OP_MAXIMUM:
    case KM_OP_MINIMUM:
    case KM_OP_EQ:
    case KM_OP_NE:
    case KM_OP_LT:
    case KM_OP_LE:
    case KM_OP_GT:
    case KM_OP_GE:
    case KM_OP_ABS_GRAD:
    case KM_OP_SIN_GRAD:
    case KM_OP_COS_GRAD:
    case KM_OP_RELU_GRAD:
    case KM_OP_GELU_GRAD:
    case KM_OP_GELU_ERF_GRAD:
    case KM_OP_SILU_GRAD:
    case KM_OP_CLAMP_GRAD: km_cases_binaries(&s, op, KM_V_NORMAL, KM_V_NORMAL); break;
    case KM_OP_DIV: km_cases_binaries(&s, op, KM_V_NORMAL, KM_V_NONZERO); break;
    case KM_OP_POW: km_cases_binaries(&s, op, KM_V_POSITIVE, KM_V_NORMAL); break;
    case KM_OP_SQRT_GRAD:
    case KM_OP_RSQRT_GRAD: km_cases_binaries(&s, op, KM_V_NORMAL, KM_V_POSITIVE); break;
    case KM_OP_TANH_GRAD:
    case KM_OP_SIGMOID_GRAD: km_cases_binaries(&s, op, KM_V_NORMAL, KM_V_UNIT); break;
    case KM_OP_SQRT:
    case KM_OP_RSQRT:
    case KM_OP_LOG: km_cases_unaries(&s, op, KM_V_POSITIVE); break;
    case KM_OP_NEG:
    case KM_OP_ABS:
    case KM_OP_EXP:
    case KM_OP_SIN:
    case KM_OP_COS:
    case KM_OP_TANH:
    case KM_OP_SIGMOID:
    case KM_OP_RELU:
    case KM_OP_GELU:
    case KM_OP_GELU_ERF:
    case KM_OP_SILU:
    case KM_OP_CLAMP:
    case KM_OP_ADD_SCALAR:
    case KM_OP_MUL_SCALAR: km_cases_unaries(&s, op, KM_V_NORMAL); break;
    case KM_OP_POW_SCALAR: km_cases_powers(&s, op); break;
    case KM_OP_WHERE:
    case KM_OP_MASKED_FILL: km_cases_chooses(&s, op); break;
    case KM_OP_TRIU:
    case KM_OP_TRIL: km_cases_triangles(&s, op); break;
    case KM_OP_DROPOUT: km_cases_dropouts(&s, op); break;
    case KM_OP_SUM:
    case KM_OP_MEAN:
    case KM_OP_MAX:
    case KM_OP_VAR:
    case KM_OP_LOGSUMEXP:
    case KM_OP_SUMSQ:
    case KM_OP_ARGMAX: km_cases_reductions(&s, op); break;
    case KM_OP_MATMUL: km_cases_matmuls(&s, op); break;
    case KM_OP_LINEAR: km_cases_linears(&s, op); break;
    case KM_OP_DEQUANTISE:
    case KM_OP_QUANTISE:
    case KM_OP_QUANT_LINEAR:
    case KM_OP_QUANT_EMBEDDING:
        km_cases_quants(&s, op);
        if (s.go) km_cases_one_row(op, fn, user);
        break;
    case KM_OP_LINEARS:
    case KM_OP_GATED:
        km_cases_layers_at_once(&s, op);
        if (s.go) km_cases_one_row(op, fn, user);
        break;
    case KM_OP_LOW_RANK: km_cases_low_ranks(&s, op); break;
    case KM_OP_LINEAR_DX:
    case KM_OP_LINEAR_DW: km_cases_linear_gradients(&s, op); break;
    case KM_OP_SOFTMAX:
    case KM_OP_LOG_SOFTMAX: km_cases_softmaxes(&s, op, 1); break;
    case KM_OP_SOFTMAX_GRAD:
    case KM_OP_LOG_SOFTMAX_GRAD: km_cases_softmaxes(&s, op, 2); break;
    case KM_OP_LAYER_NORM:
    case KM_OP_RMS_NORM:
    case KM_OP_ADD_LAYER_NORM:
    case KM_OP_ADD_RMS_NORM:
    case KM_OP_LAYER_NORM_GRAD:
    case KM_OP_RMS_NORM_GRAD: km_cases_norms(&s, op); break;
    case KM_OP_EMBEDDING:
    case KM_OP_EMBEDDING_GRAD: km_cases_embeddings(&s, op); break;
    case KM_OP_GATHER:
    case KM_OP_SCATTER_ADD:
    case KM_OP_SCATTER:
    case KM_OP_INDEX_SELECT: km_cases_gathers(&s, op); break;
    case KM_OP_MASKED_SELECT:
    case KM_OP_MASKED_SCATTER:
    case KM_OP_NONZERO: km_cases_masks(&s, op); break;
    case KM_OP_CONCAT: km_cases_concats(&s, op); break;
    case KM_OP_SORT:
    case KM_OP_CUMSUM: km_cases_orders(&s, op); break;
    case KM_OP_ONE_HOT: km_cases_one_hots(&s, op); break;
    case KM_OP_ROPE: km_cases_ropes(&s, op); break;
    case KM_OP_ATTENTION:
    case KM_OP_ATTENTION_GRAD: km_cases_attentions(&s, op); break;
    case KM_OP_ATTEND: km_cases_attend(fn, user); break;
    case KM_OP_SAMPLE: km_cases_sample(fn, user); break;
    case KM_OP_LOGPROBS: km_cases_logprobs(fn, user); break;
    case KM_OP_NEAREST: km_cases_nearests(&s, op); break;
    case KM_OP_CELL_SUMS: km_cases_cells(&s, op); break;
    case KM_OP_SCAN_CODES: km_cases_scan_codes(fn, user); break;
    case KM_OP_ENCODE_LEVELS: km_cases_encode_levels(fn, user); break;
    case KM_OP_ENCODE_TRELLIS: km_cases_encode_trellis(fn, user); break;
    case KM_OP_CROSS_ENTROPY:
    case KM_OP_CROSS_ENTROPY_GRAD: km_cases_cross_entropies(&s, op); break;
    case KM_OP_MSE:
    case KM_OP_BCE:
    case KM_OP_MSE_GRAD:
    case KM_OP_BCE_GRAD: km_cases_pair_losses(&s, op); break;
    case KM_OP_SGD:
    case KM_OP_ADAMW: km_cases_optimisers(&s, op); break;
    case KM_OP_SUMSQ_CHUNKS: km_cases_sumsqs(&s, op); break;
    case KM_OP_OPTIM_CONTROL: km_cases_controls(&s, op); break;
    case KM_OP_SLICE:
    case KM_OP_PERMUTE:
    case KM_OP_RESHAPE:
    case KM_OP_BROADCAST:
    case KM_OP_ATTENTION_QKV:
    case KM_OP_LINEAR_CROSS_ENTROPY:
    case KM_OP_MLP:
    case KM_OP_CUSTOM:
    case KM_OP_COUNT: break; /* views have no kernels; tests/ops checks them */
    }
}
