/* kermes devices: what this machine has to compute with, and why something is missing. */
#include "backend/cpu/blas.h"
#include "backend/cuda/info.h"
#include "base/cpu.h"
#include "cli/cli.h"
#include "report/json.h"
#include "base/text.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- What there is ---- */

km_memory km_cli_memory(void) {
    km_memory m = {NAN, NAN};
    long page = sysconf(_SC_PAGESIZE), total = sysconf(_SC_PHYS_PAGES);
    if (page > 0 && total > 0) m.total = (double)page * (double)total;
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "MemAvailable:", 13) == 0) m.available = 1024 * strtod(line + 13, NULL);
    if (f) fclose(f);
    return m;
}

/* The features that some kernel cares for, as "AVX2 FMA"; "none of interest" without any. */
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
        {cpu->neon, "NEON"},
    };
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        if (features[i].here) km_text_printf(out, "%s%s", out->len ? " " : "", features[i].name);
}

json_t *km_cli_machine(void) {
    const km_cpu *cpu = km_cpu_info();
    km_memory m = km_cli_memory();
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
    km_text_free(&features);
    return v;
}

/* ---- Text ---- */

static int usable_gpus(const km_cuda_info *info) {
    int n = 0;
    for (int i = 0; i < info->n_gpus; i++) n += info->gpu[i].usable;
    return n;
}

static void print_cpu(void) {
    const km_cpu *cpu = km_cpu_info();
    km_memory m = km_cli_memory();
    char a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT], c[KM_NUMBER_TEXT];
    km_text features = {0};
    describe_features(cpu, &features);
    printf("CPU       %s (%s)\n", cpu->name, cpu->arch);
    printf("  cores     %d usable\n", cpu->cores);
    printf("  features  %s\n", features.len ? km_text_str(&features) : "baseline only");
    printf("  kernels   %s\n", km_isa_name(km_cpu_isa()));
    if (cpu->l1d || cpu->l2 || cpu->l3)
        printf("  caches    L1d %s, L2 %s, L3 %s\n",
               km_format_bytes(a, cpu->l1d ? (double)cpu->l1d : NAN),
               km_format_bytes(b, cpu->l2 ? (double)cpu->l2 : NAN),
               km_format_bytes(c, cpu->l3 ? (double)cpu->l3 : NAN));
    printf("  memory    %s, %s available\n", km_format_bytes(a, m.total),
           km_format_bytes(b, m.available));
    printf("  BLAS      %s%s\n",
           km_blas_available() ? "" : "none; own kernels serve: ", km_blas_name());
    km_text_free(&features);
}

/* Without a driver there is one thing to say; with one, everything is worth a line. */
static void print_gpus(const km_cuda_info *info) {
    printf("GPU       %s\n", info->summary);
    if (!info->driver) return;
    for (int i = 0; i < info->n_gpus; i++) {
        const km_cuda_gpu *g = &info->gpu[i];
        char total[KM_NUMBER_TEXT], unused[KM_NUMBER_TEXT], l2[KM_NUMBER_TEXT];
        printf("  cuda:%-4d %s, %s", g->index, g->name,
               km_format_bytes(total, (double)g->memory_total));
        if (g->memory_free) printf(" (%s free)", km_format_bytes(unused, (double)g->memory_free));
        printf(", compute %d.%d, %d multiprocessors, L2 %s\n", g->cc_major, g->cc_minor,
               g->multiprocessors, km_format_bytes(l2, (double)g->l2));
        if (!g->usable) printf("            not usable: %s\n", g->note);
    }
    printf("  driver    %s%sCUDA %d.%d\n", info->driver_release,
           info->driver_release[0] ? ", " : "", info->cuda_major, info->cuda_minor);
    printf("  kernels   %s\n", info->kernels_note);
    printf("  cuBLASLt  %s\n", info->cublaslt.note);
    printf("  NCCL      %s\n", info->nccl.note);
}

static void print_text(const km_cuda_info *info, const char *picked, const char *asked) {
    print_cpu();
    print_gpus(info);
    printf("Devices   ref, cpu");
    for (int i = 0; i < info->n_gpus; i++)
        if (info->gpu[i].usable) printf(", cuda:%d", info->gpu[i].index);
    printf("; '%s' is %s\n", asked, picked);
}

/* ---- JSON ---- */

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

static int print_json(const km_cuda_info *info, const char *picked, const char *asked) {
    json_t *devices = json_pack("[s, s]", "ref", "cpu");
    for (int i = 0; i < info->n_gpus; i++) {
        char name[16];
        snprintf(name, sizeof name, "cuda:%d", info->gpu[i].index);
        if (info->gpu[i].usable) json_array_append_new(devices, json_string(name));
    }
    return km_cli_print_json(json_pack("{s:s, s:o, s:o, s:o, s:s, s:s}", "kermes", km_version(),
                                       "machine", km_cli_machine(), "gpu", gpus_json(info),
                                       "devices", devices, "asked", asked, "device", picked));
}

/* ---- The command ---- */

int km_command_devices(int argc, char **argv) {
    km_common common = KM_COMMON_DEFAULTS;
    const km_option options[] = {
        KM_OPTION_DEVICE_ROW(common, "check this device, and fail if it cannot be used"),
        KM_OPTION_OUTPUT_ROWS(common),
        {0},
    };
    const km_spec spec = {
        .name = "devices",
        .summary = "Shows what this machine has to compute with, and why something is missing.",
        .details = "Kernels are chosen by the CPU's features; KERMES_ISA=base|avx2|avx512 asks for "
                   "less.\nOpenBLAS is opened when it is installed; KERMES_BLAS=none leaves it "
                   "alone.\n",
        .options = options,
        .examples = "kermes devices\nkermes devices --device gpu\nkermes devices --json\n"};
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    km_cli_notes(common.quiet);
    km_ctx *ctx = km_ctx_new(common.device, 1);
    if (!ctx) return km_cli_fail("devices: %s", km_last_error());
    static km_cuda_info info;
    km_cuda_info_get(&info);
    code = KM_EXIT_OK;
    if (common.json)
        code = print_json(&info, km_ctx_device(ctx), common.device);
    else
        print_text(&info, km_ctx_device(ctx), common.device);
    km_ctx_free(ctx);
    return code;
}
