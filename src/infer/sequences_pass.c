/* One pass of the rows of many sequences: tokens that were chosen and chunks of prompts together. It
 * begins and ends apart, so that the host has other things to do while a GPU runs it. Nothing that
 * sequences hold changes before the end. */
#include "base/util.h"
#include "infer/sequences_impl.h"
#include <string.h>

bool km_sequences_passes(const km_sequences *b) { return !b->lead && !b->m->next; }

bool km_sequences_runs_ahead(const km_sequences *b) {
    return km_sequences_passes(b) && !b->ctx->device->host;
}

static km_status check_part(const km_sequences *b, const km_sequences_part *p, km_error *err) {
    int64_t past = km_cache_length(b->cache, p->sequence);
    if (p->n < 1 || p->n > b->how.context - past)
        return km_sequences_too_long(b, past, (size_t)p->n, err);
    for (int64_t i = 0; i < p->n; i++)
        if (km_sequences_check_id(b, p->ids[i], err) != KM_OK) return KM_ERR_RANGE;
    return KM_OK;
}

/* Pages for all parts, or for none. */
static km_status reserve(km_sequences *b, const km_sequences_part *p, int n, km_error *err) {
    km_status s = KM_OK;
    int had = 0;
    while (had < n && (s = km_sequences_reserve(b, p[had].sequence, p[had].n, err)) == KM_OK) had++;
    for (int i = 0; s != KM_OK && i < had; i++)
        km_sequences_cut(b, p[i].sequence, km_cache_length(b->cache, p[i].sequence));
    return s;
}

typedef struct pass_rows {
    int32_t id[KM_PROMPT_CHUNK], at[2 * KM_PROMPT_CHUNK];
    int64_t n;
} pass_rows;

static void put(pass_rows *r, const km_sequences_part *p, int64_t first, int64_t n) {
    for (int64_t i = first; i < first + n; i++, r->n++) {
        r->id[r->n] = p->ids[i];
        r->at[2 * r->n] = p->sequence;
        r->at[2 * r->n + 1] = (int32_t)(p->past + i);
    }
}

/* Chunks first. The last token of a chunk has its logits beside the tail where the chunk is the last one;
 * those of others are rows of their own in the tail. */
static km_status run(km_sequences *b, km_sequences_part *p, int n) {
    pass_rows r;
    int end = -1; /* the last chunk */
    int64_t row = 0, tail = 0;
    r.n = 0;
    for (int i = 0; i < n; i++)
        if (p[i].n > 1) end = i;
    for (int i = 0; i < n; i++)
        if (p[i].n > 1 && i != end) put(&r, &p[i], 0, p[i].n - p[i].wants);
    if (end >= 0) put(&r, &p[end], 0, p[end].n);
    if (end >= 0 && p[end].wants) p[end].row = row++;
    for (int i = 0; i < n; i++) {
        if (i == end || (p[i].n > 1 && !p[i].wants)) continue;
        put(&r, &p[i], p[i].n - 1, 1);
        p[i].row = row++;
        tail++;
    }
    b->wanted = row;
    return km_plan_pass(b->plan, r.id, r.at, r.n, row ? row : 1, tail);
}

km_status km_sequences_begin(km_sequences *b, km_sequences_part *part, int n, km_error *err) {
    int64_t rows = 0;
    if (!km_sequences_passes(b))
        return km_error_set(err, KM_ERR_UNSUPPORTED, "session: a model in parts has no passes");
    for (int i = 0; i < n; i++) {
        if (check_part(b, &part[i], err) != KM_OK) return KM_ERR_RANGE;
        rows += part[i].n;
    }
    if (n < 1 || rows > KM_PROMPT_CHUNK || n > KM_STEP_ROWS)
        return km_error_set(err, KM_ERR_RANGE, "session: a pass of %lld rows", (long long)rows);
    km_status s = reserve(b, part, n, err);
    if (s != KM_OK) return s;
    for (int i = 0; i < n; i++) part[i].past = km_cache_length(b->cache, part[i].sequence);
    return run(b, part, n) == KM_OK ? KM_OK : km_sequences_failed(b, err);
}

/* Of the rows that want it the tokens, by what is wanted of them. */
static km_status choose(km_sequences *b, km_sequences_part *p, int n, km_error *err) {
    km_plan_pick pick[KM_STEP_ROWS];
    bool any = false;
    memset(pick, 0, sizeof *pick * (size_t)b->wanted);
    for (int i = 0; i < n; i++) {
        if (!p[i].wants || p[i].sequence < 0 || !p[i].pick.chooser) continue;
        pick[p[i].row] = p[i].pick;
        any = true;
    }
    if (any && km_plan_pick_tokens(b->plan, pick, b->wanted) != KM_OK)
        return km_sequences_failed(b, err);
    for (int i = 0; i < n; i++) {
        if (!p[i].wants || p[i].sequence < 0) continue;
        km_sequence_state *q = &b->seq[p[i].sequence];
        if (p[i].pick.chooser)
            p[i].pick = pick[p[i].row];
        else if (km_plan_logits(b->plan, p[i].row, q->logits) != KM_OK)
            return km_sequences_failed(b, err);
    }
    return KM_OK;
}

km_status km_sequences_end(km_sequences *b, km_sequences_part *p, int n, km_error *err) {
    int64_t most = km_sequences_chunk(b);
    km_status s = choose(b, p, n, err);
    if (s != KM_OK) return s;
    km_step_end(b->ctx);
    for (int i = 0; i < n; i++) {
        if (p[i].sequence < 0) continue;
        km_sequence_state *q = &b->seq[p[i].sequence];
        memcpy(q->seen + p[i].past, p[i].ids, sizeof *p[i].ids * (size_t)p[i].n);
        km_sequences_add(b, p[i].sequence, p[i].n);
        if (q->settled >= p[i].past && (b->alone ? p[i].n > KM_FEW_ROWS : p[i].n == most))
            q->settled = p[i].past + p[i].n;
        q->ready = p[i].wants && !p[i].pick.chooser;
    }
    return KM_OK;
}
