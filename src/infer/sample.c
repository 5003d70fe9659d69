/* Sampling: the settings in their order, on a copy of the logits. */
#include "infer/sample.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "base/sized.h"
#include "infer/choices.h"
#include "infer/penalties.h"
#include <math.h>
#include <string.h>

struct km_sampler {
    km_sampling set;
    int64_t vocab;
    km_said history;
    km_choices choices;
    double mu;     /* mirostat's bound, in bits */
    uint64_t draw; /* how many tokens were drawn */
};

/* ---- Settings ---- */

km_status km_sampling_defaults_sized(km_sampling *out, size_t size) {
    km_sampling own = {.size = sizeof(km_sampling),
                       .temperature = 1,
                       .top_p = 1,
                       .repeat_last = 64,
                       .dry_base = 1.75,
                       .dry_allowed_length = 2,
                       .mirostat_tau = 5,
                       .mirostat_eta = 0.1,
                       .seed = 1};
    return KM_HAND_OUT(out, size, &own, km_sampling);
}

static km_status range(const char *what, double v, double lo, double hi, km_error *err) {
    if (v >= lo && v <= hi) return KM_OK;
    return km_error_set(err, KM_ERR_RANGE, "%s is %g and must be in %g .. %g", what, v, lo, hi);
}

km_status km_sampling_sound(const km_sampling *s, km_error *err) {
    km_status e = range("the temperature", s->temperature, 0, 100, err);
    if (s->top_k < 0)
        return km_error_set(err, KM_ERR_RANGE, "top-k is %lld and must not be negative",
                            (long long)s->top_k);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return km_error_set(err, KM_ERR_RANGE, "top-p is %g and must be above 0 and at most 1",
                            s->top_p);
    if (e == KM_OK) e = range("min-p", s->min_p, 0, 1, err);
    if (e == KM_OK) e = range("typical", s->typical, 0, 1, err);
    if (e == KM_OK) e = range("the repeat penalty", s->repeat_penalty, 0, 100, err);
    if (e == KM_OK) e = range("the frequency penalty", s->frequency_penalty, -100, 100, err);
    if (e == KM_OK) e = range("the presence penalty", s->presence_penalty, -100, 100, err);
    if (e == KM_OK && s->repeat_last < -1)
        return km_error_set(err, KM_ERR_RANGE,
                            "repeat-last is %lld and must be -1 (all), 0 or a number of tokens",
                            (long long)s->repeat_last);
    if (e == KM_OK) e = range("the DRY multiplier", s->dry_multiplier, 0, 100, err);
    if (e == KM_OK && s->dry_multiplier > 0) {
        e = range("the DRY base", s->dry_base, 1, 100, err);
        if (e == KM_OK)
            e = range("the DRY allowed length", (double)s->dry_allowed_length, 0, 1e6, err);
    }
    if (e == KM_OK && s->mirostat != 0 && s->mirostat != 2)
        return km_error_set(err, KM_ERR_RANGE, "mirostat is %d; there are 0 (off) and 2",
                            s->mirostat);
    if (e == KM_OK && s->mirostat) {
        e = range("mirostat's tau", s->mirostat_tau, 1e-3, 100, err);
        if (e == KM_OK) e = range("mirostat's eta", s->mirostat_eta, 0, 10, err);
    }
    for (size_t i = 0; e == KM_OK && i < s->n_bias; i++)
        if (isnan(s->bias[i].add) || s->bias[i].add == INFINITY)
            return km_error_set(err, KM_ERR_RANGE,
                                "the bias of token %d is %g, which is no number "
                                "to add",
                                (int)s->bias[i].id, (double)s->bias[i].add);
    return e;
}

int32_t km_likeliest(const float *logits, int64_t n) {
    int32_t best = -1;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(logits[i]) && (best < 0 || logits[i] > logits[best])) best = (int32_t)i;
    return best;
}

/* ---- A sequence ---- */

km_sampler *km_sampler_new(const km_sampling *set, int64_t vocab, const uint64_t *breaks,
                           km_error *err) {
    if (km_sampling_sound(set, err) != KM_OK) return NULL;
    for (size_t i = 0; i < set->n_bias; i++)
        if (set->bias[i].id < 0 || set->bias[i].id >= vocab) {
            km_error_set(err, KM_ERR_RANGE,
                         "token %d, which a bias is for, is not in the "
                         "vocabulary of %lld",
                         (int)set->bias[i].id, (long long)vocab);
            return NULL;
        }
    km_sampler *s = km_calloc(1, sizeof *s);
    if (!s) {
        km_error_set(err, KM_ERR_MEMORY, "sampling: out of memory");
        return NULL;
    }
    s->set = *set;
    s->vocab = vocab;
    if (km_choices_begin(&s->choices, vocab, err) != KM_OK ||
        km_said_begin(&s->history, set, vocab, breaks, err) != KM_OK) {
        km_sampler_free(s);
        return NULL;
    }
    km_sampler_reset(s);
    return s;
}

void km_sampler_free(km_sampler *s) {
    if (!s) return;
    km_choices_end(&s->choices);
    km_said_end(&s->history);
    km_free(s);
}

void km_sampler_reset(km_sampler *s) {
    km_said_reset(&s->history);
    s->mu = 2 * s->set.mirostat_tau;
    s->draw = 0;
    s->choices.n = 0;
}

km_sampler *km_sampler_shadow(const km_sampler *of, km_error *err) {
    km_sampling set = km_sampling_defaults();
    set.repeat_last = 0;
    return km_sampler_new(&set, of->vocab, NULL, err);
}

void km_sampler_follow(km_sampler *shadow, const km_sampler *of) {
    shadow->set.temperature = of->set.temperature;
    shadow->set.top_k = of->set.top_k;
    shadow->set.top_p = of->set.top_p;
    shadow->set.min_p = of->set.min_p;
    shadow->set.seed = of->set.seed;
    shadow->draw = of->draw;
}

km_sampling km_sampler_settings(const km_sampler *s) { return s->set; }
uint64_t km_sampler_draws(const km_sampler *s) { return s->draw; }
int64_t km_sampler_vocab(const km_sampler *s) { return s->vocab; }

void km_sampler_drew(km_sampler *s, uint64_t draws) { s->draw = draws; }

km_status km_sampler_see(km_sampler *s, const int32_t *ids, size_t n, km_error *err) {
    return km_said_add(&s->history, ids, n, err);
}

/* A number in [0, 1) for this draw. */
static double chance(km_sampler *s) {
    km_philox4 r = km_philox(s->set.seed, 0, s->draw++);
    return (double)r.v[0] * 0x1p-32 + (double)r.v[1] * 0x1p-64;
}

/* A logit that nothing below can have a share of e^-nats next to the top. The margin is for
 * rounding: what is gathered beyond need is sorted out afterwards. */
static float below_top(const km_choices *c, double nats, double temperature) {
    return (float)(c->top - nats * temperature * (1 + 1e-4)) - 1e-4f * fabsf(c->top);
}

static int32_t pick_mirostat(km_sampler *s) {
    km_choices *c = &s->choices;
    const km_sampling *set = &s->set;
    double mass = km_choices_mass(c, set->temperature);
    double least = mass * exp2(-s->mu);
    if (least > 1) least = 1; /* the likeliest stays in any case */
    km_choices_gather(c, below_top(c, -log(least), set->temperature));
    km_choices_weigh(c, set->temperature);
    km_choices_at_least(c, least);
    int64_t at = km_choices_draw(c, chance(s));
    double surprise = -log2(c->p[at] / c->total);
    s->mu -= set->mirostat_eta * (surprise - set->mirostat_tau);
    return c->id[at];
}

static int32_t pick_drawn(km_sampler *s) {
    km_choices *c = &s->choices;
    const km_sampling *set = &s->set;
    double t = set->temperature;
    bool typical = set->typical > 0 && set->typical < 1;
    bool front = set->top_p < 1; /* still to be found */
    if (set->top_k > 0 && set->top_k < s->vocab) {
        km_choices_gather_top(c, set->top_k);
        km_choices_weigh(c, t);
    } else if (front && !typical) {
        km_choices_gather_front(c, set->top_p, t);
        front = false;
    } else {
        bool least = set->min_p > 0 && !typical; /* those below it are not wanted later, either */
        km_choices_gather(c, least ? below_top(c, -log(set->min_p), t) : -INFINITY);
        km_choices_weigh(c, t);
    }
    if (typical) km_choices_typical(c, set->typical, t);
    if (front) km_choices_front(c, set->top_p);
    if (set->min_p > 0) {
        float most = 0;
        for (int64_t i = 0; i < c->n; i++) most = c->p[i] > most ? c->p[i] : most;
        km_choices_at_least(c, set->min_p * most);
    }
    return c->id[km_choices_draw(c, chance(s))];
}

int32_t km_sampler_pick(km_sampler *s, const float *logits, const uint64_t *mask) {
    km_choices *c = &s->choices;
    const km_sampling *set = &s->set;
    memcpy(c->logits, logits, (size_t)s->vocab * sizeof *logits);
    for (size_t i = 0; i < set->n_bias; i++) c->logits[set->bias[i].id] += set->bias[i].add;
    km_said_penalise(&s->history, set, c->logits);
    int32_t best = km_choices_mask(c, mask);
    /* An infinite logit is certain, and so is the only one that is not -infinity. */
    if (best < 0 || set->temperature < 1e-6 || isinf(c->top)) return best;
    return set->mirostat ? pick_mirostat(s) : pick_drawn(s);
}

int64_t km_sampler_odds(const km_sampler *s, km_odds *out, int64_t most) {
    const km_choices *c = &s->choices;
    for (int64_t i = 0; i < c->n && i < most; i++)
        out[i] = (km_odds){c->id[i], (float)(c->p[i] / c->total)};
    return c->n;
}
