/* A step of a batch: what was asked for is done first, then a token of every sequence that runs and a chunk
 * of a prompt go through the model, and the next tokens are chosen. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/util.h"
#include "engine/batch.h"
#include <string.h>

/* ---- Beginning a step ---- */

void km_batch_put_event(km_batch *b, int slot, const km_piece_event *e) {
    if (b->n_event > 2 * b->how.sequences) return; /* of texts that were left, nobody asks */
    b->event[b->n_event] = *e;
    b->event[b->n_event++].sequence = slot;
}

/* The text of a slot has ended; its pieces stay until the next step. */
static void end_text(km_batch *b, int i) {
    batch_slot *s = &b->slot[i];
    km_batch_drop(b, i);
    s->state = SLOT_IDLE;
    s->last = -1;
    s->cancel = false;
    if (s->text) s->text->got.end = s->text->voice.end;
}

void km_batch_fail(km_batch *b, int i, const km_error *err) {
    batch_slot *s = &b->slot[i];
    if (!s->text) return;
    km_text *text = &s->text->voice.text;
    text->len = 0;
    km_text_add(text, err->text);
    s->text->voice.end = KM_ENDED_CANCELLED;
    km_piece_event e = km_voice_event(&s->text->voice, -1);
    e.status = err->code;
    km_batch_put_event(b, i, &e);
    end_text(b, i);
}

void km_batch_mirror(km_batch *b, int i) {
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
        km_batch_mirror(b, a->slot);
        return s->at >= 0 ? KM_OK : err->code;
    case ASK_LEAVE:
        km_batch_drop(b, a->slot);
        if (s->at >= 0) km_sequences_leave(b->seq, s->at);
        if (s->state > SLOT_IDLE)
            km_batch_put_event(b, a->slot,
                               &(km_piece_event){.id = -1, .text = "", .end = KM_ENDED_CANCELLED});
        km_batch_bury(b, s->text);
        km_adapters_drop(b->m, &s->mix);
        *s = (batch_slot){.state = SLOT_FREE, .at = -1, .last = -1, .tokens = s->tokens};
        return KM_OK;
    case ASK_START:
        km_batch_bury(b, s->text);
        s->text = a->text;
        a->text = NULL;
        s->text->on_device = km_batch_chooses(b, s->text);
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
            km_batch_mirror(b, a->slot);
        }
        return KM_OK;
    case ASK_PAUSE:
        if (s->state < SLOT_READING || !s->text) return KM_OK; /* it has ended meanwhile */
        /* A prompt that is still being read is read from its beginning. */
        if (s->state == SLOT_RUNNING) s->text->again = s->length;
        km_batch_drop(b, a->slot);
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
void km_batch_do_asks(km_batch *b) {
    for (batch_ask *a; (a = b->first);) {
        km_error err = {0};
        b->first = a->next;
        if (!b->first) b->last = NULL;
        if (do_ask(b, a, &err) != KM_OK && a->what == ASK_START) km_batch_fail(b, a->slot, &err);
        km_batch_text_free(a->text);
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
        km_batch_put_event(b, i, &e);
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

void km_batch_take(km_batch *b, int i, int32_t id) {
    batch_slot *s = &b->slot[i];
    batch_text *t = s->text;
    km_error err = {0};
    km_status status = KM_OK;
    if (id < 0) status = km_voice_choose(&t->voice, km_sequences_logits(b->seq, s->at), &id, &err);
    if (t->voice.tokens == 0) t->got.first_seconds = km_now() - t->start;
    if (status == KM_OK) status = km_voice_take(&t->voice, id, &err);
    if (status == KM_OK && t->voice.end == KM_ENDED_NOT &&
        km_sequences_length(b->seq, s->at) >= b->how.context)
        status = km_voice_end(&t->voice, KM_ENDED_CONTEXT, &err);
    if (status != KM_OK) {
        km_batch_fail(b, i, &err);
        return;
    }
    s->last = id;
    s->state = SLOT_RUNNING;
    t->got.tokens = t->voice.tokens;
    t->got.seconds = km_now() - t->start - t->got.prompt_seconds;
    km_piece_event e = km_voice_event(&t->voice, t->voice.end == KM_ENDED_TEXT ? -1 : id);
    km_batch_put_event(b, i, &e);
    if (t->voice.end != KM_ENDED_NOT) end_text(b, i);
}

/* Prompt tokens beside rows that are made: few enough that nobody waits long. */
static int64_t chunk_of(const km_batch *b, int rows) {
    int64_t most = km_sequences_chunk(b->seq);
    if (b->how.chunk) return km_min64(b->how.chunk, most);
    return rows ? km_min64(128, most) : most;
}

/* A rank, device or memory that failed: the model's other ground, with everything read again. */
bool km_batch_rescued(km_batch *b, const km_error *why) {
    km_error err = {0};
    if (!km_ground_failed(why) || !km_ground_rescue(b->m, b->ground, why) ||
        km_batch_settle(b, &err) != KM_OK)
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
            km_batch_fail(b, i, &err);
    }
    pthread_mutex_unlock(&b->lock);
    return true;
}

static void fail_rows(km_batch *b, int n, const km_error *err) {
    for (int k = 0; k < n; k++) km_batch_fail(b, b->row_slot[k], err);
}

static void run_rows(km_batch *b, int n) {
    km_error err = {0};
    if (n == 0) return;
    if (km_sequences_step(b->seq, b->row, n, &err) != KM_OK && km_batch_rescued(b, &err)) {
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
int64_t km_batch_chunk_at(const km_batch *b, const batch_text *t, int64_t at, int64_t chunk) {
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
    km_sequences_read(b->seq, s->at, from + at, (size_t)km_batch_chunk_at(b, t, at, chunk), err);
    km_sequences_cancel_by(b->seq, s->at, NULL);
}

/* A chunk of a prompt; true when all of it is read and the first token is to be chosen. */
static bool run_prompt(km_batch *b, int i, int64_t chunk) {
    batch_slot *s = &b->slot[i];
    batch_text *t = s->text;
    km_error err = {0};
    read_chunk(b, s, chunk, &err);
    if (err.code != KM_OK && km_batch_rescued(b, &err)) {
        err = (km_error){0};
        read_chunk(b, s, chunk, &err);
    }
    bool read = false;
    pthread_mutex_lock(&b->lock);
    b->reader = -1;
    if (err.code == KM_ERR_STATE && s->cancel) {
        km_batch_mirror(b, i); /* the next step tells of its end */
    } else if (err.code != KM_OK) {
        for (km_net *p = b->ground->net; p; p = p->next) km_ctx_clear_error(p->ctx);
        km_batch_fail(b, i, &err);
    } else {
        km_batch_mirror(b, i);
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

int64_t km_batch_pages_ahead(km_batch *b) {
    KM_INSIDE(in);
    if (!km_batch_usable(&in, "km_batch_pages_ahead", b)) return -1;
    if (atomic_exchange(&b->stepping, true)) {
        km_public_fail(KM_ERR_STATE, "km_batch_pages_ahead: another thread steps this batch");
        return -1;
    }
    int turn = km_gate_enter(&b->m->gate, 1);
    pthread_mutex_lock(&b->lock);
    km_batch_do_asks(b);
    bool passes = km_batch_passes(b);
    int rows = passes ? 0 : collect_rows(b), reader = passes ? -1 : next_reader(b);
    int64_t pages = passes ? km_batch_pass_pages(b) : 0;
    for (int k = 0; k < rows; k++) pages += km_sequences_pages_for(b->seq, b->row[k].sequence, 1);
    if (reader >= 0) {
        const batch_slot *s = &b->slot[reader];
        int64_t at = km_sequences_length(b->seq, s->at);
        pages += km_sequences_pages_for(b->seq, s->at,
                                        km_batch_chunk_at(b, s->text, at, chunk_of(b, rows)));
    }
    pthread_mutex_unlock(&b->lock);
    km_gate_leave(&b->m->gate, turn);
    atomic_store(&b->stepping, false);
    return pages;
}

/* Rows and a prompt one after the other: of models in parts, and of prompts alone on a host, whose reading
 * can be cut short. */
static void step_apart(km_batch *b, int rows, int reader) {
    int64_t chunk = chunk_of(b, rows);
    run_rows(b, rows);
    bool read =
        reader >= 0 && b->slot[reader].state == SLOT_READING && run_prompt(b, reader, chunk);
    pthread_mutex_lock(&b->lock);
    b->reader = -1;
    if (reader >= 0) b->turn = (reader + 1) % (int)b->how.sequences;
    for (int k = 0; k < rows; k++)
        if (b->slot[b->row_slot[k]].state == SLOT_RUNNING) km_batch_take(b, b->row_slot[k], -1);
    if (read) km_batch_take(b, reader, -1);
    pthread_mutex_unlock(&b->lock);
}

/* Whether a text is being made; the batch is locked. */
static bool runs(const km_batch *b) {
    for (int i = 0; i < b->how.sequences; i++)
        if (b->slot[i].state >= SLOT_READING && b->slot[i].text) return true;
    return false;
}

static void step(km_batch *b) {
    int turn = km_gate_enter(&b->m->gate, 1);
    pthread_mutex_lock(&b->lock);
    b->n_event = b->given = 0;
    km_batch_free_done(b);
    km_batch_do_asks(b);
    int rows = collect_rows(b), reader = next_reader(b);
    bool passes = km_batch_passes(b) && (rows || b->flying || km_batch_runs_ahead(b));
    b->reader = passes ? -1 : reader;
    atomic_store(&b->cut, false);
    pthread_mutex_unlock(&b->lock);
    if (passes)
        km_batch_pass(b);
    else
        step_apart(b, rows, reader);
    km_gate_leave(&b->m->gate, turn);
    pthread_mutex_lock(&b->lock);
    km_sequences_pages(b->seq, &b->pages, &b->pages_free);
    if (b->n_event == 0 && (reader >= 0 || runs(b)))
        km_batch_put_event(b, -1, &(km_piece_event){.id = -1, .text = ""});
    pthread_mutex_unlock(&b->lock);
}

int km_batch_step(km_batch *b, km_piece_event *events, int most) {
    KM_INSIDE(in);
    if (!km_batch_usable(&in, "km_batch_step", b)) return -1;
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
    return n;
}
