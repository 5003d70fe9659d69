/* Running models on a real GPU: logits and texts near those of the CPU, tokens chosen there, layers
 * on both sides, guesses, and a fault in the middle. Skipped where there is no GPU. */
#include "infer/generate.h"
#include "live_gpu.h"
#include "support/random_model.h"

enum { VOCAB = 1000, CONTEXT = 512, TOKENS = 64 };

static km_net *made(km_ctx *ctx, const km_open_split *split) {
    km_config c = random_config((km_config){.arch = KM_ARCH_QWEN2,
                                            .layers = 4,
                                            .heads = 8,
                                            .kv_heads = 2,
                                            .dim = 512,
                                            .context = CONTEXT,
                                            .vocab = VOCAB});
    return random_model(ctx, &c, "q4_k_m", 3, split);
}

/* Logits after a prompt and some tokens. */
static void talk(km_net *m, float *out) {
    km_error err = {0};
    int32_t ids[140];
    random_ids(ids, 140, VOCAB);
    km_sequence *s = km_sequence_open(m->ctx, m, NULL, &err);
    if (!s) fail_msg("%s", err.text);
    assert_int_equal(km_sequence_read(s, ids, 130, &err), KM_OK);
    for (int i = 130; i < 140; i++) assert_int_equal(km_sequence_next(s, ids[i], &err), KM_OK);
    memcpy(out, km_sequence_logits(s), sizeof *out * VOCAB);
    km_sequence_free(s);
}

static void parts_on_both_sides_give_what_one_gives(void **state) {
    (void)state;
    static float cpu[VOCAB], gpu[VOCAB], both[VOCAB];
    km_open_split split = {.device = {"cpu", GPU}, .layers = {2, 2}, .n = 2};
    km_open_split twice = {.device = {GPU, GPU}, .layers = {1, 3}, .n = 2};
    km_open_split hosts = {.device = {GPU}, .layers = {4}, .n = 1, .streamed = {3}};
    struct {
        const char *device;
        km_open_split *split;
        float *out;
    } way[] = {{"cpu", NULL, cpu},
               {GPU, NULL, gpu},
               {"cpu", &split, both},
               {GPU, &twice, both},
               {GPU, &hosts, both}};
    for (int i = 0; i < 5; i++) {
        km_ctx *ctx = km_ctx_new(way[i].device, 2);
        km_net *m = made(ctx, way[i].split);
        talk(m, way[i].out);
        km_net_free(m);
        km_ctx_free(ctx);
        double apart = i ? logits_apart(cpu, way[i].out, VOCAB) : 0;
        if (apart > 0.05) fail_msg("%d: %g", i, apart);
        /* The same weights by the same kernels; but a norm before a layer is a kernel of its own. */
        if (i == 4 && logits_apart(gpu, both, VOCAB) > 0.02)
            fail_msg("streamed: %g", logits_apart(gpu, both, VOCAB));
    }
}

typedef struct heard {
    int32_t id[2 * TOKENS];
    int n;
} heard;

static bool hear(void *user, int32_t id, const char *text, size_t bytes) {
    heard *h = user;
    (void)text, (void)bytes;
    if (id >= 0) h->id[h->n++] = id;
    return true;
}

static km_generated last;

static km_sequence *said(km_net *m, const km_sampling *s, int where, km_drafter *d, heard *h) {
    km_error err = {0};
    km_token *token = km_token_bytes(&err);
    km_sequence *session = km_sequence_open(m->ctx, m, NULL, &err);
    if (!session) fail_msg("%s", err.text);
    *h = (heard){.n = 0};
    km_making g = {
        .tokens = TOKENS, .past_end = true, .sampling = *s, .draft = d, .on_text = hear, .user = h};
    g.choose = where;
    if (km_make_text_in(session, m, token, "once upon a time", 16, &g, &last, &err) != KM_OK)
        fail_msg("%s", err.text);
    assert_int_equal(h->n, TOKENS);
    assert_int_equal(km_sequence_length(session), 16 + TOKENS - 1);
    assert_memory_equal(km_sequence_tokens(session) + 16, h->id, sizeof *h->id * (TOKENS - 1));
    km_token_free(token);
    return session;
}

static void tokens_chosen_there_are_those_the_host_would_choose(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new(GPU, 1);
    km_net *m = made(ctx, NULL);
    heard a, b;
    km_sampling s = km_sampling_defaults();
    for (int kind = 0; kind < 2; kind++) {
        s.temperature = 0;
        s.repeat_penalty = kind ? 1.2 : 1;
        km_sequence_free(said(m, &s, KM_CHOOSE_HOST, NULL, &a));
        km_sequence_free(said(m, &s, KM_CHOOSE_AUTO, NULL, &b));
        assert_memory_equal(a.id, b.id, sizeof *a.id * TOKENS);
    }
    s = km_sampling_defaults();
    s.temperature = 0.8, s.top_k = 40, s.top_p = 0.95, s.min_p = 0.05;
    km_sequence_free(said(m, &s, KM_CHOOSE_AUTO, NULL, &a));
    km_sequence_free(said(m, &s, KM_CHOOSE_AUTO, NULL, &b)); /* the same seed, the same text */
    assert_memory_equal(a.id, b.id, sizeof *a.id * TOKENS);
    uint64_t before = km_ctx_stats(ctx).fallbacks;
    assert_int_equal(before, 0);
    km_net_free(m);
    km_ctx_free(ctx);
}

static void guesses_of_the_model_itself_are_mostly_right(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new(GPU, 1);
    km_net *m = made(ctx, NULL);
    km_error err = {0};
    heard h;
    km_sampling s = km_sampling_defaults();
    s.temperature = 0;
    km_sequence *own = km_sequence_open(ctx, m, NULL, &err);
    km_drafter *d = km_drafter_model(own, &err);
    km_sequence_free(said(m, &s, KM_CHOOSE_AUTO, d, &h));
    assert_true(last.guessed > 0 && 2 * last.accepted > last.guessed);
    km_drafter_free(d);
    km_net_free(m);
    km_ctx_free(ctx);
}

static km_sequence *spare;

static km_sequence *rescue(void *user, km_sequence *failed, const km_error *why) {
    km_error err = {0};
    (void)user, (void)why;
    assert_int_equal(km_sequence_read(spare, km_sequence_tokens(failed),
                                      (size_t)km_sequence_length(failed), &err),
                     KM_OK);
    return spare;
}

static void a_fault_in_the_middle_leaves_the_text_to_the_cpu(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new(GPU, 1), *cpu = km_ctx_new("cpu", 2);
    km_net *m = made(ctx, NULL), *other = made(cpu, NULL);
    km_error err = {0};
    km_token *token = km_token_bytes(&err);
    km_sequence *session = km_sequence_open(ctx, m, NULL, &err);
    spare = km_sequence_open(cpu, other, NULL, &err);
    heard h = {.n = 0};
    km_making g = {.tokens = TOKENS,
                   .past_end = true,
                   .sampling = km_sampling_defaults(),
                   .on_text = hear,
                   .rescue = rescue,
                   .user = &h};
    km_generated got;
    km_plan_fail_at(2); /* the prompt is read; then many steps run at once */
    assert_int_equal(km_make_text_in(session, m, token, "once upon", 9, &g, &got, &err), KM_OK);
    km_plan_fail_at(0);
    assert_int_equal(h.n, TOKENS);
    assert_int_equal(km_sequence_length(spare), 9 + TOKENS - 1);
    km_sequence_free(session);
    km_sequence_free(spare);
    km_token_free(token);
    km_net_free(m);
    km_net_free(other);
    km_ctx_free(ctx);
    km_ctx_free(cpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_on_both_sides_give_what_one_gives),
        cmocka_unit_test(tokens_chosen_there_are_those_the_host_would_choose),
        cmocka_unit_test(guesses_of_the_model_itself_are_mostly_right),
        cmocka_unit_test(a_fault_in_the_middle_leaves_the_text_to_the_cpu),
    };
    if (km_cuda_device_count() == 0) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
