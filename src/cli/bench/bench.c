/* kermes bench: runs the suites asked for and reports. */
#include "cli/bench/bench.h"
#include "backend/cpu/blas.h"
#include "base/alloc.h"
#include "base/cpu.h"
#include "report/html.h"
#include <math.h>
#include <string.h>

const char *const km_suite_names[KM_SUITES] = {
    "matmul", "elementwise", "rows", "reduce", "attention", "step", "memory", "pool", "scaling"};

static const char details[] =
    "Compares plain C (one thread), the cpu kernels and the device asked for, and says how far\n"
    "each is from what this machine can do, which it measures first: multiply-adds in registers\n"
    "and memory bandwidth, by all threads together.\n"
    "\n"
    "Suites (default: all but scaling):\n"
    "  matmul       f32 products of square matrices, also OpenBLAS directly and our own GEMM\n"
    "  elementwise  add, exp, gelu and others, 1K to 64M elements\n"
    "  rows         softmax, layer_norm and others, up to 8192x4096\n"
    "  reduce       sum, max, argmax and others\n"
    "  attention    causal attention, forward and backward\n"
    "  step         a training step of a 6-layer, 384-wide transformer\n"
    "  memory       what each op of such a step holds, over the step; also --memory\n"
    "  pool         the memory pool against the system or driver; also --pool\n"
    "  scaling      products, rows and sums over threads, beside the limits of as many (only\n"
    "               where it is named)\n"
    "\n"
    "Running language models, of --model FILE or of random weights (--shape), by themselves:\n"
    "  decode       one sequence, token after token, after --context tokens\n"
    "  prompt       reading --prompt tokens\n"
    "  batch        --batch sequences together, a token each\n"
    "  mixed        a batch alone, beside prompts that come in, and half under a schema\n";

static const char examples[] =
    "kermes bench --quick\n"
    "kermes bench matmul --threads 1\n"
    "kermes bench elementwise --sizes 64K,1M,64M\n"
    "kermes bench rows --columns 50304 --sizes 48M\n"
    "kermes bench scaling --html threads.html\n"
    "kermes bench --memory --html memory.html\n"
    "kermes bench --html bench.html --json > bench.json\n"
    "kermes bench decode prompt --model model.gguf --device cpu\n"
    "kermes bench decode --shape qwen2.5-3b --type q4_k_m --context 512\n"
    "kermes bench batch --shape llama-3.1-8b --type q8_0 --batch 64\n";

/* Whether a suite runs whose figures are rates over sizes, beside the machine's limits. */
static bool has_sizes(const km_bench *b) {
    for (int i = 0; i < KM_SUITE_STEP; i++)
        if (b->suite[i]) return true;
    return false;
}

static bool choose_suites(km_bench *b, const km_args *args, km_error *err) {
    for (int i = 0; i < args->n_words; i++) {
        int suite = km_choose("suite", args->words[i], km_suite_names, KM_SUITES, err);
        if (suite < 0) return false;
        b->suite[suite] = true;
    }
    int chosen = 0;
    for (int i = 0; i < KM_SUITES; i++) chosen += b->suite[i];
    for (int i = 0; i < KM_SUITE_SCALING && chosen == 0; i++) b->suite[i] = true;
    if (b->sizes.n && (chosen != 1 || !has_sizes(b))) {
        km_error_set(err, KM_ERR_RANGE,
                     "--sizes goes with one suite, and not with step, memory, pool or scaling");
        return false;
    }
    if (b->columns && !b->suite[KM_SUITE_ROWS] && !b->suite[KM_SUITE_REDUCE]) {
        km_error_set(err, KM_ERR_RANGE, "--columns goes with the suites rows and reduce");
        return false;
    }
    return true;
}

bool km_bench_open(km_bench *b) {
    b->cpu = km_ctx_new("cpu", (int)b->common.threads);
    b->cpu_one = b->cpu ? km_ctx_new("cpu", 1) : NULL;
    b->device = b->cpu_one ? km_ctx_new(b->common.device, (int)b->common.threads) : NULL;
    if (!b->device) {
        km_error_set(&b->error, KM_ERR_DEVICE, "%s", km_last_error());
        return false;
    }
    if (strcmp(km_ctx_device(b->device), "cpu") == 0) {
        km_ctx_free(b->device);
        b->device = NULL;
    }
    b->threads = km_ctx_threads(b->cpu);
    b->pool = km_threads_new(b->threads);
    if (!b->pool) km_error_set(&b->error, KM_ERR_MEMORY, "cannot start %d threads", b->threads);
    return b->pool != NULL;
}

void km_bench_close(km_bench *b) {
    km_threads_free(b->pool);
    if (b->device) km_ctx_free(b->device);
    if (b->cpu_one) km_ctx_free(b->cpu_one);
    if (b->cpu) km_ctx_free(b->cpu);
    km_free(b->samples);
    json_decref(b->memory);
    json_decref(b->pool_figures);
    json_decref(b->scaling);
}

static int count_suite(const km_bench *b, int suite) {
    switch (suite) {
    case KM_SUITE_MATMUL: return km_bench_matmul_count(b);
    case KM_SUITE_ATTENTION: return km_bench_attention_count(b);
    case KM_SUITE_STEP: return km_bench_step_count(b);
    case KM_SUITE_MEMORY: return 1;
    case KM_SUITE_POOL: return km_bench_pool_count(b);
    case KM_SUITE_SCALING: return km_bench_scaling_count(b);
    default: return km_bench_ops_count(b, suite);
    }
}

static bool run_suite(km_bench *b, int suite) {
    switch (suite) {
    case KM_SUITE_MATMUL: return km_bench_matmul(b);
    case KM_SUITE_ATTENTION: return km_bench_attention(b);
    case KM_SUITE_STEP: return km_bench_step(b);
    case KM_SUITE_MEMORY: return km_bench_memory(b);
    case KM_SUITE_POOL: return km_bench_pool(b);
    case KM_SUITE_SCALING: return km_bench_scaling(b);
    default: return km_bench_ops(b, suite);
    }
}

static bool measure_all(km_bench *b) {
    int total = 0;
    for (int i = 0; i < KM_SUITES; i++)
        if (b->suite[i]) total += count_suite(b, i);
    km_progress_begin(&b->progress, "bench", "figures", total, b->common.quiet);
    bool limits = has_sizes(b) || b->suite[KM_SUITE_STEP];
    bool ok = !limits || km_bench_limits(b);
    for (int i = 0; i < KM_SUITES && ok; i++)
        if (b->suite[i]) {
            ok = run_suite(b, i);
            if (limits) km_bench_fma_limit(b); /* a quieter moment may show that more is possible */
        }
    km_progress_end(&b->progress);
    return ok;
}

/* ---- Text ---- */

static void print_step(const km_bench *b, FILE *out) {
    const km_step_figures *f = &b->step;
    char peak[KM_NUMBER_TEXT], rate[KM_NUMBER_TEXT];
    const km_net_size *m = &f->model;
    double tokens = (double)m->batch * m->tokens;
    fprintf(
        out,
        "\nTraining step: %d layers, %d wide, %d heads, %d x %d tokens, %.1fM parameters, on %s\n"
        "  %.1f ms a step (median %.1f, quartiles %.1f to %.1f), %.0f tokens/s, %s GFLOP/s",
        m->layers, m->width, m->heads, m->batch, m->tokens, f->parameters / 1e6, km_bench_engine(b),
        1e3 * f->seconds.best, 1e3 * f->seconds.median, 1e3 * f->seconds.quarter,
        1e3 * f->seconds.three_quarters, tokens / f->seconds.best,
        km_format_number(rate, f->flops / f->seconds.best / 1e9));
    if (!b->device)
        fprintf(out, ", %.0f%% of the limit", 100 * f->flops / f->seconds.best / b->limits.fma);
    fprintf(out, "\n  %g heap allocations and %g pool misses a step, at most %s in tensors\n",
            f->heap_allocs, f->pool_misses, km_format_bytes(peak, f->peak_bytes));
}

static void print_grid(km_grid *g, const char *heading, FILE *out) {
    fprintf(out, "\n%s\n", heading);
    km_table_print(&g->table, out, 2);
    km_table_free(&g->table);
}

void km_bench_print(const km_bench *b, FILE *out) {
    char fma[KM_NUMBER_TEXT], copy[KM_NUMBER_TEXT], read[KM_NUMBER_TEXT], heading[160];
    const char *engine = km_bench_engine(b);
    fprintf(out, "%s, %d thread%s, %s kernels, %s\n", km_cpu_info()->name, b->threads,
            b->threads == 1 ? "" : "s", km_isa_name(km_cpu_isa()),
            km_blas_available() ? km_blas_name() : "no BLAS");
    if (b->limits.fma > 0)
        fprintf(
            out,
            "Limits measured here: %s GFLOP/s of f32 multiply-adds, copy %s GB/s, read %s GB/s\n",
            km_format_number(fma, b->limits.fma / 1e9),
            km_format_number(copy, b->limits.copy / 1e9),
            km_format_number(read, b->limits.read / 1e9));
    if (b->limits.device_copy > 0)
        fprintf(out, "Copy on %s: %s GB/s\n", engine,
                km_format_number(copy, b->limits.device_copy / 1e9));
    km_grid g;
    for (int i = 0; i < KM_SUITES; i++) {
        if (!km_bench_grid(b, i, &g)) continue;
        snprintf(heading, sizeof heading, "%s f32 on %s, %s", km_suite_names[i], engine,
                 km_bench_unit(i));
        print_grid(&g, heading, out);
        if (i == KM_SUITE_ELEMENTWISE) {
            km_bench_per_core_grid(b, &g);
            print_grid(&g, "One core out of its cache, 1e9 results a second", out);
        }
    }
    if (b->step.measured) print_step(b, out);
    if (b->memory) km_memory_print(b->memory, out);
    if (b->pool_figures) km_pool_print(b->pool_figures, out);
    if (b->scaling) km_scaling_print(b->scaling, out);
    int met, missed, unknown;
    km_bench_targets_grid(b, &g, &met, &missed, &unknown);
    snprintf(heading, sizeof heading, "Targets for a CPU with 2 threads: %d met, %d missed%s", met,
             missed, unknown ? ", others not measured in this run" : "");
    if (met + missed)
        print_grid(&g, heading, out);
    else
        km_table_free(&g.table);
    fprintf(
        out,
        "\nFigures are from the best round after a warm-up; median and quartiles of all rounds are "
        "of the\nlast size (each size of matmul), and --json has those of every figure.\n");
}

/* ---- The command ---- */

static int write_html(const km_bench *b, const char *path) {
    km_text page = {0};
    km_error err = {0};
    km_bench_html(b, &page);
    km_status s = km_html_write(&page, path, &err);
    km_text_free(&page);
    return s == KM_OK ? KM_EXIT_OK : km_cli_fail("%s", err.text);
}

int km_command_bench(int argc, char **argv) {
    km_bench b = {.common = KM_COMMON_DEFAULTS, .repeat = 0, .exp_ulp = NAN};
    const char *html = NULL, *from = NULL;
    km_infer_bench infer = {.context = 512, .prompt = 512};
    const km_option options[] = {
        KM_OPTION_DEVICE_ROW(b.common, "what to measure beside the cpu (default: auto)"),
        KM_OPTION_THREADS_ROW(b.common),
        {"quick", KM_OPTION_FLAG, NULL, &b.quick, 0, 0, "fewer sizes and rounds: about 20 seconds"},
        {"sizes", KM_OPTION_SIZES, "LIST", &b.sizes, 1, 1 << 30,
         "sizes for one suite: n of matmul, the sequence's length of\n"
         "attention, elements of the others; K, M and G are powers of 1024"},
        {"columns", KM_OPTION_INT, "N", &b.columns, 1, 1 << 30,
         "columns of the rows that rows and reduce work on (default: 1024, and\n"
         "4096 from 8M elements on)"},
        {"repeat", KM_OPTION_INT, "N", &b.repeat, 1, 100,
         "rounds for each figure, at most (default: 7, quick: 5)"},
        {"memory", KM_OPTION_FLAG, NULL, &b.suite[KM_SUITE_MEMORY], 0, 0,
         "the suite memory: live bytes over a training step, by op"},
        {"pool", KM_OPTION_FLAG, NULL, &b.suite[KM_SUITE_POOL], 0, 0,
         "the suite pool: the memory pool against the system or driver"},
        {"model", KM_OPTION_TEXT, "PATH", &infer.model, 0, 0,
         "for decode, prompt, batch, mixed: a GGUF file or a folder; also -m"},
        {"shape", KM_OPTION_TEXT, "NAME", &infer.shape, 0, 0,
         "or a model of random weights in the shape of smollm2-135m, qwen2.5-0.5b,\n"
         "llama-3.2-1b, qwen2.5-3b or llama-3.1-8b"},
        {"type", KM_OPTION_TEXT, "T", &infer.type, 0, 0,
         "of its weights: q4_k_m, q8_0, bf16, ... (default q4_k_m)"},
        {"context", KM_OPTION_INT, "N", &infer.context, 0, 1 << 24,
         "tokens before the ones that decode and batch make (default 512)"},
        {"batch", KM_OPTION_SIZES, "LIST", &infer.batch, 1, 4096,
         "sequences of batch, as 64 or 1,8,64 (default: from 1 to 512, doubling;\n"
         "quick: 1,4,16,64)"},
        {"prompt", KM_OPTION_INT, "N", &infer.prompt, 1, 1 << 24, "tokens of prompt (default 512)"},
        {"cache-type", KM_OPTION_TEXT, "T", &infer.cache_type, 0, 0,
         "keys and values in f32, f16, bf16, q8_0 or q4_0 (default f16)"},
        KM_OPTION_WHERE_ROWS(infer.where),
        {"html", KM_OPTION_TEXT, "FILE", &html, 0, 0, "write a page with charts and tables"},
        {"from", KM_OPTION_TEXT, "FILE", &from, 0, 0,
         "measure nothing: report what scripts/gpu-check wrote to FILE"},
        KM_OPTION_OUTPUT_ROWS(b.common),
        {0},
    };
    const km_spec spec = {
        "bench", "[SUITE ...]", "Measures the speed of this machine and of Kermes.",
        details, options,       examples};
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    km_error err = {0};
    if (args.n_words > 0 && km_bench_is_infer(args.words[0])) {
        if (from || b.sizes.n || b.columns)
            return km_cli_usage("bench: --from, --sizes and --columns are not for %s",
                                args.words[0]);
        return km_bench_infer(&b, &infer, &args, html);
    }
    if (infer.model || infer.shape)
        return km_cli_usage("bench: --model and --shape are for decode, prompt, batch and mixed");
    if (!choose_suites(&b, &args, &err)) return km_cli_usage("bench: %s", err.text);
    if (html && !km_cli_can_write(html, &err)) return km_cli_fail("%s", err.text);
    if (from && b.common.json)
        return km_cli_usage("bench: --from gives text or a page; the file itself is JSON");
    if (from) return km_bench_from(from, html);
    if (b.repeat == 0) b.repeat = b.quick ? 5 : 7;
    b.budget = b.quick ? 0.1 : 0.3;
    km_cli_notes(b.common.quiet);

    code = KM_EXIT_OK;
    if (!km_bench_open(&b) || !measure_all(&b)) code = km_cli_fail("bench: %s", b.error.text);
    if (code == KM_EXIT_OK && html) code = write_html(&b, html);
    if (code == KM_EXIT_OK && b.common.json)
        code = km_cli_print_json(km_bench_json(&b));
    else if (code == KM_EXIT_OK)
        km_bench_print(&b, stdout);
    km_bench_close(&b);
    return code;
}
