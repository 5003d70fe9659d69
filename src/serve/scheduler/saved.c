/* Sessions that clients keep by name: what a sequence holds goes to a file, and what a file holds becomes a
 * sequence of the prefix cache, which the next request that begins so finds. */
#include "serve/scheduler/internal.h"
#include "base/alloc.h"
#include <stdio.h>
#include <string.h>

km_status km_saved_put(km_scheduler *s, km_task *t, char *why, size_t size) {
    km_status status = km_batch_save(s->batch, t->sequence, t->save_to);
    if (status != KM_OK) snprintf(why, size, "%s", km_last_error());
    t->held = km_batch_length(s->batch, t->sequence);
    /* What is wrong with a file that is to be written is no fault of the request's. */
    return status == KM_OK ? KM_OK : KM_ERR_FILE;
}

/* A sequence with what the file holds; -1: it cannot be had. Idle ones make room. */
static int bring(km_scheduler *s, const km_task *t, km_status *status, char *why, size_t size) {
    for (;;) {
        int i = km_batch_join(s->batch);
        *status = i < 0 ? KM_ERR_MEMORY
                        : km_batch_set_adapters(s->batch, i, t->how->adapters, t->how->n_adapters);
        if (*status == KM_OK) *status = km_batch_restore(s->batch, i, t->restore_from);
        if (*status != KM_OK) snprintf(why, size, "%s", km_last_error());
        km_batch_state b = km_batch_describe(s->batch);
        if (*status == KM_OK && b.pages > 0 && b.pages_free < km_pages_promised(s, &b)) {
            *status = KM_ERR_MEMORY; /* what runs has been promised these pages */
            snprintf(why, size, "there is no room for it in the KV cache just now");
        }
        if (*status == KM_OK) return i;
        if (i >= 0) km_prefix_drop(s, i);
        if (*status != KM_ERR_MEMORY) return -1;
        if (!(i < 0 ? km_prefix_evict(s, NULL) : km_prefix_shrink(s, NULL))) return -1;
    }
}

void km_saved_restore(km_scheduler *s, km_task *t) {
    char why[KM_ERROR_TEXT] = "";
    km_status status = KM_OK;
    int i = -1;
    if (s->o.kept < 0) {
        status = KM_ERR_UNSUPPORTED;
        snprintf(why, sizeof why, "no conversation is kept by this server (--keep -1)");
    } else {
        i = bring(s, t, &status, why, sizeof why);
    }
    t->started = km_now();
    if (i < 0) {
        km_emit_end(s, t, KM_ENDED_CANCELLED, status, why);
        return;
    }
    s->slots[i] = (km_slot){.state = KM_SLOT_RUNNING, .domain = t->domain, .variant = t->variant};
    t->held = km_batch_length(s->batch, i);
    km_prefix_keep(s, i);
    km_emit_end(s, t, KM_ENDED_TEXT, KM_OK, NULL);
}
