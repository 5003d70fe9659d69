/* Models in folders: Hugging Face's own files are read, what is written is read back, and files
 * that do not fit their config are refused in one line that names the tensor. */
#include "base/file.h"
#include "format/safetensors.h"
#include "model/files.h"
#include "model/folder.h"
#include "model/small.h"
#include <stdlib.h>
#include <unistd.h>

static const char *fixture(char out[512], const char *name) {
    const char *root = getenv("SRC_DIR");
    snprintf(out, 512, "%s/tests/fixtures/models/%s", root ? root : ".", name);
    return out;
}

static void same_parameters(km_ctx *ctx, const km_net *a, const km_net *b) {
    assert_int_equal(a->params.n, b->params.n);
    for (int i = 0; i < a->params.n; i++) {
        assert_string_equal(a->params.at[i].name, b->params.at[i].name);
        float *x = small_floats(ctx, a->params.at[i].t), *y = small_floats(ctx, b->params.at[i].t);
        assert_memory_equal(x, y, sizeof(float) * (size_t)km_tensor_count(a->params.at[i].t));
        km_free(x), km_free(y);
    }
}

static km_net *load(km_ctx *ctx, const char *path, km_dtype dtype) {
    km_error err = {0};
    km_net *m = km_net_load(ctx, path, dtype, &err);
    if (!m) print_error("%s\n", err.text);
    assert_non_null(m);
    return m;
}

/* Element (out, in) of a Conv1D weight is element (in, out) of the file. */
static void transposed_matrices_are_turned(void **state) {
    km_ctx *ctx = *state;
    char path[512];
    km_error err = {0};
    km_net *m = load(ctx, fixture(path, "gpt2"), KM_DTYPE_COUNT);
    assert_int_equal(m->dtype, KM_F32);
    km_safetensors *f = km_safetensors_open(path, &err);
    const km_st_tensor *t = km_safetensors_find(f, "transformer.h.1.mlp.c_fc.weight");
    assert_non_null(t);
    float *v = small_floats(ctx, km_param_find(&m->params, "transformer.h.1.mlp.c_fc.weight")->t);
    for (int out = 0; out < 64; out++)
        for (int in = 0; in < 16; in++)
            assert_true(v[out * 16 + in] == ((const float *)t->data)[in * 64 + out]);
    km_free(v);
    km_safetensors_close(f);
    km_net_free(m);
}

static void what_is_written_is_read_back(void **state) {
    km_ctx *ctx = *state;
    static const char *const names[] = {"gpt2", "llama"};
    for (int i = 0; i < 4; i++) {
        char path[512];
        km_error err = {0};
        km_dtype dtype = i < 2 ? KM_F32 : KM_BF16;
        km_net *m = load(ctx, fixture(path, names[i % 2]), dtype);
        assert_int_equal(km_net_save(m, folder, &err), KM_OK);
        km_net *back = load(ctx, folder, KM_DTYPE_COUNT);
        assert_int_equal(back->dtype, dtype);
        assert_memory_equal(&m->config, &back->config, sizeof m->config);
        same_parameters(ctx, m, back);
        km_net_free(m), km_net_free(back);
    }
}

/* The file has vocab rows and GPT-2's biases, whatever the model in memory looks like. */
static void padding_and_missing_biases_do_not_show_in_files(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    km_config c = small_config(KM_ARCH_GPT2);
    c.bias = false;
    c.vocab_pad = 32;
    km_net *m = km_net_new(ctx, &c, KM_F32);
    km_net_init(m, 5);
    assert_int_equal(km_net_save(m, folder, &err), KM_OK);
    km_safetensors *f = km_safetensors_open(folder, &err);
    const km_st_tensor *wte = km_safetensors_find(f, "transformer.wte.weight");
    const km_st_tensor *bias = km_safetensors_find(f, "transformer.h.1.attn.c_attn.bias");
    assert_int_equal(wte->shape.dim[0], SMALL_VOCAB);
    assert_int_equal(bias->shape.dim[0], 48);
    for (int i = 0; i < 48; i++) assert_true(((const float *)bias->data)[i] == 0);
    assert_non_null(km_safetensors_find(f, "transformer.ln_f.bias"));
    assert_int_equal(km_safetensors_count(f), 2 + 2 * 12 + 2);
    km_safetensors_close(f);
    km_net *back = load(ctx, folder, KM_F32);
    assert_false(back->config.bias);
    float *x = small_floats(ctx, m->wte.w), *y = small_floats(ctx, back->wte.w);
    assert_memory_equal(x, y, sizeof(float) * SMALL_VOCAB * 16);
    for (int i = SMALL_VOCAB * 16; i < 32 * 16; i++) assert_true(y[i] == 0);
    km_free(x), km_free(y);
    km_net_free(m), km_net_free(back);
}

/* ---- Files that do not fit ---- */

typedef struct tensor_change {
    const char *drop, *add, *resize; /* names */
    const char *prefix;              /* cut off from all names */
    bool integers;
} tensor_change;

/* The fixture's tensors, changed, under the fixture's config. */
static void write_changed(const char *name, tensor_change how) {
    char path[600], names[64][128];
    km_error err = {0};
    km_safetensors *f = km_safetensors_open(fixture(path, name), &err);
    km_st_item item[64];
    int n = 0;
    for (int i = 0; i < km_safetensors_count(f); i++) {
        const km_st_tensor *t = km_safetensors_at(f, i);
        if (how.drop && strcmp(t->name, how.drop) == 0) continue;
        size_t cut = how.prefix && !strncmp(t->name, how.prefix, strlen(how.prefix))
                         ? strlen(how.prefix)
                         : 0;
        snprintf(names[n], sizeof names[n], "%s", t->name + cut);
        item[n] =
            (km_st_item){.name = names[n], .dtype = t->dtype, .shape = t->shape, .data = t->data};
        if (how.integers && i == 0) item[n].dtype = KM_I32;
        if (how.resize && strcmp(t->name, how.resize) == 0) item[n].shape.dim[0]--;
        n++;
    }
    static const float zeros[6];
    if (how.add)
        item[n++] =
            (km_st_item){.name = how.add, .dtype = KM_F32, .shape = KM_SHAPE(3, 2), .data = zeros};
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(km_safetensors_write(path, item, n, NULL, 0, &err), KM_OK);
    km_safetensors_close(f);
    km_config c;
    assert_int_equal(km_config_load(&c, fixture(path, name), &err), KM_OK);
    assert_int_equal(km_config_save(&c, folder, &err), KM_OK);
}

static void refused(km_ctx *ctx, const char *name, tensor_change how, const char *text) {
    km_error err = {0};
    char want[600];
    write_changed(name, how);
    assert_null(km_net_load(ctx, folder, KM_F32, &err));
    snprintf(want, sizeof want, "'%s/model.safetensors': %s", folder, text);
    assert_string_equal(err.text, want);
    assert_ok(ctx);
}

static void a_file_that_does_not_fit_is_refused_with_the_tensors_name(void **state) {
    km_ctx *ctx = *state;
    refused(ctx, "gpt2", (tensor_change){.drop = "transformer.h.1.ln_2.bias"},
            "the tensor 'transformer.h.1.ln_2.bias' [16] is missing");
    refused(ctx, "gpt2", (tensor_change){.resize = "transformer.wpe.weight"},
            "the tensor 'transformer.wpe.weight' is [11, 16], but the config makes it [12, 16]");
    refused(ctx, "gpt2", (tensor_change){.add = "transformer.h.2.ln_1.weight"},
            "the config has no place for the tensor 'transformer.h.2.ln_1.weight' [3, 2]");
    refused(ctx, "llama", (tensor_change){.drop = "lm_head.weight"},
            "the tensor 'lm_head.weight' [29, 16] is missing");
    km_error err = {0};
    write_changed("gpt2", (tensor_change){.integers = true});
    assert_null(km_net_load(ctx, folder, KM_F32, &err));
    assert_non_null(strstr(err.text, "is of type I32"));
}

/* Names without "transformer.", and the masks that old files carry. */
static void older_names_and_ballast_are_accepted(void **state) {
    km_ctx *ctx = *state;
    char path[512];
    write_changed("gpt2", (tensor_change){.prefix = "transformer.", .add = "h.0.attn.bias"});
    km_net *m = load(ctx, folder, KM_F32), *want = load(ctx, fixture(path, "gpt2"), KM_F32);
    same_parameters(ctx, m, want);
    km_net_free(m), km_net_free(want);
}

static void a_read_that_fails_changes_nothing(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    char path[512];
    km_net *m = load(ctx, fixture(path, "gpt2"), KM_F32), *want = load(ctx, path, KM_F32);
    write_changed("gpt2", (tensor_change){.drop = "transformer.ln_f.bias"});
    km_safetensors *f = km_safetensors_open(folder, &err);
    assert_int_not_equal(km_net_read(m, f, &err), KM_OK);
    same_parameters(ctx, m, want);
    km_safetensors_close(f);
    km_net_free(m), km_net_free(want);
}

static void a_folder_that_is_missing_or_not_writable_is_named(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    char path[512];
    assert_null(km_net_load(ctx, "/nowhere", KM_F32, &err));
    assert_non_null(strstr(err.text, "/nowhere"));
    km_net *m = load(ctx, fixture(path, "gpt2"), KM_F32);
    err = (km_error){0};
    assert_int_equal(km_net_save(m, "/nowhere", &err), KM_ERR_FILE);
    assert_non_null(strstr(err.text, "/nowhere/model.safetensors"));
    km_net_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(transposed_matrices_are_turned),
        ON_EACH(what_is_written_is_read_back),
        ON("cpu", padding_and_missing_biases_do_not_show_in_files),
        ON("cpu", a_file_that_does_not_fit_is_refused_with_the_tensors_name),
        ON("cpu", older_names_and_ballast_are_accepted),
        ON("cpu", a_read_that_fails_changes_nothing),
        ON("cpu", a_folder_that_is_missing_or_not_writable_is_named),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
