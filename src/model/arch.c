/* The table of architectures. */
#include "model/arch.h"
#include <string.h>

static const km_traits traits[KM_ARCH_COUNT] = {
    [KM_ARCH_GPT2] = {.name = "gpt2",
                      .type = "gpt2",
                      .class_name = "GPT2LMHeadModel",
                      .learned_positions = true,
                      .act = KM_ACT_GELU,
                      .joined_qkv = true,
                      .norm_eps = 1e-5},
    [KM_ARCH_LLAMA] = {.name = "llama",
                       .type = "llama",
                       .class_name = "LlamaForCausalLM",
                       .gated = true,
                       .act = KM_ACT_SILU,
                       .gguf_pairs = KM_ROPE_ADJACENT,
                       .norm_eps = 1e-5,
                       .rope_base = 10000},
    [KM_ARCH_QWEN2] = {.name = "qwen2",
                       .type = "qwen2",
                       .class_name = "Qwen2ForCausalLM",
                       .gated = true,
                       .act = KM_ACT_SILU,
                       .qkv_bias = true,
                       .norm_eps = 1e-6,
                       .rope_base = 10000},
    [KM_ARCH_QWEN3] = {.name = "qwen3",
                       .type = "qwen3",
                       .class_name = "Qwen3ForCausalLM",
                       .gated = true,
                       .act = KM_ACT_SILU,
                       .qk_norm = true,
                       .norm_eps = 1e-6,
                       .rope_base = 10000},
    [KM_ARCH_GEMMA2] = {.name = "gemma2",
                        .type = "gemma2",
                        .class_name = "Gemma2ForCausalLM",
                        .gated = true,
                        .act = KM_ACT_GELU,
                        .post_norms = true,
                        .scaled_embedding = true,
                        .norm_eps = 1e-6,
                        .rope_base = 10000,
                        .full_every = 2,
                        .attn_softcap = 50,
                        .logit_softcap = 30,
                        .wide_layers = 46},
    [KM_ARCH_GEMMA3] = {.name = "gemma3",
                        .type = "gemma3_text",
                        .class_name = "Gemma3ForCausalLM",
                        .gated = true,
                        .act = KM_ACT_GELU,
                        .qk_norm = true,
                        .post_norms = true,
                        .scaled_embedding = true,
                        .norm_eps = 1e-6,
                        .rope_base = 1e6,
                        .local_rope_base = 10000,
                        .full_every = 6,
                        .wide_layers = 62},
    [KM_ARCH_PHI3] = {.name = "phi3",
                      .type = "phi3",
                      .class_name = "Phi3ForCausalLM",
                      .gated = true,
                      .act = KM_ACT_SILU,
                      .joined_qkv = true,
                      .joined_up = true,
                      .norm_eps = 1e-5,
                      .rope_base = 10000},
};

const km_traits *km_arch_traits(km_arch a) {
    return &traits[(unsigned)a < KM_ARCH_COUNT ? a : KM_ARCH_LLAMA];
}

const char *km_arch_name(km_arch a) { return km_arch_traits(a)->name; }

const char *km_arch_names(void) { return "gpt2, llama, qwen2, qwen3, gemma2, gemma3 and phi3"; }

km_arch km_arch_find(const char *name) {
    for (int i = 0; i < KM_ARCH_COUNT; i++)
        if (strcmp(traits[i].name, name) == 0) return (km_arch)i;
    return KM_ARCH_COUNT;
}

km_arch km_arch_of_type(const char *type) {
    for (int i = 0; i < KM_ARCH_COUNT; i++)
        if (strcmp(traits[i].type, type) == 0) return (km_arch)i;
    return KM_ARCH_COUNT;
}
