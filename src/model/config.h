/* What a model is made of: its architecture and sizes, as presets, as flags fill it in, and as
 * Hugging Face's config.json says it. */
#ifndef KM_MODEL_CONFIG_H
#define KM_MODEL_CONFIG_H
#include "base/error.h"
#include <stdbool.h>

typedef enum km_arch {                /* arch.h says what each of them has */
                       KM_ARCH_GPT2,  /* learned positions, LayerNorm, GELU */
                       KM_ARCH_LLAMA, /* rotary positions, RMSNorm, SwiGLU, grouped heads */
                       KM_ARCH_QWEN2, /* llama with biases of q, k, v */
                       KM_ARCH_QWEN3, /* llama with norms of q and k */
                       KM_ARCH_GEMMA2, /* norms before and after, GeGLU, windows in turn, soft caps */
                       KM_ARCH_GEMMA3, /* norms of q and k in place of soft caps */
                       KM_ARCH_PHI3,   /* llama with joined matrices */
                       KM_ARCH_COUNT
} km_arch;

/* How rotation is stretched to contexts longer than those trained on. */
typedef enum km_rope_kind {
    KM_ROPE_PLAIN,
    KM_ROPE_LINEAR,  /* all frequencies divided by factor */
    KM_ROPE_YARN,    /* low ones by factor, high ones not, those between in part (Peng 2023) */
    KM_ROPE_LLAMA3,  /* likewise, by wavelength */
    KM_ROPE_DIVISORS /* divisors come with the weights */
} km_rope_kind;

typedef struct km_rope_config {
    km_rope_kind kind;
    double factor;
    int64_t original;               /* the context trained on */
    double low_factor, high_factor; /* llama3 */
    double beta_fast, beta_slow;    /* yarn: 32 and 1 */
    double magnitude;               /* of rotated q and k; 0: yarn's usual one, else 1 */
} km_rope_config;

typedef struct km_config {
    km_arch arch;
    int layers, heads, kv_heads;
    int64_t dim;       /* width of the residual stream */
    int64_t head_dim;  /* of one head; 0: dim / heads */
    int64_t hidden;    /* width inside the MLP; 0: 4 dim, for llama 8/3 dim and up to 64s */
    int64_t context;   /* longest sequence */
    int64_t vocab;     /* token ids are below this */
    int64_t vocab_pad; /* the table has rows up to a multiple of this; 0: as many as vocab. The
                         * rows above are part of no loss and no logits, and of no exported file. */
    double norm_eps;
    double rope_base; /* all but gpt2 */
    int rope_dims;    /* of a head that are rotated; 0: all */
    km_rope_config rope;
    double attn_scale;      /* of scores; 0: 1 / sqrt(head_dim) */
    double attn_softcap;    /* scores become cap tanh(score / cap); 0: as they are */
    double logit_softcap;   /* the same of logits */
    int64_t window;         /* a query sees so many keys, itself included; 0: all */
    int full_every;         /* every nth layer has no window; 0: all have it */
    double local_rope_base; /* of layers with a window, which are not stretched; 0: as the others */
    double dropout;         /* of embeddings and of both residual branches, in training */
    bool tied;              /* the head is the embedding's table */
    bool bias;              /* gpt2: biases in linear layers and norms */
} km_config;

/* "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"; for laptops "tiny", "mini", "small"; the same
 * sizes as "llama-tiny", "llama-mini", "llama-small"; "llama". vocab is GPT-2's until set. */
km_status km_config_preset(km_config *c, const char *name, km_error *err);
const char *km_config_presets(void); /* the names, with commas between them */
const char *km_arch_name(km_arch a); /* "gpt2", "llama"; as GGUF calls them */
bool km_config_layer_has_window(const km_config *c, int layer);

/* Fills in what is 0 and checks that the rest makes a model; the error names the field. */
km_status km_config_complete(km_config *c, km_error *err);
int64_t km_config_rows(const km_config *c);       /* of the embedding table: vocab, padded */
int64_t km_config_parameters(const km_config *c); /* how many numbers the model holds */

/* Hugging Face's config.json: text of `bytes`, and back (with a newline at the end; the caller
 * frees it with km_free). Keys that Kermes cannot honour are an error that names them. */
km_status km_config_parse(km_config *c, const char *json, size_t bytes, km_error *err);
char *km_config_text(const km_config *c, km_error *err);
km_status km_config_load(km_config *c, const char *path,
                         km_error *err); /* the file, or its folder */
km_status km_config_save(const km_config *c, const char *path, km_error *err);

/* ---- Rotation stretched to longer contexts ---- */

/* Divisors (rope_dims / 2) of a complete config, for any kind but KM_ROPE_DIVISORS. */
void km_rope_divisors(const km_config *c, float *divisors);
/* What rotated queries and keys are multiplied by; 1 for most. */
double km_rope_magnitude(const km_config *c);

#endif
