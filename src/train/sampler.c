/* Which tokens make sample k. Nothing here has a state: shuffling is a keyed permutation, so a run
 * resumes at any sample by its number alone, and ranks take disjoint samples without talking. */
#include "base/rng.h"
#include "train/dataset.h"
#include <string.h>

enum { BLOCK = 1024, ROUNDS = 4 };
enum { STREAM_ORDER = 1, STREAM_PHASE = 2, STREAM_PARTS = 3 }; /* apart from the context's draws */

static uint64_t stream_of(int purpose, int part, int64_t pass) {
    return (uint64_t)purpose << 60 | (uint64_t)part << 50 | (uint64_t)pass;
}

/* A Feistel network over the next even power of two, walked until it lands below n. */
int64_t km_shuffled(uint64_t seed, uint64_t stream, int64_t n, int64_t i) {
    int half = 1;
    while (half < 31 && (INT64_C(1) << (2 * half)) < n) half++;
    uint64_t mask = (UINT64_C(1) << half) - 1, v = (uint64_t)i;
    do {
        uint64_t left = v >> half, right = v & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t mixed = km_philox(seed, stream, round << 32 | right).v[0] & mask;
            uint64_t next = left ^ mixed;
            left = right;
            right = next;
        }
        v = left << half | right;
    } while (v >= (uint64_t)n);
    return (int64_t)v;
}

/* ---- Which part ---- */

/* Samples of part p among the first `blocks` blocks. All but the heaviest part get their share
 * rounded down; the heaviest gets the rest, which 32 parts cannot make negative. */
static int64_t quota(const km_dataset *d, int p, int heaviest, int64_t blocks) {
    if (p != heaviest) return (int64_t)(d->parts[p].weight * BLOCK * (double)blocks);
    int64_t rest = blocks * BLOCK;
    for (int i = 0; i < d->n; i++)
        if (i != heaviest) rest -= quota(d, i, heaviest, blocks);
    return rest;
}

/* The part of sample k, and which of that part's samples it is. */
static int part_of(const km_window_sampler *s, int64_t k, int64_t *index) {
    const km_dataset *d = s->data;
    *index = k;
    if (d->n == 1) return 0;
    int heaviest = 0;
    for (int i = 1; i < d->n; i++)
        if (d->parts[i].weight > d->parts[heaviest].weight) heaviest = i;
    int64_t block = k / BLOCK;
    int64_t slot = km_shuffled(s->seed, stream_of(STREAM_PARTS, 0, block), BLOCK, k % BLOCK);
    for (int p = 0; p < d->n; p++) { /* slots are dealt to the parts in order */
        int64_t before = quota(d, p, heaviest, block);
        int64_t mine = quota(d, p, heaviest, block + 1) - before;
        if (slot < mine) {
            *index = before + slot;
            return p;
        }
        slot -= mine;
    }
    return heaviest;
}

/* ---- Which window ---- */

void km_window_sampler_train(const km_window_sampler *s, int64_t k, int32_t *ids,
                             int32_t *targets) {
    int64_t index, t = s->context;
    int p = part_of(s, k, &index);
    const km_dataset_part *part = &s->data->parts[p];
    /* A window less than would fit, where there are several, leaves room for the phase. */
    int64_t starts = part->train - 1, windows = starts / t > 1 ? starts / t - 1 : 1;
    int64_t pass = index / windows, room = starts - windows * t + 1;
    km_philox4 r = km_philox(s->seed, stream_of(STREAM_PHASE, p, pass), 0);
    int64_t phase = (int64_t)(((uint64_t)r.v[0] << 32 | r.v[1]) % (uint64_t)room);
    int64_t window =
        km_shuffled(s->seed, stream_of(STREAM_ORDER, p, pass), windows, index % windows);
    int64_t at = phase + window * t;
    km_tokens_get(&part->tokens, at, t, ids);
    km_tokens_get(&part->tokens, at + 1, t, targets);
}

/* ---- Validation ---- */

static int64_t val_windows(const km_dataset_part *p, int64_t t) {
    int64_t targets = p->val - 1;
    return targets < 1 ? 0 : targets < t ? 1 : targets / t;
}

int64_t km_window_sampler_val_count(const km_window_sampler *s) {
    int64_t n = 0;
    for (int i = 0; i < s->data->n; i++) n += val_windows(&s->data->parts[i], s->context);
    return n;
}

int64_t km_window_sampler_val(const km_window_sampler *s, int64_t i, int32_t ignore, int32_t *ids,
                              int32_t *targets) {
    int64_t t = s->context;
    for (int k = 0; k < s->data->n; k++) {
        const km_dataset_part *p = &s->data->parts[k];
        int64_t windows = val_windows(p, t);
        if (i >= windows) {
            i -= windows;
            continue;
        }
        int64_t at = p->train + i * t, n = p->val - 1 < t ? p->val - 1 : t;
        km_tokens_get(&p->tokens, at, n, ids);
        km_tokens_get(&p->tokens, at + 1, n, targets);
        for (int64_t j = n; j < t; j++) {
            ids[j] = 0;
            targets[j] = ignore;
        }
        return n;
    }
    for (int64_t j = 0; j < t; j++) { /* beyond the last: a row that counts for nothing */
        ids[j] = 0;
        targets[j] = ignore;
    }
    return 0;
}
