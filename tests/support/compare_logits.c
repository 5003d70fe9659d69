/* The same random model on two devices. */
#include "support/compare_logits.h"
#include "model/arch.h"
#include "support/engine.h"
#include <math.h>
#include <stdlib.h>

km_config compare_config(km_arch arch, int64_t dim, int64_t context, int64_t vocab) {
    static const struct {
        int heads, kv_heads, head_dim; /* 0: as many as fill the width */
    } sizes[KM_ARCH_COUNT] = {
        [KM_ARCH_GPT2] = {4, 4, 0},     [KM_ARCH_LLAMA] = {4, 2, 0},
        [KM_ARCH_QWEN2] = {8, 1, 32},   [KM_ARCH_QWEN3] = {4, 2, 128},
        [KM_ARCH_GEMMA2] = {2, 1, 256}, [KM_ARCH_GEMMA3] = {2, 1, 256},
        [KM_ARCH_PHI3] = {4, 4, 96},
    };
    const km_traits *t = km_arch_traits(arch);
    km_config c = {.arch = arch,
                   .layers = 2,
                   .heads = sizes[arch].heads,
                   .kv_heads = sizes[arch].kv_heads,
                   .head_dim = sizes[arch].head_dim,
                   .dim = dim,
                   .context = context,
                   .vocab = vocab,
                   .bias = arch == KM_ARCH_GPT2,
                   .rope_base = t->rope_base,
                   .local_rope_base = t->local_rope_base,
                   .attn_softcap = t->attn_softcap,
                   .logit_softcap = t->logit_softcap};
    if (t->full_every) c.window = 20, c.full_every = 2;
    return random_config(c);
}

bool compare_odd_config(int i, int64_t context, int64_t vocab, km_config *c) {
    static const km_config odd[] = {
        {.arch = KM_ARCH_LLAMA, .heads = 4, .kv_heads = 2, .dim = 96, .hidden = 160},
        {.arch = KM_ARCH_QWEN3, .heads = 3, .kv_heads = 1, .head_dim = 20, .dim = 32, .hidden = 96},
        {.arch = KM_ARCH_PHI3, .heads = 2, .head_dim = 320, .dim = 160, .hidden = 224},
        {.arch = KM_ARCH_GPT2, .heads = 5, .dim = 35, .hidden = 50, .bias = true}};
    if (i >= (int)(sizeof odd / sizeof *odd)) return false;
    *c = odd[i];
    c->layers = 2;
    c->context = context;
    c->vocab = vocab;
    *c = random_config(*c);
    return true;
}

void compare_sharpen(km_config *c) { c->attn_scale = 3 / sqrt((double)c->head_dim); }

static int size_of(const compare_group *g) {
    int n = 0;
    while (n < COMPARE_SEQUENCES && g->length[n]) n++;
    return n;
}

static int rows_of(const compare_work *w) {
    int rows = 0;
    for (int i = 0; i < w->groups; i++) rows += size_of(&w->group[i]) * (1 + COMPARE_AFTER);
    return rows;
}

/* Logits after the prompts, then after each step of all sequences; returns where the next go. */
static float *hear_group(km_sequences *b, const compare_group *g, const int32_t *ids, int64_t vocab,
                         float *out) {
    km_error err = {0};
    int n = size_of(g), at[COMPARE_SEQUENCES];
    for (int i = 0; i < n; i++) {
        at[i] = km_sequences_join(b, &err);
        if (at[i] < 0 || km_sequences_read(b, at[i], ids + i, (size_t)g->length[i], &err) != KM_OK)
            fail_msg("%s", err.text);
    }
    for (int step = 0; step <= COMPARE_AFTER; step++) {
        km_sequences_token t[COMPARE_SEQUENCES];
        for (int i = 0; i < n; i++, out += vocab) {
            memcpy(out, km_sequences_logits(b, at[i]), sizeof *out * (size_t)vocab);
            t[i] = (km_sequences_token){at[i], ids[i + g->length[i] + step]};
        }
        if (step < COMPARE_AFTER && km_sequences_step(b, t, n, &err) != KM_OK)
            fail_msg("%s", err.text);
    }
    for (int i = 0; i < n; i++) km_sequences_leave(b, at[i]);
    return out;
}

static float *hear(km_ctx *ctx, const km_config *c, const char *mix, const compare_work *w) {
    km_error err = {0};
    int64_t n = c->context + COMPARE_SEQUENCES;
    int32_t *ids = malloc(sizeof *ids * (size_t)n);
    float *heard = malloc(sizeof *heard * (size_t)(rows_of(w) * c->vocab)), *out = heard;
    assert_true(ids && heard);
    random_ids(ids, n, c->vocab);
    km_sequences_options o = km_sequences_defaults();
    o.sequences = COMPARE_SEQUENCES;
    o.cache = w->cache;
    km_net *m = random_model(ctx, c, mix, 3, NULL);
    km_sequences *b = km_sequences_new(ctx, m, &o, &err);
    if (!b) fail_msg("%s", err.text);
    for (int i = 0; i < w->groups; i++) out = hear_group(b, &w->group[i], ids, c->vocab, out);
    km_sequences_free(b);
    km_net_free(m);
    free(ids);
    return heard;
}

int compare_logits(km_ctx *a, km_ctx *b, const km_config *c, const char *mix, const compare_work *w,
                   double *worst) {
    float *one = hear(a, c, mix, w), *other = hear(b, c, mix, w);
    const float *x = one, *y = other;
    int wrong = 0;
    for (int g = 0; g < w->groups; g++)
        for (int step = 0, n = size_of(&w->group[g]); step <= COMPARE_AFTER; step++)
            for (int i = 0; i < n; i++, x += c->vocab, y += c->vocab) {
                double apart = logits_apart(x, y, c->vocab);
                if (worst) *worst = fmax(*worst, apart);
                if (apart <= w->limit) continue;
                print_message("%s %s, sequence %d of %d, %d + %d tokens: %.4f apart\n",
                              km_arch_name(c->arch), mix, i + 1, n, w->group[g].length[i], step,
                              apart);
                wrong++;
            }
    free(one);
    free(other);
    return wrong;
}
