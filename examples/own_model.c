/* A model of one's own, from parameters to a checkpoint: two layers learn which points lie inside a
 * circle. Named parameters, an optimiser with a schedule, and a file that training could go on from. */
#include <kermes.h>
#include <stdio.h>

enum { POINTS = 256, HIDDEN = 32, STEPS = 300 };

int main(void) {
    km_ctx *ctx = km_ctx_new("cpu", 0);
    km_param_list *params = km_param_list_new();
    km_seed(ctx, 1);
    km_tensor *w1 = km_param_add(ctx, params, KM_F32, KM_SHAPE(HIDDEN, 2), true, "hidden.weight");
    km_tensor *b1 = km_param_add(ctx, params, KM_F32, KM_SHAPE(HIDDEN), false, "hidden.bias");
    km_tensor *w2 = km_param_add(ctx, params, KM_F32, KM_SHAPE(1, HIDDEN), true, "out.weight");
    km_tensor *b2 = km_param_add(ctx, params, KM_F32, KM_SHAPE(1), false, "out.bias");
    km_assign(ctx, w1, km_normal(ctx, KM_F32, KM_SHAPE(HIDDEN, 2), 0, 1));
    km_assign(ctx, w2, km_normal(ctx, KM_F32, KM_SHAPE(1, HIDDEN), 0, 0.2));

    km_optim_settings how = km_optim_defaults();
    how.weight_decay = 0.01;
    km_optimizer *o = km_optimizer_new(ctx, params, &how);
    km_schedule schedule = {KM_SCHEDULE_COSINE, 0.02, 0.001, 20, 0, STEPS};

    double loss_now = 0;
    for (int step = 0; step < STEPS && km_ctx_status(ctx) == KM_OK; step++) {
        const int across[] = {1};
        km_tensor *x = km_uniform(ctx, KM_F32, KM_SHAPE(POINTS, 2), -1, 1);
        km_tensor *radius = km_sum(ctx, km_mul(ctx, x, x), across, 1, true); /* (POINTS, 1) */
        km_tensor *inside =
            km_cast(ctx, km_lt(ctx, radius, km_full(ctx, KM_F32, KM_SCALAR, 0.5)), KM_F32);
        km_tensor *guess = km_mlp(ctx, x, w1, b1, KM_ACT_GELU, w2, b2);
        km_tensor *loss = km_bce_with_logits(ctx, guess, inside, KM_MEAN);
        km_optimizer_set(ctx, o, km_schedule_lr(&schedule, step), 1);
        km_backward(ctx, km_optimizer_scale_loss(ctx, o, loss));
        km_optimizer_step(ctx, o);
        km_optimizer_zero_grad(ctx, o);
        if (step % 100 == 99) printf("step %d: loss %.3f\n", step + 1, km_item(ctx, loss));
        if (step == STEPS - 1) loss_now = km_item(ctx, loss);
        km_step_end(ctx);
    }

    const char *path = "/tmp/kermes-own-model.safetensors";
    int64_t step = 0;
    km_param_list_save(ctx, path, params, o, STEPS);
    km_param_list_load(ctx, path, params, o, &step); /* as another process would */
    bool good = km_ctx_status(ctx) == KM_OK && step == STEPS && loss_now < 0.3;
    if (!good) printf("%s\n", km_ctx_error(ctx));
    remove(path);
    km_optimizer_free(o);
    km_param_list_free(params);
    km_ctx_free(ctx);
    return !good;
}
