/* Steps and validation on the device. */
#include "train/stepper.h"
#include "backend/cpu/peak.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include <math.h>
#include <string.h>

enum { EVAL_RING = 64 };

static km_status failed(km_stepper *p, km_error *err) {
    return km_error_set(err, km_ctx_status(p->ctx), "%s", km_ctx_error(p->ctx));
}

static size_t pass_tokens(const km_stepper *p) { return (size_t)(p->o.batch * p->o.context); }

static size_t input_bytes(const km_stepper *p) {
    return 2 * (size_t)p->o.accumulate * pass_tokens(p) * sizeof(int32_t);
}

km_status km_stepper_open(km_stepper *p, km_ctx *ctx, km_net *model, km_optimizer *optimizer,
                          const km_window_sampler *sampler, const km_stepper_options *o,
                          km_error *err) {
    *p = (km_stepper){.ctx = ctx, .model = model, .optimizer = optimizer, .sampler = sampler};
    p->o = *o;
    p->host = km_alloc(input_bytes(p));
    if (!p->host) return km_no_memory_for(err, "the batches");
    km_shape all = KM_SHAPE(2, o->accumulate, o->batch, o->context);
    p->input = km_keep(ctx, km_zeros(ctx, KM_I32, all));
    p->losses = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(o->accumulate)));
    p->loss = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SCALAR));
    p->ring = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(o->ring)));
    p->eval_input = km_keep(ctx, km_zeros(ctx, KM_I32, KM_SHAPE(2, o->batch, o->context)));
    p->eval_loss = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SCALAR));
    km_step_end(ctx);
    if (km_ctx_status(ctx) == KM_OK) return KM_OK;
    km_status s = failed(p, err);
    km_stepper_close(p);
    return s;
}

void km_stepper_close(km_stepper *p) {
    km_graph_free(p->graph);
    km_graph_free(p->eval_graph);
    km_release(p->input);
    km_release(p->losses);
    km_release(p->loss);
    km_release(p->ring);
    km_release(p->eval_input);
    km_release(p->eval_loss);
    km_free(p->host);
    *p = (km_stepper){0};
}

/* ---- Training ---- */

/* Samples that a token file no longer has must teach nothing. */
static void check_data(km_stepper *p) {
    km_error err = {0};
    if (km_dataset_check(p->sampler->data, &err) != KM_OK)
        km_ctx_fail(p->ctx, err.code, "%s", err.text);
}

/* Samples are numbered through all steps, passes and ranks, so that one rank with a batch of 2B
 * learns from what two ranks with batches of B do. */
static void fill(km_stepper *p, int64_t step) {
    const km_stepper_options *o = &p->o;
    int32_t *ids = p->host, *targets = p->host + (size_t)o->accumulate * pass_tokens(p);
    for (int64_t pass = 0; pass < o->accumulate; pass++)
        for (int64_t b = 0; b < o->batch; b++) {
            int64_t k = ((step * o->accumulate + pass) * o->ranks + o->rank) * o->batch + b;
            km_window_sampler_train(p->sampler, k, ids, targets);
            ids += o->context;
            targets += o->context;
        }
    check_data(p);
}

/* The whole step, from the batch in p->input to the changed parameters; may be captured. */
static void run_step(km_ctx *ctx, void *user) {
    km_stepper *p = user;
    int n = p->o.accumulate;
    km_tensor *ids = km_select(ctx, p->input, 0, 0), *targets = km_select(ctx, p->input, 0, 1);
    for (int i = 0; i < n; i++) {
        km_scope_begin(ctx);
        km_tensor *loss =
            km_net_loss(ctx, p->model, km_select(ctx, ids, 0, i), km_select(ctx, targets, 0, i));
        km_assign(ctx, n == 1 ? p->loss : km_select(ctx, p->losses, 0, i), loss);
        if (i == n - 1) km_optimizer_last_backward(ctx, p->optimizer);
        km_backward(ctx, km_optimizer_scale_loss(ctx, p->optimizer, loss));
        km_scope_end(ctx, NULL);
    }
    if (n > 1) km_assign(ctx, p->loss, km_mean(ctx, p->losses, NULL, 0, false));
    km_optimizer_step(ctx, p->optimizer);
    km_optimizer_zero_grad(ctx, p->optimizer);
}

static bool as_graph(const km_stepper *p) {
    return !p->o.no_graph && p->model->config.dropout == 0 && km_optimizer_capturable(p->optimizer);
}

km_status km_stepper_step(km_stepper *p, int64_t step, double lr, km_error *err) {
    km_ctx *ctx = p->ctx;
    p->model->train = p->model->every_target = true;
    if (!p->o.overfit || !p->uploaded) {
        fill(p, p->o.overfit ? 0 : step);
        km_write(ctx, p->input, p->host, input_bytes(p));
        p->uploaded = true;
    }
    /* Dropout draws the same numbers in step n whether or not the run was interrupted before. */
    km_philox4 r = km_philox(p->o.seed, (uint64_t)p->o.rank << 48 | 0xD0, (uint64_t)step);
    km_seed(ctx, (uint64_t)r.v[0] << 32 | r.v[1]);
    km_optimizer_set(ctx, p->optimizer, lr, p->o.accumulate);
    if (as_graph(p)) {
        km_graph_run(ctx, &p->graph, 1, run_step, p);
    } else {
        run_step(ctx, p);
        km_step_end(ctx);
    }
    km_assign(ctx, km_select(ctx, p->ring, 0, p->used), p->loss);
    p->used++;
    return km_ctx_status(ctx) == KM_OK ? KM_OK : failed(p, err);
}

km_status km_stepper_drain(km_stepper *p, float *out, int *n, km_error *err) {
    if (p->used == 0) return KM_OK;
    km_tensor *part = km_narrow(p->ctx, p->ring, 0, 0, p->used);
    if (km_read(p->ctx, part, out + *n, (size_t)p->used * sizeof *out) != KM_OK)
        return failed(p, err);
    *n += p->used;
    p->used = 0;
    return KM_OK;
}

/* ---- Validation ---- */

static void run_eval(km_ctx *ctx, void *user) {
    km_stepper *p = user;
    km_tensor *loss = km_net_loss(ctx, p->model, km_select(ctx, p->eval_input, 0, 0),
                                  km_select(ctx, p->eval_input, 0, 1));
    km_assign(ctx, p->eval_loss, loss);
}

/* Batch i of n: windows spread evenly over the validation text. Returns the targets that count. */
static int64_t fill_eval(km_stepper *p, int64_t i, int64_t windows, int64_t chosen) {
    int32_t *ids = p->host, *targets = ids + pass_tokens(p);
    int64_t count = 0;
    for (int64_t b = 0; b < p->o.batch; b++) {
        int64_t k = i * p->o.batch + b;
        int64_t window =
            k >= chosen ? windows : (int64_t)((double)k * (double)windows / (double)chosen);
        count += km_window_sampler_val(p->sampler, window, KM_IGNORE_TARGET, ids, targets);
        ids += p->o.context;
        targets += p->o.context;
    }
    check_data(p);
    return count;
}

km_status km_stepper_eval(km_stepper *p, int64_t batches, double *sum, double *targets,
                          km_error *err) {
    km_ctx *ctx = p->ctx;
    int64_t windows = km_window_sampler_val_count(p->sampler), batch = p->o.batch;
    int64_t all = (windows + batch - 1) / batch;
    if (batches == 0 || batches > all) batches = all;
    int64_t chosen = batches * batch < windows ? batches * batch : windows;
    km_tensor *ring = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(EVAL_RING)));
    km_step_end(ctx);
    float losses[EVAL_RING];
    int64_t counts[EVAL_RING];
    int used = 0;
    *sum = *targets = 0;
    p->model->train = p->model->every_target = false;
    km_no_grad_begin(ctx);
    for (int64_t i = p->o.rank; i < batches && km_ctx_status(ctx) == KM_OK; i += p->o.ranks) {
        counts[used] = fill_eval(p, i, windows, chosen);
        km_write(ctx, p->eval_input, p->host, 2 * pass_tokens(p) * sizeof *p->host);
        if (p->o.no_graph) {
            run_eval(ctx, p);
            km_step_end(ctx);
        } else {
            km_graph_run(ctx, &p->eval_graph, 1, run_eval, p);
        }
        km_assign(ctx, km_select(ctx, ring, 0, used++), p->eval_loss);
        if (used < EVAL_RING && i + p->o.ranks < batches) continue;
        km_read(ctx, ring, losses, sizeof losses);
        for (int k = 0; k < used; k++)
            if (counts[k] > 0) {
                *sum += (double)losses[k] * (double)counts[k];
                *targets += (double)counts[k];
            }
        used = 0;
    }
    km_no_grad_end(ctx);
    km_step_end(ctx);
    km_release(ring);
    p->model->train = p->model->every_target = true;
    return km_ctx_status(ctx) == KM_OK ? KM_OK : failed(p, err);
}

/* ---- The device's rate ---- */

/* Seconds of a product of two (n, n) matrices: the best of a few. */
static double time_product(km_ctx *ctx, km_dtype dtype, int64_t n) {
    double best = INFINITY;
    km_tensor *a = km_normal(ctx, dtype, KM_SHAPE(n, n), 0, 1);
    km_tensor *b = km_normal(ctx, dtype, KM_SHAPE(n, n), 0, 1);
    for (int round = 0; round < 4; round++) { /* the first warms up */
        km_scope_begin(ctx);
        km_sync(ctx);
        double start = km_now();
        km_matmul(ctx, a, b);
        km_sync(ctx);
        double took = km_now() - start;
        km_scope_end(ctx, NULL);
        if (round > 0 && took < best) best = took;
    }
    km_step_end(ctx);
    return best;
}

double km_measure_products(km_ctx *ctx, km_dtype dtype) {
    const char *device = km_ctx_device(ctx);
    if (strcmp(device, "ref") == 0) return NAN; /* it would take seconds */
    if (strncmp(device, "cuda", 4) != 0) return km_cpu_peak(ctx->threads);
    int64_t n = dtype == KM_F32 ? 4096 : 8192;
    km_no_grad_begin(ctx);
    double best = time_product(ctx, dtype, n);
    km_no_grad_end(ctx);
    km_trim(ctx);
    if (km_ctx_status(ctx) != KM_OK) { /* too little memory for it: train anyway */
        km_ctx_clear_error(ctx);
        return NAN;
    }
    return 2.0 * (double)n * (double)n * (double)n / best;
}
