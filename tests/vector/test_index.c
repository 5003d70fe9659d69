/* Indexes: what is built is found, ids survive every change and reload, and what is wrong is refused
 * while the index stays as it was. */
#include "support/sanitized.h"
#include "tensor/tensor.h"
#include "vector/index.h"
#include "vector/vectors.h"
#include <pthread.h>

enum { N = 400, DIM = 24, K = 10 };

static km_ctx *ctx;
static float *base; /* (N, DIM) */

static int set_up(void **state) {
    ctx = km_ctx_new("cpu", 2);
    base = clustered(N, DIM, 5);
    return ctx ? make_folder(state) : -1;
}

static int tear_down(void **state) {
    km_ctx_free(ctx);
    free(base);
    return remove_folder(state);
}

static km_index *build(km_index_options o) {
    km_index *x = km_index_build(ctx, base, N, DIM, NULL, &o);
    if (!x) fail_msg("%s", km_last_error());
    return x;
}

#define assert_done(call)                                                                          \
    do {                                                                                           \
        if ((call) != KM_OK) fail_msg("%s", km_last_error());                                      \
    } while (0)
#define assert_refused(call, part)                                                                 \
    do {                                                                                           \
        assert_int_not_equal(call, KM_OK);                                                         \
        if (!strstr(km_last_error(), part))                                                        \
            fail_msg("'%s' does not say '%s'", km_last_error(), part);                             \
    } while (0)

/* How many of the vectors find themselves first. */
static int found(km_index *x, const float *rows, int64_t n, uint64_t first_id,
                 const km_search_options *o) {
    uint64_t *ids = malloc(sizeof *ids * (size_t)n);
    float *dist = malloc(sizeof *dist * (size_t)n);
    int hits = 0;
    assert_done(km_index_search(x, rows, n, 1, o, 2, ids, dist));
    for (int64_t i = 0; i < n; i++) hits += ids[i] == first_id + (uint64_t)i;
    free(ids);
    free(dist);
    return hits;
}

static void vectors_find_themselves_in_every_mode_and_metric(void **state) {
    (void)state;
    for (int mode = 0; mode < 2; mode++)
        for (int metric = 0; metric < 3; metric++) {
            km_index *x = build((km_index_options){.size = sizeof(km_index_options),
                                                   .mode = (km_index_mode)mode,
                                                   .metric = (km_metric)metric,
                                                   .bytes = DIM});
            km_index_info d = km_index_describe(x);
            assert_int_equal(d.count, N);
            assert_int_equal(d.dim, DIM);
            assert_int_equal(d.mode, mode);
            assert_true(d.code_bytes >= 1 && d.code_bytes <= DIM);
            /* A vector need not be its own best by inner product: a longer one may be. */
            int hits = found(x, base, N, 0, NULL);
            if (metric != KM_METRIC_IP) assert_true(hits > N * 95 / 100);
            if (metric == KM_METRIC_IP) assert_true(hits > N / 20);
            km_index_close(x);
        }
}

static void anchors_alone_give_the_cell(void **state) {
    (void)state;
    km_index *x = build((km_index_options){
        .size = sizeof(km_index_options), .mode = KM_INDEX_ANCHORS_ONLY, .anchors = 13});
    uint64_t ids[K];
    float dist[K];
    assert_int_equal(km_index_describe(x).code_bytes, 0);
    assert_done(km_index_search(x, base, 1, K, NULL, 1, ids, dist));
    for (int i = 1; i < K; i++) assert_true(dist[i] >= dist[i - 1]);
    km_index_close(x);
}

static void answers_are_the_same_for_any_number_of_threads(void **state) {
    (void)state;
    km_index *x = build((km_index_options){
        .size = sizeof(km_index_options), .bytes = 12, .anchors = 40}); /* more than come first */
    uint64_t *a = malloc(sizeof *a * N * K), *b = malloc(sizeof *b * N * K);
    float *da = malloc(sizeof *da * N * K), *db = malloc(sizeof *db * N * K);
    assert_done(km_index_search(x, base, N, K, NULL, 1, a, da));
    assert_done(km_index_search(x, base, N, K, NULL, 3, b, db));
    assert_memory_equal(a, b, sizeof *a * N * K);
    assert_memory_equal(da, db, sizeof *da * N * K);
    for (int i = 0, n = 1; i < N; i += n, n = 1 + i % 7) { /* alone, or in other company */
        if (n > N - i) n = N - i;
        assert_done(km_index_search(x, base + i * DIM, n, K, NULL, 1, b + i * K, db + i * K));
    }
    assert_memory_equal(a, b, sizeof *a * N * K);
    assert_memory_equal(da, db, sizeof *da * N * K);
    free(a);
    free(b);
    free(da);
    free(db);
    km_index_close(x);
}

static void the_same_bytes_for_any_number_of_threads(void **state) {
    (void)state;
    write_npy(in_folder("x.npy"), base, N, DIM);
    for (int threads = 1; threads <= 3; threads++) {
        km_ctx *c = km_ctx_new("cpu", threads);
        char name[16];
        snprintf(name, sizeof name, "%d", threads);
        assert_done(
            km_index_compress(c, in_folder("x.npy"), in_folder(name),
                              &(km_index_options){.size = sizeof(km_index_options), .bytes = 12}));
        km_ctx_free(c);
    }
    blob a = read_blob(in_folder("1")), b = read_blob(in_folder("2")),
         c = read_blob(in_folder("3"));
    assert_int_equal(a.size, b.size);
    assert_int_equal(a.size, c.size);
    assert_memory_equal(a.data, b.data, a.size);
    assert_memory_equal(a.data, c.data, a.size);
    free(a.data);
    free(b.data);
    free(c.data);
}

static void ids_survive_adding_deleting_merging_compaction_and_reload(void **state) {
    (void)state;
    km_index *x = build((km_index_options){
        .size = sizeof(km_index_options), .bytes = 20, .rerank = KM_VECTORS_INT8});
    float *more = clustered(200, DIM, 6);
    assert_done(km_index_add(ctx, x, more, 100, NULL)); /* N .. N + 99 */
    uint64_t own[100];
    for (int i = 0; i < 100; i++) own[i] = ((uint64_t)1 << 40) + (uint64_t)i;
    assert_done(km_index_add(ctx, x, more + 100 * DIM, 100, own));
    assert_refused(km_index_add(ctx, x, more, 1, own), "already");
    assert_refused(km_index_add(ctx, x, more, 2, (uint64_t[]){7000, 7000}), "twice");
    assert_int_equal(km_index_describe(x).count, N + 200);
    assert_true(km_index_describe(x).next_id == own[99] + 1);
    uint64_t gone[] = {3, N + 50, own[5]};
    assert_refused(km_index_delete(x, (uint64_t[]){4, 123456}, 2), "nothing was deleted");
    assert_done(km_index_delete(x, gone, 3));
    assert_refused(km_index_delete(x, gone, 1), "no vector with id 3");

    for (int round = 0; round < 3; round++) { /* in memory, with tombstones, compacted */
        uint64_t id[1];
        float d[1];
        assert_int_equal(km_index_describe(x).count, N + 197);
        assert_true(found(x, base, N, 0, NULL) > N * 95 / 100);
        assert_true(found(x, more, 100, N, NULL) > 90);
        assert_true(found(x, more + 100 * DIM, 100, own[0], NULL) > 90);
        for (int i = 0; i < 3; i++) {
            const float *q = i == 0 ? base + 3 * DIM : more + (i == 1 ? 50 : 105) * DIM;
            assert_done(km_index_search(x, q, 1, 1, NULL, 1, id, d));
            assert_true(id[0] != gone[i]);
        }
        const char *path = in_folder(round ? "compacted.kmx" : "dead.kmx");
        assert_done(km_index_save(x, path, round > 0));
        km_index_close(x);
        x = km_index_open(path);
        if (!x) fail_msg("%s", km_last_error());
        assert_int_equal(km_index_describe(x).deleted, round ? 0 : 3);
    }

    km_index *other = build((km_index_options){.size = sizeof(km_index_options),
                                               .bytes = 20}); /* other coder: coded anew */
    assert_refused(km_index_merge(ctx, x, other, NULL), "already");
    km_index_close(other);
    float *third = clustered(150, DIM, 7);
    uint64_t ids[150];
    for (int i = 0; i < 150; i++) ids[i] = 5000 + (uint64_t)i;
    other = km_index_build(ctx, third, 150, DIM, ids,
                           &(km_index_options){.size = sizeof(km_index_options), .bytes = 20});
    assert_non_null(other);
    assert_done(km_index_merge(ctx, x, other, NULL));
    assert_int_equal(km_index_describe(x).count, N + 197 + 150);
    assert_true(found(x, third, 150, 5000, NULL) > 120);
    km_index_close(other);
    km_index_close(x);
    free(more);
    free(third);
}

/* Two halves of one index have its anchors and codes: together they are it again. */
/* Few rows meet the anchors as they lie; many in panels that are laid out for them. */
static void rows_added_one_by_one_are_coded_as_those_added_at_once(void **state) {
    (void)state;
    enum { MORE = 100 };
    float *more = clustered(MORE, DIM, 9);
    memcpy(more, base, sizeof *more * DIM);
    for (int metric = 0; metric < 3; metric++) {
        km_index_options o = {
            .size = sizeof(km_index_options), .metric = (km_metric)metric, .bytes = DIM / 2};
        km_index *one = build(o), *all = build(o);
        km_ctx *own = km_ctx_new("cpu", 1);
        assert_non_null(own);
        uint64_t ids[MORE];
        float a[MORE * DIM], b[MORE * DIM];
        for (int i = 0; i < MORE; i++) {
            ids[i] = (uint64_t)(N + i);
            assert_done(km_index_add(own, one, more + i * DIM, 1, NULL));
        }
        assert_int_equal(own->scratch_bytes, 0); /* the anchors were not laid out for every row */
        assert_done(km_index_add(ctx, all, more, MORE, NULL));
        assert_done(km_index_decode(one, ids, MORE, a));
        assert_done(km_index_decode(all, ids, MORE, b));
        assert_memory_equal(a, b, sizeof a);
        km_ctx_free(own);
        km_index_close(one);
        km_index_close(all);
    }
    free(more);
}

static void halves_of_an_index_merge_without_loss(void **state) {
    (void)state;
    km_index *x = build(
        (km_index_options){.size = sizeof(km_index_options), .bytes = 9, .rerank = KM_VECTORS_F16});
    assert_done(km_index_save(x, in_folder("whole.kmx"), false));
    km_index *half[2];
    for (int h = 0; h < 2; h++) {
        half[h] = km_index_open(in_folder("whole.kmx"));
        assert_non_null(half[h]);
        uint64_t gone[N / 2];
        for (uint64_t i = 0; i < N / 2; i++) gone[i] = 2 * i + (uint64_t)h;
        assert_done(km_index_delete(half[h], gone, N / 2));
    }
    assert_done(km_index_merge(ctx, half[0], half[1], NULL));
    assert_int_equal(km_index_describe(half[0]).count, N);
    uint64_t a[N * K], b[N * K];
    float da[N * K], db[N * K];
    assert_done(km_index_search(x, base, N, K, NULL, 0, a, da));
    assert_done(km_index_search(half[0], base, N, K, NULL, 0, b, db));
    assert_memory_equal(da, db, sizeof da);
    assert_memory_equal(a, b, sizeof a);
    km_index_close(half[0]);
    km_index_close(half[1]);
    km_index_close(x);
}

static void indexes_with_the_same_ids_merge_when_these_are_moved(void **state) {
    (void)state;
    for (int other_coder = 0; other_coder < 2; other_coder++) {
        km_index *x = build((km_index_options){.size = sizeof(km_index_options), .bytes = 20});
        km_index *y = build((km_index_options){.size = sizeof(km_index_options),
                                               .bytes = other_coder ? 16 : 20,
                                               .lloyd = other_coder});
        uint64_t shift = 7;
        km_error err = {0};
        assert_int_equal(km_index_absorb(ctx, x, y, KM_NO_ID - 5, &err), KM_ERR_RANGE);
        assert_non_null(strstr(err.text, "cannot be moved"));
        assert_refused(km_index_merge(ctx, x, y, NULL), "already");
        assert_refused(km_index_merge(ctx, x, x, &shift), "itself");
        assert_int_equal(km_index_describe(x).count, N);
        assert_int_equal(shift, 7); /* nothing was moved */
        assert_done(km_index_merge(ctx, x, y, &shift));
        assert_int_equal(shift, N);
        assert_int_equal(km_index_describe(x).count, 2 * N);
        assert_int_equal(km_index_describe(x).next_id, 2 * N);
        uint64_t ids[N * 2];
        float dist[N * 2];
        int both = 0;
        assert_done(km_index_search(x, base, N, 2, NULL, 0, ids, dist));
        for (uint64_t i = 0; i < N; i++)
            both += (ids[2 * i] == i && ids[2 * i + 1] == N + i) ||
                    (ids[2 * i] == N + i && ids[2 * i + 1] == i);
        assert_true(both > N * 9 / 10);
        km_index_close(y);
        km_index_close(x);
    }
}

static void the_ratio_asked_for_is_the_ratio_of_the_file(void **state) {
    (void)state;
    float *x = clustered(4000, DIM, 12);
    write_npy(in_folder("x.npy"), x, 4000, DIM);
    assert_done(
        km_index_compress(ctx, in_folder("x.npy"), in_folder("x.kmx"),
                          &(km_index_options){.size = sizeof(km_index_options), .ratio = 5}));
    blob b = read_blob(in_folder("x.kmx"));
    double ratio = 4000.0 * DIM * 4 / (double)b.size;
    if (ratio < 5 || ratio > 6) fail_msg("ratio %g", ratio);
    free(b.data);
    free(x);
}

static void what_is_decoded_is_near_what_was_given(void **state) {
    (void)state;
    km_index *x = build((km_index_options){.size = sizeof(km_index_options), .bytes = DIM + 2});
    uint64_t ids[] = {N - 1, 0, 17, 17};
    float out[4 * DIM];
    assert_done(km_index_decode(x, ids, 4, out));
    double error = 0, size = 0;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < DIM; j++) {
            double a = base[ids[i] * DIM + (uint64_t)j], b = out[i * DIM + j];
            error += (a - b) * (a - b);
            size += a * a;
        }
    assert_true(error < 0.01 * size);
    assert_refused(km_index_decode(x, (uint64_t[]){N}, 1, out), "no vector with id 400");
    km_index_close(x);
}

static void anchors_and_assignments_come_out(void **state) {
    (void)state;
    for (int metric = 0; metric < 3; metric++) {
        km_index *x = build((km_index_options){.size = sizeof(km_index_options),
                                               .metric = (km_metric)metric,
                                               .mode = KM_INDEX_ANCHORS_ONLY,
                                               .anchors = 20});
        km_index_info info = km_index_describe(x);
        float *anchors = malloc(sizeof *anchors * (size_t)(info.anchors * DIM)), out[DIM];
        int32_t of[N];
        uint64_t ids[N];
        for (int i = 0; i < N; i++) ids[i] = (uint64_t)(N - 1 - i);
        assert_done(km_index_anchors(x, anchors));
        assert_done(km_index_assignments(x, ids, N, of));
        for (int i = 0; i < N; i++) { /* without codes a vector is its anchor */
            assert_true(of[i] >= 0 && of[i] < info.anchors);
            assert_done(km_index_decode(x, ids + i, 1, out));
            assert_memory_equal(out, anchors + of[i] * DIM, sizeof out);
        }
        assert_refused(km_index_assignments(x, (uint64_t[]){N}, 1, of), "no vector with id 400");
        assert_refused(km_index_assignments(x, NULL, 1, of), "km_index_assignments");
        assert_refused(km_index_anchors(x, NULL), "km_index_anchors");
        assert_done(km_index_assignments(x, NULL, 0, NULL));
        free(anchors);
        km_index_close(x);
    }
}

static void count_round(void *user, const km_anchor_round *r) {
    (void)r;
    ++*(int *)user;
}

static void the_training_of_anchors_is_the_callers_to_set(void **state) {
    (void)state;
    int rounds = 0;
    km_anchor_training how = {.size = sizeof(km_anchor_training),
                              .rounds = 4,
                              .cooling = 0.5,
                              .tolerance = -1,
                              .report = count_round,
                              .user = &rounds};
    km_index *x = build(
        (km_index_options){.size = sizeof(km_index_options), .anchors = 20, .training = &how});
    assert_true(rounds > 0 && rounds <= 4);
    km_index_close(x);
    const struct {
        km_anchor_training how;
        const char *says;
    } wrong[] = {{{.size = sizeof(km_anchor_training), .rounds = -1},
                  "rounds -1 is out of range: it is 1 or more, or 0 for 25"},
                 {{.size = sizeof(km_anchor_training), .robust = (km_robust)3}, "robust 3"},
                 {{.size = sizeof(km_anchor_training), .temperature = 1.5}, "temperature 1.5"},
                 {{.size = sizeof(km_anchor_training), .temperature = NAN}, "temperature nan"},
                 {{.size = sizeof(km_anchor_training), .cooling = 1},
                  "cooling 1 is out of range: it is above 0 and below 1"},
                 {{.size = sizeof(km_anchor_training), .momentum = 1}, "momentum 1"},
                 {{.size = sizeof(km_anchor_training), .maintain_every = -2}, "maintain_every -2"},
                 {{.size = sizeof(km_anchor_training), .merge = 2}, "merge 2"},
                 {{.size = sizeof(km_anchor_training), .split = 0.5},
                  "split 0.5 is out of range: it is 1 or more, or 0 for 1.1"},
                 {{.size = sizeof(km_anchor_training), .split = INFINITY}, "split inf"},
                 {{.size = sizeof(km_anchor_training), .tolerance = -2}, "tolerance -2"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        km_index_options o = {.size = sizeof(km_index_options), .training = &wrong[i].how};
        assert_null(km_index_build(ctx, base, N, DIM, NULL, &o));
        if (!strstr(km_last_error(), wrong[i].says)) fail_msg("%s", km_last_error());
    }
}

static void filters_and_probes_choose_what_is_looked_at(void **state) {
    (void)state;
    km_index *x =
        build((km_index_options){.size = sizeof(km_index_options), .bytes = DIM, .anchors = 12});
    uint64_t ids[K], allow[] = {5, 6, 7}, deny[] = {9};
    float dist[K];
    km_search_options o = {.size = sizeof(km_search_options), .allow = allow, .n_allow = 3};
    assert_done(km_index_search(x, base, 1, K, &o, 1, ids, dist));
    for (int i = 0; i < K; i++)
        assert_true(i < 3 ? ids[i] >= 5 && ids[i] <= 7 : ids[i] == KM_NO_ID);
    assert_true(isinf(dist[3]));
    o = (km_search_options){.size = sizeof(km_search_options), .deny = deny, .n_deny = 1};
    assert_done(km_index_search(x, base + 9 * DIM, 1, K, &o, 1, ids, dist));
    for (int i = 0; i < K; i++) assert_true(ids[i] != 9);
    o = (km_search_options){.size = sizeof(km_search_options), .probe = 1};
    assert_true(found(x, base, N, 0, &o) > N * 9 / 10);
    km_index_close(x);
}

static void kept_vectors_make_the_ranking_exact(void **state) {
    (void)state;
    float *queries = clustered(100, DIM, 8);
    for (int kind = 1; kind <= 2; kind++) {
        km_index *x = build((km_index_options){.size = sizeof(km_index_options),
                                               .bytes = 3,
                                               .rerank = (km_index_vectors)kind,
                                               .anchors = 8});
        uint64_t ids[100];
        float dist[100];
        int hits[2] = {0};
        for (int with = 0; with < 2; with++) {
            km_search_options o = {.size = sizeof(km_search_options), .rerank = with ? 100 : 0};
            assert_done(km_index_search(x, queries, 100, 1, &o, 2, ids, dist));
            for (int i = 0; i < 100; i++)
                hits[with] += (int64_t)ids[i] == nearest(base, N, DIM, queries + i * DIM);
        }
        assert_true(hits[1] >= 95 && hits[1] > hits[0]);
        km_index_close(x);
    }
    km_index *x = build((km_index_options){.size = sizeof(km_index_options), .bytes = 3});
    uint64_t id;
    float d;
    assert_refused(
        km_index_search(x, queries, 1, 1,
                        &(km_search_options){.size = sizeof(km_search_options), .rerank = 5}, 1,
                        &id, &d),
        "keeps no vectors");
    km_index_close(x);
    free(queries);
}

static void odd_data_is_taken(void **state) {
    (void)state;
    float grid[64 * 2], same[50 * 4], line[30], one[3] = {1, 2, 3};
    for (int i = 0; i < 64; i++) {
        grid[2 * i] = (float)(i % 8);
        grid[2 * i + 1] = (float)(i / 8);
    }
    for (int i = 0; i < 50 * 4; i++) same[i] = (float)(i % 4);
    for (int i = 0; i < 30; i++) line[i] = (float)(i * i);
    const struct {
        const float *x;
        int64_t n, dim, anchors;
    } sets[] = {{grid, 64, 2, 0}, {same, 50, 4, 8},  {line, 30, 1, 4},
                {one, 1, 3, 5},   {same, 3, 4, 100}, {grid, 64, 2, 1}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        for (int mode = 0; mode < 3; mode++) {
            km_index_options o = {.size = sizeof(km_index_options),
                                  .mode = (km_index_mode)mode,
                                  .anchors = sets[i].anchors,
                                  .bytes = mode == KM_INDEX_ANCHORS_ONLY ? 0 : 8};
            km_index *x = km_index_build(ctx, sets[i].x, sets[i].n, sets[i].dim, NULL, &o);
            if (!x) fail_msg("set %zu, mode %d: %s", i, mode, km_last_error());
            uint64_t ids[100];
            float dist[100];
            assert_done(km_index_search(x, sets[i].x, 1, 100, NULL, 2, ids, dist));
            for (int64_t k = 0; k < 100; k++) assert_true((ids[k] == KM_NO_ID) == (k >= sets[i].n));
            assert_done(km_index_save(x, in_folder("odd.kmx"), false));
            km_index_close(x);
            x = km_index_open(in_folder("odd.kmx"));
            if (!x) fail_msg("set %zu, mode %d: %s", i, mode, km_last_error());
            uint64_t again[100];
            assert_done(km_index_search(x, sets[i].x, 1, 100, NULL, 1, again, dist));
            assert_memory_equal(ids, again, sizeof ids);
            for (uint64_t id = 0; id < (uint64_t)sets[i].n; id++)
                assert_done(km_index_delete(x, &id, 1));
            assert_done(km_index_search(x, sets[i].x, 1, 1, NULL, 1, ids, dist));
            assert_true(ids[0] == KM_NO_ID);
            assert_done(km_index_save(x, in_folder("empty.kmx"), true));
            km_index_close(x);
            x = km_index_open(in_folder("empty.kmx"));
            if (!x) fail_msg("%s", km_last_error());
            assert_int_equal(km_index_describe(x).count, 0);
            assert_true(km_index_describe(x).next_id == (uint64_t)sets[i].n);
            assert_done(km_index_search(x, sets[i].x, 1, 1, NULL, 1, ids, dist));
            assert_true(ids[0] == KM_NO_ID);
            km_index_close(x);
        }
}

static void bad_vectors_and_options_are_refused(void **state) {
    (void)state;
    float *x = clustered(40, 4, 9);
    x[4 * 17 + 2] = NAN;
    assert_null(km_index_build(ctx, x, 40, 4, NULL, NULL));
    assert_non_null(strstr(km_last_error(), "vector 17"));
    x[4 * 17 + 2] = 0;
    assert_null(km_index_build(
        ctx, x, 40, 4, NULL,
        &(km_index_options){.size = sizeof(km_index_options), .bytes = 4, .ratio = 8}));
    assert_null(km_index_build(
        ctx, x, 40, 4, NULL, &(km_index_options){.size = sizeof(km_index_options), .recall = 1.5}));
    assert_null(km_index_build(ctx, x, 0, 4, NULL, NULL));
    assert_null(km_index_build(ctx, NULL, 40, 4, NULL, NULL));
    km_index *i = km_index_build(ctx, x, 40, 4, NULL, NULL);
    assert_non_null(i);
    x[1] = INFINITY;
    uint64_t id;
    float d;
    assert_refused(km_index_add(ctx, i, x, 3, NULL), "vector 0");
    assert_refused(km_index_search(i, x, 1, 1, NULL, 1, &id, &d), "query 0");
    assert_refused(km_index_search(i, x + 4, 1, 0, NULL, 1, &id, &d), "at least 1");
    assert_refused(km_index_merge(ctx, i, i, NULL), "itself");
    assert_null(km_index_open(in_folder("none.kmx")));
    assert_int_equal(km_index_describe(i).count, 40);
    km_index_close(i);
    free(x);
}

static void an_option_out_of_range_names_itself_and_its_range(void **state) {
    (void)state;
    const struct {
        km_index_options o;
        const char *says;
    } wrong[] = {{{.size = sizeof(km_index_options), .bytes = 4000},
                  "bytes 4000 is out of range: codes of 24 dimensions take 1 to 208"},
                 {{.size = sizeof(km_index_options), .bytes = -1}, "bytes -1"},
                 {{.size = sizeof(km_index_options), .bytes = NAN}, "bytes nan"},
                 {{.size = sizeof(km_index_options), .ratio = -2},
                  "ratio -2 is out of range: it is above 0"},
                 {{.size = sizeof(km_index_options), .recall = 1.5},
                  "recall 1.5 is out of range: it is above 0 and below 1"},
                 {{.size = sizeof(km_index_options), .anchors = -3},
                  "anchors -3 is out of range: it is 1 to 16777216"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_null(km_index_build(ctx, base, N, DIM, NULL, &wrong[i].o));
        if (!strstr(km_last_error(), wrong[i].says)) fail_msg("%s", km_last_error());
    }
}

/* Squares of 1e30 are infinite in f32, and those of 1e-30 nothing. Cosine scales rows itself. */
static void rows_out_of_the_reach_of_squares_are_refused_by_row(void **state) {
    (void)state;
    for (int metric = 0; metric < 3; metric++)
        for (int small = 0; small < 2; small++) {
            bool cosine = metric == KM_METRIC_COSINE;
            float *x = clustered(N, DIM, 5), *row = x + 7 * DIM, factor = small ? 1e-30f : 1e30f;
            km_index *whole = NULL,
                     *normal = build((km_index_options){.size = sizeof(km_index_options),
                                                        .metric = (km_metric)metric,
                                                        .bytes = DIM});
            for (int64_t i = 0; i < N * DIM; i++) x[i] *= factor;
            whole = km_index_build(ctx, x, N, DIM, NULL,
                                   &(km_index_options){.size = sizeof(km_index_options),
                                                       .metric = (km_metric)metric,
                                                       .bytes = DIM});
            uint64_t id;
            float d;
            if (cosine) {
                if (!whole) fail_msg("%s", km_last_error());
                assert_true(found(whole, x, N, 0, NULL) > N * 95 / 100);
                assert_done(km_index_search(normal, row, 1, 1, NULL, 1, &id, &d));
                assert_int_equal(id, 7);
            } else {
                assert_null(whole);
                assert_non_null(strstr(km_last_error(), "vector 0 has "));
                assert_refused(km_index_add(ctx, normal, row, 1, NULL), "vector 0 has ");
                assert_refused(km_index_search(normal, row, 1, 1, NULL, 1, &id, &d),
                               "query 0 has ");
                write_npy(in_folder("far.npy"), x, N, DIM);
                assert_refused(
                    km_index_compress(ctx, in_folder("far.npy"), in_folder("far.kmx"),
                                      &(km_index_options){.size = sizeof(km_index_options),
                                                          .metric = (km_metric)metric}),
                    "vector 0 has ");
            }
            km_index_close(whole);
            km_index_close(normal);
            free(x);
        }
}

/* ---- Many threads on one index ---- */

typedef struct worker {
    km_index *x;
    int hits, failures;
} worker;

static void *keep_searching(void *arg) {
    worker *w = arg;
    for (int i = 0; i < 200; i++) {
        uint64_t id;
        float d;
        if (km_index_search(w->x, base + (i % N) * DIM, 1, 1, NULL, 1, &id, &d) != KM_OK)
            w->failures++;
        else
            w->hits += id == (uint64_t)(i % N);
    }
    return NULL;
}

static void many_threads_search_while_one_adds_and_deletes(void **state) {
    (void)state;
    km_index *x = build((km_index_options){.size = sizeof(km_index_options), .bytes = DIM});
    float *more = clustered(64, DIM, 11);
    worker w[3];
    pthread_t t[3];
    for (int i = 0; i < 3; i++) {
        w[i] = (worker){.x = x};
        assert_int_equal(pthread_create(&t[i], NULL, keep_searching, &w[i]), 0);
    }
    for (int i = 0; i < 16; i++) {
        assert_done(km_index_add(ctx, x, more + 4 * i * DIM, 4, NULL));
        uint64_t id = N + 4 * (uint64_t)i;
        assert_done(km_index_delete(x, &id, 1));
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(w[i].failures, 0);
        assert_true(w[i].hits > 180);
    }
    assert_int_equal(km_index_describe(x).count, N + 64 - 16);
    km_index_close(x);
    free(more);
}

static void the_size_that_is_told_is_the_size_of_the_file(void **state) {
    (void)state;
    km_index *x = build(
        (km_index_options){.size = sizeof(km_index_options), .bytes = 7, .rerank = KM_VECTORS_F16});
    double told = km_index_describe(x).total_bytes;
    assert_done(km_index_save(x, in_folder("x.kmx"), false));
    km_index_close(x);
    blob b = read_blob(in_folder("x.kmx"));
    assert_int_equal((size_t)told, b.size);
    free(b.data);
}

#define IN_FOLDER(test) cmocka_unit_test_teardown(test, empty_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_find_themselves_in_every_mode_and_metric),
        cmocka_unit_test(anchors_alone_give_the_cell),
        cmocka_unit_test(answers_are_the_same_for_any_number_of_threads),
        IN_FOLDER(the_same_bytes_for_any_number_of_threads),
        IN_FOLDER(ids_survive_adding_deleting_merging_compaction_and_reload),
        IN_FOLDER(halves_of_an_index_merge_without_loss),
        IN_FOLDER(indexes_with_the_same_ids_merge_when_these_are_moved),
        IN_FOLDER(the_ratio_asked_for_is_the_ratio_of_the_file),
        cmocka_unit_test(rows_added_one_by_one_are_coded_as_those_added_at_once),
        cmocka_unit_test(what_is_decoded_is_near_what_was_given),
        cmocka_unit_test(anchors_and_assignments_come_out),
        cmocka_unit_test(the_training_of_anchors_is_the_callers_to_set),
        cmocka_unit_test(filters_and_probes_choose_what_is_looked_at),
        cmocka_unit_test(kept_vectors_make_the_ranking_exact),
        IN_FOLDER(odd_data_is_taken),
        IN_FOLDER(bad_vectors_and_options_are_refused),
        cmocka_unit_test(an_option_out_of_range_names_itself_and_its_range),
        IN_FOLDER(rows_out_of_the_reach_of_squares_are_refused_by_row),
        cmocka_unit_test(many_threads_search_while_one_adds_and_deletes),
        IN_FOLDER(the_size_that_is_told_is_the_size_of_the_file),
    };
    const struct CMUnitTest shared[] = {
        cmocka_unit_test(answers_are_the_same_for_any_number_of_threads),
        IN_FOLDER(the_same_bytes_for_any_number_of_threads),
        cmocka_unit_test(many_threads_search_while_one_adds_and_deletes),
    };
    return THREADS_SANITIZED ? cmocka_run_group_tests(shared, set_up, tear_down)
                             : cmocka_run_group_tests(tests, set_up, tear_down);
}
