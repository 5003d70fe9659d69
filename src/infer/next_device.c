/* The next tokens by the device that makes the logits, as many at a time as make a blink. The first
 * token is the host's, which has the prompt's logits: it draws the first number. */
#include "base/clock.h"
#include "infer/maker.h"

bool km_next_device_begin(km_maker *g) {
    const km_making *how = g->how;
    return !how->guide && !how->logprobs && how->choose != KM_CHOOSE_HOST &&
           (how->choose == KM_CHOOSE_DEVICE || !km_sequence_on_host(g->session)) &&
           km_chooser_begin(&g->chooser, &how->sampling, g->voice.vocab, 1);
}

void km_next_device_see(km_maker *g, const int32_t *ids, size_t n) {
    if (g->base == &km_next_device) km_chooser_see(&g->chooser, ids, n);
}

static km_status choose(km_maker *g, int32_t *id, km_error *err) {
    if (g->taken == g->n_chosen) return km_next_host.choose(g, id, err);
    *id = g->chosen[g->taken++];
    if (*id >= 0) return KM_OK;
    return km_error_set(err, KM_ERR_RANGE,
                        "the model's logits are not numbers; its weights may be broken");
}

/* How many tokens to run ahead: what takes a fiftieth of a second, and fits. */
static int64_t steps(const km_maker *g) {
    int64_t room = g->context - km_sequence_length(g->session), n = km_sequence_ahead(g->session);
    int64_t left = g->how->tokens - g->voice.tokens;
    int64_t most = sizeof g->chosen / sizeof *g->chosen;
    if (n > most) n = most;
    if (g->pace <= 0 || g->way == &km_next_draft)
        n = 1; /* a token more, and there may be something to guess */
    else if ((double)n * g->pace > 0.02)
        n = (int64_t)(0.02 / g->pace);
    if (n > left) n = left;
    if (n > room) n = room;
    return n < 1 ? 1 : n;
}

static km_status advance(km_maker *g, int32_t id, km_error *err) {
    if (g->taken < g->n_chosen) return KM_OK; /* it has been through the model */
    g->n_chosen = g->taken = 0;
    if (km_sequence_length(g->session) >= g->context) { /* a context that is shifted */
        g->base = &km_next_host;
        if (g->way == &km_next_device) g->way = g->base;
        return km_next_host.advance(g, id, err);
    }
    int64_t n = steps(g);
    double start = km_now();
    g->held = km_sequence_length(g->session);
    km_status s = km_sequence_choose(g->session, id, n, &g->chooser, g->chosen, err);
    if (s != KM_OK) return s;
    double pace = (km_now() - start) / (double)n;
    g->pace = g->pace > 0 ? (3 * g->pace + pace) / 4 : pace;
    g->n_chosen = (int)n;
    km_sampler_drew(g->voice.sampler, km_chooser_draws(&g->chooser));
    return KM_OK;
}

/* What it has chosen up to the first wrong guess was run ahead. */
km_status km_next_device_check(km_maker *g, int n, km_error *err) {
    g->held = km_sequence_length(g->session);
    int right = km_sequence_check(g->session, g->tried, n + 1, &g->chooser, g->chosen, err);
    if (right < 0) return err->code;
    g->n_chosen = right;
    g->got.accepted += right - 1;
    km_drafter_told(g->how->draft, right - 1, n - (right - 1));
    km_sampler_drew(g->voice.sampler, km_chooser_draws(&g->chooser)); /* the drafter follows it */
    return KM_OK;
}

const km_next km_next_device = {choose, advance};
