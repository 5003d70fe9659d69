/* kermes devices: what this machine has to compute with, and why something is missing. */
#include "backend/cpu/blas.h"
#include "base/cpu.h"
#include "cli/cli.h"
#include "report/json.h"
#include "report/text.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- What there is ---- */

typedef struct memory {
    double total, available; /* bytes; NaN where unknown */
} memory;

static memory read_memory(void) {
    memory m = {NAN, NAN};
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

/* One line on GPUs; *usable tells whether "gpu" is a device here. */
static const char *describe_gpu(bool *usable) {
    *usable = false;
    return "this build has no CUDA backend yet";
}

json_t *km_cli_machine(void) {
    const km_cpu *cpu = km_cpu_info();
    memory m = read_memory();
    km_text features = {0};
    describe_features(cpu, &features);
    json_t *v =
        json_pack("{s:o, s:s, s:i, s:o, s:s, s:{s:I, s:I, s:I}, s:o, s:o, s:{s:b, s:o}}", "cpu",
                  km_json_text(cpu->name), "arch", cpu->arch, "cores", cpu->cores, "features",
                  km_json_text(km_text_str(&features)), "kernels", km_isa_name(km_cpu_isa()),
                  "cache_bytes", "l1d", (json_int_t)cpu->l1d, "l2", (json_int_t)cpu->l2, "l3",
                  (json_int_t)cpu->l3, "memory_bytes", km_json_number(m.total, 15),
                  "memory_available_bytes", km_json_number(m.available, 15), "blas", "available",
                  km_blas_available(), "name", km_json_text(km_blas_name()));
    km_text_free(&features);
    return v;
}

/* ---- The command ---- */

static void print_text(const char *picked, const char *asked) {
    const km_cpu *cpu = km_cpu_info();
    memory m = read_memory();
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
    bool gpu;
    const char *line = describe_gpu(&gpu);
    printf("GPU       %s%s\n", gpu ? "" : "none: ", line);
    printf("Devices   ref, cpu%s; '%s' is %s\n", gpu ? ", cuda" : "", asked, picked);
    km_text_free(&features);
}

static int print_json(const char *picked, const char *asked) {
    bool gpu;
    const char *line = describe_gpu(&gpu);
    json_t *devices = json_pack("[s, s]", "ref", "cpu");
    if (gpu) json_array_append_new(devices, json_string("cuda"));
    return km_cli_print_json(json_pack("{s:s, s:o, s:{s:b, s:o}, s:o, s:s, s:s}", "kermes",
                                       km_version(), "machine", km_cli_machine(), "gpu",
                                       "available", gpu, "text", km_json_text(line), "devices",
                                       devices, "asked", asked, "device", picked));
}

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
    code = KM_EXIT_OK;
    if (common.json)
        code = print_json(km_ctx_device(ctx), common.device);
    else
        print_text(km_ctx_device(ctx), common.device);
    km_ctx_free(ctx);
    return code;
}
