/* Each family fills its rows of the op table; and what families share. */
#ifndef KM_OPS_FAMILIES_H
#define KM_OPS_FAMILIES_H
#include "ops/op.h"

void km_rows_fill(km_op_row *t);
void km_rows_elementwise(km_op_row *t);
void km_rows_unary(km_op_row *t);
void km_rows_reduce(km_op_row *t);
void km_rows_matmul(km_op_row *t);
void km_rows_softmax(km_op_row *t);
void km_rows_norm(km_op_row *t);
void km_rows_index(km_op_row *t);
void km_rows_order(km_op_row *t);
void km_rows_attention(km_op_row *t);
void km_rows_loss(km_op_row *t);
void km_rows_views(km_op_row *t);
void km_rows_optim(km_op_row *t);
/* A linear layer's gradients from dy (rows, out), that of what its activation was given: handed on
 * to x (when to_x), w and b? where they need one. */
void km_linear_backward(km_ctx *ctx, km_tensor *dy, km_tensor *x, km_tensor *w, km_tensor *b,
                        bool to_x);
void km_rows_mlp(km_op_row *t);
void km_rows_quant(km_op_row *t);
km_tensor *km_quant_linear(km_ctx *ctx, km_tensor *x, km_tensor *w, km_tensor *b, km_act act);
km_tensor *km_quant_embedding(km_ctx *ctx, km_tensor *table, km_tensor *ids);
void km_rows_infer_linear(km_op_row *t);
void km_rows_low_rank(km_op_row *t);
void km_rows_attend(km_op_row *t);
void km_rows_sample(km_op_row *t);
void km_rows_nearest(km_op_row *t);
void km_rows_scan_codes(km_op_row *t);
void km_rows_encode_codes(km_op_row *t);
void km_rows_fused(km_op_row *t);
void km_rows_custom(km_op_row *t);

#endif
