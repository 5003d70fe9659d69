/* Models over several devices: parts give what the whole gives, wherever they lie, and the memory
 * plan puts on a device what fits there and refuses what does not. */
#include "infer/memory.h"
#include "infer/perplexity.h"
#include "infer/sequence.h"
#include "infer/streaming.h"
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

static km_net *made(km_ctx *ctx, const km_open_split *split) {
    km_config c = config();
    return random_model(ctx, &c, "q8_0", 5, split);
}

/* A prompt longer than a page, some tokens, back, others; the logits at the end. */
static void talk(km_net *m, float *out) {
    km_error err = {0};
    int32_t ids[90];
    random_ids(ids, 90, VOCAB);
    km_sequences_options o = km_sequences_defaults();
    o.cache = KM_F32;
    o.sequences = 2;
    km_sequence *s = km_sequence_open(m->ctx, m, &o, &err);
    if (!s) fail_msg("%s", err.text);
    assert_int_equal(km_sequence_read(s, ids, 70, &err), KM_OK);
    for (int i = 70; i < 80; i++) assert_int_equal(km_sequence_next(s, ids[i], &err), KM_OK);
    km_sequence *fork = km_sequence_fork(s, &err);
    assert_int_equal(km_sequence_next(fork, 7, &err), KM_OK);
    km_sequence_rewind(s, 75);
    assert_int_equal(km_sequence_read(s, ids + 75, 15, &err), KM_OK);
    memcpy(out, km_sequence_logits(s), sizeof *out * VOCAB);
    km_sequence_free(fork);
    km_sequence_free(s);
}

static double furthest(const float *a, const float *b) {
    double most = 0;
    for (int i = 0; i < VOCAB; i++) most = fmax(most, fabs((double)a[i] - b[i]));
    return most;
}

static void parts_give_what_the_whole_gives(void **state) {
    km_ctx *ctx = *state;
    float whole[VOCAB], parts[VOCAB];
    km_open_split same = {.device = {"cpu", "cpu", "cpu"}, .layers = {1, 2, 1}, .n = 3};
    km_open_split other = {.device = {"cpu", "ref"}, .layers = {1, 3}, .n = 2};
    km_net *m = made(ctx, NULL);
    talk(m, whole);
    km_net_free(m);
    m = made(ctx, &same);
    assert_ptr_equal(m->next->next, km_net_end(m));
    talk(m, parts);
    km_net_free(m);
    assert_memory_equal(whole, parts, sizeof whole); /* the same kernels: the same bits */
    m = made(ctx, &other);
    char text[64];
    assert_string_equal(km_net_devices(m, text, sizeof text), "cpu 1 + ref 3");
    talk(m, parts);
    km_net_free(m);
    assert_true(furthest(whole, parts) < 0.2); /* ref does not round activations to 8 bits */
}

static void weights_of_the_host_give_what_a_devices_own_give(void **state) {
    km_ctx *ctx = *state;
    float own[VOCAB], hosts[VOCAB];
    km_open_split one = {.device = {"cpu"}, .layers = {LAYERS}, .streamed = {3}, .n = 1};
    km_open_split two = {.device = {"cpu", "cpu"}, .layers = {1, 3}, .streamed = {0, 2}, .n = 2};
    km_net *m = made(ctx, NULL);
    talk(m, own);
    km_net_free(m);
    for (int i = 0; i < 2; i++) {
        int64_t live = km_alloc_live();
        m = made(ctx, i ? &two : &one);
        km_net *part = i ? m->next : m;
        int first = i ? 1 : 0, streamed = i ? 2 : 3;
        for (int l = part->first; l < part->last; l++) { /* matrices stay, norms do not */
            assert_int_equal(part->block[l].mlp.up.w->storage->drop != NULL, l < first + streamed);
            assert_null(part->block[l].norm1.w->storage->drop);
        }
        assert_null(m->wte.w->storage->drop);
        talk(m, hosts);
        km_net_free(m);
        km_step_end(ctx);
        assert_memory_equal(own, hosts, sizeof own);
        assert_true(km_alloc_live() <= live + 8); /* nothing of the lender's is left */
    }
}

static void perplexity_is_that_of_the_whole(void **state) {
    km_ctx *ctx = *state;
    int32_t list[100];
    for (int i = 0; i < 100; i++) list[i] = (i * 31) % VOCAB;
    km_ids ids = {.data = list, .len = 100};
    km_windows how = {.context = 64, .bos = -1};
    km_open_split split = {.device = {"cpu", "cpu"}, .layers = {3, 1}, .n = 2};
    km_window_loss a, b;
    km_error err = {0};
    km_net *m = made(ctx, NULL);
    assert_int_equal(km_windows_loss(ctx, m, &ids, &how, &a, &err), KM_OK);
    km_net_free(m);
    m = made(ctx, &split);
    assert_int_equal(km_windows_loss(ctx, m, &ids, &how, &b, &err), KM_OK);
    km_net_free(m);
    assert_true(fabs(a.loss - b.loss) < 1e-6 && a.tokens == b.tokens);
}

static void parts_that_make_up_no_model_are_refused(void **state) {
    km_ctx *ctx = *state;
    km_config c = config();
    km_error err = {0};
    km_open_split few = {.device = {"cpu", "cpu"}, .layers = {1, 2}, .n = 2};
    km_open_split nowhere = {.device = {"cpu", "abacus"}, .layers = {2, 2}, .n = 2};
    assert_null(km_synthetic_model(ctx, &c, km_mix_find("q8_0"), 1, &few, NULL, NULL, &err));
    assert_string_equal(err.text, "the parts do not make up the model's 4 layers");
    err = (km_error){0};
    assert_null(km_synthetic_model(ctx, &c, km_mix_find("q8_0"), 1, &nowhere, NULL, NULL, &err));
    assert_int_equal(err.code, KM_ERR_DEVICE);
    assert_ok(ctx);
}

/* ---- Plans: ref stands for a GPU, whose memory the environment tells ---- */

static const char *mix = "q8_0";

static km_status plan(double room, int64_t layers, int64_t context, km_memory_plan *out,
                      km_error *err) {
    char text[32];
    km_weighed w;
    km_config c = config();
    c.context = 1 << 16;
    snprintf(text, sizeof text, "%.0f", room);
    setenv("KERMES_GPU_MEMORY", text, 1);
    assert_int_equal(km_weigh_mix(&c, km_mix_find(mix), &w, err), KM_OK);
    km_memory_ask ask = {.split = {.device = {"ref"}, .n = 1},
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

static void weights_are_streamed_where_that_is_asked_for(void **state) {
    (void)state;
    km_memory_plan all, p;
    km_error err = {0};
    assert_int_equal(plan(1e12, KM_GPU_LAYERS_UNSAID, 1024, &all, &err), KM_OK);
    double enough = need(&all.part[0]);
    setenv("KERMES_STREAM", "1", 1);
    assert_int_equal(plan(enough, KM_GPU_LAYERS_AUTO, 1024, &p, &err), KM_OK);
    assert_int_equal(p.part[0].streamed, 0); /* all of it fits */
    km_memory_part probe = {0};
    for (double room = enough - 1; room > all.part[0].cache + all.part[0].scratch; room -= 1e5) {
        assert_int_equal(plan(room, KM_GPU_LAYERS_AUTO, 1024, &p, &err), KM_OK);
        if (p.n != 1 || !p.part[0].streamed) continue; /* room for no slots */
        probe = p.part[0];
        assert_string_equal(probe.device, "ref");
        assert_int_equal(probe.last - probe.first, LAYERS);
        assert_true(need(&probe) <= room);
        assert_true(fabs(probe.weights + probe.streamed_weights - all.part[0].weights) < 1);
    }
    assert_true(probe.streamed > 0);
    assert_int_equal(km_memory_split(&(km_memory_plan){.part = {probe}, .n = 1}).streamed[0],
                     probe.streamed);
    /* As many layers as are asked for are the device's own. */
    assert_int_equal(plan(enough - 1, 2, 1024, &p, &err), KM_OK);
    assert_int_equal(p.n, 2);
    setenv("KERMES_STREAM", "0", 1);
    assert_int_equal(plan(enough - 1, KM_GPU_LAYERS_AUTO, 1024, &p, &err), KM_OK);
    assert_int_equal(p.n, 2);
    setenv("KERMES_STREAM", "1", 1);
    mix = "f32"; /* which no layer takes from the host */
    assert_int_equal(plan(1e12, KM_GPU_LAYERS_UNSAID, 1024, &all, &err), KM_OK);
    assert_int_equal(plan(need(&all.part[0]) - 1, KM_GPU_LAYERS_AUTO, 1024, &p, &err), KM_OK);
    assert_int_equal(p.n, 2);
    mix = "q8_0";
    unsetenv("KERMES_STREAM");
}

static void a_plan_tells_what_is_streamed_and_why(void **state) {
    (void)state;
    km_memory_plan p = {.part = {{.device = "cuda:0",
                                  .last = 36,
                                  .weights = 1.2e9,
                                  .streamed_weights = 7e8,
                                  .streamed = 12,
                                  .cache = 3e8,
                                  .scratch = 1e8,
                                  .room = 2e9}},
                        .n = 1,
                        .layers = 36,
                        .streaming_seconds = 1.25,
                        .cpu_seconds = 4};
    km_text told = {0};
    km_memory_tell(&p, &told);
    assert_string_equal(
        km_text_str(&told),
        "cuda:0: weights 1.2 GB and 0.7 GB of 12 layers streamed from memory, KV 0.3 "
        "GB, scratch 0.1 GB: fits in 2.0 GB; a turn of 512 + 128 tokens spends 1.2 s "
        "on streamed layers, 4 s on the CPU's");
    km_text_free(&told);
}

static void prompts_make_streaming_worth_while(void **state) {
    (void)state;
    /* One H200 and 16 cores: the bus is no faster than the CPU's memory, but the CPU computes. */
    km_stream_rates r = {.bus = 25e9, .cpu_bytes = 40e9, .cpu_flops = 1e12};
    double bytes = 1e9, flops = 4e9;
    assert_true(fabs(km_turn_streamed(&r, bytes, 1024) - 129 * bytes / 25e9) < 1e-9);
    assert_true(fabs(km_turn_streamed(&r, bytes, 100) - 134 * bytes / 25e9) < 1e-9);
    assert_true(fabs(km_turn_on_cpu(&r, bytes, flops) - (3.2 + 2.048)) < 1e-9);
    assert_true(km_turn_streamed(&r, bytes, 1024) < km_turn_on_cpu(&r, bytes, flops));
    r.cpu_flops = 1e13;
    assert_true(km_turn_streamed(&r, bytes, 1024) > km_turn_on_cpu(&r, bytes, flops));
}

static void rates_can_be_measured(void **state) {
    (void)state;
    km_stream_rates r = {0};
    km_error err = {0};
    assert_int_equal(km_stream_measure("cpu", &r, &err), KM_OK);
    assert_true(r.bus > 1e6 && r.cpu_bytes > 1e6 && r.cpu_flops > 1e6);
    assert_true(isfinite(r.bus) && isfinite(r.cpu_bytes) && isfinite(r.cpu_flops));
    assert_int_equal(km_stream_measure("abacus", &r, &err), KM_ERR_DEVICE);
}

static void layers_are_spread_over_devices_by_their_room(void **state) {
    (void)state;
    km_weighed w;
    km_config c = config();
    km_error err = {0};
    km_memory_plan p;
    assert_int_equal(km_weigh_mix(&c, km_mix_find(mix), &w, &err), KM_OK);
    km_memory_ask ask = {.split = {.device = {"ref", "cpu"}, .n = 2},
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
        ON("cpu", weights_of_the_host_give_what_a_devices_own_give),
        ON("cpu", perplexity_is_that_of_the_whole),
        ON("cpu", parts_that_make_up_no_model_are_refused),
        cmocka_unit_test(what_fits_is_put_there),
        cmocka_unit_test(a_context_too_long_is_refused_with_the_longest_that_fits),
        cmocka_unit_test(layers_are_spread_over_devices_by_their_room),
        cmocka_unit_test(weights_are_streamed_where_that_is_asked_for),
        cmocka_unit_test(a_plan_tells_what_is_streamed_and_why),
        cmocka_unit_test(prompts_make_streaming_worth_while),
        cmocka_unit_test(rates_can_be_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
