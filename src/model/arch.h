/* What tells one architecture from another, as data. Building a model, naming its tensors and
 * reading its configuration all follow this table; sizes are in km_config. */
#ifndef KM_MODEL_ARCH_H
#define KM_MODEL_ARCH_H
#include "model/config.h"

typedef struct km_traits {
    const char *name;       /* "general.architecture" in GGUF, and where its keys begin */
    const char *type;       /* "model_type" in config.json */
    const char *class_name; /* "architectures" there */
    bool learned_positions; /* a table of them, and LayerNorm: gpt2. Else rotation and RMSNorm */
    bool gated;             /* act(gate) * up in the MLP */
    km_act act;
    bool joined_qkv; /* one matrix for q, k and v */
    bool joined_up;  /* one matrix for gate and up */
    bool qkv_bias;
    bool qk_norm;             /* of each head, before rotation */
    bool post_norms;          /* of what attention and MLP give, too */
    bool scaled_embedding;    /* by sqrt(dim) */
    km_rope_pairs gguf_pairs; /* how GGUF stores the rows of q and k; Hugging Face: in halves */
    double norm_eps;          /* where a file says nothing */
    double rope_base;
    double local_rope_base; /* of layers with a window; 0: as the others */
    int full_every;         /* layers without a window; where there is one */
    double attn_softcap, logit_softcap;
    int wide_layers; /* the model with so many layers scales scores by dim / heads, not head_dim */
} km_traits;

const km_traits *km_arch_traits(km_arch a);
km_arch km_arch_find(const char *name);    /* in GGUF; KM_ARCH_COUNT: none */
km_arch km_arch_of_type(const char *type); /* in config.json; likewise */
const char *km_arch_names(void);           /* all of them, with commas between */

#endif
