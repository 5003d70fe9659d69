/* Batches: sequences that go on together. What other threads ask for waits in a list until the next
 * step, which the stepping thread takes: so nobody but it touches the cache, and nobody waits for a
 * step but at its beginning. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/sized.h"
#include "base/util.h"
#include "engine/engine.h"
#include <string.h>

/* Those behind IDLE have a text that is being made; PAUSED ones hold nothing. */
typedef enum slot_state {
    SLOT_FREE,
    SLOT_IDLE,
    SLOT_PAUSED,
    SLOT_READING,
    SLOT_RUNNING
} slot_state;

/* One start: what it wants, its text in the making, and its prompt. */
typedef struct batch_text {
    km_wish wish;
    km_voice voice;
    km_generated got;
    int32_t *ids; /* the prompt, or what is to be read again after a rescue */
    size_t n;
    int64_t again; /* tokens of the slot to be read again after a pause; 0: none */
    double start;
    struct batch_text *next; /* of those that wait to be freed */
} batch_text;

typedef struct batch_slot {
    slot_state state;
    bool cancel;        /* to be ended by the next step */
    int at;             /* its sequence of the cache; -1: none yet */
    int32_t *tokens;    /* (context): what it holds, for every thread */
    int64_t length;     /* of these */
    int32_t last;       /* chosen, and not yet through the model; -1: none */
    batch_text *text;   /* NULL: none was started */
    km_adapter_mix mix; /* of what it holds */
} batch_slot;

typedef enum batch_what {
    ASK_JOIN,
    ASK_FORK,
    ASK_LEAVE,
    ASK_START,
    ASK_PAUSE,
    ASK_RESUME
} batch_what;
typedef struct batch_ask { /* what the next step does first */
    struct batch_ask *next;
    batch_what what;
    int slot, from;
    int64_t length;
    batch_text *text;
} batch_ask;

struct km_batch {
    km_handle handle;
    km_model *m;
    km_ground *ground;
    km_sequences *seq;
    km_batch_options how;
    atomic_bool stepping, doomed;
    pthread_mutex_t lock; /* of what follows */
    batch_slot *slot;     /* (how.sequences) */
    batch_ask *first, *last;
    int turn;         /* whose prompt is read next */
    int reader;       /* whose prompt is being read; -1: none */
    atomic_bool cut;  /* that reading is to end */
    batch_text *done; /* texts that nobody needs, but for pieces that live until the next step */
    km_piece_event *event; /* (2 * sequences + 1), waiting to be given out */
    int n_event, given;
    km_sequences_token *row; /* (sequences) */
    int *row_slot;
    int64_t pages, pages_free;
};

/* ---- One call at a time ---- */

static void destroy(km_batch *b);

static bool usable(const char *call, km_batch *b) {
    return km_handle_open(call, b, KM_HANDLE_BATCH);
}

/* The slot, with the batch locked; NULL, with the error told, if nobody joined as that. */
static batch_slot *slot_of(const char *call, km_batch *b, int sequence) {
    if (!usable(call, b)) return NULL;
    pthread_mutex_lock(&b->lock);
    if (sequence >= 0 && sequence < b->how.sequences && b->slot[sequence].state != SLOT_FREE)
        return &b->slot[sequence];
    pthread_mutex_unlock(&b->lock);
    km_public_fail(KM_ERR_RANGE, "%s: there is no sequence %d", call, sequence);
    return NULL;
}

/* ---- Making and freeing ---- */

km_status km_batch_defaults_sized(km_batch_options *out, size_t size) {
    km_batch_options own = {.size = sizeof(km_batch_options)};
    return KM_HAND_OUT(out, size, &own, km_batch_options);
}

/* A ceiling of memory is one of pages, which sequences get as they grow; one sequence must be able to
 * come to its longest. */
static km_status fit(km_model *m, km_batch_options *o) {
    if (o->sequences < 0 || o->sequences > 4096 || o->context < 0 || o->chunk < 0)
        return km_public_fail(KM_ERR_RANGE, "km_batch_new: %lld sequences of %lld tokens",
                              (long long)o->sequences, (long long)o->context);
    if (o->context == 0 || o->context > m->config.context) o->context = m->config.context;
    if (o->sequences == 0) o->sequences = 16;
    km_cache_options c = {.dtype = m->how.cache, .sequences = 1, .context = o->context};
    size_t each = km_cache_bytes(&m->config, &c);
    if (o->memory && each > o->memory)
        return km_public_fail(KM_ERR_MEMORY,
                              "km_batch_new: a sequence of %lld tokens takes %zu bytes of cache, "
                              "and %zu are allowed",
                              (long long)o->context, each, o->memory);
    return KM_OK;
}

static km_status settle(km_batch *b, km_error *err) {
    km_ground *g = km_ground_hold(b->m);
    km_sequences_options o = km_sequences_defaults();
    o.cache = b->m->how.cache;
    o.sequences = b->how.sequences;
    o.context = b->how.context;
    o.memory = b->how.memory;
    int turn = km_gate_enter(&b->m->gate, 1);
    km_sequences *seq = km_sequences_new(g->ctx, g->net, &o, err);
    if (!seq) km_ctx_clear_error(g->ctx);
    if (seq) km_sequences_free(b->seq); /* of the ground before */
    km_gate_leave(&b->m->gate, turn);
    if (!seq) {
        km_ground_drop(g);
        return err->code;
    }
    km_ground_drop(b->ground);
    b->ground = g;
    b->seq = seq;
    return KM_OK;
}

km_batch *km_batch_new(km_model *m, const km_batch_options *options) {
    km_batch_options o = km_batch_defaults();
    km_error err = {0};
    if (!km_model_usable("km_batch_new", m, true)) return NULL;
    if (km_take_options("km_batch_new", &o, sizeof o, options) != KM_OK || fit(m, &o) != KM_OK)
        return NULL;
    if (km_token_vocab(m->token) > m->config.vocab) {
        km_public_fail(KM_ERR_RANGE, "the tokenizer has more tokens than the model");
        return NULL;
    }
    km_batch *b = km_calloc(1, sizeof *b);
    if (!b) {
        km_public_fail(KM_ERR_MEMORY, "km_batch_new: out of memory");
        return NULL;
    }
    size_t n = (size_t)o.sequences;
    b->how = o;
    b->reader = -1;
    b->m = km_model_hold(m);
    pthread_mutex_init(&b->lock, NULL);
    b->slot = km_calloc(n, sizeof *b->slot);
    b->event = km_calloc(2 * n + 1, sizeof *b->event);
    b->row = km_calloc(n, sizeof *b->row);
    b->row_slot = km_calloc(n, sizeof *b->row_slot);
    if (!b->slot || !b->event || !b->row || !b->row_slot) km_no_memory_for(&err, "a batch");
    if (err.code == KM_OK) settle(b, &err);
    if (err.code == KM_OK) {
        km_sequences_pages(b->seq, &b->pages, &b->pages_free);
        km_handle_add(&b->handle, KM_HANDLE_BATCH);
        return b;
    }
    destroy(b);
    km_last_error_set(&err);
    return NULL;
}

static void text_free(batch_text *t) {
    if (!t) return;
    km_voice_close(&t->voice);
    km_wish_free(&t->wish);
    km_free(t->ids);
    km_free(t);
}

static void free_done(km_batch *b) {
    for (batch_text *t; (t = b->done);) {
        b->done = t->next;
        text_free(t);
    }
}

static void bury(km_batch *b, batch_text *t) {
    if (!t) return;
    t->next = b->done;
    b->done = t;
}

static void destroy(km_batch *b) {
    free_done(b);
    for (batch_ask *a = b->first, *next; a; a = next) {
        next = a->next;
        text_free(a->text);
        km_free(a);
    }
    for (int64_t i = 0; b->slot && i < b->how.sequences; i++) {
        text_free(b->slot[i].text);
        km_adapters_drop(b->m, &b->slot[i].mix);
        km_free(b->slot[i].tokens);
    }
    int turn = km_gate_enter(&b->m->gate, 1);
    km_sequences_free(b->seq);
    km_gate_leave(&b->m->gate, turn);
    km_ground_drop(b->ground);
    km_model_drop(b->m);
    pthread_mutex_destroy(&b->lock);
    km_free(b->slot);
    km_free(b->event);
    km_free(b->row);
    km_free(b->row_slot);
    km_free(b);
}

void km_batch_free(km_batch *b) {
    if (!km_handle_remove(b, KM_HANDLE_BATCH)) return;
    atomic_store(&b->doomed, true);
    if (!atomic_exchange(&b->stepping, true)) destroy(b); /* else the step under way does it */
}

/* ---- What any thread may ask ---- */

/* Adds to the list; the batch is locked. */
static km_status ask(km_batch *b, batch_ask what) {
    batch_ask *a = km_alloc(sizeof *a);
    if (!a) return KM_ERR_MEMORY;
    *a = what;
    if (b->last)
        b->last->next = a;
    else
        b->first = a;
    b->last = a;
    return KM_OK;
}

/* A slot that nobody has, with room for its tokens; the batch is locked. */
static int take_slot(km_batch *b) {
    for (int i = 0; i < b->how.sequences; i++) {
        batch_slot *s = &b->slot[i];
        if (s->state != SLOT_FREE) continue;
        int32_t *tokens = s->tokens;
        if (!tokens) tokens = km_calloc((size_t)b->how.context, sizeof *tokens);
        if (!tokens) return -1;
        *s = (batch_slot){.state = SLOT_IDLE, .at = -1, .last = -1, .tokens = tokens};
        return i;
    }
    return -1;
}

static void do_asks(km_batch *b);

/* Sees to what was asked for while nobody steps: slots that were left are free then. The batch is
 * locked, before and after. */
static int take_slot_soon(km_batch *b) {
    int i = take_slot(b);
    if (i >= 0 || !b->first || atomic_exchange(&b->stepping, true)) return i;
    pthread_mutex_unlock(&b->lock);
    int turn = km_gate_enter(&b->m->gate, 1);
    pthread_mutex_lock(&b->lock);
    do_asks(b);
    km_gate_leave(&b->m->gate, turn);
    atomic_store(&b->stepping, false);
    return take_slot(b);
}

int km_batch_join(km_batch *b) {
    if (!usable("km_batch_join", b)) return -1;
    pthread_mutex_lock(&b->lock);
    int i = take_slot_soon(b);
    if (i >= 0 && ask(b, (batch_ask){.what = ASK_JOIN, .slot = i}) != KM_OK) {
        b->slot[i].state = SLOT_FREE;
        i = -1;
    }
    pthread_mutex_unlock(&b->lock);
    if (i < 0)
        km_public_fail(KM_ERR_MEMORY, "km_batch_join: all %lld sequences are in use",
                       (long long)b->how.sequences);
    return i;
}

int km_batch_fork(km_batch *b, int sequence, int64_t length) {
    batch_slot *from = slot_of("km_batch_fork", b, sequence);
    if (!from) return -1;
    int i = -1;
    if (length < -1 || length > from->length) {
        km_public_fail(KM_ERR_RANGE, "km_batch_fork: %lld tokens of %lld", (long long)length,
                       (long long)from->length);
    } else {
        if (length < 0) length = from->length;
        i = take_slot_soon(b);
        batch_ask a = {.what = ASK_FORK, .slot = i, .from = sequence, .length = length};
        if (i >= 0 && ask(b, a) != KM_OK) {
            b->slot[i].state = SLOT_FREE;
            i = -1;
        }
        if (i >= 0) {
            memcpy(b->slot[i].tokens, from->tokens, sizeof *from->tokens * (size_t)length);
            b->slot[i].length = length;
        } else {
            km_public_fail(KM_ERR_MEMORY, "km_batch_fork: all %lld sequences are in use",
                           (long long)b->how.sequences);
        }
    }
    pthread_mutex_unlock(&b->lock);
    return i;
}

/* The next step ends it; a prompt that is being read ends at once. The batch is locked. */
static void cancel(km_batch *b, int sequence) {
    b->slot[sequence].cancel = true;
    if (b->reader == sequence) atomic_store(&b->cut, true);
}

km_status km_batch_leave(km_batch *b, int sequence) {
    batch_slot *s = slot_of("km_batch_leave", b, sequence);
    if (!s) return km_last_status();
    km_status status = KM_OK;
    /* The slot is free once the step has seen it. */
    if (ask(b, (batch_ask){.what = ASK_LEAVE, .slot = sequence}) != KM_OK)
        status = km_public_fail(KM_ERR_MEMORY, "km_batch_leave: out of memory");
    else
        cancel(b, sequence);
    pthread_mutex_unlock(&b->lock);
    return status;
}

km_status km_batch_stop(km_batch *b, int sequence) {
    batch_slot *s = slot_of("km_batch_stop", b, sequence);
    if (!s) return km_last_status();
    cancel(b, sequence);
    pthread_mutex_unlock(&b->lock);
    return KM_OK;
}

static km_status ask_slot(const char *call, km_batch *b, int sequence, batch_what what) {
    batch_slot *s = slot_of(call, b, sequence);
    if (!s) return km_last_status();
    km_status status = KM_OK;
    if (s->state <= SLOT_IDLE)
        status = km_public_fail(KM_ERR_STATE, "%s: sequence %d makes no text", call, sequence);
    else if (ask(b, (batch_ask){.what = what, .slot = sequence}) != KM_OK)
        status = km_public_fail(KM_ERR_MEMORY, "%s: out of memory", call);
    pthread_mutex_unlock(&b->lock);
    return status;
}

km_status km_batch_pause(km_batch *b, int sequence) {
    return ask_slot("km_batch_pause", b, sequence, ASK_PAUSE);
}

km_status km_batch_resume(km_batch *b, int sequence) {
    return ask_slot("km_batch_resume", b, sequence, ASK_RESUME);
}

static void mirror(km_batch *b, int i);

/* Between steps: what a slot that does not run holds, to a file or from it. */
static km_status keep_slot(const char *call, km_batch *b, int sequence, const char *path,
                           bool save) {
    km_error err = {0};
    if (!usable(call, b)) return km_last_status();
    if (!path) return km_public_fail(KM_ERR_NULL, "%s: no path given", call);
    if (atomic_exchange(&b->stepping, true))
        return km_public_fail(KM_ERR_STATE, "%s: another thread steps this batch", call);
    int turn = km_gate_enter(&b->m->gate, 1);
    pthread_mutex_lock(&b->lock);
    do_asks(b);
    batch_slot *s = sequence >= 0 && sequence < b->how.sequences ? &b->slot[sequence] : NULL;
    if (!s || s->state == SLOT_FREE || s->at < 0)
        km_error_set(&err, KM_ERR_RANGE, "%s: there is no sequence %d", call, sequence);
    else if (s->state != SLOT_IDLE)
        km_error_set(&err, KM_ERR_STATE, "%s: sequence %d runs", call, sequence);
    else if (save)
        km_sequences_save(b->seq, s->at, path, &err);
    else
        km_sequences_restore(b->seq, s->at, path, &err);
    if (err.code != KM_OK) /* of a device, it is the model's no longer than this call */
        for (km_net *p = b->ground->net; p; p = p->next) km_ctx_clear_error(p->ctx);
    if (s && s->state == SLOT_IDLE && s->at >= 0 && !save) mirror(b, sequence);
    km_sequences_pages(b->seq, &b->pages, &b->pages_free);
    pthread_mutex_unlock(&b->lock);
    km_gate_leave(&b->m->gate, turn);
    atomic_store(&b->stepping, false);
    if (atomic_load(&b->doomed) && !atomic_exchange(&b->stepping, true)) destroy(b);
    return km_told(&err);
}

km_status km_batch_save(km_batch *b, int sequence, const char *path) {
    return keep_slot("km_batch_save", b, sequence, path, true);
}

km_status km_batch_restore(km_batch *b, int sequence, const char *path) {
    return keep_slot("km_batch_restore", b, sequence, path, false);
}

static km_status check_prompt(const km_batch *b, const int32_t *ids, size_t n, km_error *err) {
    if (!ids || n == 0) return km_error_set(err, KM_ERR_NULL, "km_batch_start: no tokens given");
    if (n > (size_t)b->how.context)
        return km_error_set(err, KM_ERR_RANGE,
                            "the prompt has %zu tokens and the model's context %lld", n,
                            (long long)b->how.context);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= b->m->config.vocab)
            return km_error_set(err, KM_ERR_RANGE,
                                "token %d is not in the model's vocabulary of %lld", (int)ids[i],
                                (long long)b->m->config.vocab);
    return KM_OK;
}

static batch_text *new_text(km_batch *b, const int32_t *ids, size_t n, const km_generation *how,
                            km_error *err) {
    if (check_prompt(b, ids, n, err) != KM_OK) return NULL;
    batch_text *t = km_calloc(1, sizeof *t);
    int32_t *copy = km_alloc(sizeof *ids * n);
    km_status s = t && copy ? KM_OK : km_no_memory_for(err, "a text");
    if (t) t->ids = copy;
    if (t && copy) {
        memcpy(copy, ids, sizeof *ids * n);
        t->n = n;
        t->start = km_now();
        t->got = (km_generated){.size = sizeof t->got, .prompt_tokens = (int64_t)n};
        s = km_wish_make("km_batch_start", b->m, how, &t->wish, err);
    }
    if (s == KM_OK && t && t->wish.how.shift)
        s = km_error_set(err, KM_ERR_UNSUPPORTED,
                         "km_batch_start: a batch does not shift contexts");
    if (s == KM_OK && t)
        s = km_voice_open(&t->voice, &t->wish.making, b->m->token, km_token_vocab(b->m->token),
                          err);
    if (s == KM_OK && t) s = km_voice_read(&t->voice, ids, n, err);
    if (s == KM_OK) return t;
    if (!t) km_free(copy);
    text_free(t);
    return NULL;
}

km_status km_batch_start(km_batch *b, int sequence, const int32_t *ids, size_t n,
                         const km_generation *how) {
    km_error err = {0};
    if (!usable("km_batch_start", b)) return km_last_status();
    batch_text *t = new_text(b, ids, n, how, &err); /* before the lock: grammars take their time */
    if (!t) return km_told(&err);
    batch_slot *s = slot_of("km_batch_start", b, sequence);
    if (!s) {
        text_free(t);
        return km_last_status();
    }
    if (s->state != SLOT_IDLE)
        km_error_set(&err, KM_ERR_STATE, "km_batch_start: sequence %d runs already", sequence);
    else if (ask(b, (batch_ask){.what = ASK_START, .slot = sequence, .text = t}) != KM_OK)
        km_no_memory_for(&err, "a text");
    if (err.code == KM_OK) {
        s->state = SLOT_READING;
        s->cancel = false;
    }
    pthread_mutex_unlock(&b->lock);
    if (err.code != KM_OK) text_free(t);
    return km_told(&err);
}

/* ---- Beginning a step ---- */

static void put_event(km_batch *b, int slot, const km_piece_event *e) {
    if (b->n_event > 2 * b->how.sequences) return; /* of texts that were left, nobody asks */
    b->event[b->n_event] = *e;
    b->event[b->n_event++].sequence = slot;
}

/* The text of a slot has ended; its pieces stay until the next step. */
static void end_text(km_batch *b, int i) {
    batch_slot *s = &b->slot[i];
    s->state = SLOT_IDLE;
    s->last = -1;
    s->cancel = false;
    if (s->text) s->text->got.end = s->text->voice.end;
}

static void fail_text(km_batch *b, int i, const km_error *err) {
    batch_slot *s = &b->slot[i];
    if (!s->text) return;
    km_text *text = &s->text->voice.text;
    text->len = 0;
    km_text_add(text, err->text);
    s->text->voice.end = KM_ENDED_CANCELLED;
    km_piece_event e = km_voice_event(&s->text->voice, -1);
    e.status = err->code;
    put_event(b, i, &e);
    end_text(b, i);
}

/* What the slot's sequence holds, so that every thread can see it. */
static void mirror(km_batch *b, int i) {
    batch_slot *s = &b->slot[i];
    const int32_t *ids = s->at >= 0 ? km_sequences_tokens(b->seq, s->at) : NULL;
    int64_t n = ids ? km_sequences_length(b->seq, s->at) : 0;
    int64_t same = km_min64(n, s->length);
    while (ids && same > 0 && s->tokens[same - 1] != ids[same - 1]) same--;
    if (ids && n > same) memcpy(s->tokens + same, ids + same, sizeof *ids * (size_t)(n - same));
    s->length = n;
}

static km_status do_ask(km_batch *b, batch_ask *a, km_error *err) {
    batch_slot *s = &b->slot[a->slot];
    int from = a->what == ASK_FORK ? b->slot[a->from].at : -1;
    switch (a->what) {
    case ASK_JOIN:
    case ASK_FORK:
        s->at = from >= 0 ? km_sequences_fork(b->seq, from, err) : km_sequences_join(b->seq, err);
        if (s->at >= 0) km_sequences_rewind(b->seq, s->at, a->length);
        if (from >= 0) {
            s->mix = b->slot[a->from].mix;
            km_adapters_hold(b->m, &s->mix);
        }
        mirror(b, a->slot);
        return s->at >= 0 ? KM_OK : err->code;
    case ASK_LEAVE:
        if (s->at >= 0) km_sequences_leave(b->seq, s->at);
        if (s->state > SLOT_IDLE)
            put_event(b, a->slot,
                      &(km_piece_event){.id = -1, .text = "", .end = KM_ENDED_CANCELLED});
        bury(b, s->text);
        km_adapters_drop(b->m, &s->mix);
        *s = (batch_slot){.state = SLOT_FREE, .at = -1, .last = -1, .tokens = s->tokens};
        return KM_OK;
    case ASK_START:
        bury(b, s->text);
        s->text = a->text;
        a->text = NULL;
        if (s->at < 0 && (s->at = km_sequences_join(b->seq, err)) < 0) return err->code;
        {
            batch_text *t = s->text;
            km_sequences_set_mix(b->seq, s->at, &t->wish.mix);
            km_adapters_drop(b->m, &s->mix);
            s->mix = t->wish.mix;
            t->wish.mix = (km_adapter_mix){0};
            int64_t same = t->wish.how.exact ? km_sequences_settled(b->seq, s->at, t->ids, t->n)
                                             : km_sequences_match(b->seq, s->at, t->ids, t->n);
            if (same == (int64_t)t->n) same--; /* the last is read for its logits */
            km_sequences_rewind(b->seq, s->at, same);
            t->got.reused = km_sequences_length(b->seq, s->at);
            mirror(b, a->slot);
        }
        return KM_OK;
    case ASK_PAUSE:
        if (s->state < SLOT_READING || !s->text) return KM_OK; /* it has ended meanwhile */
        /* A prompt that is still being read is read from its beginning. */
        if (s->state == SLOT_RUNNING) s->text->again = s->length;
        s->state = SLOT_PAUSED;
        if (s->at >= 0) km_sequences_rewind(b->seq, s->at, 0);
        s->length = 0;
        return KM_OK;
    case ASK_RESUME:
        if (s->state == SLOT_PAUSED) s->state = SLOT_READING;
        return KM_OK;
    }
    return KM_OK;
}

/* A text that was to run and is told to leave gets its last event from here. */
static void do_asks(km_batch *b) {
    for (batch_ask *a; (a = b->first);) {
        km_error err = {0};
        b->first = a->next;
        if (!b->first) b->last = NULL;
        if (do_ask(b, a, &err) != KM_OK && a->what == ASK_START) fail_text(b, a->slot, &err);
        text_free(a->text);
        km_free(a);
    }
    km_sequences_pages(b->seq, &b->pages, &b->pages_free);
    for (int i = 0; i < b->how.sequences; i++) {
        batch_slot *s = &b->slot[i];
        if (!s->cancel || s->state <= SLOT_IDLE || !s->text) continue;
        km_error ignored = {0};
        s->text->voice.text.len = 0;
        km_voice_end(&s->text->voice, KM_ENDED_CANCELLED, &ignored);
        km_piece_event e = km_voice_event(&s->text->voice, -1);
        put_event(b, i, &e);
        end_text(b, i);
    }
}

/* ---- The step ---- */

/* The next prompt to read from, in turns; -1: none. */
static int next_reader(km_batch *b) {
    int n = (int)b->how.sequences;
    for (int k = 0; k < n; k++) {
        int i = (b->turn + k) % n;
        if (b->slot[i].state == SLOT_READING && b->slot[i].text) return i;
    }
    return -1;
}

static int collect_rows(km_batch *b) {
    int n = 0;
    for (int i = 0; i < b->how.sequences; i++) {
        batch_slot *s = &b->slot[i];
        if (s->state != SLOT_RUNNING || s->last < 0) continue;
        b->row[n] = (km_sequences_token){s->at, s->last};
        b->row_slot[n++] = i;
    }
    return n;
}

/* Chooses a token from the logits that are there, and tells of it. */
static void choose(km_batch *b, int i) {
    batch_slot *s = &b->slot[i];
    batch_text *t = s->text;
    km_error err = {0};
    int32_t id = -1;
    km_status status = km_voice_choose(&t->voice, km_sequences_logits(b->seq, s->at), &id, &err);
    if (t->voice.tokens == 0) t->got.first_seconds = km_now() - t->start;
    if (status == KM_OK) status = km_voice_take(&t->voice, id, &err);
    if (status == KM_OK && t->voice.end == KM_ENDED_NOT &&
        km_sequences_length(b->seq, s->at) >= b->how.context)
        status = km_voice_end(&t->voice, KM_ENDED_CONTEXT, &err);
    if (status != KM_OK) {
        fail_text(b, i, &err);
        return;
    }
    s->last = id;
    s->state = SLOT_RUNNING;
    t->got.tokens = t->voice.tokens;
    t->got.seconds = km_now() - t->start - t->got.prompt_seconds;
    km_piece_event e = km_voice_event(&t->voice, t->voice.end == KM_ENDED_TEXT ? -1 : id);
    put_event(b, i, &e);
    if (t->voice.end != KM_ENDED_NOT) end_text(b, i);
}

/* Prompt tokens beside rows that are made: few enough that nobody waits long. */
static int64_t chunk_of(const km_batch *b, int rows) {
    int64_t most = km_sequences_chunk(b->seq);
    if (b->how.chunk) return km_min64(b->how.chunk, most);
    return rows ? km_min64(128, most) : most;
}

/* A rank, device or memory that failed: the model's other ground, with everything read again. */
static bool rescued(km_batch *b, const km_error *why) {
    bool device = why->code == KM_ERR_GPU || why->code == KM_ERR_MEMORY ||
                  why->code == KM_ERR_DEVICE || why->code == KM_ERR_UNSUPPORTED;
    km_error err = {0};
    if (!device || !km_ground_rescue(b->m, b->ground, why) || settle(b, &err) != KM_OK)
        return false;
    pthread_mutex_lock(&b->lock);
    for (int i = 0; i < b->how.sequences; i++) {
        batch_slot *s = &b->slot[i];
        if (s->state == SLOT_FREE) continue;
        s->at = km_sequences_join(b->seq, &err);
        if (s->at >= 0) km_sequences_set_mix(b->seq, s->at, &s->mix);
        if (s->state < SLOT_READING || s->at < 0 || !s->text || !s->length) continue;
        /* what it held, and nothing of the prompt that was not read yet */
        if (km_sequences_read(b->seq, s->at, s->tokens, (size_t)s->length, &err) != KM_OK)
            fail_text(b, i, &err);
    }
    pthread_mutex_unlock(&b->lock);
    return true;
}

static void fail_rows(km_batch *b, int n, const km_error *err) {
    for (int k = 0; k < n; k++) fail_text(b, b->row_slot[k], err);
}

static void run_rows(km_batch *b, int n) {
    km_error err = {0};
    if (n == 0) return;
    if (km_sequences_step(b->seq, b->row, n, &err) != KM_OK && rescued(b, &err)) {
        err = (km_error){0};
        for (int k = 0; k < n; k++) b->row[k].sequence = b->slot[b->row_slot[k]].at;
        km_sequences_step(b->seq, b->row, n, &err);
    }
    pthread_mutex_lock(&b->lock);
    if (err.code != KM_OK) {
        for (km_net *p = b->ground->net; p; p = p->next) km_ctx_clear_error(p->ctx);
        fail_rows(b, n, &err);
    }
    for (int k = 0; k < n; k++) {
        batch_slot *s = &b->slot[b->row_slot[k]];
        if (s->state != SLOT_RUNNING || err.code != KM_OK) continue;
        s->tokens[s->length++] = s->last;
    }
    pthread_mutex_unlock(&b->lock);
}

/* Tokens of the next chunk, after `at`. Few rows go through other kernels than many, which round in
 * another order: so a prompt is not cut such that few are left, and what was chosen one by one before a
 * pause is read as few rows again. Then the text does not depend on where it was cut or paused. */
static int64_t chunk_at(const km_batch *b, const batch_text *t, int64_t at, int64_t chunk) {
    int64_t most = km_sequences_chunk(b->seq), left = (int64_t)t->n - at;
    if (left <= 0) return km_min64(t->again - at, KM_FEW_ROWS);
    left = km_min64(left, most - at % most);
    int64_t n = km_min64(left, chunk), rest = left - n;
    if (rest > 0 && rest <= KM_FEW_ROWS && n - (KM_FEW_ROWS + 1 - rest) > KM_FEW_ROWS)
        n -= KM_FEW_ROWS + 1 - rest;
    return n;
}

static void read_chunk(km_batch *b, batch_slot *s, int64_t chunk, km_error *err) {
    batch_text *t = s->text;
    int64_t at = km_sequences_length(b->seq, s->at);
    const int32_t *from = at < (int64_t)t->n ? t->ids : s->tokens;
    km_sequences_cancel_by(b->seq, s->at, &b->cut);
    km_sequences_read(b->seq, s->at, from + at, (size_t)chunk_at(b, t, at, chunk), err);
    km_sequences_cancel_by(b->seq, s->at, NULL);
}

/* A chunk of a prompt; true when all of it is read and the first token is to be chosen. */
static bool run_prompt(km_batch *b, int i, int64_t chunk) {
    batch_slot *s = &b->slot[i];
    batch_text *t = s->text;
    km_error err = {0};
    read_chunk(b, s, chunk, &err);
    if (err.code != KM_OK && rescued(b, &err)) {
        err = (km_error){0};
        read_chunk(b, s, chunk, &err);
    }
    bool read = false;
    pthread_mutex_lock(&b->lock);
    b->reader = -1;
    if (err.code == KM_ERR_STATE && s->cancel) {
        mirror(b, i); /* the next step tells of its end */
    } else if (err.code != KM_OK) {
        for (km_net *p = b->ground->net; p; p = p->next) km_ctx_clear_error(p->ctx);
        fail_text(b, i, &err);
    } else {
        mirror(b, i);
        read = s->length == km_max64(t->again, (int64_t)t->n);
        if (read && t->again) { /* its next token was chosen before the pause */
            t->again = 0;
            s->state = SLOT_RUNNING;
            read = false;
        } else if (!t->again) {
            t->got.prompt_seconds = km_now() - t->start;
        }
    }
    pthread_mutex_unlock(&b->lock);
    return read;
}

static void step(km_batch *b) {
    int turn = km_gate_enter(&b->m->gate, 1);
    pthread_mutex_lock(&b->lock);
    b->n_event = b->given = 0;
    free_done(b);
    do_asks(b);
    int rows = collect_rows(b), reader = next_reader(b);
    b->reader = reader;
    atomic_store(&b->cut, false);
    int64_t chunk = chunk_of(b, rows);
    pthread_mutex_unlock(&b->lock);
    run_rows(b, rows);
    bool read =
        reader >= 0 && b->slot[reader].state == SLOT_READING && run_prompt(b, reader, chunk);
    km_gate_leave(&b->m->gate, turn);
    pthread_mutex_lock(&b->lock);
    b->reader = -1;
    if (reader >= 0) b->turn = (reader + 1) % (int)b->how.sequences;
    for (int k = 0; k < rows; k++)
        if (b->slot[b->row_slot[k]].state == SLOT_RUNNING) choose(b, b->row_slot[k]);
    if (read) choose(b, reader);
    km_sequences_pages(b->seq, &b->pages, &b->pages_free);
    if (reader >= 0 && b->n_event == 0) put_event(b, -1, &(km_piece_event){.id = -1, .text = ""});
    pthread_mutex_unlock(&b->lock);
}

int km_batch_step(km_batch *b, km_piece_event *events, int most) {
    if (!usable("km_batch_step", b)) return -1;
    if (!events || most < 1) {
        km_public_fail(KM_ERR_NULL, "km_batch_step: no room for events");
        return -1;
    }
    if (atomic_exchange(&b->stepping, true)) {
        km_public_fail(KM_ERR_STATE, "km_batch_step: another thread steps this batch");
        return -1;
    }
    pthread_mutex_lock(&b->lock);
    bool none = b->given == b->n_event;
    pthread_mutex_unlock(&b->lock);
    if (none) step(b);
    pthread_mutex_lock(&b->lock);
    int n = b->n_event - b->given < most ? b->n_event - b->given : most;
    for (int i = 0; i < n; i++) events[i] = b->event[b->given++];
    pthread_mutex_unlock(&b->lock);
    atomic_store(&b->stepping, false);
    if (atomic_load(&b->doomed) && !atomic_exchange(&b->stepping, true)) destroy(b);
    return n;
}

/* ---- Telling ---- */

static km_batch_state describe(km_batch *b) {
    if (!usable("km_batch_describe", b)) return (km_batch_state){0};
    km_batch_state s = {.size = sizeof s, .sequences = b->how.sequences, .page_tokens = KM_KV_PAGE};
    pthread_mutex_lock(&b->lock);
    for (int i = 0; i < b->how.sequences; i++) {
        const batch_slot *q = &b->slot[i];
        s.joined += q->state != SLOT_FREE;
        s.running += q->state >= SLOT_READING;
        s.reading += q->state == SLOT_READING;
        s.paused += q->state == SLOT_PAUSED;
    }
    s.pages = b->pages;
    s.pages_free = b->pages_free;
    pthread_mutex_unlock(&b->lock);
    return s;
}

km_status km_batch_describe_sized(km_batch *b, km_batch_state *out, size_t size) {
    km_batch_state own = describe(b);
    return KM_HAND_OUT(out, size, &own, km_batch_state);
}

int64_t km_batch_length(km_batch *b, int sequence) {
    batch_slot *s = slot_of("km_batch_length", b, sequence);
    if (!s) return -1;
    int64_t n = s->length;
    pthread_mutex_unlock(&b->lock);
    return n;
}

int64_t km_batch_tokens(km_batch *b, int sequence, int32_t *ids, size_t cap) {
    batch_slot *s = slot_of("km_batch_tokens", b, sequence);
    if (!s) return -1;
    int64_t n = s->length;
    if (ids) memcpy(ids, s->tokens, sizeof *ids * ((size_t)n < cap ? (size_t)n : cap));
    pthread_mutex_unlock(&b->lock);
    return n;
}

km_status km_batch_generated_sized(km_batch *b, int sequence, km_generated *out, size_t size) {
    batch_slot *s = slot_of("km_batch_generated", b, sequence);
    km_generated got = {0};
    if (s) {
        got = s->text ? s->text->got : (km_generated){.size = sizeof got};
        pthread_mutex_unlock(&b->lock);
    }
    return KM_HAND_OUT(out, size, &got, km_generated);
}
