/* The messages between the rank that leads and those that follow. A message is one frame of fixed
 * size, which holds a step of one token with room to spare; what does not fit comes after it. */
#include "infer/follow.h"
#include "base/alloc.h"
#include "base/array.h"
#include <string.h>

typedef enum note_kind { BEGIN, END, FEW, CHOOSE, PROMPT, DISMISS } note_kind;

typedef struct note {
    int32_t what, sequence;
    int64_t n;
} note;

#define INSIDE 216

typedef struct frame {
    int32_t kind, notes;    /* how many */
    int32_t n, steps;       /* rows; for CHOOSE */
    int32_t sequence, want; /* for PROMPT: whose; whether logits are made */
    int64_t position;       /* for PROMPT; for BEGIN the context */
    uint64_t bytes;         /* of notes, ids, rows and choosers, one after the other */
    unsigned char inside[INSIDE];
} frame;

_Static_assert(sizeof(frame) == 256, "a frame is four cache lines");

/* Bytes that grow. */
typedef struct message {
    unsigned char *at;
    size_t len, cap;
    bool failed;
} message;

static void put(message *b, const void *data, size_t n) {
    if (b->failed || n == 0) return;
    if (!km_array_reserve(&b->at, &b->cap, b->len + n)) {
        b->failed = true;
        return;
    }
    memcpy(b->at + b->len, data, n);
    b->len += n;
}

/* ---- Rank 0 ---- */

struct km_lead {
    const km_net *m;
    message body; /* the notes so far, and then the step */
    int notes;
};

static km_status send_frame(km_comm *c, frame *f, const message *body, km_error *err) {
    if (body) {
        f->bytes = body->len;
        if (body->len) memcpy(f->inside, body->at, body->len < INSIDE ? body->len : INSIDE);
    }
    km_status s = km_comm_broadcast(c, 0, f, sizeof *f, err);
    if (s == KM_OK && f->bytes > INSIDE)
        s = km_comm_broadcast(c, 0, body->at + INSIDE, body->len - INSIDE, err);
    return s;
}

km_status km_lead_begin(const km_net *m, const km_cache_options *o, km_lead **out, km_error *err) {
    *out = NULL;
    if (!m->comm) return KM_OK;
    km_lead *l = km_calloc(1, sizeof *l);
    if (!l) return km_error_set(err, KM_ERR_MEMORY, "session: out of memory");
    l->m = m;
    frame f = {.kind = BEGIN,
               .n = o->dtype,
               .sequence = (int32_t)o->sequences,
               .position = o->context,
               .steps = (int32_t)o->pages};
    km_status s = send_frame(m->comm, &f, NULL, err);
    if (s == KM_OK)
        *out = l;
    else
        km_free(l);
    return s;
}

void km_lead_end(km_lead *l) {
    if (!l) return;
    send_frame(l->m->comm, &(frame){.kind = END}, NULL, NULL);
    km_free(l->body.at);
    km_free(l);
}

void km_lead_dismiss(const km_net *m) {
    if (m && m->comm && m->share.rank == 0)
        send_frame(m->comm, &(frame){.kind = DISMISS}, NULL, NULL);
}

void km_lead_note(km_lead *l, km_lead_what what, int sequence, int64_t n) {
    if (!l) return;
    put(&l->body, &(note){what, sequence, n}, sizeof(note));
    l->notes++;
}

static km_status tell(km_lead *l, frame *f, const int32_t *ids, const int32_t *rows,
                      km_chooser *const *chooser) {
    km_error err = {0};
    size_t n = (size_t)f->n;
    put(&l->body, ids, sizeof *ids * n);
    if (rows) put(&l->body, rows, sizeof *rows * 2 * n);
    for (size_t i = 0; chooser && i < n; i++) put(&l->body, chooser[i], sizeof *chooser[i]);
    f->notes = l->notes;
    if (l->body.failed)
        km_error_set(&err, KM_ERR_MEMORY, "session: out of memory");
    else
        send_frame(l->m->comm, f, &l->body, &err);
    l->body.len = 0;
    l->notes = 0;
    return err.code == KM_OK ? KM_OK : km_fail(l->m->ctx, err.code, "%s", err.text);
}

km_status km_lead_few(km_lead *l, const int32_t *ids, const int32_t *rows, int64_t n) {
    return l ? tell(l, &(frame){.kind = FEW, .n = (int32_t)n}, ids, rows, NULL) : KM_OK;
}

km_status km_lead_choose(km_lead *l, const int32_t *ids, const int32_t *rows, int64_t n,
                         int64_t steps, km_chooser *const *chooser) {
    frame f = {.kind = CHOOSE, .n = (int32_t)n, .steps = (int32_t)steps};
    return l ? tell(l, &f, ids, rows, chooser) : KM_OK;
}

km_status km_lead_prompt(km_lead *l, const int32_t *ids, int64_t n, int sequence, int64_t position,
                         bool logits) {
    frame f = {.kind = PROMPT,
               .n = (int32_t)n,
               .sequence = sequence,
               .position = position,
               .want = logits};
    return l ? tell(l, &f, ids, NULL, NULL) : KM_OK;
}

/* ---- The others ---- */

typedef struct follower {
    km_net *m;
    km_ctx *ctx;
    km_cache *cache;
    km_plan *plan;
    message body;
    float *logits; /* (vocab): they come here too, and nobody looks */
} follower;

static void let_go(follower *w) {
    km_plan_free(w->plan);
    km_cache_free(w->cache);
    w->plan = NULL;
    w->cache = NULL;
}

static km_status begin(follower *w, const frame *f) {
    km_cache_options o = {(km_dtype)f->n, f->sequence, f->position, f->steps};
    let_go(w);
    w->cache = km_cache_new(w->ctx, w->m, &o);
    w->plan = w->cache ? km_plan_new(w->ctx, w->m, w->cache) : NULL;
    return km_ctx_status(w->ctx);
}

/* All that a frame came with, in w->body. */
static km_status receive(follower *w, frame *f, km_error *err) {
    km_status s = km_comm_broadcast(w->m->comm, 0, f, sizeof *f, err);
    if (s != KM_OK) return s;
    w->body.len = 0;
    put(&w->body, f->inside, f->bytes < INSIDE ? f->bytes : INSIDE);
    if (f->bytes <= INSIDE) return KM_OK;
    size_t more = f->bytes - INSIDE;
    void *room = km_calloc(1, more);
    if (!room) return km_error_set(err, KM_ERR_MEMORY, "session: out of memory");
    s = km_comm_broadcast(w->m->comm, 0, room, more, err);
    put(&w->body, room, more);
    km_free(room);
    return s;
}

static km_status heed(km_cache *c, const note *t, km_error *err) {
    switch (t->what) {
    case KM_LEAD_JOIN: return km_cache_join(c, err) == t->sequence ? KM_OK : KM_ERR_STATE;
    case KM_LEAD_FORK:
        return km_cache_fork(c, (int)t->n, err) == t->sequence ? KM_OK : KM_ERR_STATE;
    case KM_LEAD_LEAVE: km_cache_leave(c, t->sequence); return KM_OK;
    case KM_LEAD_RESERVE: return km_cache_reserve(c, t->sequence, t->n, err);
    case KM_LEAD_ADD: km_cache_add(c, t->sequence, t->n); return KM_OK;
    default: return km_cache_cut(c, t->sequence, t->n) ? KM_OK : KM_ERR_STATE;
    }
}

static km_status heed_all(follower *w, const frame *f, km_error *err) {
    for (int i = 0; i < f->notes; i++) {
        note t;
        memcpy(&t, w->body.at + sizeof t * (size_t)i, sizeof t);
        km_status s = heed(w->cache, &t, err);
        if (s != KM_OK && err->code == KM_OK)
            km_error_set(err, s, "rank %d lost track of rank 0's sequences", w->m->share.rank);
        if (s != KM_OK) return s;
    }
    return KM_OK;
}

static km_status choose(follower *w, const frame *f, const int32_t *ids, const int32_t *rows,
                        const unsigned char *choosers) {
    km_chooser *all = km_calloc((size_t)f->n, sizeof *all), *at[KM_STEP_ROWS];
    if (!all) return km_fail(w->ctx, KM_ERR_MEMORY, "session: out of memory");
    memcpy(all, choosers, sizeof *all * (size_t)f->n);
    for (int i = 0; i < f->n; i++) at[i] = &all[i];
    km_status s = km_plan_choose(w->plan, ids, rows, f->n, f->steps, at);
    km_free(all);
    return s;
}

static km_status step(follower *w, const frame *f, km_error *err) {
    size_t n = (size_t)f->n, notes = sizeof(note) * (size_t)f->notes;
    const int32_t *ids = (const int32_t *)(const void *)(w->body.at + notes), *rows = ids + n;
    if (!w->plan) return km_error_set(err, KM_ERR_STATE, "a step before there is a session");
    km_status s = heed_all(w, f, err);
    if (s != KM_OK) return s;
    if (f->kind == FEW)
        km_plan_few(w->plan, ids, rows, f->n, NULL);
    else if (f->kind == CHOOSE)
        choose(w, f, ids, rows, (const unsigned char *)(rows + 2 * n));
    else
        km_plan_prompt(w->plan, ids, f->n, f->sequence, f->position, f->want ? w->logits : NULL);
    return km_ctx_status(w->ctx);
}

static km_status obey(follower *w, const frame *f, km_error *err) {
    km_status s = KM_OK;
    if (f->kind == BEGIN)
        s = begin(w, f);
    else if (f->kind == END)
        let_go(w);
    else
        s = step(w, f, err);
    if (s != KM_OK && err->code == KM_OK) km_error_set(err, s, "%s", km_ctx_error(w->ctx));
    return s;
}

km_status km_follow(km_net *m, km_error *err) {
    follower w = {.m = m, .ctx = m->ctx};
    frame f;
    km_error own = {0};
    if (!err) err = &own;
    w.logits = km_calloc((size_t)m->config.vocab, sizeof *w.logits);
    km_status s = w.logits ? KM_OK : km_error_set(err, KM_ERR_MEMORY, "session: out of memory");
    while (s == KM_OK) {
        s = receive(&w, &f, err);
        if (s == KM_OK && w.body.failed)
            s = km_error_set(err, KM_ERR_MEMORY, "session: out of memory");
        if (s != KM_OK || f.kind == DISMISS) break;
        s = obey(&w, &f, err);
    }
    let_go(&w);
    km_free(w.logits);
    km_free(w.body.at);
    return s;
}
