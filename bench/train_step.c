/* One training step of a GPT-2 of a named size on random tokens: tokens a second, memory, and with
 * --ops the time of each kind of kernel (measured one by one, so their sum is more than a step).
 * Prints a JSON object on its last line.
 *
 * usage: bench_train_step DEVICE [--model gpt2] [--batch 64] [--context 1024] [--steps 20]
 *                         [--dtype bf16] [--accumulate 1] [--recompute] [--ops]
 *
 * forward_ms, backward_ms and update_ms are those parts by themselves, each waited for: a little more
 * than the step in all. */
#include "model/net.h"
#include "base/clock.h"
#include "nn/optim.h"
#include "ops/op.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct op_time {
    char what[128];
    double seconds;
    int calls;
} op_time;

static op_time times[512];
static int n_times;

static void note(void *user, const km_call *c, double seconds) {
    (void)user;
    char what[128], text[KM_SHAPE_TEXT], in[KM_SHAPE_TEXT] = "";
    if (c->n_in && c->in[0]) km_shape_text(in, c->in[0]->shape);
    snprintf(what, sizeof what, "%s %s -> %s", km_op_name(c->op), in,
             km_shape_text(text, c->out[0]->shape));
    int i = 0;
    while (i < n_times && strcmp(times[i].what, what) != 0) i++;
    if (i == n_times) {
        if (n_times == 512) return;
        n_times++;
        memcpy(times[i].what, what, sizeof what);
    }
    times[i].seconds += seconds;
    times[i].calls++;
}

static int slower(const void *a, const void *b) {
    double x = ((const op_time *)a)->seconds, y = ((const op_time *)b)->seconds;
    return x < y ? 1 : x > y ? -1 : 0;
}

typedef struct job {
    km_net *model;
    km_optimizer *optim;
    km_tensor *ids, *targets, *loss;
    int accumulate;
} job;

static void step(km_ctx *ctx, job *j) {
    for (int i = 0; i < j->accumulate; i++) {
        km_tensor *loss = km_net_loss(ctx, j->model, j->ids, j->targets);
        if (i == j->accumulate - 1) km_optimizer_last_backward(ctx, j->optim);
        km_backward(ctx, km_optimizer_scale_loss(ctx, j->optim, loss));
        km_assign(ctx, j->loss, loss);
        km_step_end(ctx);
    }
    km_optimizer_step(ctx, j->optim);
    km_optimizer_zero_grad(ctx, j->optim);
    km_step_end(ctx);
}

/* The parts of a step, in seconds: the best of some rounds of each. */
static void time_parts(km_ctx *ctx, job *j, double best[3]) {
    for (int i = 0; i < 3; i++) best[i] = 1e9;
    for (int i = 0; i < 8 && km_ctx_status(ctx) == KM_OK; i++) {
        double at[4];
        km_sync(ctx);
        at[0] = km_now();
        km_tensor *loss = km_net_loss(ctx, j->model, j->ids, j->targets);
        km_sync(ctx);
        at[1] = km_now();
        km_optimizer_last_backward(ctx, j->optim);
        km_backward(ctx, km_optimizer_scale_loss(ctx, j->optim, loss));
        km_sync(ctx);
        at[2] = km_now();
        km_step_end(ctx);
        km_optimizer_step(ctx, j->optim);
        km_optimizer_zero_grad(ctx, j->optim);
        km_sync(ctx);
        at[3] = km_now();
        km_step_end(ctx);
        for (int k = 0; k < 3; k++)
            if (at[k + 1] - at[k] < best[k]) best[k] = at[k + 1] - at[k];
    }
}

static km_tensor *tokens(km_ctx *ctx, int64_t b, int64_t t, int64_t vocab) {
    km_tensor *x =
        km_cast(ctx, km_uniform(ctx, KM_F32, KM_SHAPE(b, t), 0, (double)vocab - 1), KM_I32);
    x = km_keep(ctx, x);
    km_step_end(ctx);
    return x;
}

int main(int argc, char **argv) {
    const char *preset = "gpt2", *dtype = "bf16";
    int64_t batch = 64, context = 1024;
    int steps = 20, accumulate = 1;
    bool ops = false, recompute = false;
    if (argc < 2) {
        fprintf(stderr,
                "usage: bench_train_step DEVICE [--model M] [--batch N] [--context N] [--ops]\n");
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--ops")) {
            ops = true;
            continue;
        }
        if (!strcmp(argv[i], "--recompute")) {
            recompute = true;
            continue;
        }
        if (!strcmp(argv[i], "--model")) preset = next;
        if (!strcmp(argv[i], "--dtype")) dtype = next;
        if (!strcmp(argv[i], "--batch")) batch = atoll(next);
        if (!strcmp(argv[i], "--context")) context = atoll(next);
        if (!strcmp(argv[i], "--steps")) steps = atoi(next);
        if (!strcmp(argv[i], "--accumulate")) accumulate = atoi(next);
        i++;
    }
    km_ctx *ctx = km_ctx_new(argv[1], 0);
    if (!ctx) {
        fprintf(stderr, "%s\n", km_last_error());
        return 1;
    }
    km_error err = {0};
    km_config c;
    if (km_config_preset(&c, preset, &err) != KM_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    c.context = context;
    c.vocab_pad = 128;
    km_dtype d = !strcmp(dtype, "f32") ? KM_F32 : !strcmp(dtype, "f16") ? KM_F16 : KM_BF16;
    job j = {.accumulate = accumulate};
    j.model = km_net_new(ctx, &c, d);
    if (!j.model) {
        fprintf(stderr, "%s\n", km_ctx_error(ctx));
        return 1;
    }
    km_net_init(j.model, 1);
    j.model->train = j.model->every_target = true;
    j.model->recompute = recompute;
    km_optim_settings how = km_optim_defaults();
    j.optim = km_optimizer_new(ctx, &j.model->params, &how);
    j.ids = tokens(ctx, batch, context, c.vocab);
    j.targets = tokens(ctx, batch, context, c.vocab);
    j.loss = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SCALAR));
    if (j.optim) km_optimizer_set(ctx, j.optim, 1e-4, accumulate);
    for (int i = 0; i < 3 && km_ctx_status(ctx) == KM_OK; i++) step(ctx, &j);
    km_sync(ctx);
    double best = 1e9, all = 0;
    for (int i = 0; i < 3 && km_ctx_status(ctx) == KM_OK; i++) {
        double t = km_now();
        for (int k = 0; k < steps; k++) step(ctx, &j);
        km_sync(ctx);
        t = (km_now() - t) / steps;
        all += t / 3;
        if (t < best) best = t;
    }
    double loss = km_item(ctx, j.loss), part[3];
    time_parts(ctx, &j, part);
    if (ops) {
        ctx->timed = note;
        step(ctx, &j);
        ctx->timed = NULL;
        qsort(times, (size_t)n_times, sizeof *times, slower);
        for (int i = 0; i < n_times && i < 60; i++)
            printf("%9.1f us %4d x  %s\n", times[i].seconds * 1e6, times[i].calls, times[i].what);
    }
    if (km_ctx_status(ctx) != KM_OK) {
        fprintf(stderr, "%s\n", km_ctx_error(ctx));
        return 1;
    }
    km_stats s = km_ctx_stats(ctx);
    double each = (double)(batch * context * accumulate);
    printf("{\"name\": \"train %s %s B%lld T%lld\", \"ms\": %.3f, \"mean_ms\": %.3f, "
           "\"tokens_per_s\": %.0f, \"tflops\": %.1f, \"peak_gib\": %.2f, \"held_gib\": %.2f, "
           "\"loss\": %.4f, \"forward_ms\": %.3f, \"backward_ms\": %.3f, \"update_ms\": %.3f}\n",
           preset, dtype, (long long)batch, (long long)context, best * 1e3, all * 1e3, each / best,
           each * km_net_flops_per_token(j.model, context) / best / 1e12,
           (double)s.peak_bytes / 0x1p30, (double)s.held_bytes / 0x1p30, loss, part[0] * 1e3,
           part[1] * 1e3, part[2] * 1e3);
    km_optimizer_free(j.optim);
    km_release(j.ids);
    km_release(j.targets);
    km_release(j.loss);
    km_net_free(j.model);
    km_ctx_free(ctx);
    return 0;
}
