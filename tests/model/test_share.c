/* Shares of a model: who gets what, and cutting it out of tensors of every type; the parts of all
 * ranks are the whole again, nothing twice and nothing left out, and a cut through a block is
 * refused. */
#include "base/alloc.h"
#include "model/arch.h"
#include "model/cut.h"
#include "support/engine.h"
#include "support/random_model.h"
#include "tensor/quant.h"
#include <stdlib.h>

static km_config config_of(km_arch arch, int heads, int kv_heads, int64_t head_dim,
                           int64_t hidden) {
    km_config c = {.arch = arch,
                   .layers = 2,
                   .heads = heads,
                   .kv_heads = kv_heads,
                   .head_dim = head_dim,
                   .dim = heads * head_dim,
                   .hidden = hidden,
                   .context = 64,
                   .vocab = 1000,
                   .bias = arch == KM_ARCH_GPT2};
    return random_config(c);
}

/* A model's layout, all of whose matrices are of one type. */
typedef struct plan {
    km_config c;
    km_layout l;
    km_stored *found;
} plan;

static plan plan_of(km_config c, km_dtype d) {
    km_error err = {0};
    plan p = {.c = c};
    assert_int_equal(km_layout_of(&p.c, &p.l, &err), KM_OK);
    p.found = calloc((size_t)p.l.n, sizeof *p.found);
    for (int i = 0; i < p.l.n; i++) p.found[i].dtype = p.l.row[i].full ? KM_F32 : d;
    return p;
}

static void drop(plan *p) {
    km_layout_free(&p->l);
    free(p->found);
}

static km_share share_of(const plan *p, int rank, int ranks) {
    km_error err = {0};
    km_share s;
    if (km_share_of(&p->c, &p->l, p->found, rank, ranks, &s, &err) != KM_OK)
        fail_msg("%s", err.text);
    return s;
}

static void refused(const plan *p, int ranks, const char *text) {
    km_share s;
    for (int rank = 0; rank < ranks; rank++) {
        km_error err = {0};
        assert_int_equal(km_share_of(&p->c, &p->l, p->found, rank, ranks, &s, &err), KM_ERR_RANGE);
        assert_string_equal(err.text, text);
    }
}

/* ---- Who gets what ---- */

static void heads_columns_and_tokens_are_shared_out_evenly_and_whole(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 8; ranks++) {
        plan p = plan_of(config_of(KM_ARCH_LLAMA, 32, 8, 64, 1408), KM_Q8_0);
        int heads = 0, least = 99, most = 0;
        int64_t hidden = 0, tokens = 0;
        for (int r = 0; r < ranks; r++) {
            km_share s = share_of(&p, r, ranks);
            assert_int_equal(s.kv_first, heads);
            assert_int_equal(s.hidden_first, hidden);
            assert_int_equal(s.token_first, tokens);
            assert_int_equal(s.hidden % 64, 0);
            assert_true(s.kv_heads > 0 && s.hidden > 0 && s.tokens > 0);
            assert_true(s.tokens == s.token_part || r == ranks - 1);
            heads += s.kv_heads;
            hidden += s.hidden;
            tokens += s.tokens;
            if (s.kv_heads < least) least = s.kv_heads;
            if (s.kv_heads > most) most = s.kv_heads;
            km_config own = km_share_config(&p.c, &s);
            assert_int_equal(own.heads, 4 * s.kv_heads);
            assert_int_equal(own.dim, p.c.dim);
            assert_int_equal(own.head_dim, 64);
        }
        assert_true(heads == 8 && hidden == 1408 && tokens == 1000 && most - least <= 1);
        drop(&p);
    }
}

static void an_uneven_share_falls_between_blocks(void **state) {
    (void)state;
    /* Groups of 896 columns: two of them are whole blocks of 256, one is not. */
    plan p = plan_of(config_of(KM_ARCH_QWEN2, 28, 4, 128, 18944), KM_Q4_K);
    for (int r = 0; r < 2; r++) {
        km_share s = share_of(&p, r, 2);
        assert_int_equal(s.kv_heads, 2);
        assert_int_equal(s.hidden % 256, 0);
    }
    refused(&p, 4,
            "4 ranks cannot share 4 key/value heads of 896 columns in q4_k's blocks of 256; 2 is "
            "the most for this file");
    drop(&p);
    p = plan_of(config_of(KM_ARCH_LLAMA, 9, 3, 64, 1536), KM_Q4_1);
    assert_int_equal(share_of(&p, 0, 2).kv_heads, 2);
    assert_int_equal(share_of(&p, 1, 2).kv_heads, 1);
    refused(&p, 4, "4 ranks cannot share 3 key/value heads; 3 is the most for this model");
    drop(&p);
    p = plan_of(config_of(KM_ARCH_LLAMA, 4, 4, 64, 512), KM_Q4_K);
    refused(&p, 3,
            "3 ranks cannot share 4 key/value heads of 64 columns in q4_k's blocks of 256; 1 is "
            "the most for this file");
    drop(&p);
    p = plan_of(config_of(KM_ARCH_LLAMA, 16, 4, 64, 512), KM_Q6_K);
    refused(&p, 3,
            "3 ranks cannot share the MLP's 512 columns in q6_k's blocks of 256; 2 is the most for "
            "this file");
    drop(&p);
}

/* ---- Cutting ---- */

static int type_count(void) {
    int n = 0;
    for (int d = 0; d < KM_DTYPE_COUNT; d++)
        n += km_dtype_is_block((km_dtype)d) || km_dtype_is_float((km_dtype)d);
    return n;
}

/* Bytes that tell every place from every other, near enough. */
static unsigned char *filled(size_t bytes) {
    unsigned char *v = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) v[i] = (unsigned char)(i * 31 + i / 251 + i / 65521);
    return v;
}

/* Rows and columns of `whole`, by the plainest code there is: block (i, j) of every row. */
static void expect_blocks(km_dtype d, km_shape whole, const unsigned char *data,
                          const unsigned char *got, int64_t first_row, int64_t rows,
                          int64_t first_column, int64_t columns) {
    int64_t block = km_dtype_is_block(d) ? km_dtype_block(d) : 1;
    size_t size = km_dtype_size(d), stride = (size_t)(whole.dim[1] / block) * size;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns / block; j++, got += size)
            assert_memory_equal(got,
                                data + (size_t)(first_row + i) * stride +
                                    (size_t)(first_column / block + j) * size,
                                size);
}

static void rows_and_columns_of_every_type_are_cut_out(void **state) {
    (void)state;
    km_shape whole = KM_SHAPE(6, 1024);
    int seen = 0;
    for (int i = 0; i < KM_DTYPE_COUNT; i++) {
        km_dtype d = (km_dtype)i;
        if (!km_dtype_is_block(d) && !km_dtype_is_float(d)) continue;
        km_error err = {0};
        size_t bytes = (size_t)km_dtype_bytes(d, 6 * 1024);
        unsigned char *data = filled(bytes), *got = malloc(bytes);
        km_cut rows = {.shape = KM_SHAPE(3, 1024), .runs = 1, .first = {2}, .rows = {3}};
        assert_int_equal(km_cut_bytes(&rows, d), bytes / 2);
        const unsigned char *there = km_cut_in_place(&rows, d, whole, data);
        assert_ptr_equal(there, data + bytes / 3);
        assert_int_equal(km_cut_copy(&rows, d, whole, data, got, &err), KM_OK);
        assert_memory_equal(got, there, bytes / 2);
        expect_blocks(d, whole, data, got, 2, 3, 0, 1024);

        km_cut columns = {.shape = KM_SHAPE(6, 256), .columns = true, .column = 512};
        assert_null(km_cut_in_place(&columns, d, whole, data));
        assert_int_equal(km_cut_copy(&columns, d, whole, data, got, &err), KM_OK);
        expect_blocks(d, whole, data, got, 0, 6, 512, 256);

        km_cut runs = {
            .shape = KM_SHAPE(3, 1024), .runs = 3, .first = {1, 3, 5}, .rows = {1, 1, 1}};
        assert_null(km_cut_in_place(&runs, d, whole, data));
        assert_int_equal(km_cut_copy(&runs, d, whole, data, got, &err), KM_OK);
        for (int k = 0; k < 3; k++)
            expect_blocks(d, whole, data, got + (size_t)k * (bytes / 6), 1 + 2 * k, 1, 0, 1024);

        km_cut all = {.shape = whole};
        assert_ptr_equal(km_cut_in_place(&all, d, whole, data), data);
        assert_int_equal(km_cut_copy(&all, d, whole, data, got, &err), KM_OK);
        assert_memory_equal(got, data, bytes);
        free(data);
        free(got);
        seen++;
    }
    assert_int_equal(seen, type_count());
    assert_true(seen >= 17);
}

static void a_cut_through_a_block_is_refused(void **state) {
    (void)state;
    km_shape whole = KM_SHAPE(2, 1024);
    for (int i = 0; i < KM_DTYPE_COUNT; i++) {
        km_dtype d = (km_dtype)i;
        if (!km_dtype_is_block(d)) continue;
        int64_t half = km_dtype_block(d) / 2;
        size_t bytes = (size_t)km_dtype_bytes(d, 2 * 1024);
        unsigned char *data = filled(bytes), *got = malloc(bytes);
        km_cut late = {.shape = KM_SHAPE(2, 512), .columns = true, .column = half};
        km_cut narrow = {.shape = KM_SHAPE(2, 512 + half), .columns = true};
        km_error err = {0};
        assert_int_equal(km_cut_copy(&late, d, whole, data, got, &err), KM_ERR_SHAPE);
        assert_non_null(strstr(err.text, "cannot be cut out of"));
        assert_int_equal(km_cut_copy(&narrow, d, whole, data, got, &err), KM_ERR_SHAPE);
        free(data);
        free(got);
    }
}

/* Every number of the model is some rank's, once, but for what all of them have. */
static void the_parts_of_all_ranks_are_the_whole_for_every_architecture(void **state) {
    (void)state;
    for (int arch = 0; arch < KM_ARCH_COUNT; arch++)
        for (int ranks = 2; ranks <= 3; ranks++) {
            bool gpt2 = arch == KM_ARCH_GPT2;
            plan p = plan_of(config_of((km_arch)arch, 6, gpt2 ? 6 : 3, 16, 96), KM_F32);
            int cut_rows = 0;
            for (int i = 0; i < p.l.n; i++) {
                const km_layout_row *r = &p.l.row[i];
                int64_t n = km_shape_count(r->shape), sum = 0;
                float *data = malloc(sizeof *data * (size_t)n),
                      *got = malloc(sizeof *got * (size_t)n);
                int *times = calloc((size_t)n, sizeof *times);
                for (int64_t k = 0; k < n; k++) data[k] = (float)k;
                for (int rank = 0; rank < ranks; rank++) {
                    km_error err = {0};
                    km_share s = share_of(&p, rank, ranks);
                    km_cut cut = km_share_cut(&p.c, &s, r);
                    int64_t count = km_shape_count(cut.shape);
                    assert_true(count <= n);
                    assert_int_equal(km_cut_copy(&cut, KM_F32, r->shape, data, got, &err), KM_OK);
                    if (cut.absent) continue;
                    for (int64_t k = 0; k < count; k++) times[(int64_t)got[k]]++;
                    sum += count;
                }
                int each = sum == n ? 1 : ranks; /* cut, or whole on all of them */
                cut_rows += each == 1;
                for (int64_t k = 0; k < n; k++)
                    if (times[k] != each) fail_msg("%s: element %lld", r->gguf, (long long)k);
                free(data);
                free(got);
                free(times);
            }
            assert_true(cut_rows >= 2 * (gpt2 ? 4 : 3)); /* of two layers */
            drop(&p);
        }
}

/* What one rank alone adds is zeros on the others. */
static void the_bias_of_a_sum_is_added_once(void **state) {
    (void)state;
    plan p = plan_of(config_of(KM_ARCH_GPT2, 4, 4, 16, 64), KM_F32);
    int found = 0;
    for (int i = 0; i < p.l.n; i++) {
        const km_layout_row *r = &p.l.row[i];
        if (!strstr(r->gguf, "attn_output.bias") && !strstr(r->gguf, "ffn_down.bias")) continue;
        for (int rank = 0; rank < 2; rank++) {
            km_share s = share_of(&p, rank, 2);
            km_cut cut = km_share_cut(&p.c, &s, r);
            float data[64], got[64];
            km_error err = {0};
            for (int k = 0; k < 64; k++) data[k] = (float)(k + 1);
            assert_int_equal(cut.absent, rank == 1);
            assert_int_equal(km_cut_copy(&cut, KM_F32, r->shape, data, got, &err), KM_OK);
            assert_true(got[63] == (rank ? 0.0f : 64.0f));
        }
        found++;
    }
    assert_int_equal(found, 4);
    drop(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_columns_and_tokens_are_shared_out_evenly_and_whole),
        cmocka_unit_test(an_uneven_share_falls_between_blocks),
        cmocka_unit_test(rows_and_columns_of_every_type_are_cut_out),
        cmocka_unit_test(a_cut_through_a_block_is_refused),
        cmocka_unit_test(the_parts_of_all_ranks_are_the_whole_for_every_architecture),
        cmocka_unit_test(the_bias_of_a_sum_is_added_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
