/* What kermes bench decode, prompt and batch measure (infer.c), for the reports (infer_report.c). */
#ifndef KM_CLI_BENCH_INFER_H
#define KM_CLI_BENCH_INFER_H
#include "backend/op_list.h"
#include "cli/bench/bench.h"
#include "cli/bench/together.h"
#include "engine/engine.h"

typedef enum km_infer_job {
    KM_INFER_DECODE,
    KM_INFER_PROMPT,
    KM_INFER_BATCH,
    KM_INFER_JOBS
} km_infer_job;
extern const char *const km_infer_job_names[KM_INFER_JOBS];

typedef struct km_op_time {
    double seconds, bytes; /* bytes: of weights */
    int count;
} km_op_time;

typedef struct km_infer_figures {
    km_infer_job job;
    int64_t sequences, context, tokens; /* tokens: of one run */
    double best, median;                /* seconds of a run: a step, or a prompt */
    double bytes;                       /* that a run must read */
    double flops;
    double heap_allocs, pool_misses; /* of a step */
    km_op_time op[KM_OP_COUNT];
} km_infer_figures;

#define KM_INFER_FIGURES (2 + KM_MAX_SIZES)

typedef struct km_infer_run {
    km_bench *b;
    const km_infer_bench *o;
    km_dtype cache;
    struct {
        km_ctx *ctx;
        km_net *model;
        km_memory_plan plan;
        char devices[160];
    } m;
    char name[160];
    double weights; /* bytes */
    bool wanted[KM_INFER_JOBS];
    km_sizes batches;       /* of these, what memory holds */
    km_infer_figures *done; /* (KM_INFER_FIGURES) */
    int n_done;
    bool together; /* `mixed` is wanted */
    km_together_how together_how;
    km_together mixed;
} km_infer_run;

void km_infer_print(const km_infer_run *f);
json_t *km_infer_json(const km_infer_run *f);
void km_infer_html(const km_infer_run *f, km_text *page);

#endif
