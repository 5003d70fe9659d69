/* Rows come out of the spill in the order of cells, the same bytes whatever memory there is: a cell
 * that does not fit comes in pieces. */
#include "base/alloc.h"
#include "base/file.h"
#include "tensor/tensor.h"
#include "vector/spill.h"
#include "vector/vectors.h"

enum { N = 3000, DIM = 24, CELLS = 3, BYTES = 9 };

static km_ctx *ctx;

static int set_up(void **state) {
    ctx = km_ctx_new("cpu", 2);
    return ctx ? make_folder(state) : -1;
}

static int tear_down(void **state) {
    km_ctx_free(ctx);
    return empty_folder(state) || remove_folder(state);
}

/* Nearly all rows are in one cell. */
static km_index *frame(const float *rows) {
    km_error err = {0};
    float *anchors = km_calloc(CELLS * DIM, sizeof *anchors);
    memcpy(anchors + 2 * DIM, rows, sizeof *anchors * DIM);
    for (int j = 0; j < DIM; j++) anchors[j] = 1000;
    km_coder_options how = {.dim = DIM, .bytes = BYTES, .rows = N};
    km_coder *coder = km_coder_train(ctx->threads, rows, N, &how, &err);
    km_index *x = coder ? km_index_frame(ctx->threads, KM_METRIC_L2, KM_RERANK_INT8, DIM, anchors,
                                         CELLS, coder, &err)
                        : NULL;
    if (!x) fail_msg("%s", err.text);
    return x;
}

static char *written(const km_index *x, const float *rows, size_t memory, size_t *size) {
    km_error err = {0};
    static uint64_t ids[N];
    float *copy = malloc(sizeof *copy * N * DIM);
    memcpy(copy, rows, sizeof *copy * N * DIM);
    for (int i = 0; i < N; i++) ids[i] = (uint64_t)(N - i);
    km_index_encoder *e = km_index_encoder_new(ctx, x, N, &err);
    km_spill *s = km_spill_new(x, in_folder("x.kmx"), &err);
    km_encoded got;
    km_kmx_head head = km_index_head(x, N, 0, N + 1, 12);
    km_kmx_writer *w = km_kmx_create(in_folder("x.kmx"), &head, &err);
    assert_true(e && s && w);
    assert_int_equal(km_index_encoder_run(e, copy, N, false, &got, &err), KM_OK);
    assert_int_equal(km_spill_put(s, ids, &got, N, &err), KM_OK);
    assert_int_equal(km_index_put_frame(x, w, &err), KM_OK);
    assert_int_equal(km_spill_write(s, w, 12, memory, &err), KM_OK);
    assert_int_equal(km_kmx_commit(w, NULL, NULL, &err), KM_OK);
    km_spill_free(s);
    km_index_encoder_free(e);
    free(copy);
    km_map m;
    assert_int_equal(km_map_open(&m, in_folder("x.kmx"), &err), KM_OK);
    char *bytes = malloc(*size = m.size);
    memcpy(bytes, m.data, m.size);
    km_map_close(&m);
    return bytes;
}

static void a_cell_beyond_the_memory_comes_in_pieces(void **state) {
    (void)state;
    float *rows = clustered(N, DIM, 5);
    {
        km_index *x = frame(rows);
        size_t size, other;
        char *whole = written(x, rows, 1 << 20, &size);
        for (size_t memory = 1; memory < 40000; memory = 3 * memory + 1000) {
            char *pieces = written(x, rows, memory, &other);
            assert_int_equal(other, size);
            assert_memory_equal(pieces, whole, size);
            free(pieces);
        }
        free(whole);
        km_index_close(x);
    }
    free(rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_cell_beyond_the_memory_comes_in_pieces)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
