/* kermes devices: what this machine has to compute with, and why something is missing. The library
 * tells it as JSON, and the text is made from that. */
#include "base/text.h"
#include "cli/cli.h"
#include "report/json.h"
#include <math.h>

static const json_t *at(const json_t *o, const char *key) { return json_object_get(o, key); }

static int whole(const json_t *v) { return (int)json_integer_value(v); }

static bool is(const json_t *o, const char *key) { return json_is_true(at(o, key)); }

/* Bytes as text; unknown where there is no number, or 0 where `zero` means unknown. */
static const char *bytes_of(char buf[KM_NUMBER_TEXT], const json_t *v, bool zero) {
    double n = json_is_number(v) ? json_number_value(v) : NAN;
    return km_format_bytes(buf, zero && n == 0 ? NAN : n);
}

static void print_cpu(const json_t *m) {
    char a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT], c[KM_NUMBER_TEXT];
    const json_t *cache = at(m, "cache_bytes"), *blas = at(m, "blas");
    const json_t *l1d = at(cache, "l1d"), *l2 = at(cache, "l2"), *l3 = at(cache, "l3");
    printf("CPU       %s (%s)\n", km_json_text_at(m, "cpu"), km_json_text_at(m, "arch"));
    printf("  cores     %d usable\n", whole(at(m, "cores")));
    printf("  features  %s\n",
           *km_json_text_at(m, "features") ? km_json_text_at(m, "features") : "baseline only");
    printf("  kernels   %s\n", km_json_text_at(m, "kernels"));
    if (at(m, "amx_not_used"))
        printf("  AMX       not used: %s\n", km_json_text_at(m, "amx_not_used"));
    if (json_integer_value(l1d) || json_integer_value(l2) || json_integer_value(l3))
        printf("  caches    L1d %s, L2 %s, L3 %s\n", bytes_of(a, l1d, true), bytes_of(b, l2, true),
               bytes_of(c, l3, true));
    printf("  memory    %s, %s available\n", bytes_of(a, at(m, "memory_bytes"), false),
           bytes_of(b, at(m, "memory_available_bytes"), false));
    printf("  BLAS      %s%s\n",
           is(blas, "available") ? "" : "none; own kernels serve: ", km_json_text_at(blas, "name"));
    printf("  products  f32: %s\n", km_json_text_at(m, "products"));
}

/* Without a driver there is one thing to say; with one, everything is worth a line. */
static void print_gpus(const json_t *gpu) {
    const json_t *driver = at(gpu, "driver"), *list = at(gpu, "gpus"), *cuda = at(driver, "cuda");
    printf("GPU       %s\n", km_json_text_at(gpu, "summary"));
    if (!is(driver, "present")) return;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *g = json_array_get(list, i), *cc = at(g, "compute");
        char total[KM_NUMBER_TEXT], unused[KM_NUMBER_TEXT], l2[KM_NUMBER_TEXT];
        printf("  %-9s %s, %s", km_json_text_at(g, "device"), km_json_text_at(g, "name"),
               bytes_of(total, at(g, "memory_bytes"), false));
        if (json_integer_value(at(g, "memory_free_bytes")))
            printf(" (%s free)", bytes_of(unused, at(g, "memory_free_bytes"), false));
        printf(", compute %d.%d, %d multiprocessors, L2 %s\n", whole(json_array_get(cc, 0)),
               whole(json_array_get(cc, 1)), whole(at(g, "multiprocessors")),
               bytes_of(l2, at(g, "l2_bytes"), false));
        if (!is(g, "usable")) printf("            not usable: %s\n", km_json_text_at(g, "note"));
    }
    const char *release = km_json_text_at(driver, "release");
    const json_t *libraries = at(gpu, "libraries");
    printf("  driver    %s%sCUDA %d.%d\n", release, *release ? ", " : "",
           whole(json_array_get(cuda, 0)), whole(json_array_get(cuda, 1)));
    printf("  kernels   %s\n", km_json_text_at(at(gpu, "kernels"), "note"));
    printf("  cuBLASLt  %s\n", km_json_text_at(json_array_get(libraries, 0), "note"));
    printf("  NCCL      %s\n", km_json_text_at(json_array_get(libraries, 1), "note"));
}

static void print_vulkan(const json_t *vulkan) {
    const json_t *list = at(vulkan, "devices");
    printf("Vulkan    %s\n", km_json_text_at(vulkan, "summary"));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *d = json_array_get(list, i);
        char total[KM_NUMBER_TEXT];
        printf("  %-9s %s (%s), %s\n", km_json_text_at(d, "device"), km_json_text_at(d, "name"),
               km_json_text_at(d, "kind"), bytes_of(total, at(d, "memory_bytes"), true));
        printf("            %s\n", km_json_text_at(d, "driver"));
        printf("            %s\n", km_json_text_at(d, "features"));
        if (!is(d, "usable"))
            printf("            not usable: %s\n", km_json_text_at(d, "note"));
        else if (is(d, "software"))
            printf("            used only when it is named: software on the CPU\n");
    }
    if (json_array_size(list))
        printf("  kernels   %s\n", km_json_text_at(at(vulkan, "kernels"), "note"));
}

static void print_text(const json_t *v) {
    const json_t *devices = at(v, "devices");
    print_cpu(at(v, "machine"));
    print_gpus(at(v, "gpu"));
    print_vulkan(at(v, "vulkan"));
    printf("Devices   ");
    for (size_t i = 0; i < json_array_size(devices); i++)
        printf("%s%s", i ? ", " : "", json_string_value(json_array_get(devices, i)));
    printf("; '%s' is %s\n", km_json_text_at(v, "asked"), km_json_text_at(v, "device"));
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
    code = KM_EXIT_OK;
    km_cli_notes(common.quiet);
    char *all = km_devices_json(common.device);
    if (!all) return km_cli_fail("devices: %s", km_last_error());
    json_t *v = common.json ? NULL : json_loads(all, 0, NULL);
    if (common.json)
        puts(all);
    else if (v)
        print_text(v);
    else
        code = km_cli_fail("devices: out of memory");
    json_decref(v);
    km_string_free(all);
    return code;
}
