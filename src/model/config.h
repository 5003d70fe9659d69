/* What a model is made of: its architecture and sizes, as presets, as flags fill it in, and as
 * Hugging Face's config.json says it. */
#ifndef KM_MODEL_CONFIG_H
#define KM_MODEL_CONFIG_H
#include "base/error.h"
#include <stdbool.h>

typedef enum km_arch {
    KM_ARCH_GPT2, /* learned positions, LayerNorm, GELU */
    KM_ARCH_LLAMA /* rotary positions, RMSNorm, SwiGLU, grouped heads */
} km_arch;

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
    double rope_base; /* llama */
    double dropout;   /* of embeddings and of both residual branches, in training */
    bool tied;        /* the head is the embedding's table */
    bool bias;        /* gpt2: biases in linear layers and norms */
} km_config;

/* "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"; for laptops "tiny", "mini", "small"; the same
 * sizes as "llama-tiny", "llama-mini", "llama-small"; "llama". vocab is GPT-2's until set. */
km_status km_config_preset(km_config *c, const char *name, km_error *err);
const char *km_config_presets(void); /* the names, with commas between them */
const char *km_arch_name(km_arch a); /* "gpt2", "llama" */

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

#endif
