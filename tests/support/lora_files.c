/* Adapters of random numbers in files. */
#include "support/lora_files.h"
#include "format/gguf.h"
#include "format/safetensors.h"
#include "model/arch.h"
#include "model/layout.h"
#include "support/engine.h"
#include <stdlib.h>
#include <sys/stat.h>

typedef struct lora_pair {
    char name[2][400];
    float *v[2]; /* A (rank, in), B (out, rank) */
    km_shape shape[2];
} lora_pair;

static bool wanted(const lora_form *f, const km_layout_row *r) {
    size_t n = strlen(r->name);
    if (r->shape.ndim != 2 || n < 8 || strcmp(r->name + n - 7, ".weight") != 0) return false;
    if (strncmp(r->gguf, "blk.", 4) != 0) return false;
    if (!f->layers) return true;
    for (const char *p = f->layers; *p;) {
        size_t k = strcspn(p, " ");
        if (k + 7 <= n && strncmp(r->name + n - 7 - k, p, k) == 0) return true;
        p += k + (p[k] == ' ');
    }
    return false;
}

/* In [-1, 1), by a counter. */
static float number(uint64_t seed, uint64_t i) {
    uint64_t x = (seed * 1000003 + i) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    return (float)((double)(x >> 40) / (1 << 23) - 1);
}

static lora_pair *make_pairs(const km_config *c, const lora_form *f, bool gguf, int *n) {
    km_layout l;
    km_error err = {0};
    assert_int_equal(km_layout_of(c, &l, &err), KM_OK);
    lora_pair *p = calloc((size_t)l.n, sizeof *p);
    *n = 0;
    for (int i = 0; i < l.n; i++) {
        const km_layout_row *r = &l.row[i];
        if (!wanted(f, r)) continue;
        lora_pair *q = &p[(*n)++];
        q->shape[0] = KM_SHAPE(f->rank, r->shape.dim[1]);
        q->shape[1] = KM_SHAPE(r->shape.dim[0], f->rank);
        for (int k = 0; k < 2; k++) {
            int64_t count = km_shape_count(q->shape[k]);
            float *v = q->v[k] = malloc(sizeof(float) * (size_t)count);
            for (int64_t e = 0; e < count; e++)
                v[e] = (float)(f->size ? f->size : 0.1) *
                       number(f->seed, (uint64_t)(i * 2 + k) << 32 | (uint64_t)e);
            if (gguf)
                sprintf(q->name[k], "%s.lora_%c", r->gguf, "ab"[k]);
            else
                sprintf(q->name[k], "base_model.model.%.*s.lora_%c.weight",
                        (int)strlen(r->name) - 7, r->name, "AB"[k]);
        }
        if (!gguf || !r->rope_heads) continue;
        float *turned = malloc(sizeof(float) * (size_t)km_shape_count(q->shape[1]));
        km_layout_row row = {.shape = q->shape[1], .rope_heads = r->rope_heads};
        km_stored s = {KM_F32, q->v[1]};
        km_layout_copy(&row, &s, KM_STORE_HF, KM_STORE_GGUF, KM_F32, 0,
                       (size_t)km_shape_count(q->shape[1]), turned, &err);
        free(q->v[1]);
        q->v[1] = turned;
    }
    km_layout_free(&l);
    return p;
}

static void free_pairs(lora_pair *p, int n) {
    for (int i = 0; i < n; i++) free(p[i].v[0]), free(p[i].v[1]);
    free(p);
}

void write_text(const char *folder, const char *file, const char *text) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

void write_lora_folder(const char *folder, const km_config *c, const lora_form *f) {
    char path[4096], config[200];
    km_error err = {0};
    int n;
    lora_pair *p = make_pairs(c, f, false, &n);
    km_st_item *item = calloc((size_t)(2 * n + 1), sizeof *item);
    for (int i = 0; i < 2 * n; i++)
        item[i] = (km_st_item){.name = p[i / 2].name[i % 2],
                               .dtype = KM_F32,
                               .shape = p[i / 2].shape[i % 2],
                               .data = p[i / 2].v[i % 2]};
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    if (km_safetensors_write(path, item, 2 * n, NULL, 0, &err) != KM_OK) fail_msg("%s", err.text);
    snprintf(config, sizeof config, "{\"peft_type\": \"LORA\", \"r\": %d, \"lora_alpha\": %.17g}",
             f->rank, f->alpha);
    write_text(folder, "adapter_config.json", config);
    free(item);
    free_pairs(p, n);
}

void write_lora_gguf(const char *path, const km_config *c, const lora_form *f) {
    km_error err = {0};
    int n;
    lora_pair *p = make_pairs(c, f, true, &n);
    km_gguf_out *o = km_gguf_out_new(&err);
    km_gguf_put_string(o, "general.type", "adapter");
    km_gguf_put_string(o, "general.architecture", km_arch_name(c->arch));
    km_gguf_put_string(o, "adapter.type", "lora");
    km_gguf_put_f32(o, "adapter.lora.alpha", (float)f->alpha);
    for (int i = 0; i < 2 * n; i++)
        km_gguf_add(o, p[i / 2].name[i % 2], KM_GGML_F32, p[i / 2].shape[i % 2], p[i / 2].v[i % 2],
                    NULL, NULL);
    if (km_gguf_write(o, path, &err) != KM_OK) fail_msg("%s", err.text);
    km_gguf_out_free(o);
    free_pairs(p, n);
}
