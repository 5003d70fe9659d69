/* --draft: a smaller model, or looking back in the text. */
#include "base/log.h"
#include "cli/use_model.h"
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

static km_status open_model(km_cli_draft *d, const char *given, const km_cli_model *m,
                            const km_common *common, km_error *err) {
    km_common own = *common;
    own.device = km_ctx_device(km_net_end(m->model)->ctx); /* where the text is chosen from */
    km_open_options how = {.context = km_net_end(m->model)->config.context,
                           .dtype = KM_DTYPE_COUNT};
    km_sequences_options room = km_sequences_defaults();
    km_cli_where where = {.activations = km_ctx_activations(m->ctx)};
    km_status s = km_cli_model_open_at(&d->m, given, NULL, &own, &where, room.cache, 1, &how, err);
    if (s != KM_OK) return s;
    if (!same_tokens(m->token, d->m.token) || d->m.model->config.vocab < km_token_vocab(m->token))
        return km_error_set(
            err, KM_ERR_STATE,
            "--draft: %.160s has other tokens than the model; it cannot guess for it", d->m.path);
    km_sequence *session = km_sequence_open(d->m.ctx, d->m.model, &room, err);
    if (session) d->drafter = km_drafter_model(session, err);
    return d->drafter ? KM_OK : err->code;
}

km_status km_cli_draft_open(km_cli_draft *d, const char *given, const km_cli_model *m,
                            const km_common *common, km_error *err) {
    *d = (km_cli_draft){0};
    if (!given) return KM_OK;
    if (strcmp(given, "lookup") != 0) return open_model(d, given, m, common, err);
    d->drafter = km_drafter_lookup(err);
    return d->drafter ? KM_OK : err->code;
}

void km_cli_draft_close(km_cli_draft *d) {
    km_drafter_free(d->drafter);
    km_cli_model_close(&d->m);
    *d = (km_cli_draft){0};
}
