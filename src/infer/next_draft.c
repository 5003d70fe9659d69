/* The next tokens by guesses: a token and guesses of what comes after it go through the model in one
 * step, and as many of them count as are what is chosen. */
#include "infer/maker.h"

static km_status choose(km_maker *g, int32_t *id, km_error *err) {
    return km_next_device.choose(g, id, err); /* what a device checked, or from the logits */
}

/* What was tried and turned out right is the session's. */
static void settle(km_maker *g) {
    if (g->n_tried > 1) km_drafter_told(g->how->draft, g->at - 1, g->n_tried - g->at);
    if (g->n_tried) km_sequence_take(g->session, g->tried, g->at);
    g->n_tried = g->n_chosen = g->taken = 0;
}

static int guess(km_maker *g, int32_t id, km_error *err) {
    int64_t left = g->how->tokens - g->voice.tokens - 1, length = km_sequence_length(g->session);
    int64_t room = g->context - 1 - length;
    g->tried[0] = id;
    km_drafter_by_op(g->how->draft, g->base == &km_next_device);
    return km_drafter_guess(g->how->draft, km_sequence_tokens(g->session), length, id,
                            g->voice.sampler, left < room ? left : room, g->tried + 1, err);
}

static km_status advance(km_maker *g, int32_t id, km_error *err) {
    if (g->taken < g->n_chosen) return KM_OK;
    if (g->at < g->n_tried && g->tried[g->at] == id) {
        g->logits = g->rows + (int64_t)g->at++ * g->vocab;
        g->got.accepted++;
        return KM_OK;
    }
    settle(g);
    int n = guess(g, id, err);
    if (n < 0) return err->code;
    if (n == 0) return g->base->advance(g, id, err);
    g->got.guessed += n;
    if (g->base == &km_next_device) return km_next_device_check(g, n, err);
    g->rows = km_sequence_try(g->session, g->tried, n + 1, err);
    if (!g->rows) return err->code;
    g->n_tried = n + 1;
    g->at = 1;
    g->logits = g->rows;
    return KM_OK;
}

const km_next km_next_draft = {choose, advance};
