/* Matrix products on a GPU, as far as the host decides them: which kernel, with which arguments. */
#include "fake_gemm.h"

#include "backend/cuda/cuda.h"
#include "base/alloc.h"
#include "ops/op.h"
#include "tensor/tensor.h"

static uint64_t seed;
static double next(void) { /* halves up to 1: exact in every dtype, and so are their sums */
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)((int)((seed >> 40) % 5) - 2) / 2;
}

static void *numbers(km_dtype d, int64_t n) {
    void *p = malloc((size_t)(n ? n : 1) * 8);
    for (int64_t i = 0; i < n; i++) fake_put(p, d, i, next());
    return p;
}

/* One product: sizes, how the operands lie, and what to make of the sums. */
typedef struct product {
    int64_t batch[2]; /* 0: no such axis */
    int64_t m, k, n;
    bool turn_a, turn_b, share_a, share_b;
    int64_t offset, pad;
    double alpha, beta;
} product;

/* A tensor (batch..., rows, cols) in memory that starts `offset` in, rows `pad` longer than they
 * need be. *data receives the host's copy, stride[] the strides. */
static km_tensor *operand(km_ctx *ctx, km_dtype d, const product *p, bool shared, int64_t rows,
                          int64_t cols, bool turned, void **data) {
    int64_t ld = (turned ? rows : cols) + p->pad, each = (turned ? cols : rows) * ld, total = each;
    km_shape s = {0};
    int64_t stride[KM_MAX_DIMS] = {0};
    for (int i = 0; i < 2; i++)
        if (p->batch[i]) s.dim[s.ndim++] = shared ? 1 : p->batch[i];
    for (int i = s.ndim - 1; i >= 0; i--) {
        stride[i] = total;
        total *= s.dim[i];
    }
    s.dim[s.ndim] = rows;
    stride[s.ndim++] = turned ? 1 : ld;
    s.dim[s.ndim] = cols;
    stride[s.ndim++] = turned ? ld : 1;
    *data = numbers(d, total + p->offset);
    km_tensor *flat = km_from_data(ctx, d, KM_SHAPE(total + p->offset), *data);
    return flat ? km_tensor_view(ctx, flat, s, stride, p->offset) : NULL;
}

static int64_t position(const km_tensor *t, int64_t x, int64_t y, int64_t r, int64_t c) {
    int row = t->shape.ndim - 2;
    int64_t at = t->offset + r * t->stride[row] + c * t->stride[row + 1];
    if (row == 2) at += (t->shape.dim[0] > 1 ? x * t->stride[0] : 0);
    if (row >= 1) at += (t->shape.dim[row - 1] > 1 ? y * t->stride[row - 1] : 0);
    return at;
}

static void check_product(km_ctx *ctx, km_dtype d, const product *p) {
    void *ha, *hb, *ho;
    product plain = {.batch = {p->batch[0], p->batch[1]}};
    km_tensor *in[2], *out;
    in[0] = operand(ctx, d, p, p->share_a, p->m, p->k, p->turn_a, &ha);
    in[1] = operand(ctx, d, p, p->share_b, p->k, p->n, p->turn_b, &hb);
    out = operand(ctx, d, &plain, false, p->m, p->n, false, &ho);
    km_params params = {.f = {p->alpha, p->beta}};
    km_call c = {.op = KM_OP_MATMUL, .n_in = 2, .n_out = 1, .in = in, .out = &out, .p = &params};
    assert_int_equal(km_ctx_status(ctx), KM_OK);
    assert_int_equal(km_cuda_backend()->kernel[KM_OP_MATMUL](ctx, &c), KM_OK);
    int64_t bx = p->batch[0] ? p->batch[0] : 1, by = p->batch[1] ? p->batch[1] : 1;
    int64_t count = bx * by * p->m * p->n;
    void *got = malloc((size_t)count * 8 + 8);
    assert_int_equal(km_read(ctx, out, got, (size_t)count * km_dtype_size(d)), KM_OK);
    for (int64_t i = 0; i < count; i++) {
        int64_t n = i % p->n, m = i / p->n % p->m, z = i / (p->n * p->m);
        double sum = 0;
        int64_t x = p->batch[0] && p->batch[1] ? z / by : 0, y = p->batch[1] ? z % by : z;
        for (int64_t k = 0; k < p->k; k++)
            sum += fake_at(ha, d, position(in[0], x, y, m, k)) *
                   fake_at(hb, d, position(in[1], x, y, k, n));
        sum = p->alpha * sum + (p->beta != 0 ? p->beta * fake_at(ho, d, i) : 0);
        if (fake_at(got, d, i) != sum)
            fail_msg("%s %lldx%lldx%lld batch %lld %lld, %c%c shared %d%d offset %lld pad %lld: "
                     "element %lld is %g, not %g",
                     km_dtype_name(d), (long long)p->m, (long long)p->k, (long long)p->n,
                     (long long)p->batch[0], (long long)p->batch[1], p->turn_a ? 't' : 'n',
                     p->turn_b ? 't' : 'n', p->share_a, p->share_b, (long long)p->offset,
                     (long long)p->pad, (long long)i, fake_at(got, d, i), sum);
    }
    free(ha);
    free(hb);
    free(ho);
    free(got);
    km_step_end(ctx);
}

static void check_many(km_ctx *ctx) {
    static const int64_t sizes[][3] = {{1, 1, 1}, {1, 5, 1},  {1, 9, 6},    {7, 5, 1},  {5, 1, 7},
                                       {3, 0, 4}, {9, 8, 16}, {10, 11, 13}, {8, 16, 24}};
    static const km_dtype dtypes[] = {KM_F32, KM_F16, KM_BF16};
    for (int t = 0; t < 3; t++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int turn = 0; turn < 4; turn++)
                for (int kind = 0; kind < 6; kind++) {
                    product p = {.m = sizes[i][0],
                                 .k = sizes[i][1],
                                 .n = sizes[i][2],
                                 .turn_a = turn & 1,
                                 .turn_b = turn & 2,
                                 .alpha = 1};
                    if (kind == 1) p.batch[0] = 3, p.alpha = 2, p.beta = -1;
                    if (kind == 2) p.batch[0] = 2, p.batch[1] = 3, p.share_b = true;
                    if (kind == 3) p.batch[1] = 2, p.share_a = true, p.pad = 3;
                    if (kind == 4) p.offset = 1, p.pad = 8, p.beta = 0.5;
                    if (kind == 5) p.batch[0] = 2, p.batch[1] = 2, p.offset = 8, p.pad = 1;
                    check_product(ctx, dtypes[t], &p);
                }
}

/* ---- Who computes it ---- */

static void our_own_kernels_get_every_layout_right(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    km_cuda_gemm_settings()->cublas = false;
    km_cuda_gemm_settings()->few_f32 = km_cuda_gemm_settings()->few_16 = 0;
    check_many(ctx);
    assert_true(seen.simt > 0 && seen.wgmma > 0 && seen.pack > 0);
    assert_int_equal(seen.rows + seen.columns + fake_lt.products, 0);
    km_ctx_free(ctx);
}

static void so_do_those_for_chips_without_the_copy_engine(void **state) {
    fake_has_maps = false;
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    km_cuda_gemm_settings()->cublas = false;
    km_cuda_gemm_settings()->few_f32 = km_cuda_gemm_settings()->few_16 = 0;
    check_many(ctx);
    assert_true(seen.mma > 0 && seen.pack > 0);
    assert_int_equal(seen.wgmma, 0);
    km_ctx_free(ctx);
}

static void so_does_cublas(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    km_cuda_gemm_settings()->few_f32 = km_cuda_gemm_settings()->few_16 = 0;
    check_many(ctx);
    product wide = {.batch = {2, 0}, .m = 4, .k = 5, .n = 6, .turn_b = true, .alpha = 1, .beta = 1};
    check_product(ctx, KM_F64, &wide);
    assert_true(fake_lt.products > 100);
    assert_true(fake_lt.asked < fake_lt.products);
    km_ctx_free(ctx);
}

static void check_few(km_ctx *ctx) {
    check_many(ctx);
    assert_true(seen.rows > 0 && seen.columns > 0);
    for (int turn = 0; turn < 2; turn++) { /* long enough to be shared among blocks or warps */
        product p = {.m = 2, .k = 1030, .n = 24, .turn_b = turn, .alpha = 1};
        seen.parts = 0;
        check_product(ctx, KM_F32, &p);
        assert_true(seen.parts > 1);
    }
    assert_true(fake_lt.products > 0); /* the larger ones of the many */
}

static void a_few_vectors_go_to_the_kernels_made_for_them(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    check_few(ctx);
    assert_true(seen.clusters > 0);
    km_ctx_free(ctx);
}

static void blocks_that_are_no_cluster_add_up_through_memory(void **state) {
    fake_has_launch_ex = false;
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    check_few(ctx);
    assert_int_equal(seen.clusters, 0);
    km_ctx_free(ctx);
}

static void one_matrix_for_all_batches_is_one_product(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    product p = {.batch = {3, 4}, .m = 5, .k = 16, .n = 24, .share_b = true, .alpha = 1};
    check_product(ctx, KM_F32, &p);
    assert_int_equal(fake_lt.products, 1);
    p.m = 1; /* 12 vectors: too many for the kernels of few */
    check_product(ctx, KM_F32, &p);
    assert_int_equal(fake_lt.products, 2);
    km_ctx_free(ctx);
}

/* ---- cuBLASLt ---- */

static void a_shape_is_asked_for_once_and_costs_no_memory_after_that(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    km_cuda_gemm g = {.dtype = KM_F32,
                      .m = 16,
                      .n = 16,
                      .k = 16,
                      .lda = 16,
                      .ldb = 16,
                      .ldo = 16,
                      .batch = 1,
                      .alpha = 1};
    km_tensor *t = km_zeros(ctx, KM_F32, KM_SHAPE(3, 512));
    km_lane *lane = t->storage->lane;
    g.a = km_tensor_ptr(t);
    g.b = (float *)km_tensor_ptr(t) + 512;
    g.out = (float *)km_tensor_ptr(t) + 1024;
    assert_int_equal(km_cublas_gemm(lane, &g), KM_OK);
    uint64_t allocs = km_alloc_count();
    for (int i = 0; i < 5; i++) assert_int_equal(km_cublas_gemm(lane, &g), KM_OK);
    assert_int_equal(km_alloc_count(), allocs);
    assert_int_equal(fake_lt.asked, 1);
    g.out = (float *)g.out + 1; /* another alignment is another question */
    g.ldo = 17;
    assert_int_equal(km_cublas_gemm(lane, &g), KM_OK);
    assert_int_equal(fake_lt.asked, 2);
    fake_lt.refuse = KM_LT_PLAIN;
    for (g.k = 17; g.k <= 5000; g.k++) /* shapes without end */
        assert_int_equal(km_cublas_gemm(lane, &g), KM_ERR_UNSUPPORTED);
    km_ctx_free(ctx);
}

static void tf32_is_used_only_on_request_and_only_for_f32(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    product p = {.m = 16, .k = 16, .n = 16, .alpha = 1};
    check_product(ctx, KM_F32, &p);
    assert_int_equal(fake_lt.last_compute, KM_LT_COMPUTE_F32);
    km_cuda_gemm_settings()->tf32 = true;
    check_product(ctx, KM_F32, &p);
    assert_int_equal(fake_lt.last_compute, KM_LT_COMPUTE_TF32);
    check_product(ctx, KM_BF16, &p);
    assert_int_equal(fake_lt.last_compute, KM_LT_COMPUTE_F32);
    km_ctx_free(ctx);
}

static void a_context_that_allows_tf32_leaves_the_others_exact(void **state) {
    km_ctx *fast = km_ctx_new("cuda:0", 1), *exact = km_ctx_new("cuda:0", 1);
    product p = {.m = 16, .k = 16, .n = 16, .alpha = 1};
    km_ctx_allow_tf32(fast, true);
    check_product(fast, KM_F32, &p);
    assert_int_equal(fake_lt.last_compute, KM_LT_COMPUTE_TF32);
    check_product(exact, KM_F32, &p);
    assert_int_equal(fake_lt.last_compute, KM_LT_COMPUTE_F32);
    check_product(fast, KM_F16, &p);
    assert_int_equal(fake_lt.last_compute, KM_LT_COMPUTE_F32);
    km_ctx_allow_tf32(fast, false);
    check_product(fast, KM_F32, &p);
    assert_int_equal(fake_lt.last_compute, KM_LT_COMPUTE_F32);
    km_ctx_allow_tf32(NULL, true); /* nobody to allow it to */
    km_ctx_free(fast);
    km_ctx_free(exact);
}

static void timing_candidates_leaves_the_output_alone(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    km_cuda_gemm_settings()->tune = true;
    product p = {.m = 16, .k = 16, .n = 16, .alpha = 1, .beta = 1};
    check_product(ctx, KM_F32, &p);
    assert_true(fake_lt.products > 2);
    km_ctx_free(ctx);
}

static void its_failure_is_an_error_and_its_refusal_is_not(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    product p = {.m = 16, .k = 16, .n = 16, .alpha = 1};
    fake_lt.refuse = KM_LT_PLAIN;
    check_product(ctx, KM_F32, &p);
    assert_int_equal(seen.simt, 1);
    fake_lt.refuse = 0;
    fake_lt.status = KM_LT_UNSUPPORTED; /* promised, then refused */
    p.m = 17;
    check_product(ctx, KM_F32, &p);
    assert_int_equal(seen.simt, 2);
    fake_lt.status = 13;
    p.m = 18;
    km_tensor *a = km_zeros(ctx, KM_F32, KM_SHAPE(18, 16)),
              *b = km_zeros(ctx, KM_F32, KM_SHAPE(16, 16));
    km_ctx_set_fallback(ctx, false);
    assert_null(km_matmul(ctx, a, b));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_GPU);
    assert_non_null(strstr(km_ctx_error(ctx), "cuBLASLt"));
    km_ctx_free(ctx);
}

/* ---- The linear layer ---- */

static void check_linear(km_ctx *ctx, km_dtype d, int64_t rows, bool bias, km_act act, bool pre) {
    int64_t in = 24, n = 16;
    void *hx = numbers(d, rows * in), *hw = numbers(d, n * in), *hb = numbers(d, n);
    km_tensor *args[] = {km_from_data(ctx, d, KM_SHAPE(rows, in), hx),
                         km_from_data(ctx, d, KM_SHAPE(n, in), hw),
                         bias ? km_from_data(ctx, d, KM_SHAPE(n), hb) : NULL};
    km_tensor *out[] = {km_zeros(ctx, d, KM_SHAPE(rows, n)), km_zeros(ctx, d, KM_SHAPE(rows, n))};
    km_params params = {.act = act};
    km_call c = {
        .op = KM_OP_LINEAR, .n_in = 3, .n_out = pre ? 2 : 1, .in = args, .out = out, .p = &params};
    assert_int_equal(km_cuda_backend()->kernel[KM_OP_LINEAR](ctx, &c), KM_OK);
    char y[2][64 * 16 * 4];
    for (int i = 0; i < c.n_out; i++)
        assert_int_equal(km_read(ctx, out[i], y[i], (size_t)(rows * n) * km_dtype_size(d)), KM_OK);
    for (int64_t i = 0; i < rows * n; i++) {
        double v = bias ? fake_at(hb, d, i % n) : 0;
        for (int64_t k = 0; k < in; k++)
            v += fake_at(hx, d, i / n * in + k) * fake_at(hw, d, i % n * in + k);
        double close = d == KM_F32 ? 1e-6 : 0.01;
        assert_true(fabs(fake_at(y[0], d, i) - fake_act(act, v)) <= close * (fabs(v) + 1));
        if (pre) assert_true(fabs(fake_at(y[1], d, i) - v) <= close * (fabs(v) + 1));
    }
    free(hx);
    free(hw);
    free(hb);
    km_step_end(ctx);
}

static void check_linears(km_ctx *ctx) {
    static const km_dtype dtypes[] = {KM_F32, KM_F16, KM_BF16};
    for (int t = 0; t < 3; t++)
        for (int act = KM_ACT_NONE; act <= KM_ACT_SILU; act++)
            for (int kind = 0; kind < 8; kind++)
                check_linear(ctx, dtypes[t], kind & 4 ? 2 : 40, kind & 1, (km_act)act, kind & 2);
}

static void a_linear_layer_comes_out_right_whoever_computes_it(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    check_linears(ctx);
    assert_true(fake_lt.products > 0 && seen.finish > 0);
    fake_lt.refuse = KM_LT_ADD_BIAS | KM_LT_RELU | KM_LT_GELU; /* plain products only */
    for (int i = 0; i < 16; i++) km_cublas_close(i);
    check_linears(ctx);
    km_cuda_gemm_settings()->cublas = false;
    check_linears(ctx);
    assert_true(seen.simt > 0 && seen.wgmma > 0);
    km_ctx_free(ctx);
}

static void gelu_in_one_kernel_is_for_16_bits_only(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    check_linear(ctx, KM_BF16, 40, true, KM_ACT_GELU, true);
    assert_int_equal(fake_lt.last_epilogue, KM_LT_GELU | KM_LT_ADD_BIAS | KM_LT_KEEP);
    assert_int_equal(seen.finish, 0);
    check_linear(ctx, KM_F32, 40, true, KM_ACT_GELU, true);
    assert_int_equal(fake_lt.last_epilogue, KM_LT_ADD_BIAS);
    assert_int_equal(seen.finish, 1);
    km_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FAKE_GEMM(our_own_kernels_get_every_layout_right),
        FAKE_GEMM(so_do_those_for_chips_without_the_copy_engine),
        FAKE_GEMM(so_does_cublas),
        FAKE_GEMM(a_few_vectors_go_to_the_kernels_made_for_them),
        FAKE_GEMM(blocks_that_are_no_cluster_add_up_through_memory),
        FAKE_GEMM(one_matrix_for_all_batches_is_one_product),
        FAKE_GEMM(a_shape_is_asked_for_once_and_costs_no_memory_after_that),
        FAKE_GEMM(tf32_is_used_only_on_request_and_only_for_f32),
        FAKE_GEMM(a_context_that_allows_tf32_leaves_the_others_exact),
        FAKE_GEMM(timing_candidates_leaves_the_output_alone),
        FAKE_GEMM(its_failure_is_an_error_and_its_refusal_is_not),
        FAKE_GEMM(a_linear_layer_comes_out_right_whoever_computes_it),
        FAKE_GEMM(gelu_in_one_kernel_is_for_16_bits_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
