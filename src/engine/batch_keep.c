/* Sequences of a batch set aside: paused, so that others get their pages, or kept in a file. */
#include "engine/batch.h"

static km_status ask_slot(const char *call, km_batch *b, int sequence, batch_what what) {
    KM_INSIDE(in);
    batch_slot *s = km_batch_slot(&in, call, b, sequence);
    if (!s) return km_last_status();
    km_status status = KM_OK;
    if (s->state <= SLOT_IDLE)
        status = km_public_fail(KM_ERR_STATE, "%s: sequence %d makes no text", call, sequence);
    else if (km_batch_ask(b, (batch_ask){.what = what, .slot = sequence}) != KM_OK)
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

typedef enum keep_what { KEEP_SAVE, KEEP_RESTORE, KEEP_ADAPTERS, KEEP_FIRST } keep_what;

/* Between steps, of a slot that does not run: what it holds, to a file or from it, its adapters, or how much
 * of it stays. */
static km_status keep_slot(const char *call, km_batch *b, int sequence, keep_what what,
                           const char *path, km_adapter_mix *mix, int64_t length) {
    km_error err = {0};
    if (atomic_exchange(&b->stepping, true))
        return km_public_fail(KM_ERR_STATE, "%s: another thread steps this batch", call);
    int turn = km_gate_enter(&b->m->gate, 1);
    pthread_mutex_lock(&b->lock);
    km_batch_do_asks(b);
    batch_slot *s = sequence >= 0 && sequence < b->how.sequences ? &b->slot[sequence] : NULL;
    if (!s || s->state == SLOT_FREE)
        km_error_set(&err, KM_ERR_RANGE, "%s: there is no sequence %d", call, sequence);
    else if (s->at < 0) /* joining is done between steps, as now, and found no memory */
        km_error_set(&err, KM_ERR_MEMORY, "%s: no memory for sequence %d", call, sequence);
    else if (s->state != SLOT_IDLE)
        km_error_set(&err, KM_ERR_STATE, "%s: sequence %d runs", call, sequence);
    else if (what == KEEP_SAVE)
        km_sequences_save(b->seq, s->at, path, &err);
    else if (what == KEEP_RESTORE)
        km_sequences_restore(b->seq, s->at, path, &err);
    else if (what == KEEP_FIRST && (length < 0 || length > s->length))
        km_error_set(&err, KM_ERR_RANGE, "%s: %lld tokens of %lld", call, (long long)length,
                     (long long)s->length);
    else if (what == KEEP_FIRST)
        km_sequences_rewind(b->seq, s->at, length);
    else {
        km_adapter_mix before = s->mix;
        km_sequences_set_mix(b->seq, s->at, mix);
        s->mix = *mix;
        *mix = before;
    }
    if (err.code != KM_OK) /* of a device, it is the model's no longer than this call */
        for (km_net *p = b->ground->net; p; p = p->next) km_ctx_clear_error(p->ctx);
    if (s && s->state == SLOT_IDLE && s->at >= 0 && what != KEEP_SAVE) km_batch_mirror(b, sequence);
    km_sequences_pages(b->seq, &b->pages, &b->pages_free);
    pthread_mutex_unlock(&b->lock);
    km_gate_leave(&b->m->gate, turn);
    atomic_store(&b->stepping, false);
    return km_told(&err);
}

static km_status keep_file(const char *call, km_batch *b, int sequence, keep_what what,
                           const char *path) {
    KM_INSIDE(in);
    if (!km_batch_usable(&in, call, b)) return km_last_status();
    if (!path) return km_public_fail(KM_ERR_NULL, "%s: no path given", call);
    return keep_slot(call, b, sequence, what, path, NULL, 0);
}

km_status km_batch_save(km_batch *b, int sequence, const char *path) {
    return keep_file("km_batch_save", b, sequence, KEEP_SAVE, path);
}

km_status km_batch_restore(km_batch *b, int sequence, const char *path) {
    return keep_file("km_batch_restore", b, sequence, KEEP_RESTORE, path);
}

km_status km_batch_set_adapters(km_batch *b, int sequence, const km_adapter *adapters, int64_t n) {
    km_error err = {0};
    km_adapter_mix mix = {0};
    KM_INSIDE(in);
    if (!km_batch_usable(&in, "km_batch_set_adapters", b)) return km_last_status();
    km_status s = km_adapters_mix(b->m, adapters, n, &mix, &err);
    s = s == KM_OK ? keep_slot("km_batch_set_adapters", b, sequence, KEEP_ADAPTERS, NULL, &mix, 0)
                   : km_told(&err);
    km_adapters_drop(b->m, &mix); /* what it had before, or was not to have */
    return s;
}

km_status km_batch_rewind(km_batch *b, int sequence, int64_t length) {
    KM_INSIDE(in);
    if (!km_batch_usable(&in, "km_batch_rewind", b)) return km_last_status();
    return keep_slot("km_batch_rewind", b, sequence, KEEP_FIRST, NULL, NULL, length);
}
