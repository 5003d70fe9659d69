/* Random schedules: sequences join, read, go on together, with chunks of prompts in the same pass or
 * without, fork, rewind and leave in any order, also while a pass runs, in a cache with fewer pages than
 * all of them would like, and each of them gets what it would alone, bit for bit. KERMES_SCHEDULES says
 * how many are tried. */
#include "base/rng.h"
#include "infer/sequences.h"
#include "model/small.h"
#include "support/random_model.h"
#include "support/sanitized.h"
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 37, VOCAB_OF_BLOCKS = 300, CONTEXT = 320, MANY = 6, TURNS = 24, DEEDS = 80 };

typedef enum deed_kind { READ, STEP, REWIND } deed_kind;
typedef struct deed { /* what was done to a sequence; ids follow from where it stands */
    deed_kind kind;
    int32_t n, salt;
} deed;

typedef struct life {
    bool used;
    int sequence, n;
    deed deeds[DEEDS];
} life;

static uint64_t seed, drawn;
static size_t vocab = VOCAB; /* of the model at work */

static int32_t draw(int64_t below) {
    return (int32_t)(km_philox(seed, 5, drawn++).v[0] % (uint64_t)below);
}

static int32_t id_of(int32_t salt, int64_t position) {
    return (int32_t)(km_philox((uint64_t)salt, 6, (uint64_t)position).v[0] % VOCAB);
}

static km_net *made(km_ctx *ctx, int64_t window) {
    km_config c = {.arch = KM_ARCH_LLAMA,
                   .layers = 2,
                   .heads = 2,
                   .kv_heads = 1,
                   .dim = 32,
                   .head_dim = 32,
                   .hidden = 32,
                   .context = CONTEXT,
                   .vocab = VOCAB,
                   .tied = true,
                   .window = window};
    km_net *m = km_net_new(ctx, &c, KM_F32);
    assert_ok(ctx);
    for (int i = 0; i < m->params.n; i++)
        if (m->params.at[i].decay) km_param_normal(ctx, &m->params.at[i], 11, 0.3);
    for (int i = 0; i < m->params.n; i++)
        if (m->params.at[i].t->shape.ndim == 1)
            km_assign(ctx, m->params.at[i].t, km_ones(ctx, KM_F32, m->params.at[i].t->shape));
    km_step_end(ctx);
    vocab = VOCAB;
    return m;
}

static km_net *made_of_blocks(km_ctx *ctx, int64_t window) {
    km_config c = random_config((km_config){.arch = KM_ARCH_LLAMA,
                                            .layers = 2,
                                            .heads = 2,
                                            .kv_heads = 1,
                                            .dim = 64,
                                            .context = CONTEXT,
                                            .vocab = VOCAB_OF_BLOCKS,
                                            .window = window});
    vocab = VOCAB_OF_BLOCKS;
    return random_model(ctx, &c, "q8_0", 3, NULL);
}

static km_sequences *opened(km_ctx *ctx, km_net *m, km_dtype cache, int64_t sequences,
                            size_t memory) {
    km_error err = {0};
    km_sequences_options o = km_sequences_defaults();
    o.cache = cache;
    o.sequences = sequences;
    o.memory = memory;
    km_sequences *b = km_sequences_new(ctx, m, &o, &err);
    if (!b) fail_msg("%s", err.text);
    return b;
}

/* KM_ERR_MEMORY: there are too few pages, and the sequence is as it was but for what it read. */
static km_status act(km_sequences *b, int s, const deed *d, km_error *err) {
    int64_t length = km_sequences_length(b, s);
    int32_t ids[CONTEXT];
    if (d->kind == REWIND) {
        km_sequences_rewind(b, s, d->n);
        return KM_OK;
    }
    for (int32_t i = 0; i < d->n; i++) ids[i] = id_of(d->salt, length + i);
    return d->kind == READ ? km_sequences_read(b, s, ids, (size_t)d->n, err)
                           : km_sequences_step(b, &(km_sequences_token){s, ids[0]}, 1, err);
}

/* Everybody's life again, one after the other, in a cache of its own. */
static void compare(km_sequences *b, km_sequences *lone, const life *l) {
    km_error err = {0};
    int s = km_sequences_join(lone, &err);
    assert_true(s >= 0);
    for (int i = 0; i < l->n; i++)
        if (act(lone, s, &l->deeds[i], &err) != KM_OK) fail_msg("alone: %s", err.text);
    int64_t n = km_sequences_length(lone, s);
    assert_int_equal(km_sequences_length(b, l->sequence), n);
    if (n)
        assert_memory_equal(km_sequences_tokens(b, l->sequence), km_sequences_tokens(lone, s),
                            sizeof(int32_t) * (size_t)n);
    const float *got = km_sequences_logits(b, l->sequence), *want = km_sequences_logits(lone, s);
    assert_true((got != NULL) == (want != NULL));
    if (got && memcmp(got, want, sizeof *got * vocab) != 0)
        fail_msg("schedule %llu: a sequence of %lld tokens is not what it would be alone",
                 (unsigned long long)seed, (long long)n);
    km_sequences_leave(lone, s);
}

static void leave(km_sequences *b, life *l) {
    km_sequences_leave(b, l->sequence);
    l->used = false;
}

static bool note(life *l, deed d) {
    if (l->n == DEEDS) return false;
    l->deeds[l->n++] = d;
    return true;
}

/* Somebody else leaves, so that there are pages again; false: there is nobody. */
static bool make_room(km_sequences *b, life *all, const life *but) {
    for (int i = 0; i < MANY; i++)
        if (all[i].used && &all[i] != but) {
            leave(b, &all[i]);
            return true;
        }
    return false;
}

static void join_or_fork(km_sequences *b, life *l, const life *from) {
    km_error err = {0};
    bool fork = from && from->used;
    *l = (life){.used = true};
    if (fork) {
        *l = *from;
        l->sequence = km_sequences_fork(b, from->sequence, &err);
    } else {
        l->sequence = km_sequences_join(b, &err);
    }
    if (l->sequence < 0) fail_msg("%s", err.text);
}

/* A token for each of some sequences, together. How often the pages were too few is added to *full. */
static void step_some(km_sequences *b, life *all, int *full) {
    km_sequences_token t[MANY];
    life *who[MANY];
    deed d[MANY];
    km_error err = {0};
    int n = 0;
    for (int k = 0, first = draw(MANY); k < MANY; k++) {
        life *l = &all[(first + k) % MANY];
        if (!l->used || !km_sequences_logits(b, l->sequence) || draw(4) == 0) continue;
        int64_t at = km_sequences_length(b, l->sequence);
        if (at >= CONTEXT || l->n == DEEDS) continue;
        d[n] = (deed){STEP, 1, draw(1 << 20)};
        who[n] = l;
        t[n] = (km_sequences_token){l->sequence, id_of(d[n].salt, at)};
        n++;
    }
    for (int i = 0; i < n; i++) t[i].id = id_of(d[i].salt, km_sequences_length(b, t[i].sequence));
    while (n && km_sequences_step(b, t, n, &err) != KM_OK) {
        if (err.code != KM_ERR_MEMORY) fail_msg("%s", err.text);
        for (int i = 0; i < n; i++) /* nothing was done */
            assert_non_null(km_sequences_logits(b, t[i].sequence));
        err = (km_error){0};
        ++*full;
        leave(b, who[--n]);
    }
    for (int i = 0; i < n; i++) note(who[i], d[i]);
}

static void read_some(km_sequences *b, life *all, life *l, int *full) {
    static const int most[] = {1, 5, 40, 200};
    km_error err = {0};
    int64_t room = CONTEXT - km_sequences_length(b, l->sequence);
    deed d = {READ, 1 + draw(most[draw(4)]), draw(1 << 20)};
    if (d.n > room || l->n == DEEDS) return;
    km_status s;
    int64_t pages = km_sequences_pages_for(b, l->sequence, d.n);
    bool fits = pages <= km_sequences_pages_left(b);
    s = act(b, l->sequence, &d, &err);
    assert_int_equal(s == KM_OK, fits);
    if (s == KM_OK) {
        note(l, d);
        return;
    }
    if (s != KM_ERR_MEMORY) fail_msg("%s", err.text);
    ++*full;
    if (km_sequences_length(b, l->sequence) != CONTEXT - room) /* some of it was read */
        leave(b, l);
    else if (!make_room(b, all, l)) /* too long for the cache itself */
        leave(b, l);
}

/* One pass: a token for each of some sequences, and a chunk for one. Somebody may leave before its end, or
 * fork. */
static void pass_some(km_sequences *b, life *all, life *reader, int *full) {
    km_sequences_part p[MANY];
    life *who[MANY];
    deed d[MANY];
    int32_t ids[MANY][CONTEXT];
    km_error err = {0};
    int n = 0;
    for (int k = 0, first = draw(MANY); k < MANY; k++) {
        life *l = &all[(first + k) % MANY];
        if (!l->used || l->n == DEEDS || (l != reader && draw(4) == 0)) continue;
        int64_t at = km_sequences_length(b, l->sequence), room = CONTEXT - at;
        if (room < 1 || (l != reader && !km_sequences_logits(b, l->sequence))) continue;
        bool chunk = l == reader && room > 1;
        d[n] = (deed){chunk ? READ : STEP, 1, draw(1 << 20)};
        if (chunk) d[n].n = 2 + draw(room - 1 < 100 ? room - 1 : 100);
        for (int32_t i = 0; i < d[n].n; i++) ids[n][i] = id_of(d[n].salt, at + i);
        p[n] =
            (km_sequences_part){.sequence = l->sequence, .ids = ids[n], .n = d[n].n, .wants = true};
        who[n++] = l;
    }
    while (n && km_sequences_begin(b, p, n, &err) != KM_OK) {
        if (err.code != KM_ERR_MEMORY) fail_msg("%s", err.text);
        err = (km_error){0};
        ++*full;
        leave(b, who[--n]);
    }
    if (n && draw(4) == 0) { /* it is gone before the end; its place may be taken */
        int gone = draw(n);
        leave(b, who[gone]);
        p[gone].sequence = -1;
        if (draw(2)) join_or_fork(b, who[gone], draw(2) ? &all[draw(MANY)] : NULL);
    }
    if (n && km_sequences_end(b, p, n, &err) != KM_OK) fail_msg("%s", err.text);
    for (int i = 0; i < n; i++)
        if (p[i].sequence >= 0) note(who[i], d[i]);
}

static void one_schedule(km_ctx *ctx, km_net *m, km_dtype cache, size_t memory, bool passes,
                         int *full) {
    km_sequences *b = opened(ctx, m, cache, MANY, memory), *lone = opened(ctx, m, cache, 1, 0);
    int64_t pages = km_sequences_pages_left(b);
    life *all = calloc(MANY, sizeof *all);
    for (int turn = 0; turn < TURNS; turn++) {
        life *l = &all[draw(MANY)];
        int what = draw(10);
        if (!l->used) {
            join_or_fork(b, l, what < 5 ? &all[draw(MANY)] : NULL);
        } else if (what < 3) {
            read_some(b, all, l, full);
        } else if (what < 8 && passes && draw(3)) {
            pass_some(b, all, l, full);
        } else if (what < 8) {
            step_some(b, all, full);
        } else if (what < 9) {
            int64_t length = km_sequences_length(b, l->sequence);
            deed d = {REWIND, length ? draw(length) : 0, 0};
            if (length && note(l, d)) act(b, l->sequence, &d, NULL);
        } else {
            compare(b, lone, l);
            leave(b, l);
        }
        assert_ok(ctx);
    }
    for (int i = 0; i < MANY; i++)
        if (all[i].used) {
            compare(b, lone, &all[i]);
            leave(b, &all[i]);
        }
    assert_int_equal(km_sequences_pages_left(b), pages); /* all of them came back */
    free(all);
    km_sequences_free(b);
    km_sequences_free(lone);
}

static void every_schedule_gives_what_each_gets_alone(void **state) {
    km_ctx *ctx = *state;
    static const km_dtype caches[] = {KM_F32, KM_F16, KM_Q8_0};
    const char *asked = getenv("KERMES_SCHEDULES");
    int rounds = asked ? atoi(asked) : SANITIZED ? 30 : 300, full = 0;
    for (int k = 0; k < 4; k++) { /* weights in blocks, whose passes change no bit, and floats */
        km_net *m = k < 2 ? made(ctx, k ? 70 : 0) : made_of_blocks(ctx, k == 3 ? 70 : 0);
        for (int i = k; i < rounds; i += 4) {
            seed = (uint64_t)i;
            drawn = 0;
            km_dtype cache = caches[draw(3)];
            km_cache_options one = {cache, 1, CONTEXT, 1};
            /* From enough for one sequence to enough for all. */
            size_t page = km_cache_bytes(&m->config, &one);
            one_schedule(ctx, m, cache, page * (size_t)(3 + draw(20)), k > 1, &full);
        }
        km_net_free(m);
    }
    assert_true(full > rounds / 10);
}

/* A token for each of 511 sequences and a chunk of one more. */
static void a_pass_of_many_rows_gives_each_its_own(void **state) {
    enum { MOST = KM_STEP_ROWS, STEPS = 2, CHUNK = 90 };
    km_ctx *ctx = *state;
    km_error err = {0};
    km_net *m = made_of_blocks(ctx, 0);
    km_sequences *b = opened(ctx, m, KM_F16, MOST, 0), *lone = opened(ctx, m, KM_F16, 1, 0);
    static km_sequences_part p[MOST];
    static int32_t one[MOST], chunk[CHUNK];
    for (int i = 0; i < MOST; i++) {
        assert_int_equal(km_sequences_join(b, &err), i);
        deed d = {READ, 1 + i % 3, i};
        if (i < MOST - 1) assert_int_equal(act(b, i, &d, &err), KM_OK);
    }
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < MOST; i++) {
            int64_t at = km_sequences_length(b, i);
            one[i] = id_of(i, at);
            p[i] = (km_sequences_part){.sequence = i, .ids = &one[i], .n = 1, .wants = true};
        }
        for (int i = 0; i < CHUNK; i++) chunk[i] = id_of(MOST - 1, step * CHUNK + i);
        p[MOST - 1].ids = chunk;
        p[MOST - 1].n = CHUNK;
        if (km_sequences_begin(b, p, MOST, &err) != KM_OK ||
            km_sequences_end(b, p, MOST, &err) != KM_OK)
            fail_msg("%s", err.text);
    }
    for (int i = MOST - 1; i >= 0; i -= i > MOST - 4 ? 1 : 37) {
        int s = km_sequences_join(lone, &err);
        deed read = {READ, 1 + i % 3, i}, step = {STEP, 1, i}, part = {READ, CHUNK, i};
        if (i < MOST - 1) act(lone, s, &read, &err);
        for (int k = 0; k < STEPS; k++) act(lone, s, i < MOST - 1 ? &step : &part, &err);
        assert_memory_equal(km_sequences_logits(b, i), km_sequences_logits(lone, s),
                            vocab * sizeof(float));
        km_sequences_leave(lone, s);
    }
    km_sequences_free(b);
    km_sequences_free(lone);
    km_net_free(m);
}

static void memory_for_no_page_is_refused(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    km_net *m = made(ctx, 0);
    km_sequences_options o = km_sequences_defaults();
    o.memory = 100;
    assert_null(km_sequences_new(ctx, m, &o, &err));
    assert_string_equal(err.text, "session: 100 bytes hold no page of the cache");
    assert_ok(ctx);
    km_net_free(m);
}

static int set_up(void **state) { return (*state = km_ctx_new("cpu", 1)) ? 0 : -1; }

static int tear_down(void **state) {
    km_ctx_free(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_schedule_gives_what_each_gets_alone, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_pass_of_many_rows_gives_each_its_own, set_up, tear_down),
        cmocka_unit_test_setup_teardown(memory_for_no_page_is_refused, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
