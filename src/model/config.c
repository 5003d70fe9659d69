/* Presets, defaults and checks of model configurations. Their JSON form is config_json.c. */
#include "model/config.h"
#include "model/arch.h"
#include <math.h>
#include <string.h>

typedef struct preset {
    const char *name;
    km_arch arch;
    int layers, heads, kv_heads;
    int64_t dim, hidden, context;
} preset;

/* The small ones train on a laptop: tiny in a minute, mini over a coffee, small over lunch. */
static const preset presets[] = {
    {"gpt2", KM_ARCH_GPT2, 12, 12, 12, 768, 3072, 1024},
    {"gpt2-medium", KM_ARCH_GPT2, 24, 16, 16, 1024, 4096, 1024},
    {"gpt2-large", KM_ARCH_GPT2, 36, 20, 20, 1280, 5120, 1024},
    {"gpt2-xl", KM_ARCH_GPT2, 48, 25, 25, 1600, 6400, 1024},
    {"tiny", KM_ARCH_GPT2, 4, 4, 4, 128, 512, 64},
    {"mini", KM_ARCH_GPT2, 6, 6, 6, 384, 1536, 256},
    {"small", KM_ARCH_GPT2, 8, 8, 8, 512, 2048, 512},
    {"llama", KM_ARCH_LLAMA, 12, 12, 4, 768, 2048, 1024},
    {"llama-tiny", KM_ARCH_LLAMA, 4, 4, 2, 128, 384, 64},
    {"llama-mini", KM_ARCH_LLAMA, 6, 6, 2, 384, 1024, 256},
    {"llama-small", KM_ARCH_LLAMA, 8, 8, 4, 512, 1408, 512},
};
enum { N_PRESETS = sizeof presets / sizeof *presets };

bool km_config_layer_has_window(const km_config *c, int layer) {
    return c->window > 0 && (c->full_every == 0 || (layer + 1) % c->full_every != 0);
}

const char *km_config_presets(void) {
    return "gpt2, gpt2-medium, gpt2-large, gpt2-xl, tiny, mini, small, llama, llama-tiny, "
           "llama-mini, llama-small";
}

km_status km_config_preset(km_config *c, const char *name, km_error *err) {
    for (int i = 0; i < N_PRESETS; i++) {
        const preset *p = &presets[i];
        if (strcmp(p->name, name) != 0) continue;
        bool gpt2 = p->arch == KM_ARCH_GPT2;
        *c = (km_config){.arch = p->arch,
                         .layers = p->layers,
                         .heads = p->heads,
                         .kv_heads = p->kv_heads,
                         .dim = p->dim,
                         .head_dim = p->dim / p->heads,
                         .hidden = p->hidden,
                         .context = p->context,
                         .vocab = 50257,
                         .norm_eps = 1e-5,
                         .rope_base = gpt2 ? 0 : 10000,
                         .tied = true,
                         .bias = gpt2};
        return KM_OK;
    }
    return km_error_set(err, KM_ERR_RANGE, "no model is called '%.60s'; there are %s", name,
                        km_config_presets());
}

static km_status check_size(const char *field, int64_t value, int64_t most, km_error *err) {
    if (value >= 1 && value <= most) return KM_OK;
    return km_error_set(err, KM_ERR_RANGE, "model: %s is %lld and must be in 1 .. %lld", field,
                        (long long)value, (long long)most);
}

/* What is 0 gets its usual value. */
static void fill_in(km_config *c) {
    if (!c->kv_heads || c->arch == KM_ARCH_GPT2) c->kv_heads = c->heads;
    if (!c->norm_eps) c->norm_eps = 1e-5;
    if (c->vocab_pad == 1) c->vocab_pad = 0;
    if (c->arch == KM_ARCH_GPT2)
        c->rope_base = 0;
    else if (!c->rope_base)
        c->rope_base = 10000;
    if (!c->head_dim && c->heads > 0) c->head_dim = c->dim / c->heads;
    if (!c->hidden) /* two thirds of GPT-2's, since SwiGLU has three matrices to its two */
        c->hidden = c->arch == KM_ARCH_GPT2 ? 4 * c->dim : (c->dim * 8 / 3 + 63) / 64 * 64;
}

/* What only models with rotary positions have. */
static km_status check_rotary(const km_config *c, km_error *err) {
    int64_t dims = c->rope_dims ? c->rope_dims : c->head_dim;
    if (dims % 2 && !c->rope_dims)
        return km_error_set(err, KM_ERR_RANGE, "model: head_dim %lld is odd and cannot be rotated",
                            (long long)c->head_dim);
    if (dims % 2 || dims < 2 || dims > c->head_dim)
        return km_error_set(err, KM_ERR_RANGE, "model: %lld of %lld dimensions cannot be rotated",
                            (long long)dims, (long long)c->head_dim);
    if (c->bias)
        return km_error_set(err, KM_ERR_UNSUPPORTED, "model: %s has no biases here",
                            km_arch_name(c->arch));
    if (!(c->rope_base >= 1 && isfinite(c->rope_base)))
        return km_error_set(err, KM_ERR_RANGE, "model: rope_base is %g and must be at least 1",
                            c->rope_base);
    if (c->rope.kind != KM_ROPE_PLAIN && c->rope.kind != KM_ROPE_DIVISORS &&
        !(c->rope.factor >= 1 && isfinite(c->rope.factor)))
        return km_error_set(err, KM_ERR_RANGE, "model: a rope factor of %g is less than 1",
                            c->rope.factor);
    return KM_OK;
}

km_status km_config_complete(km_config *c, km_error *err) {
    if ((unsigned)c->arch >= KM_ARCH_COUNT)
        return km_error_set(err, KM_ERR_RANGE, "model: no such architecture: %d", (int)c->arch);
    int64_t wide = 1 << 20; /* no size may make the products below overflow */
    km_status s = check_size("layers", c->layers, 4096, err);
    if (!s) s = check_size("heads", c->heads, 65536, err);
    if (!s) s = check_size("dim", c->dim, wide, err);
    if (s) return s;
    bool divides = c->head_dim != 0 || c->dim % c->heads == 0;
    fill_in(c);
    if (!s) s = check_size("kv_heads", c->kv_heads, 65536, err);
    if (!s && !divides)
        s = km_error_set(err, KM_ERR_RANGE, "model: dim %lld is no multiple of heads %d",
                         (long long)c->dim, c->heads);
    if (!s) s = check_size("head_dim", c->head_dim, 65536, err);
    if (!s) s = check_size("hidden", c->hidden, 4 * wide, err);
    if (!s) s = check_size("context", c->context, 1 << 24, err);
    if (!s) s = check_size("vocab", c->vocab, 1 << 28, err);
    if (!s && (c->vocab_pad < 0 || c->vocab_pad > 65536))
        s = km_error_set(err, KM_ERR_RANGE, "model: vocab_pad is %lld and must be in 0 .. 65536",
                         (long long)c->vocab_pad);
    if (!s && c->heads % c->kv_heads)
        s = km_error_set(err, KM_ERR_RANGE, "model: heads %d is no multiple of kv_heads %d",
                         c->heads, c->kv_heads);
    if (!s && c->arch == KM_ARCH_GPT2 && c->head_dim * c->heads != c->dim)
        s = km_error_set(err, KM_ERR_RANGE,
                         "model: gpt2 needs heads * head_dim = dim, and %d * %lld is not %lld",
                         c->heads, (long long)c->head_dim, (long long)c->dim);
    if (!s && c->arch != KM_ARCH_GPT2) s = check_rotary(c, err);
    if (!s && !(c->norm_eps > 0 && c->norm_eps < 1))
        s = km_error_set(err, KM_ERR_RANGE, "model: norm_eps is %g and must be in (0, 1)",
                         c->norm_eps);
    if (!s && !(c->dropout >= 0 && c->dropout < 1))
        s = km_error_set(err, KM_ERR_RANGE, "model: dropout is %g and must be in [0, 1)",
                         c->dropout);
    return s;
}

int64_t km_config_rows(const km_config *c) {
    return c->vocab_pad > 1 ? (c->vocab + c->vocab_pad - 1) / c->vocab_pad * c->vocab_pad
                            : c->vocab;
}

int64_t km_config_parameters(const km_config *c) {
    const km_traits *t = km_arch_traits(c->arch);
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, d = c->dim;
    int64_t block = d * (q + 2 * kv) + q * d + (t->gated ? 3 : 2) * d * c->hidden;
    int64_t norm = c->bias ? 2 * d : d;
    block += (t->post_norms ? 4 : 2) * norm;
    if (t->qkv_bias) block += q + 2 * kv;
    if (t->qk_norm) block += 2 * c->head_dim;
    if (c->bias) block += 3 * d + d + c->hidden + d;
    int64_t table = km_config_rows(c) * d;
    return table + (t->learned_positions ? c->context * d : 0) + c->layers * block + norm +
           (c->tied ? 0 : table);
}
