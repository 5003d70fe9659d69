/* What this machine has to compute with, and why something is missing, as JSON. */
#include "backend/backend.h"
#include "backend/cpu/blas.h"
#include "backend/cpu/gemm.h"
#include "backend/cuda/info.h"
#include "backend/vulkan/device.h"
#include "base/alloc.h"
#include "base/cpu.h"
#include "base/text.h"
#include "report/json.h"
#include <stdlib.h>

/* The features that some kernel cares for, as "AVX2 FMA". */
static void describe_features(const km_cpu *cpu, km_text *out) {
    const struct {
        bool here;
        const char *name;
    } features[] = {
        {cpu->avx2, "AVX2"},
        {cpu->fma, "FMA"},
        {cpu->f16c, "F16C"},
        {cpu->avx_vnni, "AVX-VNNI"},
        {cpu->avx512, "AVX-512"},
        {cpu->avx512_vnni, "AVX-512-VNNI"},
        {cpu->avx512_bf16, "AVX-512-BF16"},
        {cpu->amx, "AMX"},
        {cpu->neon, "NEON"},
    };
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        if (features[i].here) km_text_printf(out, "%s%s", out->len ? " " : "", features[i].name);
}

json_t *km_machine_json(void) {
    const km_cpu *cpu = km_cpu_info();
    km_host_memory m = km_host_memory_get();
    km_text features = {0};
    describe_features(cpu, &features);
    json_t *v =
        json_pack("{s:o, s:s, s:i, s:o, s:s, s:{s:I, s:I, s:I}, s:o, s:o, s:{s:b, s:o}}", "cpu",
                  km_json_text(cpu->name), "arch", cpu->arch, "cores", cpu->cores, "features",
                  km_json_text(km_text_str(&features)), "kernels", km_isa_name(km_cpu_isa()),
                  "cache_bytes", "l1d", (json_int_t)cpu->l1d, "l2", (json_int_t)cpu->l2, "l3",
                  (json_int_t)cpu->l3, "memory_bytes", km_json_count(m.total),
                  "memory_available_bytes", km_json_count(m.available), "blas", "available",
                  km_blas_available(), "name", km_json_text(km_blas_name()));
    json_object_set_new(v, "products", km_json_text(km_gemm_served()));
    if (cpu->amx_why) json_object_set_new(v, "amx_not_used", json_string(cpu->amx_why));
    km_text_free(&features);
    return v;
}

static int usable_gpus(const km_cuda_info *info) {
    int n = 0;
    for (int i = 0; i < info->n_gpus; i++) n += info->gpu[i].usable;
    return n;
}

static json_t *library_json(const km_cuda_library_info *l) {
    return json_pack("{s:o, s:b, s:o}", "name", km_json_text(l->name), "present", l->present,
                     "note", km_json_text(l->note));
}

static json_t *gpu_json(const km_cuda_gpu *g) {
    char name[16];
    snprintf(name, sizeof name, "cuda:%d", g->index);
    return json_pack("{s:s, s:o, s:o, s:o, s:[i, i], s:i, s:o, s:b, s:o}", "device", name, "name",
                     km_json_text(g->name), "memory_bytes", km_json_count((double)g->memory_total),
                     "memory_free_bytes", km_json_count((double)g->memory_free), "compute",
                     g->cc_major, g->cc_minor, "multiprocessors", g->multiprocessors, "l2_bytes",
                     km_json_count((double)g->l2), "usable", g->usable, "note",
                     km_json_text(g->note));
}

static json_t *gpus_json(const km_cuda_info *info) {
    json_t *list = json_array();
    for (int i = 0; i < info->n_gpus; i++) json_array_append_new(list, gpu_json(&info->gpu[i]));
    return json_pack("{s:b, s:o, s:{s:b, s:s, s:[i, i], s:o}, s:{s:b, s:o}, s:[o, o], s:o}",
                     "available", usable_gpus(info) > 0, "summary", km_json_text(info->summary),
                     "driver", "present", info->driver, "release", info->driver_release, "cuda",
                     info->cuda_major, info->cuda_minor, "note", km_json_text(info->driver_note),
                     "kernels", "present", info->kernels, "note", km_json_text(info->kernels_note),
                     "libraries", library_json(&info->cublaslt), library_json(&info->nccl), "gpus",
                     list);
}

static json_t *vulkan_json(const km_vulkan_info *info) {
    json_t *list = json_array();
    for (int i = 0; i < info->n; i++) {
        const km_vulkan_device_info *d = &info->device[i];
        char name[16];
        snprintf(name, sizeof name, "vulkan:%d", d->index);
        json_array_append_new(list,
                              json_pack("{s:s, s:o, s:s, s:o, s:o, s:o, s:b, s:b, s:o}", "device",
                                        name, "name", km_json_text(d->name), "kind", d->kind,
                                        "driver", km_json_text(d->driver), "memory_bytes",
                                        km_json_count((double)d->memory), "features",
                                        km_json_text(d->features), "software", d->software,
                                        "usable", d->usable, "note", km_json_text(d->note)));
    }
    return json_pack("{s:b, s:o, s:{s:b, s:o}, s:o}", "loader", info->loader, "summary",
                     km_json_text(info->summary), "kernels", "present", info->kernels, "note",
                     km_json_text(info->build), "devices", list);
}

static json_t *all_json(const km_cuda_info *info, const char *picked, const char *asked) {
    static _Thread_local km_vulkan_info vulkan;
    json_t *devices = json_pack("[s, s]", "ref", "cpu");
    for (int i = 0; i < info->n_gpus; i++) {
        char name[16];
        snprintf(name, sizeof name, "cuda:%d", info->gpu[i].index);
        if (info->gpu[i].usable) json_array_append_new(devices, json_string(name));
    }
    km_vulkan_info_get(&vulkan);
    for (int i = 0; i < vulkan.n; i++) {
        char name[16];
        snprintf(name, sizeof name, "vulkan:%d", vulkan.device[i].index);
        if (vulkan.device[i].usable) json_array_append_new(devices, json_string(name));
    }
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:s, s:s}", "kermes", km_version(), "machine",
                     km_machine_json(), "gpu", gpus_json(info), "vulkan", vulkan_json(&vulkan),
                     "devices", devices, "asked", asked, "device", picked);
}

char *km_devices_json(const char *asked) {
    if (!asked) asked = "auto";
    km_ctx *ctx = km_ctx_new(asked, 1); /* says why where it cannot be used */
    if (!ctx) return NULL;
    km_cuda_info *info = km_calloc(1, sizeof *info);
    char *text = NULL;
    if (info) {
        km_cuda_info_get(info);
        json_t *v = all_json(info, km_ctx_device(ctx), asked);
        text = km_json_give(v);
    }
    if (!text) {
        km_error err = {0};
        km_error_set(&err, KM_ERR_MEMORY, "out of memory for a description of devices");
        km_last_error_set(&err);
    }
    km_free(info);
    km_ctx_free(ctx);
    return text;
}
