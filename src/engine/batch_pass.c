/* The rows of a step in one pass: a token of each sequence that runs and chunks of the prompts that are being
 * read. On a GPU the tokens are chosen where their logits are, and the next pass begins as soon as they are
 * known: what the host does with them (texts, events, grammars' masks, other threads' wishes) hides behind
 * it. So a pass begins in one step and ends in the next; rows of texts that have ended meanwhile are dropped. */
#include "backend/backend.h"
#include "base/clock.h"
#include "base/util.h"
#include "engine/batch.h"
#include <string.h>

bool km_batch_passes(const km_batch *b) { return km_sequences_passes(b->seq); }

bool km_batch_runs_ahead(const km_batch *b) {
    return b->ahead ? b->ahead > 0 && km_batch_passes(b) : km_sequences_runs_ahead(b->seq);
}

/* Whether the device edits logits and tells odds, or the whole row would go to the host for that. */
static bool device_edits(const km_batch *b) {
    const km_device *d = km_net_end(b->ground->net)->ctx->device;
    return d->host || d->backend->kernel[KM_OP_LOGPROBS];
}

bool km_batch_chooses(const km_batch *b, batch_text *t) {
    const km_making *how = &t->wish.making;
    bool edited = how->guide || how->logprobs || how->sampling.n_bias;
    if (edited && !device_edits(b)) return false;
    if (!km_batch_runs_ahead(b) || (how->logprobs && how->top_logprobs > KM_CHOOSER_TOP))
        return false;
    if (!km_chooser_begin_biased(&t->chooser, &how->sampling, t->voice.vocab, 0)) return false;
    km_chooser_see(&t->chooser, t->ids, t->n);
    t->chooser.told = how->logprobs;
    t->chooser.n_top = how->logprobs && how->top_logprobs > 0 ? how->top_logprobs : 0;
    return true;
}

void km_batch_drop(km_batch *b, int slot) {
    int part = b->slot[slot].part;
    if (part && b->flying) b->part[part - 1].sequence = -1;
    b->slot[slot].part = 0;
}

/* ---- Its rows ---- */

/* Rows beside which chunks of prompts are read: as many more as do not make the others wait long. */
static int64_t rows_of_pass(const km_batch *b, int rows) {
    int64_t most = km_sequences_chunk(b->seq);
    if (b->how.chunk) return rows + km_min64(b->how.chunk, most);
    if (!rows) return most;
    if (!km_sequences_runs_ahead(b->seq)) return rows + 128;
    return rows <= 64 ? 256 : rows <= 256 ? 512 : rows + 256;
}

static void put_part(km_batch *b, int slot, const int32_t *ids, int64_t n, bool wants) {
    batch_slot *s = &b->slot[slot];
    int k = b->n_parts++;
    b->part[k] = (km_sequences_part){.sequence = s->at, .ids = ids, .n = n, .wants = wants};
    if (n == 1) {
        b->part_id[k] = ids[0];
        b->part[k].ids = &b->part_id[k];
    }
    b->part_slot[k] = slot;
    s->part = k + 1;
}

/* A chunk of each prompt in turn, as far as there are rows; where neighbours change no bit, of one. */
static void put_chunks(km_batch *b, int64_t rows, int64_t most) {
    int n = (int)b->how.sequences, first = b->turn;
    bool one = !km_sequences_runs_ahead(b->seq);
    for (int k = 0; k < n && rows < most && b->n_parts < KM_STEP_ROWS; k++) {
        int i = (first + k) % n;
        batch_slot *s = &b->slot[i];
        batch_text *t = s->text;
        if (s->state != SLOT_READING || !t || s->at < 0) continue;
        int64_t at = km_sequences_length(b->seq, s->at);
        const int32_t *from = at < (int64_t)t->n ? t->ids : s->tokens;
        int64_t chunk = km_batch_chunk_at(b, t, at, most - rows), all = (int64_t)t->n;
        put_part(b, i, from + at, chunk, !t->again && at + chunk == all);
        rows += chunk;
        b->turn = (i + 1) % n;
        if (one) break;
    }
}

/* All that there is to run, prompts last; the batch is locked. Of more sequences than a pass has rows for,
 * those whose turn it is. */
static bool collect(km_batch *b) {
    int n = (int)b->how.sequences, rows = 0, first = b->row_turn % n;
    b->n_parts = 0;
    for (int k = 0; k < n && rows < KM_STEP_ROWS; k++) {
        int i = (first + k) % n;
        batch_slot *s = &b->slot[i];
        if (s->state != SLOT_RUNNING || s->last < 0 || s->cancel) continue;
        if (km_sequences_length(b->seq, s->at) >= b->how.context) continue; /* it ends */
        put_part(b, i, &s->last, 1, true);
        if (++rows == KM_STEP_ROWS) b->row_turn = (i + 1) % n;
    }
    put_chunks(b, rows, rows_of_pass(b, rows));
    return b->n_parts > 0;
}

static bool no_pages(const km_batch *b, const km_error *err) {
    return err->code == KM_ERR_MEMORY && !km_failed(b->ground->ctx);
}

static void clear_parts(km_batch *b) {
    b->flying = false;
    for (int k = 0; k < b->n_parts; k++) b->slot[b->part_slot[k]].part = 0;
}

/* Where the device runs ahead, a step may begin two passes: what both can take. */
static int64_t pages_ahead(const km_batch *b) {
    int64_t pages = 0, rows = 0, chunks;
    for (int i = 0; i < b->how.sequences; i++)
        rows += b->slot[i].state == SLOT_RUNNING && b->slot[i].last >= 0;
    chunks = 2 * (rows_of_pass(b, (int)rows) - rows);
    for (int i = 0; i < b->how.sequences; i++) {
        const batch_slot *s = &b->slot[i];
        if (s->at < 0 || !s->text || s->cancel) continue;
        int64_t length = km_sequences_length(b->seq, s->at), n = 0;
        if (s->state == SLOT_RUNNING) n = 2;
        if (s->state == SLOT_READING) {
            n = km_max64((int64_t)s->text->n, s->text->again) - length;
            n = km_min64(n, chunks) + (chunks > 0);
            chunks -= n;
        }
        if (n > b->how.context - length) n = b->how.context - length;
        if (n > 0) pages += km_sequences_pages_for(b->seq, s->at, n);
    }
    return pages;
}

int64_t km_batch_pass_pages(km_batch *b) {
    if (km_batch_runs_ahead(b)) return pages_ahead(b);
    int turn = b->turn, row_turn = b->row_turn;
    int64_t pages = 0;
    collect(b);
    for (int k = 0; k < b->n_parts; k++)
        pages += km_sequences_pages_for(b->seq, b->part[k].sequence, b->part[k].n);
    clear_parts(b);
    b->turn = turn;
    b->row_turn = row_turn;
    return pages;
}

static void fail_parts(km_batch *b, const km_error *err) {
    for (km_net *p = b->ground->net; p; p = p->next) km_ctx_clear_error(p->ctx);
    for (int k = 0; k < b->n_parts; k++)
        if (b->part[k].sequence >= 0) km_batch_fail(b, b->part_slot[k], err);
}

/* After an error, with the batch unlocked: on another ground, or it ends all texts of the pass. */
static void fail(km_batch *b, const km_error *err) {
    clear_parts(b);
    if (km_batch_rescued(b, err)) return;
    pthread_mutex_lock(&b->lock);
    fail_parts(b, err);
    pthread_mutex_unlock(&b->lock);
}

/* The batch is unlocked. Where pages are too few, the last ones fail until there are enough; before the
 * pass is due (`early`) there is none. */
static bool begin(km_batch *b, bool early) {
    km_error err = {0};
    b->flying = true;
    while (km_sequences_begin(b->seq, b->part, b->n_parts, &err) != KM_OK) {
        if (early || !no_pages(b, &err)) {
            if (early && no_pages(b, &err))
                clear_parts(b);
            else
                fail(b, &err);
            return false;
        }
        pthread_mutex_lock(&b->lock);
        km_batch_fail(b, b->part_slot[--b->n_parts], &err);
        pthread_mutex_unlock(&b->lock);
        err = (km_error){0};
        if (b->n_parts == 0) b->flying = false;
        if (b->n_parts == 0) return false;
    }
    return true;
}

/* ---- Its end ---- */

/* A text that the device was to choose for, and now cannot: the host goes on with its numbers. */
static void choose_here(batch_text *t) {
    km_sampler_drew(t->voice.sampler, km_chooser_draws(&t->chooser));
    t->on_device = false;
}

/* What may be chosen, of those that the device chooses. */
static void put_picks(km_batch *b) {
    bool ahead = km_batch_runs_ahead(b);
    for (int k = 0; k < b->n_parts; k++) {
        km_sequences_part *p = &b->part[k];
        batch_text *t = p->sequence >= 0 ? b->slot[b->part_slot[k]].text : NULL;
        if (!t || !p->wants) continue;
        if (t->on_device && !ahead) choose_here(t);
        if (!t->on_device) continue;
        km_error err = {0};
        p->pick = (km_plan_pick){.chooser = &t->chooser, .top = t->voice.top};
        if (!t->wish.making.guide) continue;
        p->pick.mask = km_guide_mask(t->wish.making.guide, &err);
        if (p->pick.mask) continue;
        if (err.code == KM_OK) err.code = KM_ERR_STATE;
        pthread_mutex_lock(&b->lock);
        km_batch_fail(b, b->part_slot[k], &err);
        pthread_mutex_unlock(&b->lock);
    }
}

/* A prompt's chunk is read; the batch is locked. */
static void chunk_read(km_batch *b, int slot) {
    batch_slot *s = &b->slot[slot];
    batch_text *t = s->text;
    bool all = s->length == km_max64(t->again, (int64_t)t->n);
    if (!all) return;
    if (t->again) { /* its next token was chosen before the pause */
        t->again = 0;
        s->state = SLOT_RUNNING;
    } else {
        t->got.prompt_seconds = km_now() - t->start;
    }
}

/* What was chosen on the device, in the voice as if it had chosen itself. */
static void told(batch_text *t, const km_plan_pick *pick) {
    km_voice *v = &t->voice;
    km_sampler_drew(v->sampler, km_chooser_draws(&t->chooser));
    v->logprob = pick->logprob;
    v->n_top = (int)km_min64(t->chooser.n_top, v->vocab);
}

/* Whether a text surely ends with this token, so that it needs no row in the next pass. */
static bool ends(const km_batch *b, const batch_text *t, int32_t id) {
    const km_making *how = &t->wish.making;
    return id < 0 || t->voice.tokens + 1 >= how->tokens ||
           (km_token_is_end(b->m->token, id) && (!how->past_end || how->guide));
}

/* The tokens that were chosen: those of the device are known, -2 stands for the host's. The batch is locked. */
static void settle(km_batch *b, int32_t *chosen) {
    for (int k = 0; k < b->n_parts; k++) {
        km_sequences_part *p = &b->part[k];
        chosen[k] = -1;
        if (p->sequence < 0) continue;
        batch_slot *s = &b->slot[b->part_slot[k]];
        batch_text *t = s->text;
        s->part = 0;
        if (s->state == SLOT_READING) {
            km_batch_mirror(b, b->part_slot[k]);
            chunk_read(b, b->part_slot[k]);
        } else {
            s->tokens[s->length++] = p->ids[0];
        }
        if (!p->wants) continue;
        chosen[k] = t->on_device ? p->pick.id : -2;
        if (!t->on_device) continue;
        told(t, &p->pick);
        s->state = SLOT_RUNNING;
        s->last = ends(b, t, p->pick.id) ? -1 : p->pick.id;
    }
}

static void take(km_batch *b, int slot, int32_t chosen) {
    km_error err = {0};
    if (chosen == -1) {
        km_error_set(&err, KM_ERR_RANGE,
                     "the model's logits are not numbers; its weights may be broken");
        km_batch_fail(b, slot, &err);
        return;
    }
    km_batch_take(b, slot, chosen);
}

void km_batch_pass(km_batch *b) {
    km_error err = {0};
    bool ahead = km_batch_runs_ahead(b);
    if (!b->flying) {
        pthread_mutex_lock(&b->lock);
        bool any = collect(b);
        pthread_mutex_unlock(&b->lock);
        if (!any || !begin(b, false)) return;
    }
    put_picks(b);
    int n = b->n_parts, live = 0;
    for (int k = 0; k < n; k++) live += b->part[k].sequence >= 0;
    if (live && km_sequences_end(b->seq, b->part, n, &err) != KM_OK) {
        fail(b, &err);
        return;
    }
    pthread_mutex_lock(&b->lock);
    b->flying = false;
    int32_t *chosen = b->chosen;
    int *slot = b->row_slot, taken = 0;
    settle(b, chosen);
    for (int k = 0; k < n; k++) { /* the parts are those of the next pass soon */
        if (b->part[k].sequence < 0 || !b->part[k].wants) continue;
        slot[taken] = b->part_slot[k];
        chosen[taken++] = chosen[k];
    }
    /* Tokens that the host chooses come first: their rows go on, too. */
    for (int k = 0; k < taken; k++)
        if (chosen[k] == -2) km_batch_take(b, slot[k], -1);
    bool next = ahead && collect(b);
    pthread_mutex_unlock(&b->lock);
    if (next) begin(b, true);
    pthread_mutex_lock(&b->lock);
    for (int k = 0; k < taken; k++)
        if (chosen[k] != -2) take(b, slot[k], chosen[k]);
    pthread_mutex_unlock(&b->lock);
}
