/* The tensors of each architecture, by name and shape, and how to find them in a file. */
#include "model/layout.h"
#include "base/alloc.h"
#include "base/shown.h"
#include "model/arch.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"
#include <stdio.h>
#include <string.h>

/* ---- The rows ---- */

enum { PLAIN = 0, CONV1D = 1, FULL = 2, BIAS = 4 };

typedef struct layout_maker {
    km_layout *l;
    const char *name, *gguf; /* prefixes, with the layer's number */
} layout_maker;

static km_layout_row *row(layout_maker *m, const char *name, const char *gguf, km_shape shape,
                          int flags) {
    km_layout_row *r = &m->l->row[m->l->n++];
    *r = (km_layout_row){
        .shape = shape, .conv1d = flags & CONV1D, .full = flags & FULL, .bias = flags & BIAS};
    snprintf(r->name, sizeof r->name, "%s%s", m->name, name);
    snprintf(r->gguf, sizeof r->gguf, "%s%s", m->gguf, gguf);
    return r;
}

/* "x.weight" and "x.bias" of a Conv1D or a LayerNorm of GPT-2. */
static void with_bias(layout_maker *m, const char *name, const char *gguf, km_shape shape,
                      int flags) {
    char a[64], b[64];
    snprintf(a, sizeof a, "%s.weight", name);
    snprintf(b, sizeof b, "%s.weight", gguf);
    row(m, a, b, shape, flags);
    snprintf(a, sizeof a, "%s.bias", name);
    snprintf(b, sizeof b, "%s.bias", gguf);
    row(m, a, b, KM_SHAPE(shape.dim[0]), FULL | BIAS);
}

static void gpt2_rows(const km_config *c, km_layout *l) {
    int64_t d = c->dim;
    char name[48], gguf[32];
    layout_maker top = {l, "", ""}, m = {l, name, gguf};
    row(&top, "transformer.wte.weight", "token_embd.weight", KM_SHAPE(c->vocab, d), PLAIN);
    row(&top, "transformer.wpe.weight", "position_embd.weight", KM_SHAPE(c->context, d), FULL);
    for (int i = 0; i < c->layers; i++) {
        snprintf(name, sizeof name, "transformer.h.%d.", i);
        snprintf(gguf, sizeof gguf, "blk.%d.", i);
        with_bias(&m, "ln_1", "attn_norm", KM_SHAPE(d), FULL);
        with_bias(&m, "attn.c_attn", "attn_qkv", KM_SHAPE(3 * d, d), CONV1D);
        with_bias(&m, "attn.c_proj", "attn_output", KM_SHAPE(d, d), CONV1D);
        with_bias(&m, "ln_2", "ffn_norm", KM_SHAPE(d), FULL);
        with_bias(&m, "mlp.c_fc", "ffn_up", KM_SHAPE(c->hidden, d), CONV1D);
        with_bias(&m, "mlp.c_proj", "ffn_down", KM_SHAPE(d, c->hidden), CONV1D);
    }
    with_bias(&top, "transformer.ln_f", "output_norm", KM_SHAPE(d), FULL);
}

/* q, k and v: as one matrix or as three, with biases or without. */
static void qkv_rows(layout_maker *m, const km_config *c, const km_traits *t) {
    int64_t d = c->dim, q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    if (t->joined_qkv) {
        row(m, "self_attn.qkv_proj.weight", "attn_qkv.weight", KM_SHAPE(q + 2 * kv, d), PLAIN);
        return;
    }
    static const char *const hf[] = {"q_proj", "k_proj", "v_proj"};
    static const char *const gguf[] = {"attn_q", "attn_k", "attn_v"};
    bool turned = t->gguf_pairs == KM_ROPE_ADJACENT;
    for (int i = 0; i < 3; i++) {
        char a[40], b[32];
        int64_t wide = i ? kv : q;
        snprintf(a, sizeof a, "self_attn.%s.weight", hf[i]);
        snprintf(b, sizeof b, "%s.weight", gguf[i]);
        km_layout_row *r = row(m, a, b, KM_SHAPE(wide, d), PLAIN);
        if (turned && i < 2) r->rope_heads = i ? c->kv_heads : c->heads;
        if (!t->qkv_bias) continue;
        snprintf(a, sizeof a, "self_attn.%s.bias", hf[i]);
        snprintf(b, sizeof b, "%s.bias", gguf[i]);
        row(m, a, b, KM_SHAPE(wide), FULL);
    }
}

static void rotary_rows(const km_config *c, km_layout *l) {
    const km_traits *t = km_arch_traits(c->arch);
    int64_t d = c->dim, q = c->heads * c->head_dim, h = c->hidden;
    char name[48], gguf[32];
    layout_maker top = {l, "", ""}, m = {l, name, gguf};
    row(&top, "model.embed_tokens.weight", "token_embd.weight", KM_SHAPE(c->vocab, d), PLAIN);
    for (int i = 0; i < c->layers; i++) {
        snprintf(name, sizeof name, "model.layers.%d.", i);
        snprintf(gguf, sizeof gguf, "blk.%d.", i);
        row(&m, "input_layernorm.weight", "attn_norm.weight", KM_SHAPE(d), FULL);
        qkv_rows(&m, c, t);
        if (t->qk_norm) {
            row(&m, "self_attn.q_norm.weight", "attn_q_norm.weight", KM_SHAPE(c->head_dim), FULL);
            row(&m, "self_attn.k_norm.weight", "attn_k_norm.weight", KM_SHAPE(c->head_dim), FULL);
        }
        row(&m, "self_attn.o_proj.weight", "attn_output.weight", KM_SHAPE(d, q), PLAIN);
        row(&m, "post_attention_layernorm.weight",
            t->post_norms ? "post_attention_norm.weight" : "ffn_norm.weight", KM_SHAPE(d), FULL);
        if (t->post_norms)
            row(&m, "pre_feedforward_layernorm.weight", "ffn_norm.weight", KM_SHAPE(d), FULL);
        if (t->joined_up) {
            row(&m, "mlp.gate_up_proj.weight", "ffn_up.weight", KM_SHAPE(2 * h, d), PLAIN);
        } else {
            row(&m, "mlp.gate_proj.weight", "ffn_gate.weight", KM_SHAPE(h, d), PLAIN);
            row(&m, "mlp.up_proj.weight", "ffn_up.weight", KM_SHAPE(h, d), PLAIN);
        }
        row(&m, "mlp.down_proj.weight", "ffn_down.weight", KM_SHAPE(d, h), PLAIN);
        if (t->post_norms)
            row(&m, "post_feedforward_layernorm.weight", "post_ffw_norm.weight", KM_SHAPE(d), FULL);
    }
    row(&top, "model.norm.weight", "output_norm.weight", KM_SHAPE(d), FULL);
}

km_status km_layout_of(const km_config *c, km_layout *l, km_error *err) {
    enum { A_LAYER = 16, OUTSIDE = 5 }; /* rows at most */
    *l = (km_layout){km_calloc((size_t)c->layers * A_LAYER + OUTSIDE, sizeof *l->row), 0};
    if (!l->row) return km_no_memory(err);
    if (c->arch == KM_ARCH_GPT2)
        gpt2_rows(c, l);
    else
        rotary_rows(c, l);
    layout_maker top = {l, "", ""};
    if (!c->tied) row(&top, "lm_head.weight", "output.weight", KM_SHAPE(c->vocab, c->dim), PLAIN);
    return KM_OK;
}

void km_layout_free(km_layout *l) {
    km_free(l->row);
    *l = (km_layout){0};
}

km_shape km_layout_shape(const km_layout_row *r, km_store s) {
    if (s == KM_STORE_HF && r->conv1d) return KM_SHAPE(r->shape.dim[1], r->shape.dim[0]);
    return r->shape;
}

/* ---- Finding them ---- */

/* "transformer.h.0..." is also known as "h.0...", and "model.norm" as "norm". */
static const char *short_name(const char *name) {
    if (strncmp(name, "transformer.", 12) == 0) return name + 12;
    if (strncmp(name, "model.", 6) == 0) return name + 6;
    return name;
}

/* One of a file of either kind. */
typedef struct any {
    const char *name, *type;
    km_dtype dtype;
    km_shape shape;
    const void *data;
} any;

static any of_st(const km_st_tensor *t) {
    return t ? (any){t->name, t->type, t->dtype, t->shape, t->data} : (any){0};
}

static any of_gguf(const km_gguf_tensor *t) {
    return t ? (any){t->name, t->info->name, t->info->dtype, t->shape, t->data} : (any){0};
}

static any find(const km_weights *w, const km_layout_row *r) {
    if (w->gguf) return of_gguf(km_gguf_find(w->gguf, r->gguf));
    const km_st_tensor *t = km_safetensors_find(w->st, r->name);
    return of_st(t ? t : km_safetensors_find(w->st, short_name(r->name)));
}

static const char *file_of(const km_weights *w) {
    return w->gguf ? km_gguf_path(w->gguf) : km_safetensors_file(w->st, 0);
}

/* Causal masks, rotation frequencies, their divisors (which are no parameters), a head that classifies texts
 * (engine/rank.c reads it), and a head's weights that are the embedding's. */
static bool is_ballast(const km_config *c, const char *name) {
    static const char *const ends[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t e = strlen(ends[i]);
        if (n >= e && strcmp(name + n - e, ends[i]) == 0) return true;
    }
    if (strcmp(name, "cls.output.weight") == 0 || strcmp(name, "cls.output.bias") == 0) return true;
    if (c->rope.kind == KM_ROPE_DIVISORS && strncmp(name, "rope_f", 6) == 0) return true;
    return c->tied && (strcmp(name, "lm_head.weight") == 0 || strcmp(name, "output.weight") == 0);
}

static bool has_row(const km_layout *l, const char *name, bool gguf) {
    for (int i = 0; i < l->n; i++) {
        const km_layout_row *r = &l->row[i];
        if (gguf ? strcmp(name, r->gguf) == 0
                 : strcmp(name, r->name) == 0 || strcmp(name, short_name(r->name)) == 0)
            return true;
    }
    return false;
}

static km_status check(const km_weights *w, const km_layout_row *r, const any *t, km_error *err) {
    char a[KM_SHAPE_TEXT], b[KM_SHAPE_TEXT], type[KM_SHOWN];
    km_shape want = km_layout_shape(r, w->gguf ? KM_STORE_GGUF : KM_STORE_HF);
    if (!km_shape_equal(t->shape, want))
        return km_error_set(err, KM_ERR_SHAPE,
                            "'%s': tensor '%s' is %s, but the config makes it %s", file_of(w),
                            t->name, km_shape_text(a, t->shape), km_shape_text(b, want));
    bool blocks = w->blocks && km_dtype_is_block(t->dtype) && !r->full;
    if (t->dtype == KM_DTYPE_COUNT || (!km_dtype_is_float(t->dtype) && !blocks))
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "'%s': tensor '%s' is of type %s, which cannot be %s", file_of(w),
                            t->name, km_shown(type, t->type),
                            w->blocks ? "used there" : "converted from");
    return KM_OK;
}

km_status km_weights_find(const km_weights *w, const km_config *c, const km_layout *l,
                          km_stored *found, km_error *err) {
    char text[KM_SHOWN];
    for (int i = 0; i < l->n; i++) {
        const km_layout_row *r = &l->row[i];
        any t = find(w, r);
        if (!t.name && !(r->bias && !c->bias))
            return km_error_set(err, KM_ERR_FORMAT, "'%s': tensor '%s' is missing", file_of(w),
                                w->gguf ? r->gguf : r->name);
        km_status s = t.name ? check(w, r, &t, err) : KM_OK;
        if (s != KM_OK) return s;
        found[i] = t.name ? (km_stored){t.dtype, t.data} : (km_stored){KM_F32, NULL};
    }
    int n = w->gguf ? km_gguf_count(w->gguf) : km_safetensors_count(w->st);
    for (int i = 0; i < n; i++) {
        const char *name =
            w->gguf ? km_gguf_at(w->gguf, i)->name : km_safetensors_at(w->st, i)->name;
        if (!has_row(l, name, w->gguf) && !is_ballast(c, name))
            return km_error_set(err, KM_ERR_FORMAT, "'%s': a %s model has no place for tensor '%s'",
                                file_of(w), km_arch_name(c->arch), km_shown(text, name));
    }
    return KM_OK;
}
