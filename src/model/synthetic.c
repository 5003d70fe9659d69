/* Random weights, streamed into a file. A block is random bytes whose scales are then set: each
 * type's scales are chosen so that its elements have the spread asked for, and a mean near 0. */
#include "model/synthetic.h"
#include "base/alloc.h"
#include "model/arch.h"
#include "model/layout.h"
#include "base/text.h"
#include "tensor/dtype.h"
#include "token/internal.h"
#include "base/utf8.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Shapes ---- */

static const struct {
    const char *name;
    km_config c;
} shapes[] = {
    {"smollm2-135m",
     {.arch = KM_ARCH_LLAMA,
      .layers = 30,
      .heads = 9,
      .kv_heads = 3,
      .dim = 576,
      .hidden = 1536,
      .context = 8192,
      .vocab = 49152,
      .rope_base = 1e5,
      .norm_eps = 1e-5,
      .tied = true}},
    {"qwen2.5-0.5b",
     {.arch = KM_ARCH_QWEN2,
      .layers = 24,
      .heads = 14,
      .kv_heads = 2,
      .dim = 896,
      .hidden = 4864,
      .context = 32768,
      .vocab = 151936,
      .rope_base = 1e6,
      .norm_eps = 1e-6,
      .tied = true}},
    {"llama-3.2-1b",
     {.arch = KM_ARCH_LLAMA,
      .layers = 16,
      .heads = 32,
      .kv_heads = 8,
      .dim = 2048,
      .hidden = 8192,
      .context = 131072,
      .vocab = 128256,
      .rope_base = 5e5,
      .norm_eps = 1e-5,
      .tied = true}},
    {"qwen2.5-3b",
     {.arch = KM_ARCH_QWEN2,
      .layers = 36,
      .heads = 16,
      .kv_heads = 2,
      .dim = 2048,
      .hidden = 11008,
      .context = 32768,
      .vocab = 151936,
      .rope_base = 1e6,
      .norm_eps = 1e-6,
      .tied = true}},
    {"llama-3.1-8b",
     {.arch = KM_ARCH_LLAMA,
      .layers = 32,
      .heads = 32,
      .kv_heads = 8,
      .dim = 4096,
      .hidden = 14336,
      .context = 131072,
      .vocab = 128256,
      .rope_base = 5e5,
      .norm_eps = 1e-5}},
};

const char *km_synthetic_shapes(void) {
    return "smollm2-135m, qwen2.5-0.5b, llama-3.2-1b, qwen2.5-3b, llama-3.1-8b";
}

km_status km_synthetic_shape(km_config *c, const char *name, km_error *err) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (strcmp(name, shapes[i].name) == 0) {
            *c = shapes[i].c;
            return km_config_complete(c, err);
        }
    return km_error_set(err, KM_ERR_RANGE, "no shape '%.60s'; there are %s", name,
                        km_synthetic_shapes());
}

/* ---- Random blocks ---- */

static uint64_t mixed(uint64_t z) { /* the finish of splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void random_bytes(uint64_t key, uint8_t *dst, size_t n) {
    for (size_t i = 0; i < n; i += 8) {
        uint64_t v = mixed(key + (uint64_t)(i / 8) * 0x9e3779b97f4a7c15u);
        memcpy(dst + i, &v, n - i < 8 ? n - i : 8);
    }
}

static void put_f16(uint8_t *b, float v) {
    uint16_t h = km_f32_to_f16(v);
    b[0] = (uint8_t)h, b[1] = (uint8_t)(h >> 8);
}

/* Six bits of scale and six of minimum for each of 8 groups, all alike. */
static void put_k4_scales(uint8_t *b, int scale, int min) {
    for (int j = 0; j < 4; j++) {
        b[j] = (uint8_t)((scale & 63) | (scale >> 4) << 6);
        b[j + 4] = (uint8_t)((min & 63) | (min >> 4) << 6);
        b[j + 8] = (uint8_t)((scale & 15) | (min & 15) << 4);
    }
}

/* The spread of codes that are drawn evenly from n neighbours. */
static float spread(int n) { return sqrtf((float)(n * n - 1) / 12); }

/* A scale of either sign, by the random byte it replaces: codes from -8 to 7 have a mean, which
 * adds up over a row, and in models of such rows a few tokens magnify roundings several times. */
static void put_signed(uint8_t *b, float v) { put_f16(b, b[1] & 0x80 ? -v : v); }

static void set_scales(km_dtype d, uint8_t *b, float sd) {
    const float iq4 = 67.4f; /* the spread of iq4_nl's 16 values */
    float s;
    switch (d) {
    case KM_Q4_0: put_signed(b, sd / spread(16)); break;
    case KM_Q5_0: put_signed(b, sd / spread(32)); break;
    case KM_Q4_1: put_f16(b, sd / spread(16)), put_f16(b + 2, -7.5f * sd / spread(16)); break;
    case KM_Q5_1: put_f16(b, sd / spread(32)), put_f16(b + 2, -15.5f * sd / spread(32)); break;
    case KM_Q8_0: put_f16(b, sd / spread(256)); break;
    case KM_IQ4_NL: put_signed(b, sd / iq4); break;
    case KM_MXFP4: { /* the power of two under which values of +-0 .. 6 have that spread */
        int e = (int)lrintf(log2f(sd / 2.93f)) + 127;
        b[0] = (uint8_t)(e < 1 ? 1 : e > 254 ? 254 : e);
        break;
    }
    case KM_Q2_K: /* scales of 8 and minima of 12: codes have a mean of 1.5 */
        memset(b, 8 | 12 << 4, 16);
        s = sd / (8 * spread(4));
        put_f16(b + 80, s), put_f16(b + 82, s);
        break;
    case KM_Q3_K: /* scales of 16 and -16 in turn, stored with 32 added */
        for (int j = 0; j < 8; j++) b[96 + j] = 0;
        for (int j = 0; j < 4; j++) b[104 + j] = j % 2 ? 0x55 : 0xff;
        put_f16(b + 108, sd / (16 * spread(8)));
        break;
    case KM_Q4_K: /* 32 q d - 30 (8 d) */
        s = sd / (32 * spread(16));
        put_f16(b, s), put_f16(b + 2, 8 * s);
        put_k4_scales(b + 4, 32, 30);
        break;
    case KM_Q5_K:
        s = sd / (32 * spread(32));
        put_f16(b, s), put_f16(b + 2, 16 * s);
        put_k4_scales(b + 4, 32, 31);
        break;
    case KM_Q6_K:
        for (int j = 0; j < 16; j++) b[192 + j] = (uint8_t)(int8_t)(j % 2 ? 32 : -32);
        put_f16(b + 208, sd / (32 * spread(64)));
        break;
    case KM_IQ4_XS: /* scales of 16 and -16 in turn */
        b[2] = 0x77, b[3] = 0x77;
        for (int j = 4; j < 8; j++) b[j] = 0;
        put_f16(b, sd / (16 * iq4));
        break;
    default: break;
    }
}

static void plain(km_dtype d, uint8_t *b, size_t n, float sd) { /* evenly over +-sqrt(3) sd */
    size_t size = km_dtype_size(d);
    for (size_t i = 0; i < n; i += size) {
        uint16_t h;
        memcpy(&h, b + i, 2);
        float v = ((float)h - 32767.5f) / 32767.5f * 1.7320508f * sd;
        if (d == KM_F32) memcpy(b + i, &v, 4);
        if (d == KM_F32) continue;
        h = d == KM_F16 ? km_f32_to_f16(v) : km_f32_to_bf16(v);
        memcpy(b + i, &h, 2);
    }
}

/* ---- Tensors ---- */

typedef struct random_job {
    km_synthetic_progress progress;
    void *user;
    uint64_t done, total;
} random_job;

typedef struct random_item {
    random_job *job;
    km_dtype dtype;
    uint64_t key;
    float sd; /* 0: a norm, of ones */
} random_item;

void km_synthetic_fill(km_dtype dtype, uint64_t key, float sd, void *dst, size_t bytes) {
    size_t block = km_dtype_size(dtype);
    uint8_t *b = dst;
    if (sd == 0) {
        for (size_t i = 0; i < bytes / 4; i++) memcpy(b + 4 * i, &(float){1}, 4);
        return;
    }
    random_bytes(mixed(key), b, bytes);
    if (km_dtype_is_block(dtype))
        for (size_t i = 0; i < bytes; i += block) set_scales(dtype, b + i, sd);
    else
        plain(dtype, b, bytes, sd);
}

float km_synthetic_spread(const char *gguf, km_shape shape) {
    if (shape.ndim == 1) return strstr(gguf, "_norm.weight") ? 0 : 0.02f;
    return 1 / sqrtf((float)shape.dim[shape.ndim - 1]);
}

static km_status fill(void *user, size_t offset, void *dst, size_t bytes, km_error *err) {
    const random_item *it = user;
    km_synthetic_fill(it->dtype, it->key + offset, it->sd, dst, bytes);
    it->job->done += bytes;
    if (it->job->progress && !it->job->progress(it->job->user, it->job->done, it->job->total))
        return km_error_set(err, KM_ERR_STATE, "stopped");
    return KM_OK;
}

static void add_tensors(km_gguf_out *out, const km_config *c, const km_mix *mix, uint64_t seed,
                        const km_layout *l, random_item *items, random_job *j) {
    km_mix_model model = {c->layers, c->heads / c->kv_heads, c->tied, false};
    for (int i = 0; i < l->n; i++) {
        const km_layout_row *r = &l->row[i];
        items[i] = (random_item){.job = j,
                                 .dtype = km_mix_dtype(mix, &model, r->gguf, r->shape),
                                 .key = mixed(seed + 1) + (uint64_t)(i + 1) * 0x632be59bd9b4e019u,
                                 .sd = km_synthetic_spread(r->gguf, r->shape)};
        km_ggml_type type = KM_GGML_F32;
        size_t bytes = 0;
        km_ggml_of_dtype(items[i].dtype, &type);
        km_ggml_bytes(km_ggml_info_of((uint32_t)type), r->shape, &bytes);
        j->total += bytes;
        km_gguf_add(out, r->gguf, type, r->shape, NULL, fill, &items[i]);
    }
}

/* ---- The tokenizer: bytes, an end of text, and names without meaning ---- */

static bool put_tokenizer(km_gguf_out *out, const km_config *c) {
    enum { NORMAL = 1, CONTROL = 3, END = 256 };
    size_t n = (size_t)c->vocab;
    km_text names = {0};
    const char **at = km_calloc(n, sizeof *at);
    size_t *start = km_calloc(n + 1, sizeof *start);
    int32_t *type = km_calloc(n, sizeof *type);
    char utf8[4];
    bool ok = at && start && type;
    for (size_t i = 0; ok && i < n; i++) {
        start[i] = names.len;
        type[i] = i == END ? CONTROL : NORMAL;
        if (i < 256)
            km_text_put(&names, utf8, (size_t)km_utf8_write(utf8, km_byte_char[i]));
        else
            km_text_printf(&names, i == END ? "<|end|>" : "[%zu]", i);
        ok = km_text_ok(&names);
    }
    if (ok) {
        start[n] = names.len;
        for (size_t i = 0; i < n; i++)
            at[i] = names.data + start[i], start[i] = start[i + 1] - start[i];
        km_gguf_put_string(out, "tokenizer.ggml.model", "gpt2");
        km_gguf_put_string(out, "tokenizer.ggml.pre", "gpt-2");
        km_gguf_put_strings(out, "tokenizer.ggml.tokens", at, start, n);
        km_gguf_put_array(out, "tokenizer.ggml.token_type", KM_GGUF_I32, type, n);
        km_gguf_put_strings(out, "tokenizer.ggml.merges", NULL, NULL, 0);
        km_gguf_put_u32(out, "tokenizer.ggml.bos_token_id", END);
        km_gguf_put_u32(out, "tokenizer.ggml.eos_token_id", END);
        km_gguf_put_bool(out, "tokenizer.ggml.add_bos_token", false);
    }
    km_text_free(&names);
    km_free(at);
    km_free(start);
    km_free(type);
    return ok;
}

/* ---- The file ---- */

km_status km_synthetic_check(const km_config *c, km_error *err) {
    if (c->vocab < 257 || c->rope.kind != KM_ROPE_PLAIN)
        return km_error_set(err, KM_ERR_UNSUPPORTED, "no random model is made of this config");
    return KM_OK;
}

km_status km_synthetic_write(const char *path, const km_config *c, const km_mix *mix, uint64_t seed,
                             km_synthetic_progress progress, void *user, km_error *err) {
    if (km_synthetic_check(c, err) != KM_OK) return KM_ERR_UNSUPPORTED;
    km_error own = {0};
    km_layout l = {0};
    random_job j = {progress, user, 0, 0};
    random_item *items = NULL;
    km_gguf_out *out = km_gguf_out_new(&own);
    if (out && km_layout_of(c, &l, &own) == KM_OK) items = km_calloc((size_t)l.n, sizeof *items);
    if (items && put_tokenizer(out, c)) {
        km_config_put_gguf(c, out);
        km_gguf_put_string(out, "general.name", "random weights");
        km_gguf_put_u32(out, "general.file_type", mix->file_type);
        km_gguf_put_u32(out, "general.quantization_version", 2);
        add_tensors(out, c, mix, seed, &l, items, &j);
        km_gguf_write(out, path, &own);
    } else if (own.code == KM_OK) {
        km_error_set(&own, KM_ERR_MEMORY, "cannot write '%s': out of memory", path);
    }
    km_layout_free(&l);
    km_free(items);
    km_gguf_out_free(out);
    return own.code == KM_OK ? KM_OK : km_error_set(err, own.code, "%s", own.text);
}
