/* A model's draft: a smaller model of the same vocabulary, or looking back in the text. */
#include "base/alloc.h"
#include "engine/engine.h"
#include <string.h>

/* Whether both have the same tokens under the same ids, as far as the text's model goes. */
static bool same_tokens(const km_token *a, const km_token *b) {
    if (km_token_vocab(b) < km_token_vocab(a)) return false;
    for (int64_t id = 0; id < km_token_vocab(a); id++) {
        size_t n = 0, m = 0;
        const char *x = km_token_text(a, (int32_t)id, &n), *y = km_token_text(b, (int32_t)id, &m);
        if (!x || !y ? x != y : n != m || memcmp(x, y, n) != 0) return false;
    }
    return true;
}

km_status km_draft_open(km_model *m, const char *given, km_error *err) {
    m->lookup = strcmp(given, "lookup") == 0;
    if (m->lookup) return KM_OK;
    km_model_options o = km_model_defaults();
    o.device = km_ctx_device(km_net_end(m->ground->net)->ctx); /* where the text is chosen from */
    o.context = m->config.context;
    o.threads = m->how.threads;
    o.activations = km_ctx_activations(m->ground->ctx);
    o.sequences = m->how.sequences ? m->how.sequences : 1;
    o.memory = m->how.memory;
    o.progress = m->how.progress;
    o.user = m->how.user;
    m->draft = km_model_open(given, &o);
    if (!m->draft) return km_error_set(err, km_last_status(), "%s", km_last_error());
    if (same_tokens(m->token, m->draft->token) &&
        m->draft->config.vocab >= km_token_vocab(m->token)) {
        km_handle_remove(m->draft, KM_HANDLE_MODEL); /* ours alone */
        return KM_OK;
    }
    km_error_set(err, KM_ERR_STATE,
                 "the draft %.160s has other tokens than the model; it cannot guess for it",
                 m->draft->path);
    km_model_close(m->draft);
    m->draft = NULL;
    return err->code;
}

km_drafter *km_draft_new(km_model *m, km_error *err) {
    if (m->lookup) return km_drafter_lookup(err);
    if (!m->draft) return NULL;
    km_ground *g = m->draft->ground; /* it is never rescued: guesses end with their device */
    int turn = km_gate_enter(&m->draft->gate, 1);
    km_sequences *pool = km_ground_pool(m->draft, g, err);
    km_gate_leave(&m->draft->gate, turn);
    km_sequence *s = pool ? km_sequence_of(pool, err) : NULL;
    return s ? km_drafter_model(s, err) : NULL;
}
