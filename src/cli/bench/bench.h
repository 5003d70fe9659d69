/* Benchmarks: suites measure engines (plain C, cpu, the device asked for, ...) side by side and
 * leave samples; tables, JSON, HTML and the list of targets are all made from the samples. */
#ifndef KM_CLI_BENCH_H
#define KM_CLI_BENCH_H
#include "base/threads.h"
#include "cli/bench/model.h"
#include "cli/progress.h"
#include "cli/use_model.h"
#include "kermes.h"
#include "report/table.h"
#include <jansson.h>

/* The engines, by the names that samples carry. */
#define KM_ENGINE_NAIVE "naive"   /* plain C in this program, one thread */
#define KM_ENGINE_CPU "cpu"       /* Kermes */
#define KM_ENGINE_CPU_ONE "cpu-1" /* Kermes, one thread */
#define KM_ENGINE_OWN "own-gemm"  /* Kermes with BLAS switched off */
#define KM_ENGINE_BLAS "openblas" /* called directly, with its own threads */
#define KM_ENGINE_COPY "memcpy"   /* limits: copying memory, reading it, multiply-adds */
#define KM_ENGINE_READ "read"
#define KM_ENGINE_FMA "fma"

#define KM_SUITE_PER_CORE "per-core" /* part of elementwise: one thread, out of the cache */

/* Seconds of the rounds of one figure: the quickest, the quartiles, the slowest. */
typedef struct km_spread {
    double best, quarter, median, three_quarters, worst;
} km_spread;

typedef struct km_sample {
    const char *suite, *op, *engine;
    char shape[40];         /* "8192x4096" */
    double size;            /* along the charts' x axis */
    double work;            /* floating-point operations or bytes of one run */
    const char *limited_by; /* the engine that is the limit of this op */
    km_spread seconds;      /* of one run; NaN when skipped */
    int rounds;
    int64_t runs_per_round;
    const char *skipped; /* why, or NULL */
    char part[32];       /* what of the op was run, where that is not all: "the first 16 rows" */
} km_sample;

/* Something to be timed: run() does it `times` times and returns the seconds that took. */
typedef struct km_runner {
    const char *engine;
    double (*run)(void *arg, int64_t times);
    void *arg;
    km_ctx *ctx;      /* whose error ends the benchmark; NULL for none */
    const char *skip; /* do not run: why */
    double work;      /* of one run, where it differs from the sample's; else 0 */
    const char *part; /* what of the op it does; NULL: all */
} km_runner;

typedef struct km_limits { /* of the threads together */
    double fma;            /* operations per second, a multiply-add counting as two */
    double copy, read;     /* bytes per second, of buffers beyond the caches */
    double device_copy;    /* bytes per second of the GPU's own memory; 0 without one */
} km_limits;

typedef struct km_step_figures {
    bool measured;
    km_net_size model;
    int steps;
    double parameters, flops; /* of one step */
    km_spread seconds;
    double first_loss, last_loss;
    double heap_allocs, pool_misses; /* per step, once warm */
    double peak_bytes;
} km_step_figures;

typedef struct km_target { /* a promise about speed or memory, and what came out */
    char name[96];
    double value, bound;
    bool at_least;           /* value >= bound; otherwise value <= bound */
    const char *why_missing; /* not measured: why; NULL when it was */
} km_target;

enum {
    KM_SUITE_MATMUL,
    KM_SUITE_ELEMENTWISE,
    KM_SUITE_ROWS,
    KM_SUITE_REDUCE,
    KM_SUITE_ATTENTION,
    KM_SUITE_STEP,
    KM_SUITE_MEMORY,
    KM_SUITE_POOL,
    KM_SUITE_SCALING,
    KM_SUITES
};
extern const char *const km_suite_names[KM_SUITES];

#define KM_MAX_TARGETS 40

typedef struct km_bench {
    km_common common;
    bool quick;
    int64_t repeat;  /* most rounds for one figure */
    double budget;   /* seconds for one engine's figure, about */
    km_sizes sizes;  /* as asked for; n 0: the suite's own */
    int64_t columns; /* of the suites rows and reduce, as asked for; 0: as many as suit the size */
    bool suite[KM_SUITES];
    int threads;
    km_ctx *cpu;
    km_ctx *cpu_one;  /* one thread */
    km_ctx *device;   /* NULL when the device asked for is the cpu */
    km_threads *pool; /* for the limits */
    km_limits limits;
    double exp_ulp; /* largest error of exp in units of the last place; NaN: unknown */
    km_step_figures step;
    json_t *memory, *pool_figures, *scaling; /* as docs/cli.md has them; NULL: not measured */
    km_sample *samples;
    int n_samples, cap_samples;
    km_progress progress;
    int64_t done;
    km_error error;
} km_bench;

/* The engine that the tables are about: the device asked for. */
const char *km_bench_engine(const km_bench *b);
/* The sizes asked for, or the suite's own list (quick or full). */
const km_sizes *km_bench_sizes(const km_bench *b, const km_sizes *quick, const km_sizes *full);

/* Times all runners in turns, so that a disturbance hits each alike, and adds a sample for each.
 * `what` has suite, op, shape, size and work filled in. False when an engine failed. */
bool km_bench_measure(km_bench *b, const km_sample *what, km_runner *runners, int n);
int km_ascending(const void *a, const void *b); /* of doubles, for qsort */
/* Sorts the seconds of n rounds; NaN when n is 0. */
km_spread km_spread_of(double *seconds, int n);
/* The sample of an engine, or NULL. */
const km_sample *km_bench_find(const km_bench *b, const char *suite, const char *op, double size,
                               const char *engine);
/* Work per second of the best round; NaN when there is no such figure. */
double km_bench_rate(const km_bench *b, const char *suite, const char *op, double size,
                     const char *engine);
double km_sample_rate(const km_sample *s);
/* What the hardware could do for this sample, work per second; NaN when unknown. */
double km_sample_limit(const km_bench *b, const km_sample *s);
bool km_bench_is_ref(const km_bench *b); /* the device asked for is the slow reference */
/* Whether so many bytes more fit in memory without swapping. */
bool km_bench_fits(double bytes);

/* Suites. Each counts its calls of km_bench_measure (for the progress bar) and runs. */
int km_bench_matmul_count(const km_bench *b);
bool km_bench_matmul(km_bench *b);
int km_bench_ops_count(const km_bench *b, int suite); /* elementwise, rows, reduce */
bool km_bench_ops(km_bench *b, int suite);
int km_bench_attention_count(const km_bench *b);
bool km_bench_attention(km_bench *b);
int km_bench_step_count(const km_bench *b);
bool km_bench_step(km_bench *b);
bool km_bench_memory(km_bench *b); /* counts as one */
int km_bench_pool_count(const km_bench *b);
bool km_bench_pool(km_bench *b);
int km_bench_scaling_count(const km_bench *b);
bool km_bench_scaling(km_bench *b);
/* The model whose memory is recorded. */
const km_net_size *km_bench_model_size(const km_bench *b);

/* Running language models (infer.c): the words decode, prompt and batch. */
typedef struct km_infer_bench {
    const char *model;        /* a file or folder; or: */
    const char *shape, *type; /* a random model */
    const char *cache_type;
    int64_t context, prompt;
    km_sizes batch; /* n 0: from 1 to 512 */
    km_cli_where where;
} km_infer_bench;
bool km_bench_is_infer(const char *word);
/* The exit code. html: a page to write, or NULL. */
int km_bench_infer(km_bench *b, const km_infer_bench *o, const km_args *args, const char *html);

/* Contexts and threads of a benchmark; b->error says why not. Close in either case. */
bool km_bench_open(km_bench *b);
void km_bench_close(km_bench *b);

/* What `threads` threads of a pool can do together, where that is more than `out` says. False when out
 * of memory. */
bool km_limits_of(km_threads *pool, int threads, int repeats, km_limits *out);
/* Measures the limits. False when out of memory. */
bool km_bench_limits(km_bench *b);
/* Measures multiply-adds again, and raises the limit if they turn out faster this time. */
void km_bench_fma_limit(km_bench *b);
/* memcpy and reading by all threads together, as runners; arg is a km_stream. */
typedef struct km_stream {
    km_threads *pool;
    float *dst;
    const float *src;
    int64_t n;   /* floats */
    int threads; /* of these; small buffers are faster with one */
} km_stream;
double km_run_copy(void *arg, int64_t times);
double km_run_read(void *arg, int64_t times);

/* Tables of a suite's figures, for text and HTML alike; false when the suite has none. The titles
 * live as long as the grid. */
typedef struct km_grid {
    km_table table;
    char title[KM_TABLE_MAX_COLUMNS][40];
} km_grid;
bool km_bench_grid(const km_bench *b, int suite, km_grid *grid);
void km_bench_per_core_grid(const km_bench *b, km_grid *grid);
void km_bench_targets_grid(const km_bench *b, km_grid *grid, int *met, int *missed, int *unknown);
/* The sizes a suite has samples of, ascending; how many. */
int km_bench_sizes_of(const km_bench *b, const char *suite, double *sizes, int most);
/* Its ops, in the order they were measured; how many. */
int km_bench_ops_of(const km_bench *b, const char *suite, const char **ops, int most);
const char *km_bench_unit(int suite); /* "GFLOP/s" or "GB/s": 1e9 of a sample's work */

/* Reports. */
int km_bench_targets(const km_bench *b, km_target *targets); /* how many */
bool km_target_met(const km_target *t);
void km_bench_print(const km_bench *b, FILE *out);
json_t *km_bench_json(const km_bench *b);
void km_bench_html(const km_bench *b, km_text *page);
double km_peak_memory(void); /* bytes of this process */

/* The report of a results file that scripts/gpu-check wrote, as a page or (html NULL) as text; the
 * exit code. */
int km_bench_from(const char *path, const char *html);

/* The memory benchmarks' parts of a report, from their JSON. A table is the caller's to free. */
void km_memory_table(const json_t *memory, km_table *t, int most);
void km_memory_print(const json_t *memory, FILE *out);
void km_memory_html(const json_t *memory, km_text *page);
void km_pool_table(const json_t *pool, km_table *t);
void km_pool_print(const json_t *pool, FILE *out);
void km_pool_html(const json_t *pool, km_text *page);
/* Likewise of work over threads. */
void km_scaling_print(const json_t *scaling, FILE *out);
void km_scaling_html(const json_t *scaling, km_text *page);

#endif
