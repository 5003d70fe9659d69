/* The op table, put together once from the families' rows. */
#include "ops/families.h"
#include <pthread.h>

static km_op_row table[KM_OP_COUNT];

static void fill_table(void) {
    km_rows_fill(table);
    km_rows_elementwise(table);
    km_rows_unary(table);
    km_rows_reduce(table);
    km_rows_matmul(table);
    km_rows_softmax(table);
    km_rows_norm(table);
    km_rows_index(table);
    km_rows_order(table);
    km_rows_attention(table);
    km_rows_loss(table);
    km_rows_views(table);
    km_rows_optim(table);
    km_rows_fused(table);
    km_rows_mlp(table);
    km_rows_quant(table);
    km_rows_infer_linear(table);
    km_rows_low_rank(table);
    km_rows_attend(table);
    km_rows_sample(table);
    km_rows_nearest(table);
    km_rows_scan_codes(table);
    km_rows_encode_codes(table);
    km_rows_custom(table);
    for (int op = 0; op < KM_OP_COUNT; op++) table[op].name = km_op_name((km_op)op);
}

const km_op_row *km_op_get(km_op op) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_table);
    return &table[op];
}
