/* Model files that become shorter while they are used: loading, running and converting fail with a
 * line that names the file, and the process goes on. */
#include "infer/sequence.h"
#include "model/convert.h"
#include "model/open.h"
#include "support/engine.h"
#include "support/random_model.h"
#include <stdlib.h>
#include <unistd.h>

static char path[300], target[300];

static const char *in_tmp(char *out, const char *name) {
    const char *tmp = getenv("TMPDIR");
    snprintf(out, 300, "%s/kermes-cut-%d-%s", tmp && *tmp ? tmp : "/tmp", (int)getpid(), name);
    return out;
}

static void write_model(void) {
    km_error err = {0};
    km_config c = random_config((km_config){.arch = KM_ARCH_LLAMA,
                                            .layers = 4,
                                            .heads = 4,
                                            .kv_heads = 2,
                                            .dim = 256,
                                            .context = 64,
                                            .vocab = 300});
    const km_mix *mix = km_mix_find("q8_0");
    if (km_synthetic_write(in_tmp(path, "model.gguf"), &c, mix, 3, NULL, NULL, &err) != KM_OK)
        fail_msg("%s", err.text);
}

static int clean(void **state) {
    unlink(path);
    unlink(target);
    return engine_close(state);
}

static void names_the_file(const km_error *err) {
    assert_int_equal(err->code, KM_ERR_FILE);
    if (!strstr(err->text, path) || !strstr(err->text, "changed while it was in use"))
        fail_msg("%s", err->text);
}

/* Whether steps are run, captured or replayed. */
static void a_step_of_a_model_that_is_cut_short_fails_and_names_the_file(void **state) {
    km_ctx *ctx = *state;
    for (int before = 0; before <= 6; before += 2) {
        km_error err = {0};
        km_sequences_options o = km_sequences_defaults();
        write_model();
        km_net *m = km_net_open(ctx, path, NULL, &err);
        km_sequence *s = m ? km_sequence_open(ctx, m, &o, &err) : NULL;
        if (!s) fail_msg("%s", err.text);
        for (int i = 0; i < before; i++) assert_int_equal(km_sequence_next(s, i + 1, &err), KM_OK);
        assert_int_equal(truncate(path, 8192), 0);
        assert_int_not_equal(km_sequence_next(s, 7, &err), KM_OK);
        names_the_file(&err);
        km_sequence_free(s);
        km_net_free(m);
        km_ctx_clear_error(ctx);
        km_step_end(ctx);
        assert_elements(ctx, km_ones(ctx, KM_F32, KM_SHAPE(2)), 1, 1); /* the context goes on */
    }
}

static bool cut(void *user, uint64_t done, uint64_t total) {
    if (done < total) assert_int_equal(truncate(path, 8192), 0);
    return true;
}

static void cut_it(void *user, uint64_t done, uint64_t total) { cut(user, done, total); }

static void a_model_that_is_cut_short_while_it_is_loaded_is_refused(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    write_model();
    km_open_options how = {.dtype = KM_DTYPE_COUNT, .progress = cut};
    km_net *m = km_net_open(ctx, path, &how, &err);
    if (m) { /* its matrices are used where they lie: the first step meets it */
        km_sequences_options o = km_sequences_defaults();
        km_sequence *s = km_sequence_open(ctx, m, &o, &err);
        assert_non_null(s);
        assert_int_not_equal(km_sequence_next(s, 7, &err), KM_OK);
        km_sequence_free(s);
        km_net_free(m);
    }
    names_the_file(&err);
    km_ctx_clear_error(ctx);
}

static void a_conversion_of_such_a_file_writes_nothing(void **state) {
    static const char *const mixes[] = {"q8_0", "q4_0"}; /* blocks as they are, and coded anew */
    for (int i = 0; i < 2; i++) {
        km_error err = {0};
        km_conversion_done done;
        write_model();
        km_conversion o = {.in = path,
                           .out = in_tmp(target, "out.gguf"),
                           .mix = km_mix_find(mixes[i]),
                           .dtype = KM_DTYPE_COUNT,
                           .threads = 2,
                           .progress = cut_it};
        assert_int_not_equal(km_convert_weights(&o, &done, &err), KM_OK);
        names_the_file(&err);
        assert_int_not_equal(access(target, F_OK), 0);
    }
}

/* One test: cmocka puts handlers of its own in place around each, over ours. */
static void a_model_file_that_is_cut_short_is_named_by_whoever_uses_it(void **state) {
    a_step_of_a_model_that_is_cut_short_fails_and_names_the_file(state);
    a_model_that_is_cut_short_while_it_is_loaded_is_refused(state);
    a_conversion_of_such_a_file_writes_nothing(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        {"a_model_file_that_is_cut_short_is_named_by_whoever_uses_it",
         a_model_file_that_is_cut_short_is_named_by_whoever_uses_it, engine_open, clean,
         (void *)"cpu"},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
