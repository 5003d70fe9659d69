/* What a batch makes of its time: tokens of all texts a second when nothing else happens, when prompts
 * come in one after the other, and when half of the texts are under a JSON schema and tell how likely their
 * tokens were. */
#include "cli/bench/together.h"
#include "base/alloc.h"
#include "base/clock.h"
#include <stdlib.h>
#include <string.h>

static const char schema[] =
    "{\"type\": \"array\", \"minItems\": 500, \"items\": {\"type\": \"object\", \"properties\": "
    "{\"name\": {\"type\": \"string\", \"maxLength\": 40}, \"age\": {\"type\": \"integer\"}, "
    "\"tags\": {\"type\": \"array\", \"items\": {\"enum\": [\"red\", \"green\", \"blue\"]}}}, "
    "\"required\": [\"name\", \"age\", \"tags\"], \"additionalProperties\": false}}";

typedef struct together {
    km_model *m;
    const km_together_how *how;
    km_batch *b;
    int64_t vocab;
    int32_t *ids;          /* (the longer of context and prompt) */
    km_piece_event *event; /* (sequences + 2) */
    double *last;          /* (sequences): when its last token came; 0: none has */
    double *gap;           /* (GAPS) */
    int64_t gaps, made, read, prompts;
} together;

#define GAPS 200000

static km_status told(km_error *err) {
    return km_error_set(err, km_last_status() ? km_last_status() : KM_ERR_STATE, "%s",
                        km_last_error());
}

/* Another text each time, so that nothing of it has been read before. */
static void make_ids(together *t, int64_t n, int64_t which) {
    for (int64_t i = 0; i < n; i++)
        t->ids[i] = (int32_t)(((uint64_t)(i + which * 31) * 7919 + (uint64_t)which) % 256);
}

static km_status start(together *t, int sequence, int64_t tokens, int64_t which,
                       const km_generation *g, km_error *err) {
    make_ids(t, tokens, which);
    return km_batch_start(t->b, sequence, t->ids, (size_t)tokens, g) == KM_OK ? KM_OK : told(err);
}

/* One prompt after the other, in the last sequence. */
static km_status next_prompt(together *t, km_error *err) {
    km_generation g = km_generation_defaults(t->m);
    g.max_tokens = 1;
    g.past_end = true;
    return start(t, (int)t->how->sequences, t->how->prompt, 1000 + t->prompts++, &g, err);
}

static km_status step(together *t, bool prompts, km_error *err) {
    int most = (int)t->how->sequences + 2;
    int n = km_batch_step(t->b, t->event, most);
    double now = km_now();
    if (n <= 0) return n < 0 ? told(err) : KM_ERR_STATE;
    for (int i = 0; i < n; i++) {
        const km_piece_event *e = &t->event[i];
        if (e->status != KM_OK) return km_error_set(err, e->status, "%.*s", (int)e->bytes, e->text);
        if (e->sequence < 0) continue;
        if (e->sequence == t->how->sequences) {
            t->read += t->how->prompt;
            if (prompts && next_prompt(t, err) != KM_OK) return err->code;
            continue;
        }
        t->made++;
        double *last = &t->last[e->sequence];
        if (*last > 0 && t->gaps < GAPS) t->gap[t->gaps++] = now - *last;
        *last = now;
        if (e->end != KM_ENDED_NOT)
            return km_error_set(err, KM_ERR_STATE, "a text ended: %s", km_end_name(e->end));
    }
    return KM_OK;
}

static int by_length(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static km_status measure(together *t, bool prompts, km_together_rate *out, km_error *err) {
    km_status s = KM_OK;
    if (prompts) s = next_prompt(t, err);
    for (double warm = km_now(); s == KM_OK && km_now() - warm < t->how->seconds / 4;)
        s = step(t, prompts, err);
    t->gaps = t->made = t->read = 0;
    memset(t->last, 0, sizeof *t->last * (size_t)t->how->sequences);
    double begin = km_now();
    while (s == KM_OK && km_now() - begin < t->how->seconds) s = step(t, prompts, err);
    double seconds = km_now() - begin;
    qsort(t->gap, (size_t)t->gaps, sizeof *t->gap, by_length);
    *out = (km_together_rate){.tokens_per_s = (double)t->made / seconds,
                              .prompt_per_s = (double)t->read / seconds,
                              .p50 = t->gaps ? t->gap[t->gaps / 2] : 0,
                              .p99 = t->gaps ? t->gap[t->gaps * 99 / 100] : 0};
    return s;
}

/* All texts read and going on; half of them under the schema. */
static km_status open_batch(together *t, bool schemas, km_error *err) {
    const km_together_how *how = t->how;
    km_batch_options o = km_batch_defaults();
    o.sequences = how->sequences + 1;
    o.context = how->context + 4096 > how->prompt + 64 ? how->context + 4096 : how->prompt + 64;
    km_batch_free(t->b);
    if (!(t->b = km_batch_new(t->m, &o))) return told(err);
    for (int i = 0; i <= how->sequences; i++)
        if (km_batch_join(t->b) != i) return told(err);
    for (int i = 0; i < how->sequences; i++) {
        km_generation g = km_generation_defaults(t->m);
        g.past_end = true;
        g.sampling.seed = (uint64_t)i + 1;
        if (schemas && i % 2) {
            g.schema = schema;
            g.logprobs = 5;
        }
        if (start(t, i, how->context, i, &g, err) != KM_OK) return err->code;
    }
    km_status s = KM_OK;
    while (s == KM_OK && km_batch_describe(t->b).reading > 0) s = step(t, false, err);
    return s;
}

static km_status prompt_alone(together *t, double *rate, km_error *err) {
    km_status s = next_prompt(t, err); /* the others have ended */
    while (s == KM_OK && t->read == 0) s = step(t, false, err);
    t->read = 0;
    double begin = km_now();
    while (s == KM_OK && km_now() - begin < t->how->seconds) {
        int64_t before = t->read;
        s = next_prompt(t, err);
        while (s == KM_OK && t->read == before) s = step(t, false, err);
    }
    *rate = (double)t->read / (km_now() - begin);
    return s;
}

static km_status stop_all(together *t, km_error *err) {
    for (int i = 0; i <= t->how->sequences; i++)
        if (km_batch_stop(t->b, i) != KM_OK) return told(err);
    while (km_batch_describe(t->b).running > 0)
        if (km_batch_step(t->b, t->event, (int)t->how->sequences + 2) < 0) return told(err);
    t->read = 0;
    return KM_OK;
}

km_status km_bench_together(km_model *m, const km_together_how *how, km_together *out,
                            km_error *err) {
    together t = {.m = m, .how = how};
    int64_t longest = how->prompt > how->context ? how->prompt : how->context;
    size_t n = (size_t)how->sequences;
    t.ids = km_calloc((size_t)longest, sizeof *t.ids);
    t.event = km_calloc(n + 2, sizeof *t.event);
    t.last = km_calloc(n, sizeof *t.last);
    t.gap = km_calloc(GAPS, sizeof *t.gap);
    km_status s = t.ids && t.event && t.last && t.gap
                      ? KM_OK
                      : km_error_set(err, KM_ERR_MEMORY, "bench: out of memory");
    if (s == KM_OK) s = open_batch(&t, false, err);
    if (s == KM_OK) s = measure(&t, false, &out->plain, err);
    if (s == KM_OK) s = measure(&t, true, &out->mixed, err);
    if (s == KM_OK) s = stop_all(&t, err);
    if (s == KM_OK) s = prompt_alone(&t, &out->prompt_alone, err);
    if (s == KM_OK) s = open_batch(&t, true, err);
    if (s == KM_OK) s = measure(&t, false, &out->schema, err);
    km_batch_free(t.b);
    km_free(t.ids);
    km_free(t.event);
    km_free(t.last);
    km_free(t.gap);
    return s;
}
