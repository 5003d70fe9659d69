/* Perplexity, predictions saved and compared, and importance matrices from a run: on small models
 * of random weights, against what the definitions say. */
#include "format/formats.h"
#include "infer/collect.h"
#include "infer/divergence.h"
#include "infer/perplexity.h"
#include "model/convert.h"
#include "model/open.h"
#include "model/synthetic.h"
#include <math.h>

#define TOKENS 41

typedef struct rig {
    km_ctx *ctx;
    km_net *m;
    km_ids ids;
    int32_t data[TOKENS];
    km_windows how;
} rig;

static void begin_as(rig *f, km_arch arch, const char *mix) {
    char path[PATH_MAX];
    km_config c = {.arch = arch,
                   .layers = 2,
                   .heads = 4,
                   .kv_heads = arch == KM_ARCH_GPT2 ? 4 : 2,
                   .bias = arch == KM_ARCH_GPT2,
                   .dim = 64,
                   .hidden = 96,
                   .context = 32,
                   .vocab = 300,
                   .rope_base = 1e4,
                   .norm_eps = 1e-5,
                   .tied = true};
    km_error err = {0};
    snprintf(path, sizeof path, "%s", in_folder("m.gguf"));
    assert_int_equal(km_config_complete(&c, &err), KM_OK);
    if (km_synthetic_write(path, &c, km_mix_find("f32"), 3, NULL, NULL, &err) != KM_OK)
        fail_msg("%s", err.text);
    if (strcmp(mix, "f32") != 0) {
        char out[PATH_MAX];
        snprintf(out, sizeof out, "%s", in_folder("q.gguf"));
        km_conversion o = {.in = path, .out = out, .dtype = KM_DTYPE_COUNT, .threads = 1};
        o.mix = km_mix_find(mix);
        if (km_convert_weights(&o, NULL, &err) != KM_OK) fail_msg("%s", err.text);
        snprintf(path, sizeof path, "%s", out);
    }
    *f = (rig){.ctx = km_ctx_new("cpu", 1), .how = {.context = 16, .bos = -1}};
    f->m = km_net_open(f->ctx, path, NULL, &err);
    if (!f->m) fail_msg("%s", err.text);
    for (int i = 0; i < TOKENS; i++) f->data[i] = (i * 37 + i * i) % 256;
    f->ids = (km_ids){.data = f->data, .len = TOKENS};
}

static void begin(rig *f, const char *mix) { begin_as(f, KM_ARCH_LLAMA, mix); }

static void end(rig *f) {
    km_net_free(f->m);
    km_ctx_free(f->ctx);
}

static km_window_loss measured(rig *f) {
    km_window_loss p;
    km_error err = {0};
    if (km_windows_loss(f->ctx, f->m, &f->ids, &f->how, &p, &err) != KM_OK)
        fail_msg("%s", err.text);
    assert_int_equal(p.tokens, km_windows_count(&f->ids, &f->how));
    return p;
}

typedef struct sums {
    int64_t rows, vocab;
    double loss;
    const int32_t *data;
} sums;

static km_status add_row(void *user, const float *logits, int32_t came, km_error *err) {
    sums *s = user;
    double total = 0;
    (void)err;
    for (int64_t i = 0; i < s->vocab; i++) total += exp(logits[i]);
    s->loss += log(total) - logits[came];
    s->rows++;
    return KM_OK;
}

static void the_loss_is_the_mean_over_all_rows(void **state) {
    (void)state;
    rig f;
    begin(&f, "f32");
    /* pieces of 16, 16 and 9 tokens; the first of each is not predicted */
    sums s = {.vocab = 300, .data = f.data};
    f.how.row = add_row;
    f.how.row_user = &s;
    km_window_loss p = measured(&f);
    assert_int_equal(p.tokens, 15 + 15 + 8);
    assert_int_equal(p.windows, 3);
    assert_int_equal(s.rows, p.tokens);
    assert_true(fabs(s.loss / (double)s.rows - p.loss) < 1e-5);
    f.how.windows = 2;
    s.rows = 0;
    assert_int_equal(measured(&f).tokens, 30);
    assert_int_equal(s.rows, 30);
    f.how.bos = 256; /* takes a place, and the first token is predicted from it */
    f.how.windows = 0;
    assert_int_equal(measured(&f).tokens, TOKENS);
    end(&f);
}

static void saved(rig *f, const char *path) {
    km_error err = {0};
    km_logits_about about = km_logits_of(f->m, &f->ids, &f->how);
    km_logits_writer *w = km_logits_create(path, &about, &err);
    f->how.row = km_logits_put;
    f->how.row_user = w;
    measured(f);
    f->how.row = NULL;
    if (km_logits_commit(w, &err) != KM_OK) fail_msg("%s", err.text);
}

static km_divergence compared(rig *f, const char *path) {
    km_error err = {0};
    km_divergence d;
    km_logits_about about = km_logits_of(f->m, &f->ids, &f->how);
    km_comparison *c = km_compare_open(path, &about, &err);
    if (!c) fail_msg("%s", err.text);
    f->how.row = km_compare_row;
    f->how.row_user = c;
    km_window_loss p = measured(f);
    f->how.row = NULL;
    assert_int_equal(km_compare_result(c, &d, &err), KM_OK);
    assert_true(fabs(d.loss - p.loss) < 1e-5);
    km_compare_close(c);
    return d;
}

static void tokens_one_by_one_are_predicted_as_a_piece_at_once_is(void **state) {
    (void)state;
    rig f;
    begin(&f, "f32");
    saved(&f, in_folder("logits"));
    f.how.decode = true;
    km_divergence d = compared(&f, in_folder("logits"));
    assert_int_equal(d.tokens, 15 + 15 + 8);
    assert_true(fabs(d.mean) < 1e-5 && d.same_top > 0.9); /* the cache is f16 */
    assert_true(d.most > 0);                              /* other kernels have made them */
    end(&f);
}

/* A file's 16-bit weights meet activations of f32, whatever the blocks are made of. */
static void weights_of_16_bits_predict_as_those_of_32_in_every_architecture(void **state) {
    (void)state;
    static const char *const mixes[] = {"f16", "bf16"};
    for (int arch = 0; arch < KM_ARCH_COUNT; arch++) {
        rig f;
        begin_as(&f, (km_arch)arch, "f32");
        double exact = measured(&f).loss;
        end(&f);
        for (int i = 0; i < 2; i++) {
            begin_as(&f, (km_arch)arch, mixes[i]);
            double near = measured(&f).loss;
            f.how.decode = true;
            double decoded = measured(&f).loss;
            if (fabs(near - exact) > 0.02 || fabs(decoded - near) > 0.02)
                fail_msg("architecture %d, %s: %g and %g by tokens, not %g", arch, mixes[i], near,
                         decoded, exact);
            end(&f);
        }
    }
}

/* Pieces of 16 are read by the kernels for few rows, as tokens are that follow one another, and
 * longer ones by those for many. */
static void the_cpu_stays_close_to_exact_activations(void **state) {
    (void)state;
    static const char *const mixes[] = {"q4_1", "q8_0", "q4_0", "mxfp4"};
    for (int i = 0; i < 8; i++) {
        rig f;
        km_error err = {0};
        char path[PATH_MAX], logits[PATH_MAX];
        begin(&f, mixes[i / 2]);
        f.how.context = i % 2 ? 32 : 16;
        snprintf(path, sizeof path, "%s", in_folder("q.gguf"));
        snprintf(logits, sizeof logits, "%s", in_folder("exact"));
        rig exact = f;
        exact.ctx = km_ctx_new("ref", 1);
        exact.m = km_net_open(exact.ctx, path, NULL, &err);
        if (!exact.m) fail_msg("%s", err.text);
        exact.ids.data = f.data;
        saved(&exact, logits);
        km_ctx_set_activations(f.ctx, 8);
        double coarse = compared(&f, logits).mean;
        km_ctx_set_activations(f.ctx, 16);
        double fine = compared(&f, logits).mean;
        if (fine > 1e-6 || coarse < 1e-5)
            fail_msg("%s, pieces of %d: %g with 16 bits, %g with 8", mixes[i / 2], i % 2 ? 32 : 16,
                     fine, coarse);
        end(&exact);
        end(&f);
    }
}

static void a_model_does_not_diverge_from_itself(void **state) {
    (void)state;
    rig f;
    begin(&f, "f32");
    saved(&f, in_folder("logits"));
    km_divergence d = compared(&f, in_folder("logits"));
    assert_int_equal(d.tokens, 38);
    assert_true(fabs(d.mean) < 1e-6 && fabs(d.most) < 1e-6);
    assert_true(d.same_top == 1);
    assert_true(fabs(d.loss - d.saved_loss) < 1e-3 && d.rms_p < 1e-4);
    end(&f);
}

static void fewer_bits_diverge_more(void **state) {
    (void)state;
    static const char *const mixes[] = {"q8_0", "q4_0"};
    char path[PATH_MAX];
    double mean[2];
    rig f;
    snprintf(path, sizeof path, "%s", in_folder("logits"));
    begin(&f, "f32");
    saved(&f, path);
    end(&f);
    for (int i = 0; i < 2; i++) {
        begin(&f, mixes[i]);
        km_divergence d = compared(&f, path);
        mean[i] = d.mean;
        assert_true(d.least >= -1e-6 && d.least <= d.median && d.median <= d.p90);
        assert_true(d.p90 <= d.p99 && d.p99 <= d.p999 && d.p999 <= d.most);
        assert_true(d.mean > 0 && d.error > 0);
        end(&f);
    }
    assert_true(mean[0] < 0.01 && mean[1] > 3 * mean[0]);
}

static void predictions_of_something_else_are_refused(void **state) {
    (void)state;
    rig f;
    km_error err = {0};
    char path[PATH_MAX], cut[PATH_MAX];
    snprintf(path, sizeof path, "%s", in_folder("logits"));
    snprintf(cut, sizeof cut, "%s", in_folder("cut"));
    begin(&f, "f32");
    saved(&f, path);
    f.data[20]++;
    km_logits_about about = km_logits_of(f.m, &f.ids, &f.how);
    assert_null(km_compare_open(path, &about, &err));
    assert_non_null(strstr(err.text, "another text"));
    f.data[20]--;
    about = km_logits_of(f.m, &f.ids, &f.how);
    about.vocab++;
    assert_null(km_compare_open(path, &about, &err));
    about.vocab--;
    blob b = read_blob(path);
    for (size_t n = 0; n < b.size; n += n < 48 ? 7 : 999) {
        FILE *w = fopen(cut, "wb");
        fwrite(b.data, 1, n, w);
        fclose(w);
        assert_null(km_compare_open(cut, &about, &err));
    }
    free(b.data);
    err = (km_error){0}; /* the first one would stay */
    assert_null(km_compare_open(in_folder("m.gguf"), &about, &err));
    assert_non_null(strstr(err.text, "no saved predictions"));
    end(&f);
}

static void a_run_that_ends_early_leaves_no_file(void **state) {
    (void)state;
    rig f;
    km_error err = {0};
    begin(&f, "f32");
    km_logits_about about = km_logits_of(f.m, &f.ids, &f.how);
    km_logits_writer *w = km_logits_create(in_folder("early"), &about, &err);
    float zeros[300] = {0};
    assert_int_equal(km_logits_put(w, zeros, 1, &err), KM_OK);
    assert_int_equal(km_logits_commit(w, &err), KM_ERR_STATE);
    km_map m;
    assert_int_not_equal(km_map_open(&m, in_folder("early"), &err), KM_OK);
    end(&f);
}

/* Mean squares of the head's inputs are those of the last norm's outputs, whose rows it scales to a
 * mean square of 1. */
static void a_collector_sees_the_inputs_of_every_layer(void **state) {
    (void)state;
    static const char *const mixes[] = {"f32", "q8_0"};
    for (int k = 0; k < 2; k++) {
        rig f;
        km_error err = {0};
        begin(&f, mixes[k]);
        km_collector *c = km_collect_begin(f.ctx, f.m, &err);
        measured(&f);
        km_imatrix *m = km_collect_end(c, &err);
        if (!m) fail_msg("%s", err.text);
        assert_int_equal(m->n, 2 * 7 + 1);
        const km_imatrix_row *head = km_imatrix_find(m, "token_embd.weight");
        const km_imatrix_row *q = km_imatrix_find(m, "blk.1.attn_q.weight");
        const km_imatrix_row *v = km_imatrix_find(m, "blk.1.attn_v.weight");
        const km_imatrix_row *down = km_imatrix_find(m, "blk.0.ffn_down.weight");
        assert_true(head && q && v && down);
        assert_int_equal(head->in, 64);
        assert_int_equal(down->in, 96);
        assert_true(head->count == 38);
        double sum = 0;
        for (int i = 0; i < 64; i++) sum += head->mean[i];
        assert_true(fabs(sum / 64 - 1) < 1e-3);
        assert_memory_equal(q->mean, v->mean, 64 * sizeof *q->mean);
        km_imatrix_free(m);
        measured(&f); /* nobody watches any more */
        end(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_loss_is_the_mean_over_all_rows, empty_folder),
        cmocka_unit_test_teardown(tokens_one_by_one_are_predicted_as_a_piece_at_once_is,
                                  empty_folder),
        cmocka_unit_test_teardown(weights_of_16_bits_predict_as_those_of_32_in_every_architecture,
                                  empty_folder),
        cmocka_unit_test_teardown(the_cpu_stays_close_to_exact_activations, empty_folder),
        cmocka_unit_test_teardown(a_model_does_not_diverge_from_itself, empty_folder),
        cmocka_unit_test_teardown(fewer_bits_diverge_more, empty_folder),
        cmocka_unit_test_teardown(predictions_of_something_else_are_refused, empty_folder),
        cmocka_unit_test_teardown(a_run_that_ends_early_leaves_no_file, empty_folder),
        cmocka_unit_test_teardown(a_collector_sees_the_inputs_of_every_layer, empty_folder),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
