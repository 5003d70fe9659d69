/* A sequence in a file: a header, the tokens, the logits after them, and the pages of keys and values
 * in the cache's own dtype, all under checksums. Written beside and renamed; read by mapping, and
 * believed only after everything has been checked. docs/formats/session.md describes it. */
#include "base/alloc.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/shown.h"
#include "infer/sequences_impl.h"
#include <string.h>
#include <xxhash.h>

#define MAGIC "KMSESSN1"

typedef struct sequence_header { /* 128 bytes, little-endian */
    char magic[8];
    uint32_t dtype, page;          /* of the cache; tokens of a page */
    uint64_t model;                /* fingerprint */
    int64_t tokens, absent, pools; /* absent: pages at the beginning that were given back */
    int64_t page_bytes, vocab;
    uint64_t logits; /* 1: they are there */
    uint64_t payload, payload_hash;
    int64_t settled;   /* tokens: km_sequence_state; 0 in files of before */
    uint64_t numerics; /* of what computed them */
    uint64_t unused[2];
    uint64_t hash; /* of all above */
} sequence_header;

_Static_assert(sizeof(sequence_header) == 128, "the header's size is part of the format");

/* ---- Which model ---- */

/* Some bytes of a parameter: all of a small one; where the host sees a large one, its beginning and
 * its middle. */
static bool add_values(XXH3_state_t *h, km_ctx *ctx, const km_tensor *t) {
    int64_t bytes = km_dtype_bytes(t->dtype, km_shape_count(t->shape));
    if (t->shape.ndim == 1 && bytes <= 1 << 20) {
        void *room = km_alloc((size_t)bytes + 1);
        bool read = room && km_read(ctx, t, room, (size_t)bytes) == KM_OK;
        if (read) XXH3_64bits_update(h, room, (size_t)bytes);
        km_free(room);
        return read;
    }
    if (km_tensor_dev(t)->host && bytes >= 256) {
        const char *p = km_tensor_ptr(t);
        XXH3_64bits_update(h, p, 64);
        XXH3_64bits_update(h, p + bytes / 2 / 64 * 64, 64);
    }
    return true;
}

/* False: something could not be read, for want of memory mostly. */
static bool fingerprint(km_sequences *b, uint64_t *hash) {
    const km_net *m = b->m;
    const km_config *c = &m->config;
    XXH3_state_t *h = XXH3_createState();
    if (!h) return false;
    bool read = true;
    XXH3_64bits_reset(h);
    int64_t sizes[] = {c->arch,   c->layers, c->heads,  c->kv_heads,   c->dim,       c->head_dim,
                       c->hidden, c->vocab,  c->window, c->full_every, c->rope_dims, c->rope.kind};
    double rates[] = {c->norm_eps,     c->rope_base,     c->rope.factor,    c->attn_scale,
                      c->attn_softcap, c->logit_softcap, c->local_rope_base};
    XXH3_64bits_update(h, sizes, sizeof sizes);
    XXH3_64bits_update(h, rates, sizeof rates);
    if (c->rope.magnitude > 0) XXH3_64bits_update(h, &c->rope.magnitude, sizeof c->rope.magnitude);
    for (; m; m = m->next)
        for (int i = 0; i < m->params.n; i++) {
            const km_param *p = &m->params.at[i];
            int32_t kind = p->t->dtype;
            XXH3_64bits_update(h, p->name, strlen(p->name) + 1);
            XXH3_64bits_update(h, &kind, sizeof kind);
            XXH3_64bits_update(h, p->t->shape.dim,
                               sizeof *p->t->shape.dim * (size_t)p->t->shape.ndim);
            read = read && add_values(h, m->ctx, p->t);
        }
    *hash = XXH3_64bits_digest(h);
    XXH3_freeState(h);
    return read;
}

/* The model with the adapters that a sequence is run with. */
static bool fingerprint_of(km_sequences *b, int s, uint64_t *print) {
    uint64_t hash;
    if (!fingerprint(b, &hash)) return false;
    const km_adapter_mix *mix = &b->mix[s];
    for (int i = 0; i < mix->n; i++) {
        hash = XXH3_64bits_withSeed(&b->m->adapters.print[mix->slot[i]], sizeof(uint64_t), hash);
        hash = XXH3_64bits_withSeed(&mix->scale[i], sizeof mix->scale[i], hash);
    }
    *print = hash;
    return true;
}

/* What decides about the last bits: a file that was made elsewhere goes on, but none of it is settled. */
static uint64_t numerics(const km_sequences *b) {
    uint64_t hash = b->alone;
    for (const km_net *m = b->m; m; m = m->next) {
        const char *parts[] = {m->ctx->device->name, km_isa_name(km_cpu_isa()),
                               km_cpu_info()->name};
        for (int i = 0; i < 3; i++)
            hash = XXH3_64bits_withSeed(parts[i], strlen(parts[i]), hash + (uint64_t)m->last);
        hash += (uint64_t)m->ctx->activations;
    }
    return hash;
}

static void end_steps(km_sequences *b) {
    for (km_net *m = b->m; m; m = m->next)
        if (!km_failed(m->ctx)) km_step_end(m->ctx);
}

/* ---- Writing ---- */

static int64_t pages_of(int64_t tokens) { return (tokens + KM_KV_PAGE - 1) / KM_KV_PAGE; }

static km_status describe(km_sequences *b, int s, sequence_header *out, km_error *err) {
    uint64_t print;
    if (!fingerprint_of(b, s, &print)) return km_no_memory_for(err, "a session's file");
    sequence_header h = {.dtype = (uint32_t)b->how.cache,
                         .page = KM_KV_PAGE,
                         .model = print,
                         .tokens = km_cache_length(b->cache, s),
                         .pools = km_cache_pools(b->cache),
                         .page_bytes = (int64_t)km_cache_page_bytes(b->cache),
                         .vocab = b->m->config.vocab,
                         .logits = b->seq[s].ready,
                         .settled = b->seq[s].settled,
                         .numerics = numerics(b)};
    memcpy(h.magic, MAGIC, 8);
    while (h.absent < pages_of(h.tokens) && !km_cache_has_page(b->cache, s, h.absent)) h.absent++;
    h.payload = (uint64_t)(h.tokens * 4 + (h.logits ? h.vocab * 4 : 0) +
                           (pages_of(h.tokens) - h.absent) * h.pools * h.page_bytes);
    *out = h;
    return KM_OK;
}

/* Zeros where the last page holds no tokens: what lay there before is nobody's business. */
static void blank(const km_sequences *b, const sequence_header *h, int64_t page, char *bytes) {
    int64_t held = h->tokens - page * KM_KV_PAGE, heads = b->m->config.kv_heads;
    if (held >= KM_KV_PAGE) return;
    int64_t each = h->page_bytes / heads / KM_KV_PAGE;
    for (int64_t k = 0; k < heads; k++)
        memset(bytes + (k * KM_KV_PAGE + held) * each, 0, (size_t)((KM_KV_PAGE - held) * each));
}

/* Hands the payload piece by piece to the writer, or only to the hash (w NULL). */
static km_status each_piece(km_sequences *b, int s, const sequence_header *h, km_writer *w,
                            XXH3_state_t *hash, char *room) {
    const km_sequence_state *q = &b->seq[s];
    struct {
        const void *p;
        size_t n;
    } head[] = {{q->seen, (size_t)h->tokens * 4},
                {q->logits, h->logits ? (size_t)h->vocab * 4 : 0}};
    for (int i = 0; i < 2; i++) {
        if (w)
            km_writer_put(w, head[i].p, head[i].n);
        else
            XXH3_64bits_update(hash, head[i].p, head[i].n);
    }
    for (int64_t page = h->absent; page < pages_of(h->tokens); page++)
        for (int pool = 0; pool < h->pools; pool++) {
            if (km_cache_page_read(b->cache, s, page, pool, room) != KM_OK)
                return km_ctx_status(b->ctx);
            blank(b, h, page, room);
            if (w)
                km_writer_put(w, room, (size_t)h->page_bytes);
            else
                XXH3_64bits_update(hash, room, (size_t)h->page_bytes);
        }
    return KM_OK;
}

/* A rank has the keys and values of its own heads alone. */
static km_status whole(const km_sequences *b, const char *path, km_error *err) {
    if (!b->m->comm) return KM_OK;
    return km_error_set(err, KM_ERR_UNSUPPORTED,
                        "%s: there are no session files where ranks share the model", path);
}

km_status km_sequences_save(km_sequences *b, int s, const char *path, km_error *err) {
    if (whole(b, path, err) != KM_OK) return KM_ERR_UNSUPPORTED;
    sequence_header h;
    km_status described = describe(b, s, &h, err);
    if (described != KM_OK) return described;
    XXH3_state_t *hash = XXH3_createState();
    char *room = km_alloc((size_t)h.page_bytes);
    km_status status = KM_OK;
    if (!hash || !room) {
        status = km_error_set(err, KM_ERR_MEMORY, "%s: out of memory", path);
        goto done;
    }
    XXH3_64bits_reset(hash);
    if (each_piece(b, s, &h, NULL, hash, room) != KM_OK) goto failed;
    h.payload_hash = XXH3_64bits_digest(hash);
    h.hash = XXH3_64bits(&h, offsetof(sequence_header, hash));
    km_writer *w = km_writer_open(path, err);
    if (!w) {
        status = err ? err->code : KM_ERR_FILE;
        goto done;
    }
    km_writer_put(w, &h, sizeof h);
    if (each_piece(b, s, &h, w, NULL, room) != KM_OK) {
        km_writer_abort(w);
        goto failed;
    }
    status = km_writer_commit(w, err);
    goto done;
failed:
    status = km_error_set(err, km_ctx_status(b->ctx), "%s", km_ctx_error(b->ctx));
done:
    end_steps(b);
    XXH3_freeState(hash);
    km_free(room);
    return status;
}

/* ---- Reading ---- */

static km_status check(const sequence_header *h, km_sequences *b, int s, const km_map *map,
                       const char *path, km_error *err) {
    char shown[KM_SHOWN];
    sequence_header own; /* for its sizes and its model */
    km_status described = describe(b, s, &own, err);
    if (described != KM_OK) return described;
    km_shown(shown, path);
    if (map->size < sizeof *h || memcmp(h->magic, MAGIC, 8) != 0)
        return km_error_set(err, KM_ERR_FORMAT, "%s is not a session file", shown);
    if (XXH3_64bits(h, offsetof(sequence_header, hash)) != h->hash)
        return km_error_set(err, KM_ERR_FORMAT, "%s: the header is damaged", shown);
    if (h->model != own.model)
        return km_error_set(err, KM_ERR_STATE, "%s was saved with another model%s", shown,
                            b->m->adapters.changes ? ", or with other adapters" : "");
    if (h->dtype != own.dtype)
        return km_error_set(err, KM_ERR_STATE, "%s has a cache of %s, and this session %s", shown,
                            h->dtype < KM_DTYPE_COUNT ? km_dtype_name((km_dtype)h->dtype) : "?",
                            km_dtype_name(b->how.cache));
    if (h->tokens < 0 || h->tokens > b->how.context)
        return km_error_set(err, KM_ERR_RANGE, "%s has %lld tokens, and the context %lld", shown,
                            (long long)h->tokens, (long long)b->how.context);
    uint64_t pages = (uint64_t)pages_of(h->tokens);
    if (h->page != KM_KV_PAGE || h->pools != own.pools || h->page_bytes != own.page_bytes ||
        h->vocab != own.vocab || h->logits > 1 || h->absent < 0 || (uint64_t)h->absent > pages ||
        h->settled < 0 || h->settled > h->tokens)
        return km_error_set(err, KM_ERR_FORMAT, "%s: its sizes are not this model's", shown);
    uint64_t payload = (uint64_t)h->tokens * 4 + h->logits * (uint64_t)h->vocab * 4 +
                       (pages - (uint64_t)h->absent) * (uint64_t)(h->pools * h->page_bytes);
    if (h->payload != payload || map->size != sizeof *h + payload)
        return km_error_set(err, KM_ERR_FORMAT, "%s is not whole: %zu bytes, and %llu expected",
                            shown, map->size, (unsigned long long)(sizeof *h + payload));
    if (XXH3_64bits(map->data + sizeof *h, payload) != h->payload_hash)
        return km_error_set(err, KM_ERR_FORMAT, "%s is damaged: its checksum is wrong", shown);
    for (int64_t i = 0; i < h->tokens; i++) {
        int32_t id;
        memcpy(&id, map->data + sizeof *h + 4 * i, 4);
        if (id < 0 || id >= h->vocab)
            return km_error_set(err, KM_ERR_FORMAT, "%s: token %d is not in the vocabulary", shown,
                                (int)id);
    }
    return KM_OK;
}

static km_status take(km_sequences *b, int s, const sequence_header *h, const uint8_t *p,
                      km_error *err) {
    km_sequence_state *q = &b->seq[s];
    km_cache_cut(b->cache, s, 0);
    q->ready = false;
    q->settled = 0;
    km_status status = km_cache_restore(b->cache, s, h->tokens, h->absent, err);
    if (status != KM_OK) return status;
    memcpy(q->seen, p, (size_t)h->tokens * 4);
    p += h->tokens * 4;
    if (h->logits) memcpy(q->logits, p, (size_t)h->vocab * 4);
    p += h->logits ? h->vocab * 4 : 0;
    for (int64_t page = h->absent; page < pages_of(h->tokens); page++)
        for (int pool = 0; pool < h->pools; pool++, p += h->page_bytes)
            if (km_cache_page_write(b->cache, s, page, pool, p) != KM_OK)
                return km_error_set(err, km_ctx_status(b->ctx), "%s", km_ctx_error(b->ctx));
    q->ready = h->logits == 1;
    q->settled = h->numerics == numerics(b) ? h->settled : 0;
    end_steps(b);
    return KM_OK;
}

km_status km_sequences_restore(km_sequences *b, int s, const char *path, km_error *err) {
    if (whole(b, path, err) != KM_OK) return KM_ERR_UNSUPPORTED;
    km_map map = {0};
    sequence_header h = {0};
    km_status status = km_map_open(&map, path, err);
    if (status != KM_OK) return status;
    if (map.size >= sizeof h) memcpy(&h, map.data, sizeof h);
    status = check(&h, b, s, &map, path, err);
    if (status == KM_OK) status = take(b, s, &h, map.data + sizeof h, err);
    return km_map_done(&map, status, err);
}
