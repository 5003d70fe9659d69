/* Importance matrices: both forms come back as they were written, files that are none are refused,
 * and quantising by one moves the error to where it does not matter. */
#include "base/file.h"
#include "format/formats.h"
#include "format/gguf.h"
#include "model/convert.h"
#include "model/imatrix.h"
#include "model/synthetic.h"
#include "tensor/quant.h"
#include <math.h>

static km_imatrix *made(const char *const *names, int n, int64_t in) {
    km_error err = {0};
    km_imatrix *m = km_imatrix_new(n, &err);
    for (int i = 0; i < n; i++) {
        km_imatrix_row *r = &m->row[m->n++];
        *r = (km_imatrix_row){.name = km_strdup(names[i]), .in = in, .count = 1000};
        r->mean = km_alloc((size_t)in * sizeof *r->mean);
        for (int64_t k = 0; k < in; k++) r->mean[k] = k % 8 == 0 ? 100.0f : 0.01f * (float)(i + 1);
    }
    m->chunks = 4;
    m->chunk_size = 250;
    return m;
}

static const char *const two[] = {"blk.0.attn_q.weight", "blk.0.ffn_down.weight"};

static void both_forms_come_back(void **state) {
    (void)state;
    static const char *const files[] = {"a.gguf", "a.dat", "a.imatrix"};
    for (int f = 0; f < 3; f++) {
        km_error err = {0};
        km_imatrix *m = made(two, 2, 64);
        assert_int_equal(km_imatrix_save(m, in_folder(files[f]), &err), KM_OK);
        km_imatrix *back = km_imatrix_load(in_folder(files[f]), &err);
        if (!back) fail_msg("%s: %s", files[f], err.text);
        assert_int_equal(back->n, 2);
        assert_int_equal(back->chunks, 4);
        for (int i = 0; i < 2; i++) {
            const km_imatrix_row *r = km_imatrix_find(back, two[i]);
            assert_non_null(r);
            assert_int_equal(r->in, 64);
            for (int k = 0; k < 64; k++)
                assert_true(fabsf(r->mean[k] - m->row[i].mean[k]) <= 1e-5f * m->row[i].mean[k]);
        }
        assert_null(km_imatrix_find(back, "blk.1.attn_q.weight"));
        km_imatrix_free(back);
        km_imatrix_free(m);
    }
}

static void files_of_others_are_read(void **state) {
    (void)state;
    static const char *const files[] = {"importance.dat", "importance.gguf"};
    for (int f = 0; f < 2; f++) {
        km_error err = {0};
        km_imatrix *m = km_imatrix_load(fixture_path(files[f]), &err);
        if (!m) fail_msg("%s", err.text);
        assert_int_equal(m->n, 2);
        assert_int_equal(m->chunks, 3);
        assert_int_equal(m->row[1].in, 96);
        for (int i = 0; i < 2; i++)
            for (int64_t k = 0; k < m->row[i].in; k++)
                assert_true(m->row[i].mean[k] == (float)(k % 7 + 1));
        km_imatrix_free(m);
    }
}

static void hostile_files_are_refused(void **state) {
    (void)state;
    km_error err = {0};
    km_imatrix *m = made(two, 2, 16);
    for (int f = 0; f < 2; f++) {
        const char *path = in_folder(f ? "b.gguf" : "b.dat");
        assert_int_equal(km_imatrix_save(m, path, &err), KM_OK);
        blob b = read_blob(path);
        size_t body = b.size - (f ? 28 : 12); /* the rest is padding, or where the text is from */
        for (size_t cut = 0; cut < body; cut += cut < 64 ? 1 : 13) {
            FILE *w = fopen(in_folder("cut"), "wb");
            fwrite(b.data, 1, cut, w);
            fclose(w);
            km_error why = {0};
            assert_null(km_imatrix_load(in_folder("cut"), &why));
            assert_int_not_equal(why.code, KM_OK);
        }
        for (size_t at = 0; at < b.size && at < 300; at++) { /* any byte may be anything */
            uint8_t was = b.data[at];
            b.data[at] = 0xFF;
            FILE *w = fopen(in_folder("cut"), "wb");
            fwrite(b.data, 1, b.size, w);
            fclose(w);
            km_error why = {0};
            km_imatrix_free(km_imatrix_load(in_folder("cut"), &why));
            b.data[at] = was;
        }
        free(b.data);
    }
    km_imatrix_free(m);
    assert_null(km_imatrix_load(in_folder("not there"), &err));
}

static const char *model(void) {
    static char path[PATH_MAX]; /* in_folder keeps few */
    snprintf(path, sizeof path, "%s", in_folder("model.gguf"));
    km_config c = {.arch = KM_ARCH_LLAMA,
                   .layers = 1,
                   .heads = 2,
                   .kv_heads = 2,
                   .dim = 64,
                   .hidden = 128,
                   .context = 32,
                   .vocab = 300,
                   .rope_base = 1e4,
                   .norm_eps = 1e-5};
    km_error err = {0};
    assert_int_equal(km_config_complete(&c, &err), KM_OK);
    if (km_synthetic_write(path, &c, km_mix_find("f32"), 5, NULL, NULL, &err) != KM_OK)
        fail_msg("%s", err.text);
    return path;
}

/* The squared error of that matrix in `path`, of the columns that matter and of the others. */
static void errors_of(const char *path, const char *exact, double *much, double *little) {
    km_error err = {0};
    km_gguf *g = km_gguf_open(path, &err), *e = km_gguf_open(exact, &err);
    assert_true(g && e);
    const km_gguf_tensor *t = km_gguf_find(g, two[0]), *x = km_gguf_find(e, two[0]);
    int64_t n = t->shape.dim[0] * t->shape.dim[1];
    float *v = malloc((size_t)n * sizeof *v);
    km_dequantise(t->info->dtype, t->data, n, v);
    *much = *little = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = v[i] - ((const float *)x->data)[i];
        *(i % t->shape.dim[1] % 8 == 0 ? much : little) += d * d;
    }
    free(v);
    km_gguf_close(g);
    km_gguf_close(e);
}

static void errors_move_to_where_they_do_not_matter(void **state) {
    (void)state;
    const char *exact = model();
    km_error err = {0};
    km_imatrix *m = made(two, 1, 64);
    assert_int_equal(km_imatrix_save(m, in_folder("m.dat"), &err), KM_OK);
    km_imatrix_free(m);
    static const char *const mixes[] = {"q4_0", "q4_1", "q5_0", "iq4_nl"};
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++) {
        double much[2], little[2];
        for (int with = 0; with < 2; with++) {
            const char *out = in_folder("q.gguf");
            km_conversion o = {.in = exact,
                               .out = out,
                               .dtype = KM_DTYPE_COUNT,
                               .mix = km_mix_find(mixes[i]),
                               .imatrix = with ? in_folder("m.dat") : NULL,
                               .threads = 2};
            km_conversion_done done;
            int64_t live = km_alloc_live();
            if (km_convert_weights(&o, &done, &err) != KM_OK) fail_msg("%s", err.text);
            assert_int_equal(km_alloc_live(), live);
            if (with) assert_true(done.unweighed > 0);
            errors_of(out, exact, &much[with], &little[with]);
        }
        assert_true(much[1] < 0.7 * much[0]);
        assert_true(little[1] > little[0]);
    }
}

static void a_matrix_of_another_model_is_refused(void **state) {
    (void)state;
    const char *exact = model();
    km_error err = {0};
    km_imatrix *m = made(two, 1, 96);
    assert_int_equal(km_imatrix_save(m, in_folder("other.gguf"), &err), KM_OK);
    km_imatrix_free(m);
    km_conversion o = {.in = exact,
                       .out = in_folder("never.gguf"),
                       .dtype = KM_DTYPE_COUNT,
                       .mix = km_mix_find("q8_0"),
                       .imatrix = in_folder("other.gguf")};
    assert_int_equal(km_convert_weights(&o, NULL, &err), KM_ERR_SHAPE);
    assert_non_null(strstr(err.text, "another model's"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(both_forms_come_back, empty_folder),
        cmocka_unit_test(files_of_others_are_read),
        cmocka_unit_test_teardown(hostile_files_are_refused, empty_folder),
        cmocka_unit_test_teardown(errors_move_to_where_they_do_not_matter, empty_folder),
        cmocka_unit_test_teardown(a_matrix_of_another_model_is_refused, empty_folder),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
