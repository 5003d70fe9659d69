/* The public calls that measure: recall and speed of an index, re-ranking by the vectors themselves, and
 * anchors alone. Arguments checked, the error told. */
#include "base/sized.h"
#include "tensor/tensor.h"
#include "vector/anchors.h"
#include "vector/learn.h"
#include "vector/measure.h"

/* Queries (n, dim) whose answers of k each fit into memory. */
static km_status check_queries(const char *call, int64_t n, int64_t dim, int64_t k, km_error *err) {
    if (n < 1 || k < 1 || k > INT64_MAX / 64 / n || dim > INT64_MAX / 64 / n)
        return km_error_set(err, KM_ERR_RANGE, "%s: %lld queries for %lld neighbours each", call,
                            (long long)n, (long long)k);
    return KM_OK;
}

km_status km_vectors_rerank(km_vectors *v, km_metric metric, const float *queries, int64_t n,
                            const uint64_t *candidates, int64_t m, int64_t k, uint64_t *ids,
                            float *distances) {
    km_error err = {0};
    if (!v || !queries || !candidates || !ids || !distances) return km_missing("km_vectors_rerank");
    KM_INSIDE(file);
    if (!km_enter(&file, "km_vectors_rerank", v, KM_HANDLE_VECTORS)) return km_last_status();
    if ((unsigned)metric > KM_METRIC_COSINE || k > m)
        return km_public_fail(KM_ERR_RANGE,
                              "km_vectors_rerank: no such metric, or more neighbours than "
                              "candidates");
    if (check_queries("km_vectors_rerank", n, km_input_dim(v->in), m, &err) == KM_OK &&
        check_queries("km_vectors_rerank", n, 1, k, &err) == KM_OK)
        km_rerank_from(v->in, metric, queries, n, candidates, m, k, ids, distances, &err);
    return km_told(&err);
}

/* Whether a measuring of the index by these vectors can be done. */
static km_status check_base(const char *call, km_ctx *ctx, const km_index *index,
                            const km_vectors *base, km_error *err) {
    if (km_failed(ctx)) return km_error_set(err, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
    if (km_index_live(index) < 1) return km_error_set(err, KM_ERR_RANGE, "the index is empty");
    if (km_input_dim(base->in) == index->dim) return KM_OK;
    return km_error_set(
        err, KM_ERR_SHAPE, "%s: '%s' holds vectors of %lld dimensions, the index %lld", call,
        km_input_name(base->in), (long long)km_input_dim(base->in), (long long)index->dim);
}

km_status km_index_measure(km_ctx *ctx, km_index *index, km_vectors *base, const float *queries,
                           int64_t n, int64_t k, const km_search_options *options,
                           km_measured *out) {
    km_error err = {0};
    km_search_options own = km_search_defaults();
    km_measured m;
    if (!ctx || !index || !base || !queries || !out) return km_missing("km_index_measure");
    KM_HOLDING(held);
    KM_INSIDE(on);
    KM_INSIDE(file);
    if (!km_enter(&on, "km_index_measure", ctx, KM_HANDLE_CONTEXT) ||
        !km_index_usable(&held, "km_index_measure", index) ||
        !km_enter(&file, "km_index_measure", base, KM_HANDLE_VECTORS))
        return km_last_status();
    km_status s = km_check_sized(out, sizeof *out, "km_measured", &err);
    if (s == KM_OK) s = km_take_sized(&own, sizeof own, options, "km_search_options", &err);
    if (s == KM_OK && ((own.n_allow && !own.allow) || (own.n_deny && !own.deny)))
        s = km_error_set(&err, KM_ERR_NULL, "a list of ids is missing");
    if (s == KM_OK) s = check_queries("km_index_measure", n, index->dim, k > 100 ? k : 100, &err);
    if (s == KM_OK) s = k > 0 ? KM_OK : km_error_set(&err, KM_ERR_RANGE, "recall@0");
    if (s == KM_OK) s = check_base("km_index_measure", ctx, index, base, &err);
    if (s == KM_OK) s = km_measure_index(ctx, index, base->in, queries, n, k, &own, &m, &err);
    if (s == KM_OK) km_give_sized(out, &m, sizeof m);
    return km_told(&err);
}

km_status km_report_defaults_sized(km_report_options *out, size_t size) {
    km_report_options own = {.size = sizeof(km_report_options)};
    return KM_HAND_OUT(out, size, &own, km_report_options);
}

km_status km_index_report(km_ctx *ctx, km_index *index, km_vectors *base, const float *queries,
                          int64_t n, const km_measured *measured,
                          const km_report_options *options) {
    km_error err = {0};
    km_report_options own = km_report_defaults();
    km_measured m = {.size = sizeof m};
    if (!ctx || !index || !base || !queries || !measured || !options)
        return km_missing("km_index_report");
    KM_HOLDING(held);
    KM_INSIDE(on);
    KM_INSIDE(file);
    if (!km_enter(&on, "km_index_report", ctx, KM_HANDLE_CONTEXT) ||
        !km_index_usable(&held, "km_index_report", index) ||
        !km_enter(&file, "km_index_report", base, KM_HANDLE_VECTORS))
        return km_last_status();
    km_status s = km_take_sized(&own, sizeof own, options, "km_report_options", &err);
    if (s == KM_OK && !own.path) return km_missing("km_index_report");
    if (s == KM_OK) s = km_take_sized(&m, sizeof m, measured, "km_measured", &err);
    if (s == KM_OK) s = check_queries("km_index_report", n, index->dim, 100, &err);
    if (s == KM_OK) s = check_base("km_index_report", ctx, index, base, &err);
    if (s == KM_OK) km_write_report(ctx, index, base->in, queries, n, &m, &own, &err);
    return km_told(&err);
}

/* ---- Anchors ---- */

static bool on_round(void *user, int round, int rounds, double energy) {
    (void)energy;
    return km_tell(user, "anchors", round, rounds);
}

km_status km_anchors_learn(km_ctx *ctx, const float *x, int64_t n, int64_t dim,
                           const km_index_options *how, float *anchors, km_anchors_learnt *out) {
    km_error err = {0};
    km_index_options own;
    km_anchor_training training;
    km_anchors a = {0};
    if (!ctx || !x || n < 1 || dim < 1) return km_missing("km_anchors_learn");
    KM_INSIDE(on);
    if (!km_enter(&on, "km_anchors_learn", ctx, KM_HANDLE_CONTEXT)) return km_last_status();
    km_status s = km_check_sized(out, sizeof *out, "km_anchors_learnt", &err);
    if (s == KM_OK) s = km_index_take_options(how, &own, &training, &err);
    if (s == KM_OK && dim > INT64_MAX / n / (int64_t)sizeof *x)
        s = km_error_set(&err, KM_ERR_RANGE, "%lld vectors of %lld dimensions", (long long)n,
                         (long long)dim);
    if (s == KM_OK && ((unsigned)own.metric > KM_METRIC_COSINE || own.anchors < 0 ||
                       own.anchors > 1 << 24 || (anchors && !own.anchors)))
        s = km_error_set(&err, KM_ERR_RANGE,
                         "km_anchors_learn: no such metric or number of anchors, or room for a "
                         "number that is not given");
    if (s == KM_OK && own.training) s = km_anchors_check(own.training, &err);
    int64_t bad = s == KM_OK ? km_first_bad_row(x, n, dim) : -1;
    if (bad >= 0)
        s = km_error_set(&err, KM_ERR_RANGE, "vector %lld holds a NaN or an infinity",
                         (long long)bad);
    if (s == KM_OK) {
        km_anchor_options o = {.count = own.anchors,
                               .metric = own.metric,
                               .seed = own.seed,
                               .lloyd = own.lloyd,
                               .training = km_training_of(&own),
                               .progress = on_round,
                               .user = &own};
        s = km_anchors_train(ctx, x, n, dim, &o, NULL, &a);
        if (s == KM_OK && anchors) s = km_anchors_read(ctx, &a, anchors);
        if (s != KM_OK) km_error_set(&err, s, "%s", km_ctx_error(ctx));
    }
    km_anchors_learnt got = {
        .size = sizeof got, .anchors = a.count, .energy = a.energy, .rounds = a.rounds};
    if (s == KM_OK) km_give_sized(out, &got, sizeof got);
    km_anchors_release(&a);
    return km_told(&err);
}
