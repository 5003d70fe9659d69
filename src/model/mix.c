/* Which matrix gets which type. Values (and matrices that hold them with queries and keys), the
 * way down from the MLP, and the head are the ones that pay for more bits. */
#include "model/mix.h"
#include "tensor/dtype.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { /* as they lie in the table below */
       F32,
       F16,
       BF16,
       Q8_0,
       Q6_K,
       Q5_K_M,
       Q5_K_S,
       Q5_1,
       Q5_0,
       Q4_K_M,
       Q4_K_S,
       Q4_1,
       Q4_0,
       IQ4_NL,
       IQ4_XS,
       MXFP4,
       Q3_K_L,
       Q3_K_M,
       Q3_K_S,
       Q2_K,
       COUNT
};

static const km_mix mixes[COUNT] = {
    [F32] = {"f32", KM_F32, 0},           [F16] = {"f16", KM_F16, 1},
    [BF16] = {"bf16", KM_BF16, 32},       [Q8_0] = {"q8_0", KM_Q8_0, 7},
    [Q6_K] = {"q6_k", KM_Q6_K, 18},       [Q5_K_M] = {"q5_k_m", KM_Q5_K, 17},
    [Q5_K_S] = {"q5_k_s", KM_Q5_K, 16},   [Q5_1] = {"q5_1", KM_Q5_1, 9},
    [Q5_0] = {"q5_0", KM_Q5_0, 8},        [Q4_K_M] = {"q4_k_m", KM_Q4_K, 15},
    [Q4_K_S] = {"q4_k_s", KM_Q4_K, 14},   [Q4_1] = {"q4_1", KM_Q4_1, 3},
    [Q4_0] = {"q4_0", KM_Q4_0, 2},        [IQ4_NL] = {"iq4_nl", KM_IQ4_NL, 25},
    [IQ4_XS] = {"iq4_xs", KM_IQ4_XS, 30}, [MXFP4] = {"mxfp4", KM_MXFP4, 38},
    [Q3_K_L] = {"q3_k_l", KM_Q3_K, 13},   [Q3_K_M] = {"q3_k_m", KM_Q3_K, 12},
    [Q3_K_S] = {"q3_k_s", KM_Q3_K, 11},   [Q2_K] = {"q2_k", KM_Q2_K, 10},
};

const km_mix *km_mix_at(int i) { return i >= 0 && i < COUNT ? &mixes[i] : NULL; }

const km_mix *km_mix_find(const char *name) {
    static const struct {
        const char *name;
        int mix;
    } also[] = {{"q5_k", Q5_K_M}, {"q4_k", Q4_K_M}, {"q3_k", Q3_K_M}};
    for (int i = 0; i < COUNT; i++)
        if (strcasecmp(name, mixes[i].name) == 0) return &mixes[i];
    for (size_t i = 0; i < sizeof also / sizeof *also; i++)
        if (strcasecmp(name, also[i].name) == 0) return &mixes[also[i].mix];
    return NULL;
}

/* ---- The rules ---- */

/* The first and last eighth of the layers, and every third between them. */
static bool deserves_more(int layer, int layers) {
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

static km_dtype of_head(int mix, km_dtype base, int64_t in) {
    if (mix == MXFP4 || in % km_dtype_block(base) != 0) return KM_Q8_0;
    return base == KM_Q8_0 ? KM_Q8_0 : KM_Q6_K;
}

static km_dtype of_values(int mix, km_dtype base, const km_mix_model *m, int layer) {
    km_dtype d = base;
    if (mix == Q2_K) d = m->gqa >= 4 ? KM_Q4_K : KM_Q3_K;
    if (mix == Q3_K_M) d = layer < 2 ? KM_Q5_K : KM_Q4_K;
    if (mix == Q3_K_L) d = KM_Q5_K;
    if ((mix == IQ4_NL || mix == IQ4_XS) && m->gqa >= 4) d = KM_Q5_K;
    if ((mix == Q4_K_M || mix == Q5_K_M) && deserves_more(layer, m->layers)) d = KM_Q6_K;
    if (mix == Q4_K_S && layer < 4) d = KM_Q5_K;
    /* Where eight heads share them, they are small, and more bits cost next to nothing. */
    if (m->layers == 80 && m->gqa == 8 && (d == KM_Q3_K || d == KM_Q4_K)) d = KM_Q5_K;
    return d;
}

static km_dtype of_down(int mix, km_dtype base, const km_mix_model *m, int layer) {
    bool first = layer < m->layers / 8;
    switch (mix) {
    case Q2_K: return KM_Q3_K;
    case Q3_K_M: return layer < m->layers / 16 ? KM_Q5_K : KM_Q4_K;
    case Q3_K_L: return KM_Q5_K;
    case Q4_K_M:
    case Q5_K_M: return deserves_more(layer, m->layers) ? KM_Q6_K : base;
    case Q4_K_S: return first ? KM_Q5_K : base;
    case IQ4_NL:
    case IQ4_XS: return first && !m->importance ? KM_Q5_K : base;
    case Q4_0: return first && m->importance ? KM_Q4_1 : base;
    case Q5_0: return first && m->importance ? KM_Q5_1 : base;
    default: return base;
    }
}

static km_dtype of_projection(int mix, km_dtype base) {
    return mix == Q2_K ? KM_Q3_K : mix == Q3_K_M ? KM_Q4_K : mix == Q3_K_L ? KM_Q5_K : base;
}

/* Rows that are not whole blocks of 256 get a type of blocks of 32 with about as many bits. */
static km_dtype that_fits(km_dtype d, int64_t in) {
    if (in % km_dtype_block(d) == 0) return d;
    switch (d) {
    case KM_IQ4_XS: d = KM_IQ4_NL; break;
    case KM_Q2_K:
    case KM_Q3_K: d = KM_Q4_0; break;
    case KM_Q4_K: d = KM_Q5_0; break;
    case KM_Q5_K: d = KM_Q5_1; break;
    case KM_Q6_K: d = KM_Q8_0; break;
    default: break;
    }
    return in % km_dtype_block(d) == 0 ? d : KM_F16;
}

static bool is(const char *part, const char *name) { return strcmp(part, name) == 0; }

km_dtype km_mix_dtype(const km_mix *m, const km_mix_model *model, const char *gguf,
                      km_shape shape) {
    int mix = (int)(m - mixes), layer = 0, skip = 0;
    km_dtype d = m->base;
    size_t n = strlen(gguf);
    bool norm = n > 12 && is(gguf + n - 12, "_norm.weight");
    if (shape.ndim < 2 || norm || is(gguf, "position_embd.weight")) return KM_F32;
    if (!km_dtype_is_block(d)) return d;
    int64_t in = shape.dim[shape.ndim - 1];
    if (sscanf(gguf, "blk.%d.%n", &layer, &skip) < 1) skip = 0;
    const char *part = gguf + skip;
    if (is(part, "output.weight") || (model->tied && is(part, "token_embd.weight")))
        d = of_head(mix, d, in);
    else if (mix == MXFP4) /* only the MLP; the rest is small beside it */
        d = strncmp(part, "ffn_", 4) == 0 ? KM_MXFP4 : KM_Q8_0;
    else if (is(part, "attn_v.weight") || is(part, "attn_qkv.weight"))
        d = of_values(mix, d, model, layer);
    else if (strncmp(part, "ffn_down", 8) == 0)
        d = of_down(mix, d, model, layer);
    else if (is(part, "attn_output.weight"))
        d = of_projection(mix, d);
    return that_fits(d, in);
}
