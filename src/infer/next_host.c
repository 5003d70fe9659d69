/* The next token by the host: the sampler picks it from the logits, and one step gives the next. */
#include "infer/maker.h"

static km_status choose(km_maker *g, int32_t *id, km_error *err) {
    return km_voice_choose(&g->voice, g->logits, id, err);
}

static km_status advance(km_maker *g, int32_t id, km_error *err) {
    km_status s = km_sequence_next(g->session, id, err);
    g->logits = km_sequence_logits(g->session);
    return s;
}

const km_next km_next_host = {choose, advance};
