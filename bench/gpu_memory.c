/* What a running model takes of a GPU's memory, by the driver's own count: before anything is
 * loaded, with the weights there, with the cache there, after a prompt and some tokens. Prints one
 * JSON object. Nothing else should run on the GPU meanwhile.
 *
 * usage: gpu_memory [SHAPE [TYPE [CONTEXT]]]     default: qwen2.5-3b q4_k_m 4096 */
#include "backend/cuda/device.h"
#include "infer/sequence.h"
#include "model/synthetic.h"
#include "tensor/dtype.h"
#include <stdio.h>
#include <stdlib.h>

static size_t total;

/* Free bytes; the CUDA context of this process is there from the first call on. */
static double unused(km_cuda_dev *dev) {
    size_t left = 0;
    if (km_cuda_enter(dev) != KM_CU_OK || km_cuda_api()->mem_info(&left, &total) != KM_CU_OK) {
        fprintf(stderr, "gpu_memory: the driver does not tell\n");
        exit(1);
    }
    return (double)left;
}

static void check(km_status s, const km_error *err) {
    if (s == KM_OK) return;
    fprintf(stderr, "gpu_memory: %s\n", err->text);
    exit(1);
}

int main(int argc, char **argv) {
    const char *shape = argc > 1 ? argv[1] : "qwen2.5-3b", *type = argc > 2 ? argv[2] : "q4_k_m";
    int64_t context = argc > 3 ? atoll(argv[3]) : 4096;
    const km_mix *mix = km_mix_find(type);
    km_error err = {0};
    km_config c;
    if (!mix || context < 512) {
        fprintf(stderr, "usage: gpu_memory [SHAPE [TYPE [CONTEXT, 512 or more]]]\n");
        return 2;
    }
    check(km_synthetic_shape(&c, shape, &err), &err);
    km_device *device = km_cuda_device(0, &err);
    if (!device) check(KM_ERR_DEVICE, &err);
    double before = unused(device->impl);
    km_ctx *ctx = km_ctx_new("cuda:0", 0);
    km_net *m = ctx ? km_synthetic_model(ctx, &c, mix, 1, NULL, NULL, NULL, &err) : NULL;
    if (!m) check(KM_ERR_DEVICE, &err);
    double loaded = unused(device->impl), weights = 0;
    for (int i = 0; i < m->params.n; i++)
        weights += (double)km_dtype_bytes(m->params.at[i].t->dtype,
                                          km_shape_count(m->params.at[i].t->shape));
    km_sequences_options how = km_sequences_defaults();
    how.context = context;
    km_sequence *s = km_sequence_open(ctx, m, &how, &err);
    if (!s) check(KM_ERR_DEVICE, &err);
    double cached = unused(device->impl);
    static int32_t ids[512];
    for (int i = 0; i < 512; i++) ids[i] = i * 7 % 256;
    check(km_sequence_read(s, ids, 480, &err), &err);
    for (int i = 0; i < 16; i++) check(km_sequence_next(s, ids[i], &err), &err);
    double after = unused(device->impl);
    km_cache_options cache = {how.cache, 1, context, 0};
    printf("{\"shape\": \"%s\", \"type\": \"%s\", \"context\": %lld, \"weights_bytes\": %.0f, "
           "\"cache_bytes\": %.0f,\n\"taken_by_weights\": %.0f, \"taken_by_cache\": %.0f, "
           "\"taken_by_a_prompt_and_steps\": %.0f, \"taken_bytes\": %.0f, "
           "\"in_use_with_the_context_of_cuda\": %.0f}\n",
           shape, type, (long long)context, weights, (double)km_cache_bytes(&c, &cache),
           before - loaded, loaded - cached, cached - after, before - after, (double)total - after);
    km_sequence_free(s);
    km_net_free(m);
    km_ctx_free(ctx);
    return 0;
}
