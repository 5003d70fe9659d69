/* Batches: sequences that go on together. What other threads ask for waits in a list until the next
 * step, which the stepping thread takes: so nobody but it touches the cache, and nobody waits for a
 * step but at its beginning. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/sized.h"
#include "base/util.h"
#include "engine/batch.h"
#include <stdlib.h>
#include <string.h>

/* ---- One call at a time ---- */

bool km_batch_usable(km_inside *in, const char *call, km_batch *b) {
    return km_enter_shared(in, call, b, KM_HANDLE_BATCH);
}

batch_slot *km_batch_slot(km_inside *in, const char *call, km_batch *b, int sequence) {
    if (!km_batch_usable(in, call, b)) return NULL;
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

km_status km_batch_settle(km_batch *b, km_error *err) {
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
    b->page_bytes = km_sequences_page_bytes(seq);
    return KM_OK;
}

static void destroy(void *batch);

km_batch *km_batch_new(km_model *m, const km_batch_options *options) {
    km_batch_options o = km_batch_defaults();
    km_error err = {0};
    KM_HOLDING(held);
    if (!km_model_usable(&held, "km_batch_new", m, true)) return NULL;
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
    const char *ahead = getenv("KERMES_RUN_AHEAD");
    b->ahead = ahead && *ahead ? (*ahead == '0' ? -1 : 1) : 0;
    b->m = km_model_hold(m);
    pthread_mutex_init(&b->lock, NULL);
    b->slot = km_calloc(n, sizeof *b->slot);
    b->event = km_calloc(2 * n + 1, sizeof *b->event);
    b->row = km_calloc(n, sizeof *b->row);
    b->row_slot = km_calloc(n, sizeof *b->row_slot);
    b->part = km_calloc(n, sizeof *b->part);
    b->part_slot = km_calloc(n, sizeof *b->part_slot);
    b->part_id = km_calloc(n, sizeof *b->part_id);
    b->chosen = km_calloc(n, sizeof *b->chosen);
    if (!b->part || !b->part_slot || !b->part_id || !b->chosen) km_no_memory_for(&err, "a batch");
    if (!b->slot || !b->event || !b->row || !b->row_slot) km_no_memory_for(&err, "a batch");
    if (err.code == KM_OK) km_batch_settle(b, &err);
    if (err.code == KM_OK) {
        km_sequences_pages(b->seq, &b->pages, &b->pages_free);
        km_handle_add(&b->handle, KM_HANDLE_BATCH);
        return b;
    }
    destroy(b);
    km_last_error_set(&err);
    return NULL;
}

void km_batch_text_free(batch_text *t) {
    if (!t) return;
    km_voice_close(&t->voice);
    km_chooser_end(&t->chooser);
    km_wish_free(&t->wish);
    km_free(t->ids);
    km_free(t);
}

void km_batch_free_done(km_batch *b) {
    for (batch_text *t; (t = b->done);) {
        b->done = t->next;
        km_batch_text_free(t);
    }
}

void km_batch_bury(km_batch *b, batch_text *t) {
    if (!t) return;
    t->next = b->done;
    b->done = t;
}

static void destroy(void *batch) {
    km_batch *b = batch;
    km_batch_free_done(b);
    for (batch_ask *a = b->first, *next; a; a = next) {
        next = a->next;
        km_batch_text_free(a->text);
        km_free(a);
    }
    for (int64_t i = 0; b->slot && i < b->how.sequences; i++) {
        km_batch_text_free(b->slot[i].text);
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
    km_free(b->part);
    km_free(b->part_slot);
    km_free(b->part_id);
    km_free(b->chosen);
    km_free(b);
}

void km_batch_free(km_batch *b) { km_handle_free("km_batch_free", b, KM_HANDLE_BATCH, destroy); }

/* ---- What any thread may ask ---- */

km_status km_batch_ask(km_batch *b, batch_ask what) {
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

/* Sees to what was asked for while nobody steps: slots that were left are free then. The batch is
 * locked, before and after. */
static int take_slot_soon(km_batch *b) {
    int i = take_slot(b);
    if (i >= 0 || !b->first || atomic_exchange(&b->stepping, true)) return i;
    pthread_mutex_unlock(&b->lock);
    int turn = km_gate_enter(&b->m->gate, 1);
    pthread_mutex_lock(&b->lock);
    km_batch_do_asks(b);
    km_gate_leave(&b->m->gate, turn);
    atomic_store(&b->stepping, false);
    return take_slot(b);
}

int km_batch_join(km_batch *b) {
    KM_INSIDE(in);
    if (!km_batch_usable(&in, "km_batch_join", b)) return -1;
    pthread_mutex_lock(&b->lock);
    int i = take_slot_soon(b);
    if (i >= 0 && km_batch_ask(b, (batch_ask){.what = ASK_JOIN, .slot = i}) != KM_OK) {
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
    KM_INSIDE(in);
    batch_slot *from = km_batch_slot(&in, "km_batch_fork", b, sequence);
    if (!from) return -1;
    int i = -1;
    if (length < -1 || length > from->length) {
        km_public_fail(KM_ERR_RANGE, "km_batch_fork: %lld tokens of %lld", (long long)length,
                       (long long)from->length);
    } else {
        if (length < 0) length = from->length;
        i = take_slot_soon(b);
        batch_ask a = {.what = ASK_FORK, .slot = i, .from = sequence, .length = length};
        if (i >= 0 && km_batch_ask(b, a) != KM_OK) {
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
    KM_INSIDE(in);
    batch_slot *s = km_batch_slot(&in, "km_batch_leave", b, sequence);
    if (!s) return km_last_status();
    km_status status = KM_OK;
    /* The slot is free once the step has seen it. */
    if (km_batch_ask(b, (batch_ask){.what = ASK_LEAVE, .slot = sequence}) != KM_OK)
        status = km_public_fail(KM_ERR_MEMORY, "km_batch_leave: out of memory");
    else
        cancel(b, sequence);
    pthread_mutex_unlock(&b->lock);
    return status;
}

km_status km_batch_stop(km_batch *b, int sequence) {
    KM_INSIDE(in);
    batch_slot *s = km_batch_slot(&in, "km_batch_stop", b, sequence);
    if (!s) return km_last_status();
    cancel(b, sequence);
    pthread_mutex_unlock(&b->lock);
    return KM_OK;
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
    km_batch_text_free(t);
    return NULL;
}

km_status km_batch_start(km_batch *b, int sequence, const int32_t *ids, size_t n,
                         const km_generation *how) {
    km_error err = {0};
    KM_INSIDE(in);
    if (!km_batch_usable(&in, "km_batch_start", b)) return km_last_status();
    batch_text *t = new_text(b, ids, n, how, &err); /* before the lock: grammars take their time */
    if (!t) return km_told(&err);
    batch_slot *s = km_batch_slot(&in, "km_batch_start", b, sequence);
    if (!s) {
        km_batch_text_free(t);
        return km_last_status();
    }
    if (s->state != SLOT_IDLE)
        km_error_set(&err, KM_ERR_STATE, "km_batch_start: sequence %d runs already", sequence);
    else if (km_batch_ask(b, (batch_ask){.what = ASK_START, .slot = sequence, .text = t}) != KM_OK)
        km_no_memory_for(&err, "a text");
    if (err.code == KM_OK) {
        s->state = SLOT_READING;
        s->cancel = false;
    }
    pthread_mutex_unlock(&b->lock);
    if (err.code != KM_OK) km_batch_text_free(t);
    return km_told(&err);
}

/* ---- Telling ---- */

static km_batch_state describe(km_batch *b) {
    KM_INSIDE(in);
    if (!km_batch_usable(&in, "km_batch_describe", b)) return (km_batch_state){0};
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
    s.page_bytes = b->page_bytes;
    pthread_mutex_unlock(&b->lock);
    return s;
}

km_status km_batch_describe_sized(km_batch *b, km_batch_state *out, size_t size) {
    km_batch_state own = describe(b);
    return KM_HAND_OUT(out, size, &own, km_batch_state);
}

int64_t km_batch_length(km_batch *b, int sequence) {
    KM_INSIDE(in);
    batch_slot *s = km_batch_slot(&in, "km_batch_length", b, sequence);
    if (!s) return -1;
    int64_t n = s->length;
    pthread_mutex_unlock(&b->lock);
    return n;
}

int64_t km_batch_tokens(km_batch *b, int sequence, int32_t *ids, size_t cap) {
    KM_INSIDE(in);
    batch_slot *s = km_batch_slot(&in, "km_batch_tokens", b, sequence);
    if (!s) return -1;
    int64_t n = s->length;
    if (ids) memcpy(ids, s->tokens, sizeof *ids * ((size_t)n < cap ? (size_t)n : cap));
    pthread_mutex_unlock(&b->lock);
    return n;
}

km_status km_batch_generated_sized(km_batch *b, int sequence, km_generated *out, size_t size) {
    KM_INSIDE(in);
    batch_slot *s = km_batch_slot(&in, "km_batch_generated", b, sequence);
    km_generated got = {0};
    if (s) {
        got = s->text ? s->text->got : (km_generated){.size = sizeof got};
        pthread_mutex_unlock(&b->lock);
    }
    return KM_HAND_OUT(out, size, &got, km_generated);
}
