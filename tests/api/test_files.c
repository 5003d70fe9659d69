/* Conversion and description through the public calls, with what may be wrong about them. */
#include "kermes.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];

static const char *in_folder(const char *name) {
    static char path[8][160];
    static int turn;
    char *p = path[turn++ % 8];
    snprintf(p, 160, "%s/%s", folder, name);
    return p;
}

static void models_go_from_format_to_format(void **state) {
    (void)state;
    const char *run = in_folder("run"), *gguf = in_folder("m.gguf"), *back = in_folder("back/");
    km_convert_options o = km_convert_defaults();
    km_converted d = {.size = sizeof d};
    o.type = "F16";
    if (km_convert(run, gguf, &o, &d) != KM_OK) fail_msg("%s", km_last_error());
    assert_true(d.to_gguf && !d.from_gguf && d.tensors > 0 && d.tokens > 0);
    assert_non_null(strstr(d.in, "run/model"));
    assert_int_equal(km_convert(gguf, back, NULL, NULL), KM_OK);
    assert_int_equal(km_convert(gguf, back, NULL, NULL), KM_ERR_STATE);
    assert_non_null(strstr(km_last_error(), "is there already"));
    o = km_convert_defaults();
    o.replace = true;
    assert_int_equal(km_convert(gguf, back, &o, &d), KM_OK);
    assert_true(d.from_gguf && !d.to_gguf);
    assert_int_equal(km_convert(gguf, gguf, &o, NULL), KM_ERR_STATE);
    assert_int_equal(access(in_folder("back/model.safetensors"), F_OK), 0);
}

static void bad_conversions_are_errors_and_leave_no_file(void **state) {
    (void)state;
    const char *gguf = in_folder("m.gguf"), *out = in_folder("none.gguf");
    km_convert_options o = {0};
    km_converted d = {0};
    assert_int_equal(km_convert(NULL, out, NULL, NULL), KM_ERR_NULL);
    assert_int_equal(km_convert(gguf, NULL, NULL, NULL), KM_ERR_NULL);
    assert_int_equal(km_convert(gguf, "", NULL, NULL), KM_ERR_NULL);
    assert_int_equal(km_convert(gguf, out, &o, NULL), KM_ERR_RANGE);
    assert_int_equal(km_convert(gguf, out, NULL, &d), KM_ERR_RANGE);
    o = km_convert_defaults();
    o.type = "q9";
    assert_int_equal(km_convert(gguf, out, &o, NULL), KM_ERR_RANGE);
    o.type = "q4_0";
    assert_int_equal(km_convert(gguf, in_folder("none"), &o, NULL), KM_ERR_RANGE);
    o = km_convert_defaults();
    o.imatrix = gguf;
    assert_int_equal(km_convert(gguf, out, &o, NULL), KM_ERR_RANGE);
    o = km_convert_defaults();
    o.tokenizer = gguf;
    o.no_tokenizer = true;
    assert_int_equal(km_convert(gguf, out, &o, NULL), KM_ERR_RANGE);
    assert_int_not_equal(km_convert(in_folder("nothing"), out, NULL, NULL), KM_OK);
    assert_int_not_equal(access(out, F_OK), 0);
    assert_string_equal(km_convert_type_named("q4_k"), "q4_k_m");
    assert_null(km_convert_type_named("q9"));
    assert_null(km_convert_type_named(NULL));
    assert_non_null(km_convert_type(0));
    assert_null(km_convert_type(-1));
}

static void files_describe_themselves(void **state) {
    (void)state;
    const struct {
        const char *path, *says;
    } known[] = {{in_folder("m.gguf"), "\"kind\": \"gguf\""},
                 {in_folder("run"), "\"kind\": \"run\""},
                 {in_folder("back"), "\"kind\": \"folder\""},
                 {in_folder("back/tokenizer.json"), "\"kind\": \"tokenizer\""}};
    for (int i = 0; i < 4; i++) {
        char *text = km_describe_file(known[i].path, NULL);
        if (!text) fail_msg("%s", km_last_error());
        assert_non_null(strstr(text, known[i].says));
        km_string_free(text);
    }
    km_describe_options o = km_describe_defaults();
    o.tensors = true;
    char *text = km_describe_file(in_folder("m.gguf"), &o);
    assert_non_null(strstr(text, "tensor_list"));
    km_string_free(text);
    o.context = -1;
    assert_null(km_describe_file(in_folder("m.gguf"), &o));
    o = (km_describe_options){0};
    assert_null(km_describe_file(in_folder("m.gguf"), &o));
    assert_null(km_describe_file(NULL, NULL));
    assert_null(km_describe_file(in_folder("nothing"), NULL));
    assert_non_null(strstr(km_last_error(), "nothing"));
    assert_null(km_describe_file("/dev/null", NULL));
}

static bool stop_at_once(void *user, const char *stage, int64_t done, int64_t total) {
    (void)user, (void)stage, (void)done, (void)total;
    return false;
}

static void tokenizers_are_made_from_files_and_from_memory(void **state) {
    (void)state;
    const char *out = in_folder("tok.json"), *none = in_folder("none.json");
    km_text_input texts[] = {{.path = in_folder("text.txt")}, {.data = "abcabc", .bytes = 6}};
    km_tokenizer_options o = km_tokenizer_defaults();
    o.kind = "bpe:300";
    assert_int_equal(km_tokenizer_train(out, texts, 2, &o), 300);
    o.kind = "chars";
    assert_int_equal(km_tokenizer_train(out, texts + 1, 1, &o), 3);
    o.kind = "bytes";
    assert_int_equal(km_tokenizer_train(out, NULL, 0, &o), 256);
    char *text = km_describe_file(out, NULL);
    assert_non_null(text);
    km_string_free(text);
    o.kind = "words";
    assert_int_equal(km_tokenizer_train(none, texts, 2, &o), -1);
    o.kind = "bpe:3";
    assert_int_equal(km_tokenizer_train(none, texts, 2, &o), -1);
    o.kind = NULL;
    assert_int_equal(km_tokenizer_train(none, texts, 2, &o), -1);
    o = km_tokenizer_defaults();
    o.progress = stop_at_once;
    assert_int_equal(km_tokenizer_train(none, texts, 2, &o), -1);
    o.size = 0;
    assert_int_equal(km_tokenizer_train(none, texts, 2, &o), -1);
    assert_int_equal(km_tokenizer_train(NULL, texts, 2, NULL), -1);
    assert_int_equal(km_tokenizer_train(none, NULL, 2, NULL), -1);
    assert_int_equal(km_tokenizer_train(none, texts, -1, NULL), -1);
    texts[1] = (km_text_input){.bytes = 5};
    assert_int_equal(km_tokenizer_train(none, texts, 2, NULL), -1);
    texts[0].path = in_folder("no.txt");
    assert_int_equal(km_tokenizer_train(none, texts, 1, NULL), -1);
    assert_non_null(strstr(km_last_error(), "no.txt"));
    assert_int_not_equal(access(none, F_OK), 0);
}

static void vectors_are_read_from_files_in_parts(void **state) {
    (void)state;
    const float x[] = {1, 2, 3, 4, 5, 6};
    float got[4];
    const char *path = in_folder("v.npy");
    km_ctx *ctx = km_ctx_new("cpu", 1);
    km_named_tensor t = {NULL, km_from_data(ctx, KM_F32, KM_SHAPE(3, 2), x)};
    assert_int_equal(km_save(ctx, path, &t, 1, NULL), KM_OK);
    km_ctx_free(ctx);
    km_vectors *v = km_vectors_open(path, NULL);
    assert_non_null(v);
    assert_int_equal(km_vectors_count(v), 3);
    assert_int_equal(km_vectors_dim(v), 2);
    assert_string_equal(km_vectors_type(v), "f32");
    assert_int_equal(km_vectors_read(v, 1, 2, got), KM_OK);
    assert_memory_equal(got, x + 2, sizeof got);
    assert_int_equal(km_vectors_read(v, 3, 0, NULL), KM_OK);
    assert_int_equal(km_vectors_read(v, 2, 2, got), KM_ERR_RANGE);
    assert_int_equal(km_vectors_read(v, -1, 1, got), KM_ERR_RANGE);
    assert_int_equal(km_vectors_read(v, 1, INT64_MAX, got), KM_ERR_RANGE);
    assert_int_equal(km_vectors_read(v, 0, 1, NULL), KM_ERR_NULL);
    assert_int_equal(km_vectors_read(NULL, 0, 1, got), KM_ERR_NULL);
    km_vectors_close(v);
    km_vectors_close(NULL);
    assert_int_equal(km_vectors_count(NULL), 0);
    assert_null(km_vectors_open(NULL, NULL));
    assert_null(km_vectors_open(in_folder("none.npy"), NULL));
    km_vectors_options o = {0};
    assert_null(km_vectors_open(path, &o));
    o = km_vectors_defaults();
    o.dim = -3;
    assert_null(km_vectors_open(path, &o));
}

static int make_run(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/kermes-files-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    const char *text = in_folder("text.txt");
    km_train_demo_text(text, 1, 8000);
    km_train_settings s = km_train_defaults();
    s.data.at[s.data.n++] = text;
    s.out = in_folder("run");
    s.layers = 1;
    s.heads = 2;
    s.dim = 32;
    s.context = 16;
    s.tokenizer = "bpe:300";
    s.steps = s.warmup = 2;
    s.eval_every = 0;
    s.device = "cpu";
    if (km_train(&s, NULL, NULL) == KM_OK) return 0;
    print_error("%s\n", km_last_error());
    return -1;
}

static int remove_run(void **state) {
    (void)state;
    char line[128];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_go_from_format_to_format),
        cmocka_unit_test(bad_conversions_are_errors_and_leave_no_file),
        cmocka_unit_test(files_describe_themselves),
        cmocka_unit_test(tokenizers_are_made_from_files_and_from_memory),
        cmocka_unit_test(vectors_are_read_from_files_in_parts),
    };
    return cmocka_run_group_tests(tests, make_run, remove_run);
}
