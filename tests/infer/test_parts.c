/* Models over several devices: parts give what the whole gives, wherever they lie, and the memory
 * plan puts on a device what fits there and refuses what does not. */
#include "infer/memory.h"
#include "infer/perplexity.h"
#include "infer/session.h"
#include "support/engine.h"
#include "support/random_model.h"
#include <math.h>
#include <stdlib.h>

enum { LAYERS = 4, VOCAB = 300, CONTEXT = 256 };

static km_config config(void) {
    return random_config((km_config){.arch = KM_ARCH_QWEN2,
                                     .layers = LAYERS,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .dim = 128,
                                     .context = CONTEXT,
                                     .vocab = VOCAB});
}

static km_model *made(km_ctx *ctx, const km_open_split *split) {
    km_config c = config();
    return random_model(ctx, &c, "q8_0", 5, split);
}

/* A prompt longer than a page, some tokens, back, others; the logits at the end. */
static void talk(km_model *m, float *out) {
    km_error err = {0};
    int32_t ids[90];
    random_ids(ids, 90, VOCAB);
    km_batch_options o = km_batch_defaults();
    o.cache = KM_F32;
    o.sequences = 2;
    km_session *s = km_session_open(m->ctx, m, &o, &err);
    if (!s) fail_msg("%s", err.text);
    assert_int_equal(km_session_read(s, ids, 70, &err), KM_OK);
    for (int i = 70; i < 80; i++) assert_int_equal(km_session_next(s, ids[i], &err), KM_OK);
    km_session *fork = km_session_fork(s, &err);
    assert_int_equal(km_session_next(fork, 7, &err), KM_OK);
    km_session_rewind(s, 75);
    assert_int_equal(km_session_read(s, ids + 75, 15, &err), KM_OK);
    memcpy(out, km_session_logits(s), sizeof *out * VOCAB);
    km_session_free(fork);
    km_session_free(s);
}

static double furthest(const float *a, const float *b) {
    double most = 0;
    for (int i = 0; i < VOCAB; i++) most = fmax(most, fabs((double)a[i] - b[i]));
    return most;
}

static void parts_give_what_the_whole_gives(void **state) {
    km_ctx *ctx = *state;
    float whole[VOCAB], parts[VOCAB];
    km_open_split same = {{"cpu", "cpu", "cpu"}, {1, 2, 1}, 3};
    km_open_split other = {{"cpu", "ref"}, {1, 3}, 2};
    km_model *m = made(ctx, NULL);
    talk(m, whole);
    km_model_free(m);
    m = made(ctx, &same);
    assert_ptr_equal(m->next->next, km_model_end(m));
    talk(m, parts);
    km_model_free(m);
    assert_memory_equal(whole, parts, sizeof whole); /* the same kernels: the same bits */
    m = made(ctx, &other);
    char text[64];
    assert_string_equal(km_model_devices(m, text, sizeof text), "cpu 1 + ref 3");
    talk(m, parts);
    km_model_free(m);
    assert_true(furthest(whole, parts) < 0.2); /* ref does not round activations to 8 bits */
}

static void perplexity_is_that_of_the_whole(void **state) {
    km_ctx *ctx = *state;
    int32_t list[100];
    for (int i = 0; i < 100; i++) list[i] = (i * 31) % VOCAB;
    km_ids ids = {.data = list, .len = 100};
    km_perplexity_options how = {.context = 64, .bos = -1};
    km_open_split split = {{"cpu", "cpu"}, {3, 1}, 2};
    km_perplexity a, b;
    km_error err = {0};
    km_model *m = made(ctx, NULL);
    assert_int_equal(km_perplexity_of(ctx, m, &ids, &how, &a, &err), KM_OK);
    km_model_free(m);
    m = made(ctx, &split);
    assert_int_equal(km_perplexity_of(ctx, m, &ids, &how, &b, &err), KM_OK);
    km_model_free(m);
    assert_true(fabs(a.loss - b.loss) < 1e-6 && a.tokens == b.tokens);
}

static void parts_that_make_up_no_model_are_refused(void **state) {
    km_ctx *ctx = *state;
    km_config c = config();
    km_error err = {0};
    km_open_split few = {{"cpu", "cpu"}, {1, 2}, 2}, nowhere = {{"cpu", "abacus"}, {2, 2}, 2};
    assert_null(km_synthetic_model(ctx, &c, km_mix_find("q8_0"), 1, &few, NULL, NULL, &err));
    assert_string_equal(err.text, "the parts do not make up the model's 4 layers");
    err = (km_error){0};
    assert_null(km_synthetic_model(ctx, &c, km_mix_find("q8_0"), 1, &nowhere, NULL, NULL, &err));
    assert_int_equal(err.code, KM_ERR_DEVICE);
    assert_ok(ctx);
}

/* ---- Plans: ref stands for a GPU, whose memory the environment tells ---- */

static km_status plan(double room, int64_t layers, int64_t context, km_memory_plan *out,
                      km_error *err) {
    char text[32];
    km_weighed w;
    km_config c = config();
    c.context = 1 << 16;
    snprintf(text, sizeof text, "%.0f", room);
    setenv("KERMES_GPU_MEMORY", text, 1);
    assert_int_equal(km_weigh_mix(&c, km_mix_find("q8_0"), &w, err), KM_OK);
    km_memory_ask ask = {.split = {{"ref"}, {0}, 1},
                         .gpu_layers = layers,
                         .context = context,
                         .sequences = 1,
                         .cache = KM_F16};
    km_status s = km_memory_plan_make(&w, &ask, out, err);
    km_weighed_free(&w);
    unsetenv("KERMES_GPU_MEMORY");
    return s;
}

static double need(const km_memory_part *p) { return p->weights + p->cache + p->scratch; }

static void what_fits_is_put_there(void **state) {
    (void)state;
    km_memory_plan all, p;
    km_error err = {0};
    assert_int_equal(plan(1e12, KM_GPU_LAYERS_UNSAID, 1024, &all, &err), KM_OK);
    assert_int_equal(all.n, 1);
    assert_int_equal(all.part[0].last, LAYERS);
    /* A cache of 1024 tokens: 2 pools, 2 heads of 32, 2 bytes, 4 layers. */
    assert_true(fabs(all.part[0].cache - 2.0 * 2 * 32 * 2 * 1024 * LAYERS) < 1);
    double enough = need(&all.part[0]);
    assert_int_equal(plan(enough, KM_GPU_LAYERS_UNSAID, 1024, &p, &err), KM_OK);
    assert_int_equal(p.n, 1);
    assert_int_equal(plan(enough - 1, KM_GPU_LAYERS_AUTO, 1024, &p, &err), KM_OK);
    assert_int_equal(p.n, 2);
    assert_string_equal(p.part[0].device, "cpu");
    assert_string_equal(p.part[1].device, "ref");
    assert_int_equal(p.part[1].last - p.part[1].first, LAYERS - 1);
    assert_true(need(&p.part[1]) <= enough - 1);
    /* No room even for the head: all of it stays with the CPU. */
    assert_int_equal(plan(1000, KM_GPU_LAYERS_AUTO, 1024, &p, &err), KM_OK);
    assert_int_equal(p.n, 1);
    assert_string_equal(p.part[0].device, "cpu");
    km_open_split split = km_memory_split(&all);
    assert_int_equal(split.layers[0], LAYERS);
}

static void a_context_too_long_is_refused_with_the_longest_that_fits(void **state) {
    (void)state;
    km_memory_plan p, q;
    km_error err = {0};
    assert_int_equal(plan(1e12, KM_GPU_LAYERS_UNSAID, 1024, &p, &err), KM_OK);
    double room = need(&p.part[0]);
    assert_int_equal(plan(room, KM_GPU_LAYERS_UNSAID, 4096, &q, &err), KM_ERR_MEMORY);
    if (!strstr(err.text, "the longest context that fits is 1024 tokens")) fail_msg("%s", err.text);
    if (!strstr(err.text, "more than the")) fail_msg("%s", err.text);
    /* Not asked for, the context is what fits. */
    err = (km_error){0};
    assert_int_equal(plan(room, KM_GPU_LAYERS_UNSAID, 0, &q, &err), KM_OK);
    assert_int_equal(q.context, 1024);
    assert_int_equal(plan(room, 2, 2048, &q, &err), KM_OK); /* fewer layers leave room */
    assert_int_equal(plan(p.part[0].scratch, 2, 1024, &q, &err), KM_ERR_MEMORY);
}

static void layers_are_spread_over_devices_by_their_room(void **state) {
    (void)state;
    km_weighed w;
    km_config c = config();
    km_error err = {0};
    km_memory_plan p;
    assert_int_equal(km_weigh_mix(&c, km_mix_find("q8_0"), &w, &err), KM_OK);
    km_memory_ask ask = {.split = {{"ref", "cpu"}, {0}, 2},
                         .gpu_layers = KM_GPU_LAYERS_UNSAID,
                         .sequences = 1,
                         .cache = KM_F16};
    assert_int_equal(km_memory_plan_make(&w, &ask, &p, &err), KM_OK);
    assert_int_equal(p.n, 2);
    assert_int_equal(p.part[0].last, LAYERS / 2);
    assert_int_equal(p.part[1].last, LAYERS);
    km_text told = {0};
    km_memory_tell(&p, &told);
    if (strncmp(km_text_str(&told), "ref: 2 layers, weights 0.00 GB, KV", 34) != 0)
        fail_msg("%s", km_text_str(&told));
    km_text_free(&told);
    km_weighed_free(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON("cpu", parts_give_what_the_whole_gives),
        ON("cpu", perplexity_is_that_of_the_whole),
        ON("cpu", parts_that_make_up_no_model_are_refused),
        cmocka_unit_test(what_fits_is_put_there),
        cmocka_unit_test(a_context_too_long_is_refused_with_the_longest_that_fits),
        cmocka_unit_test(layers_are_spread_over_devices_by_their_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
