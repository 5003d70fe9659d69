/* Sessions in files: what is read back goes on as what was saved, and nothing but a whole file of
 * this very model is taken. */
#include "base/alloc.h"
#include "base/file.h"
#include "infer/sequence.h"
#include "model/small.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { VOCAB = 37, TOKENS = 75 };

static km_net *made(km_ctx *ctx, uint64_t seed, int64_t window) {
    km_config c = {.arch = KM_ARCH_LLAMA,
                   .layers = 2,
                   .heads = 2,
                   .kv_heads = 1,
                   .dim = 64,
                   .head_dim = 32,
                   .hidden = 64,
                   .context = 200,
                   .vocab = VOCAB,
                   .tied = true,
                   .window = window};
    km_net *m = km_net_new(ctx, &c, KM_F32);
    assert_int_equal(km_net_init(m, seed), KM_OK);
    km_step_end(ctx);
    return m;
}

static km_sequence *opened(km_ctx *ctx, km_net *m, km_dtype cache, int64_t context) {
    km_error err = {0};
    km_sequences_options o = km_sequences_defaults();
    o.cache = cache;
    o.context = context;
    km_sequence *s = km_sequence_open(ctx, m, &o, &err);
    if (!s) fail_msg("%s", err.text);
    return s;
}

static void read_some(km_sequence *s, int n) {
    km_error err = {0};
    int32_t ids[200];
    for (int i = 0; i < n; i++) ids[i] = (i * 7 + i * i) % VOCAB;
    assert_int_equal(km_sequence_read(s, ids, (size_t)n, &err), KM_OK);
}

static const char *path(void) {
    static char p[256];
    const char *dir = getenv("TMPDIR");
    snprintf(p, sizeof p, "%s/kermes-session-%d", dir ? dir : "/tmp", (int)getpid());
    return p;
}

static void what_is_read_back_goes_on_as_what_was_saved(void **state) {
    km_ctx *ctx = *state;
    static const km_dtype caches[] = {KM_F32, KM_F16, KM_BF16, KM_Q8_0, KM_Q4_0};
    for (int window = 0; window <= 40; window += 40)
        for (int k = 0; k < 5; k++) {
            km_error err = {0};
            km_net *m = made(ctx, 3, window);
            km_sequence *a = opened(ctx, m, caches[k], 0), *b = opened(ctx, m, caches[k], 180);
            read_some(a, 150);
            read_some(b, 9); /* which is forgotten */
            if (km_sequence_save(a, path(), &err) != KM_OK) fail_msg("%s", err.text);
            if (km_sequence_restore(b, path(), &err) != KM_OK) fail_msg("%s", err.text);
            assert_int_equal(km_sequence_length(b), 150);
            assert_memory_equal(km_sequence_tokens(a), km_sequence_tokens(b),
                                150 * sizeof(int32_t));
            assert_memory_equal(km_sequence_logits(a), km_sequence_logits(b),
                                VOCAB * sizeof(float));
            for (int i = 0; i < 20; i++) {
                assert_int_equal(km_sequence_next(a, i, &err), KM_OK);
                assert_int_equal(km_sequence_next(b, i, &err), KM_OK);
            }
            assert_memory_equal(km_sequence_logits(a), km_sequence_logits(b),
                                VOCAB * sizeof(float));
            km_sequence_free(a);
            km_sequence_free(b);
            km_net_free(m);
        }
    unlink(path());
}

static void refused(km_sequence *s, const char *why) {
    km_error err = {0};
    float before[VOCAB];
    memcpy(before, km_sequence_logits(s), sizeof before);
    assert_int_not_equal(km_sequence_restore(s, path(), &err), KM_OK);
    if (!strstr(err.text, why)) fail_msg("'%s' does not say '%s'", err.text, why);
    assert_null(strchr(err.text, '\n'));
    assert_int_equal(km_sequence_length(s), 5);
    assert_memory_equal(km_sequence_logits(s), before, sizeof before);
}

static void files_of_other_sessions_are_refused(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    km_net *m = made(ctx, 3, 0), *other = made(ctx, 4, 0);
    km_sequence *a = opened(ctx, m, KM_F16, 0);
    read_some(a, TOKENS);
    assert_int_equal(km_sequence_save(a, path(), &err), KM_OK);
    struct {
        km_net *m;
        km_dtype d;
        int64_t context;
        const char *why;
    } tries[] = {{other, KM_F16, 0, "another model"},
                 {m, KM_Q8_0, 0, "has a cache of f16, and this session q8_0"},
                 {m, KM_F16, 70, "has 75 tokens, and the context 70"}};
    for (int i = 0; i < 3; i++) {
        km_sequence *s = opened(ctx, tries[i].m, tries[i].d, tries[i].context);
        read_some(s, 5);
        refused(s, tries[i].why);
        km_sequence_free(s);
    }
    unlink(path());
    km_sequence_free(a);
    a = opened(ctx, m, KM_F16, 0);
    read_some(a, 5);
    refused(a, "No such file");
    km_sequence_free(a);
    km_net_free(m);
    km_net_free(other);
}

static void put(const uint8_t *bytes, size_t n) {
    FILE *f = fopen(path(), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static void hash_header(uint8_t *bytes) {
    uint64_t h = XXH3_64bits(bytes, 120);
    memcpy(bytes + 120, &h, 8);
}

static void damaged_and_hostile_files_are_refused(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    km_net *m = made(ctx, 3, 0);
    km_sequence *a = opened(ctx, m, KM_F16, 0), *s = opened(ctx, m, KM_F16, 0);
    read_some(a, TOKENS);
    read_some(s, 5);
    assert_int_equal(km_sequence_save(a, path(), &err), KM_OK);
    km_map map;
    assert_int_equal(km_map_open(&map, path(), &err), KM_OK);
    size_t n = map.size;
    uint8_t *good = km_alloc(n + 1), *bad = km_alloc(n + 1);
    memcpy(good, map.data, n);
    good[n] = 0;
    km_map_close(&map);

    for (size_t cut = 0; cut < n; cut += n / 37 + 1) { /* cut short */
        put(good, cut);
        refused(s, cut < 128 ? "not a session file" : "not whole");
    }
    put(good, n + 1);
    refused(s, "not whole");
    for (size_t at = 0; at < n; at += at < 128 ? 1 : n / 53) { /* one bit turned */
        memcpy(bad, good, n);
        bad[at] ^= 1u << at % 8;
        put(bad, n);
        refused(s, at < 8 ? "not a session file" : at < 128 ? "header is damaged" : "damaged");
    }
    /* Sizes that lie, under a right checksum. */
    static const struct {
        int at;
        int64_t value;
        const char *why;
    } lies[] = {{24, -1, "tokens"},   {24, INT64_MAX, "tokens"},
                {32, -1, "sizes"},    {32, 1000, "sizes"},
                {32, 1, "not whole"}, {40, INT64_MAX, "sizes"},
                {48, 0, "sizes"},     {56, INT64_MAX, "sizes"},
                {64, 2, "sizes"},     {72, INT64_MAX, "not whole"},
                {80, 7, "checksum"},  {12, 1, "sizes"},
                {24, 64, "not whole"}};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        memcpy(bad, good, n);
        memcpy(bad + lies[i].at, &lies[i].value, lies[i].at == 12 ? 4 : 8);
        hash_header(bad);
        put(bad, n);
        refused(s, lies[i].why);
    }
    memcpy(bad, good, n); /* a token that is none */
    memset(bad + 128, 0xff, 4);
    uint64_t h = XXH3_64bits(bad + 128, n - 128);
    memcpy(bad + 80, &h, 8);
    hash_header(bad);
    put(bad, n);
    refused(s, "token -1 is not in the vocabulary");

    put(good, n);
    assert_int_equal(km_sequence_restore(s, path(), &err), KM_OK);
    assert_int_equal(km_sequence_length(s), TOKENS);
    unlink(path());
    km_free(good);
    km_free(bad);
    km_sequence_free(a);
    km_sequence_free(s);
    km_net_free(m);
}

static void an_empty_session_is_saved_too_and_a_bad_place_is_an_error(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    km_net *m = made(ctx, 3, 0);
    km_sequence *a = opened(ctx, m, KM_F16, 0);
    assert_int_equal(km_sequence_save(a, path(), &err), KM_OK);
    read_some(a, 5);
    assert_int_equal(km_sequence_restore(a, path(), &err), KM_OK);
    assert_int_equal(km_sequence_length(a), 0);
    assert_null(km_sequence_logits(a));
    assert_int_equal(km_sequence_save(a, "/nonexistent/place", &err), KM_ERR_FILE);
    unlink(path());
    km_sequence_free(a);
    km_net_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON("cpu", what_is_read_back_goes_on_as_what_was_saved),
        ON("cpu", files_of_other_sessions_are_refused),
        ON("cpu", damaged_and_hostile_files_are_refused),
        ON("cpu", an_empty_session_is_saved_too_and_a_bad_place_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
