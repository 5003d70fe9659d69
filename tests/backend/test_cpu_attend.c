/* The CPU's attention over the paged cache: against the reference where the cache rounds nothing, the
 * cache itself byte for byte, and the same bits whatever else is in the call and however many
 * threads there are. Once per instruction set. */
#include "backend/attend.h"
#include "backend/cpu/gemm.h"
#include "ops/infer.h"
#include "cpu_tensor.h"
#include "support/sanitized.h"
#include "tensor/quant.h"

enum { HEADS = 6, KV = 2, D = 64, SEQUENCES = 17, EACH = 8 };

typedef struct call {
    km_ctx *ctx;
    km_attend_spec spec;
    km_dtype cache;
    km_tensor *k, *v; /* kept pools */
    km_tensor *table;
} call;

static float noise(uint64_t stream, int64_t i) {
    uint64_t x = (stream * 0x9E3779B97F4A7C15u + (uint64_t)i + 1) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 29) * 0x94D049BB133111EBu;
    return (float)((double)(x >> 11) * 0x1p-52 - 1);
}

static km_tensor *noisy(km_ctx *ctx, int64_t rows, int64_t n, uint64_t stream) {
    km_tensor *t = km_zeros(ctx, KM_F32, KM_SHAPE(rows, n));
    for (int64_t i = 0; t && i < rows * n; i++) ((float *)km_tensor_ptr(t))[i] = noise(stream, i);
    return t;
}

/* Pools full of tokens, and a table in which no two sequences share a page but the first three. */
static call begin(const char *device, int threads, km_dtype cache) {
    call c = {.ctx = km_ctx_new(device, threads), .cache = cache};
    int64_t pages = SEQUENCES * EACH + 1, n = pages * KV * KM_KV_PAGE * D;
    c.spec = (km_attend_spec){.heads = HEADS,
                              .kv_heads = KV,
                              .scale = 0.2,
                              .rope_base = 10000,
                              .pairs = KM_ROPE_ADJACENT};
    km_lane *lane = c.ctx->lanes[0];
    km_shape s = KM_SHAPE(pages, KV, KM_KV_PAGE, D);
    km_tensor **pools[] = {&c.k, &c.v};
    for (int i = 0; i < 2; i++) {
        km_tensor *t = km_tensor_new(c.ctx, lane, "pool", cache, s);
        float one[32];
        char *to = km_tensor_ptr(t);
        for (int64_t at = 0; at < n; at += 32) {
            for (int k = 0; k < 32; k++) one[k] = noise((uint64_t)i + 7, at + k);
            km_attend_encode(cache, one, 32, to + km_dtype_bytes(cache, at));
        }
        *pools[i] = km_keep(c.ctx, t);
    }
    int32_t table[SEQUENCES * EACH];
    for (int i = 0; i < SEQUENCES * EACH; i++) table[i] = SEQUENCES * EACH - i;
    c.table = km_keep(c.ctx, km_from_data(c.ctx, KM_I32, KM_SHAPE(SEQUENCES, EACH), table));
    km_step_end(c.ctx);
    return c;
}

static void end(call *c) {
    km_release(c->k);
    km_release(c->v);
    km_release(c->table);
    km_ctx_free(c->ctx);
}

/* Rows `row[i]`: q, k and v of a row are a function of its sequence and position. */
static void run(call *c, const int32_t *row, int64_t rows, float *out) {
    km_ctx *ctx = c->ctx;
    km_tensor *x[3];
    const int64_t width[] = {HEADS * D, KV * D, KV * D};
    for (int i = 0; i < 3; i++) {
        x[i] = km_zeros(ctx, KM_F32, KM_SHAPE(rows, width[i]));
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < width[i]; k++)
                ((float *)km_tensor_ptr(x[i]))[r * width[i] + k] =
                    noise((uint64_t)(row[2 * r] * 1000 + row[2 * r + 1]) * 4 + (uint64_t)i, k);
    }
    km_tensor *at = km_from_data(ctx, KM_I32, KM_SHAPE(rows, 2), row);
    km_tensor *y = km_attend(ctx, &c->spec, x[0], x[1], x[2], c->k, c->v, at, c->table);
    if (!y) fail_msg("%s", km_ctx_error(ctx));
    km_read(ctx, y, out, sizeof *out * (size_t)(rows * HEADS * D));
    km_step_end(ctx);
}

static void options(call *c, int form) {
    c->spec.window = form & 1 ? 70 : 0;
    c->spec.softcap = form & 2 ? 2 : 0;
    c->spec.rope_dims = form & 4 ? 32 : 0;
    c->spec.pairs = form & 4 ? KM_ROPE_HALVES : KM_ROPE_ADJACENT;
    if (form & 2) {
        c->spec.q_norm = c->spec.k_norm = noisy(c->ctx, 1, D, 99);
        c->spec.q_norm = c->spec.k_norm = km_reshape(c->ctx, c->spec.q_norm, KM_SHAPE(D));
        c->spec.q_norm = c->spec.k_norm = km_keep(c->ctx, c->spec.q_norm);
        c->spec.eps = 1e-5;
    }
}

static int64_t rows_of(int64_t n, int64_t first, int32_t *row) { /* n > 0: a prompt of sequence 3 */
    for (int64_t i = 0; i < n; i++) {
        row[2 * i] = 3;
        row[2 * i + 1] = (int32_t)(first + i);
    }
    return n;
}

static void exact_caches_give_what_the_reference_gives(void **state) {
    (void)state;
    static const struct {
        int64_t n, first;
    } prompts[] = {{1, 0}, {1, 300}, {7, 60}, {16, 500 - 5}, {17, 0}, {40, 100}, {200, 250}};
    static float want[200 * HEADS * D], got[200 * HEADS * D];
    for (int form = 0; form < 8; form++)
        for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
            if (form % 3 && i % 2) continue; /* the reference is slow */
            if (SANITIZED && (form % 2 || prompts[i].n > 100)) continue;
            int32_t row[400];
            int64_t n = rows_of(prompts[i].n, prompts[i].first, row);
            call ref = begin("ref", 1, KM_F32), cpu = begin("cpu", 2, KM_F32);
            options(&ref, form);
            options(&cpu, form);
            run(&ref, row, n, want);
            run(&cpu, row, n, got);
            /* By tiles, as of 17 rows, operands keep 16 bits. */
            float most = km_gemm_isa() == KM_ISA_AMX && n > KM_FEW_ROWS ? 2e-5f : 4e-6f;
            for (int64_t k = 0; k < n * HEADS * D; k++)
                if (!(fabsf(want[k] - got[k]) <= most))
                    fail_msg("form %d, %lld rows: %g, not %g", form, (long long)n, got[k], want[k]);
            const float *a = km_tensor_ptr(ref.k), *b = km_tensor_ptr(cpu.k);
            for (int64_t k = 0; k < km_tensor_count(ref.k); k++)
                if (!(fabsf(a[k] - b[k]) <= 1e-5f)) fail_msg("key %g, not %g", b[k], a[k]);
            assert_memory_equal(km_tensor_ptr(ref.v), km_tensor_ptr(cpu.v),
                                sizeof(float) * (size_t)km_tensor_count(ref.v));
            km_release(ref.spec.q_norm);
            km_release(cpu.spec.q_norm);
            end(&ref);
            end(&cpu);
        }
}

/* Values are not rotated: what the cache holds of them is rounded alike everywhere. */
static void values_are_kept_as_the_reference_keeps_them(void **state) {
    (void)state;
    static float out[2][30 * HEADS * D];
    CT_EACH(km_dtype, cache, KM_F32, KM_F16, KM_BF16, KM_Q8_0, KM_Q4_0) {
        int32_t row[60];
        int64_t n = rows_of(30, 50, row);
        call ref = begin("ref", 1, *cache), cpu = begin("cpu", 2, *cache);
        run(&ref, row, n, out[0]);
        run(&cpu, row, n, out[1]);
        size_t bytes = (size_t)km_dtype_bytes(*cache, km_tensor_count(ref.v));
        assert_memory_equal(km_tensor_ptr(ref.v), km_tensor_ptr(cpu.v), bytes);
        end(&ref);
        end(&cpu);
    }
}

static void a_row_is_the_same_alone_and_among_others_on_any_threads(void **state) {
    (void)state;
    enum { MOST = 16 };
    static float all[MOST * HEADS * D], one[HEADS * D];
    CT_EACH(km_dtype, cache, KM_F32, KM_F16, KM_Q8_0, KM_Q4_0)
    for (int threads = SANITIZED ? 3 : 1; threads <= 3; threads += 2)
        for (int form = 0; form < 8; form += 3) {
            int32_t row[2 * MOST];
            call c = begin("cpu", threads, *cache), alone = begin("cpu", 1, *cache);
            options(&c, form);
            options(&alone, form);
            for (int i = 0; i < MOST; i++) {
                row[2 * i] = (i * 5 + 2) % SEQUENCES;
                row[2 * i + 1] = i == 5 ? -1 : i * 31 % (EACH * KM_KV_PAGE);
            }
            run(&c, row, MOST, all);
            for (int i = 0; i < MOST; i++) {
                run(&alone, row + 2 * i, 1, one);
                assert_memory_equal(one, all + i * HEADS * D, sizeof one);
                if (i == 5)
                    for (int k = 0; k < HEADS * D; k++) assert_true(one[k] == 0);
            }
            km_release(c.spec.q_norm);
            km_release(alone.spec.q_norm);
            end(&c);
            end(&alone);
        }
}

/* Two prompts in one call, and one of them with rows that do not count between them. */
static void a_prompt_is_the_same_alone_and_beside_another(void **state) {
    (void)state;
    enum { A = 90, B = 40 };
    static float both[(A + B + 3) * HEADS * D], one[A * HEADS * D];
    for (int form = 0; form < 8; form += 2) {
        int32_t row[2 * (A + B + 3)];
        int64_t n = 0, first_b;
        call c = begin("cpu", 3, KM_F16), alone = begin("cpu", 1, KM_F16);
        options(&c, form);
        options(&alone, form);
        for (int i = 0; i < A; i++, n++) row[2 * n] = 4, row[2 * n + 1] = 130 + i;
        for (int i = 0; i < 3; i++, n++) row[2 * n] = i ? SEQUENCES + i : -1, row[2 * n + 1] = 3;
        first_b = n;
        for (int i = 0; i < B; i++, n++) row[2 * n] = 9, row[2 * n + 1] = i;
        run(&c, row, n, both);
        run(&alone, row, A, one);
        assert_memory_equal(one, both, sizeof one);
        run(&alone, row + 2 * first_b, B, one);
        assert_memory_equal(one, both + first_b * HEADS * D, sizeof(float) * B * HEADS * D);
        for (int64_t k = A * HEADS * D; k < first_b * HEADS * D; k++) assert_true(both[k] == 0);
        km_release(c.spec.q_norm);
        km_release(alone.spec.q_norm);
        end(&c);
        end(&alone);
    }
}

static void calls_that_make_no_sense_are_refused(void **state) {
    (void)state;
    call c = begin("cpu", 1, KM_F32);
    km_ctx *ctx = c.ctx;
    km_tensor *q = km_zeros(ctx, KM_F32, KM_SHAPE(1, HEADS * D));
    km_tensor *k = km_zeros(ctx, KM_F32, KM_SHAPE(1, KV * D));
    km_tensor *at = km_zeros(ctx, KM_I32, KM_SHAPE(1, 2));
    assert_null(km_attend(ctx, &c.spec, q, q, k, c.k, c.v, at, c.table));
    km_ctx_clear_error(ctx);
    assert_null(km_attend(ctx, &c.spec, q, k, k, c.k, c.v, c.table, c.table));
    km_ctx_clear_error(ctx);
    assert_null(km_attend(ctx, &c.spec, q, k, k, k, c.v, at, c.table));
    km_ctx_clear_error(ctx);
    c.spec.kv_heads = 4;
    assert_null(km_attend(ctx, &c.spec, q, k, k, c.k, c.v, at, c.table));
    km_ctx_clear_error(ctx);
    c.spec.kv_heads = KV;
    c.spec.rope_dims = 7;
    assert_null(km_attend(ctx, &c.spec, q, k, k, c.k, c.v, at, c.table));
    km_ctx_clear_error(ctx);
    end(&c);
}

static int tests(void) {
    const struct CMUnitTest list[] = {
        cmocka_unit_test(exact_caches_give_what_the_reference_gives),
        cmocka_unit_test(values_are_kept_as_the_reference_keeps_them),
        cmocka_unit_test(a_row_is_the_same_alone_and_among_others_on_any_threads),
        cmocka_unit_test(a_prompt_is_the_same_alone_and_beside_another),
        cmocka_unit_test(calls_that_make_no_sense_are_refused),
    };
    return cmocka_run_group_tests(list, NULL, NULL);
}

int main(void) { return ct_each_isa(tests, km_cpu_register_attend); }
