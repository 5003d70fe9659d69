/* kermes verify: every op on a device against the reference. */
#include "ops/verify.h"
#include "backend/backend.h"
#include "base/alloc.h"
#include "base/array.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "report/json.h"
#include "report/table.h"
#include <string.h>

typedef struct collection {
    km_verify_result *results;
    int n, cap;
    bool out_of_memory;
    km_progress progress;
} collection;

static void collect(void *user, const km_verify_result *r, int index, int total) {
    collection *c = user;
    c->progress.total = total;
    km_progress_step(&c->progress, index + 1, r->op);
    if (!km_array_reserve(&c->results, &c->cap, c->n + 1)) {
        c->out_of_memory = true;
        return;
    }
    c->results[c->n++] = *r;
}

static int count_failed(const collection *c) {
    int failed = 0;
    for (int i = 0; i < c->n; i++) failed += !c->results[i].passed;
    return failed;
}

static int count_fallbacks(const collection *c) {
    int n = 0;
    for (int i = 0; i < c->n; i++) n += c->results[i].fallback;
    return n;
}

static int count_references(const collection *c) {
    int n = 0;
    for (int i = 0; i < c->n; i++) n += c->results[i].reference;
    return n;
}

static bool print_text(const collection *c, const char *device, bool quiet) {
    km_table t;
    km_table_init(&t, "llrrrrl",
                  (const char *const[]){"op", "dtype", "cases", "max error", "mean error",
                                        "tolerance", "result"});
    int cases = 0;
    for (int i = 0; i < c->n; i++) {
        const km_verify_result *r = &c->results[i];
        cases += r->cases;
        if (quiet && r->passed) continue;
        km_table_cell(&t, "%s", r->op);
        km_table_cell(&t, "%s", r->dtype);
        km_table_cell(&t, "%d", r->cases);
        km_table_cell(&t, "%.2e", r->max_error);
        km_table_cell(&t, "%.2e", r->mean_error);
        km_table_cell(&t, "%.2e", r->tolerance);
        km_table_cell(&t, "%s%s", r->passed ? "pass" : "FAIL",
                      r->fallback    ? " (fallback)"
                      : r->reference ? " (the reference, on purpose)"
                                     : "");
    }
    bool ok = km_table_rows(&t) == 0 || km_table_print(&t, stdout, 0);
    int failed = count_failed(c), fallbacks = count_fallbacks(c);
    if (km_table_rows(&t)) printf("\n");
    km_table_free(&t);
    for (int i = 0; i < c->n; i++)
        if (!c->results[i].passed)
            printf("FAIL %s %s, %d of %d cases: %s\n", c->results[i].op, c->results[i].dtype,
                   c->results[i].failed, c->results[i].cases, c->results[i].worst);
    printf("%s: %d checks, %d cases: ", device, c->n, cases);
    if (failed)
        printf("%d FAILED", failed);
    else
        printf("all passed");
    if (fallbacks) printf("; %d used another device's kernel", fallbacks);
    if (count_references(c))
        printf("; %d are the reference on purpose (only GPUs use these ops)", count_references(c));
    printf("\n");
    return ok;
}

static json_t *result_json(const km_verify_result *r) {
    return json_pack("{s:s, s:s, s:o, s:i, s:i, s:o, s:o, s:o, s:b, s:b, s:b, s:o}", "op", r->op,
                     "dtype", r->dtype, "formula", km_json_text(r->detail), "cases", r->cases,
                     "failed", r->failed, "max_error", km_json_number(r->max_error, 6),
                     "mean_error", km_json_number(r->mean_error, 6), "tolerance",
                     km_json_number(r->tolerance, 6), "passed", r->passed, "fallback", r->fallback,
                     "reference", r->reference, "worst", km_json_text(r->worst));
}

static int print_json(const collection *c, const char *device, const km_verify_how *how) {
    json_t *results = json_array();
    for (int i = 0; i < c->n; i++) json_array_append_new(results, result_json(&c->results[i]));
    int failed = count_failed(c);
    return km_cli_print_json(
        json_pack("{s:s, s:s, s:I, s:b, s:i, s:i, s:b, s:o}", "kermes", km_version(), "device",
                  device, "seed", (json_int_t)how->seed, "quick", how->quick, "checks", c->n,
                  "failed", failed, "passed", failed == 0, "results", results));
}

static bool known_op(const char *name, km_error *err) {
    const char *names[KM_OP_COUNT];
    for (int i = 0; i < KM_OP_COUNT; i++) names[i] = km_op_name((km_op)i);
    return km_choose("op", name, names, KM_OP_COUNT, err) >= 0;
}

int km_command_verify(int argc, char **argv) {
    km_common common = KM_COMMON_DEFAULTS;
    const char *op = NULL;
    int64_t seed = 1;
    bool quick = false;
    const km_option options[] = {
        KM_OPTION_DEVICE_ROW(common, "the device to check (default: auto)"),
        {"op", KM_OPTION_TEXT, "NAME", &op, 0, 0, "check this op alone"},
        {"quick", KM_OPTION_FLAG, NULL, &quick, 0, 0,
         "small inputs and a few larger ones; every op and dtype still"},
        {"seed", KM_OPTION_INT, "N", &seed, 0, 9e15, "seed of the random inputs (default: 1)"},
        KM_OPTION_OUTPUT_ROWS(common),
        {0},
    };
    const km_spec spec = {
        .name = "verify",
        .summary = "Checks every op on a device against the reference.",
        .details = "Each op runs on inputs of many shapes, random and hostile, in every dtype it "
                   "takes.\nFails (exit code 1) when an error exceeds the tolerance in the op's "
                   "table. With --quiet\nonly failures are listed.\n",
        .options = options,
        .examples = "kermes verify\nkermes verify --device cpu --op softmax\n"
                    "kermes verify --seed 7 --json\n"};
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    km_error err = {0};
    if (op && !known_op(op, &err)) return km_cli_usage("verify: %s", err.text);
    km_cli_notes(common.quiet);

    /* The name that "auto" or "gpu" stands for is part of the answer. */
    km_ctx *ctx = km_ctx_new(common.device, 1);
    if (!ctx) return km_cli_fail("verify: %s", km_last_error());
    char device[32];
    snprintf(device, sizeof device, "%s", km_ctx_device(ctx));
    km_ctx_free(ctx);

    collection c = {0};
    km_progress_begin(&c.progress, "verify", "checks", 0, common.quiet);
    const km_verify_how how = {.op = op, .seed = (uint64_t)seed, .quick = quick};
    km_status s = km_verify(device, &how, collect, &c, &err);
    km_progress_end(&c.progress);
    code = KM_EXIT_OK;
    if (s != KM_OK)
        code = km_cli_fail("verify: %s", err.text);
    else if (c.out_of_memory)
        code = km_cli_fail("verify: out of memory");
    else if (c.n == 0)
        code = km_cli_fail("verify: there is nothing to check");
    else if (common.json)
        code = print_json(&c, device, &how);
    else
        print_text(&c, device, common.quiet);
    if (code == KM_EXIT_OK && count_failed(&c)) code = KM_EXIT_FAILED;
    km_free(c.results);
    return code;
}
