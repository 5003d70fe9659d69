/* A sampler's settings as the op takes them. */
#include "infer/chooser.h"
#include "base/alloc.h"
#include <string.h>

static bool begin(km_chooser *c, const km_sampling *s, int64_t tokens, uint64_t draws) {
    bool penalties = (s->repeat_penalty > 0 && s->repeat_penalty != 1) ||
                     s->frequency_penalty != 0 || s->presence_penalty != 0;
    int64_t last = penalties ? s->repeat_last : 0;
    if (s->dry_multiplier > 0 || s->mirostat || (s->typical > 0 && s->typical < 1) || last < 0 ||
        last > KM_SAMPLE_RING || tokens > 1 << 24)
        return false;
    *c = (km_chooser){.bias = NULL};
    c->settings[KM_SAMPLE_TEMPERATURE] = (float)s->temperature;
    c->settings[KM_SAMPLE_TOP_K] = s->top_k < tokens ? (float)s->top_k : 0;
    c->settings[KM_SAMPLE_TOP_P] = (float)s->top_p;
    c->settings[KM_SAMPLE_MIN_P] = (float)s->min_p;
    c->settings[KM_SAMPLE_REPEAT] = s->repeat_penalty > 0 ? (float)s->repeat_penalty : 1;
    c->settings[KM_SAMPLE_FREQUENCY] = (float)s->frequency_penalty;
    c->settings[KM_SAMPLE_PRESENCE] = (float)s->presence_penalty;
    c->settings[KM_SAMPLE_LAST] = (float)last;
    c->settings[KM_SAMPLE_TOKENS] = (float)tokens;
    memcpy(c->state + KM_SAMPLE_SEED, &s->seed, sizeof s->seed);
    memcpy(c->state + KM_SAMPLE_DRAWS, &draws, sizeof draws);
    return true;
}

bool km_chooser_begin(km_chooser *c, const km_sampling *s, int64_t tokens, uint64_t draws) {
    return !s->n_bias && begin(c, s, tokens, draws);
}

/* Biases of one token add up, as the sampler adds them. */
bool km_chooser_begin_biased(km_chooser *c, const km_sampling *s, int64_t tokens, uint64_t draws) {
    if (!begin(c, s, tokens, draws)) return false;
    if (!s->n_bias) return true;
    if (!(c->bias = km_alloc(sizeof *c->bias * s->n_bias))) return false;
    for (size_t i = 0; i < s->n_bias; i++) {
        int k = 0;
        while (k < c->n_biases && c->bias[k].id != s->bias[i].id) k++;
        if (k < c->n_biases)
            c->bias[k].add += s->bias[i].add;
        else
            c->bias[c->n_biases++] = s->bias[i];
    }
    c->settings[KM_SAMPLE_BIASED] = 1;
    return true;
}

void km_chooser_end(km_chooser *c) {
    km_free(c->bias);
    c->bias = NULL;
    c->n_biases = 0;
}

int64_t km_chooser_tokens(const km_chooser *c) { return (int64_t)c->settings[KM_SAMPLE_TOKENS]; }

void km_chooser_see(km_chooser *c, const int32_t *ids, size_t n) {
    int32_t *seen = &c->state[KM_SAMPLE_SEEN];
    for (size_t i = 0; i < n; i++, ++*seen)
        c->state[KM_SAMPLE_TOKEN_AT + *seen % KM_SAMPLE_RING] = ids[i];
}

uint64_t km_chooser_draws(const km_chooser *c) {
    uint64_t draws;
    memcpy(&draws, c->state + KM_SAMPLE_DRAWS, sizeof draws);
    return draws;
}

void km_chooser_chose(km_chooser *c, int32_t id) {
    uint64_t draws = km_chooser_draws(c) + !(c->settings[KM_SAMPLE_TEMPERATURE] < 1e-6f);
    memcpy(c->state + KM_SAMPLE_DRAWS, &draws, sizeof draws);
    km_chooser_see(c, &id, 1);
}
