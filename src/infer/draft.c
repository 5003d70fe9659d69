/* Drafts: by looking back in the text, or by a smaller model. */
#include "infer/draft.h"
#include "infer/chooser.h"
#include "base/alloc.h"
#include <string.h>

#define LONGEST (KM_FEW_ROWS - 1)

struct km_drafter {
    km_sequence *session; /* of the smaller model; NULL: look-up */
    km_sampler *shadow;   /* of the samplers that choose */
    int length;           /* guesses at a time */
    bool by_op;           /* km_drafter_by_op */
};

static km_drafter *made(km_sequence *session, int length, km_error *err) {
    km_drafter *d = km_calloc(1, sizeof *d);
    if (!d) {
        km_sequence_free(session);
        km_error_set(err, KM_ERR_MEMORY, "draft: out of memory");
        return NULL;
    }
    *d = (km_drafter){.session = session, .length = length};
    return d;
}

km_drafter *km_drafter_lookup(km_error *err) { return made(NULL, 8, err); }

km_drafter *km_drafter_model(km_sequence *session, km_error *err) { return made(session, 4, err); }

void km_drafter_free(km_drafter *d) {
    if (!d) return;
    km_sequence_free(d->session);
    km_sampler_free(d->shadow);
    km_free(d);
}

void km_drafter_told(km_drafter *d, int right, int wrong) {
    if (wrong == 0)
        d->length += 2;
    else if (right == 0)
        d->length--;
    if (d->length < 2) d->length = 2;
    if (d->length > LONGEST) d->length = LONGEST;
}

void km_drafter_by_op(km_drafter *d, bool on) { d->by_op = on; }

/* ---- Looking back ---- */

/* The text is tokens with id after them. */
static int32_t at(const int32_t *tokens, int64_t n, int32_t id, int64_t i) {
    return i < n ? tokens[i] : id;
}

/* What followed the last place where the text's last tokens stood before; longer matches first. */
static int look_back(const int32_t *tokens, int64_t n, int32_t id, int most, int32_t *out) {
    int64_t total = n + 1;
    for (int gram = 3; gram >= 2; gram--) {
        for (int64_t i = total - gram - 1; i >= 0; i--) {
            int same = 0;
            while (same < gram &&
                   at(tokens, n, id, i + same) == at(tokens, n, id, total - gram + same))
                same++;
            if (same < gram) continue;
            int k = 0;
            for (int64_t from = i + gram; k < most && from < total; from++)
                out[k++] = at(tokens, n, id, from);
            return k;
        }
    }
    return 0;
}

/* ---- A smaller model ---- */

/* The smaller model has read tokens and id, and nothing else. */
static km_status catch_up(km_drafter *d, const int32_t *tokens, int64_t n, int32_t id,
                          km_error *err) {
    int64_t same = km_sequence_match(d->session, tokens, (size_t)n);
    km_sequence_rewind(d->session, same);
    same = km_sequence_length(d->session);
    int64_t behind = n - same + 1;
    if (behind > KM_FEW_ROWS) {
        km_status s = km_sequence_read(d->session, tokens + same, (size_t)(n - same), err);
        if (s != KM_OK) return s;
        behind = 1, same = n;
    }
    int32_t ids[KM_FEW_ROWS];
    for (int64_t i = 0; i < behind; i++) ids[i] = at(tokens, n, id, same + i);
    if (!km_sequence_try(d->session, ids, (int)behind, err)) return err->code;
    km_sequence_take(d->session, ids, (int)behind);
    return KM_OK;
}

/* The guesses chosen where the logits are, in one go: nothing but tokens comes to the host. */
static int ask_device(km_drafter *d, const int32_t *tokens, int64_t n, int32_t id, int64_t vocab,
                      int most, int32_t *out, km_error *err) {
    km_chooser c;
    km_sampling how = km_sampler_settings(d->shadow);
    if (!km_chooser_begin(&c, &how, vocab, km_sampler_draws(d->shadow))) return -2;
    int64_t same = km_sequence_match(d->session, tokens, (size_t)n);
    km_sequence_rewind(d->session, same);
    same = km_sequence_length(d->session);
    if (same < n && km_sequence_read(d->session, tokens + same, (size_t)(n - same), err) != KM_OK)
        return -1;
    if (km_sequence_choose(d->session, id, most, &c, out, err) != KM_OK) return -1;
    for (int k = 0; k < most; k++)
        if (out[k] < 0) return k;
    return most;
}

/* A session that has filled up, or failed, guesses nothing. */
static int ask_model(km_drafter *d, const int32_t *tokens, int64_t n, int32_t id,
                     const km_sampler *sampler, int most, int32_t *out, km_error *err) {
    int64_t room = km_sequence_context(d->session) - n - 1;
    if (most > room) most = (int)(room > 0 ? room : 0);
    if (most < 1) return 0;
    if (!d->shadow && !(d->shadow = km_sampler_shadow(sampler, err))) return -1;
    km_sampler_follow(d->shadow, sampler);
    if (d->by_op && most <= km_sequence_ahead(d->session)) {
        int got = ask_device(d, tokens, n, id, km_sampler_vocab(d->shadow), most, out, err);
        if (got > -2) return got;
    }
    if (catch_up(d, tokens, n, id, err) != KM_OK) return -1;
    for (int k = 0; k < most; k++) {
        out[k] = km_sampler_pick(d->shadow, km_sequence_logits(d->session), NULL);
        if (out[k] < 0) return k;
        if (k + 1 < most && km_sequence_next(d->session, out[k], err) != KM_OK) return -1;
    }
    return most;
}

int km_drafter_guess(km_drafter *d, const int32_t *tokens, int64_t n, int32_t id,
                     const km_sampler *sampler, int64_t most, int32_t *out, km_error *err) {
    if (most > d->length) most = d->length;
    if (most < 1) return 0;
    return d->session ? ask_model(d, tokens, n, id, sampler, (int)most, out, err)
                      : look_back(tokens, n, id, (int)most, out);
}
