/* kermes bench decode, prompt, batch: a model, of a file or of random weights, run as kermes run
 * does it; tokens a second, the bytes a token must read against the memory's speed, time of each
 * op. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/log.h"
#include "cli/bench/bench.h"
#include "engine/engine.h"
#include "infer/sequences.h"
#include "infer/sample.h"
#include "ops/op.h"
#include "report/json.h"
#include "report/machine.h"
#include <math.h>
#include <string.h>

enum { DECODE, PROMPT, BATCH, JOBS };
static const char *const job_names[JOBS] = {"decode", "prompt", "batch"};

#define STEPS 64 /* of a round, at most: the context has room for as many */

typedef struct op_time {
    double seconds, bytes; /* bytes: of weights */
    int count;
} op_time;

typedef struct figures {
    bool measured;
    int64_t sequences, context, tokens; /* tokens: of one run */
    double best, median;                /* seconds of a run: a step, or a prompt */
    double bytes;                       /* that a run must read */
    double flops;
    double heap_allocs, pool_misses; /* of a step */
    op_time op[KM_OP_COUNT];
} figures;

typedef struct infer {
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
    figures job[JOBS];
    bool wanted[JOBS];
} infer;

bool km_bench_is_infer(const char *word) {
    for (int i = 0; i < JOBS; i++)
        if (strcmp(word, job_names[i]) == 0) return true;
    return false;
}

/* ---- The model ---- */

static int64_t room_of(const infer *f, int job) {
    const km_infer_bench *o = f->o;
    return job == PROMPT ? o->prompt : o->context + STEPS;
}

/* The cache that the largest job needs. */
static void needs(const infer *f, int64_t *sequences, int64_t *context) {
    *sequences = f->wanted[BATCH] ? f->o->batch : 1;
    *context = 1;
    for (int i = 0; i < JOBS; i++)
        if (f->wanted[i] && room_of(f, i) > *context) *context = room_of(f, i);
}

static km_status weigh(infer *f, const km_mix *mix, km_config *c, km_weighed *w, km_error *err) {
    const km_infer_bench *o = f->o;
    if (o->model) return km_weigh(o->model, &(km_open_options){.dtype = KM_DTYPE_COUNT}, w, err);
    km_status s = km_synthetic_shape(c, o->shape, err);
    return s == KM_OK ? km_weigh_mix(c, mix, w, err) : s;
}

static bool on_loading(void *user, uint64_t done, uint64_t total) {
    km_progress *bar = user;
    bar->total = (int64_t)(total >> 20) + 1;
    km_progress_step(bar, (int64_t)(done >> 20), NULL);
    return true;
}

static json_t *plan_json(const km_memory_plan *p) {
    json_t *list = json_array();
    for (int i = 0; i < p->n; i++) {
        const km_memory_part *a = &p->part[i];
        json_array_append_new(
            list,
            json_pack("{s:s, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o}", "device", a->device,
                      "first_layer", a->first, "layers", a->last - a->first, "streamed_layers",
                      a->streamed, "weights_bytes", km_json_count(a->weights), "streamed_bytes",
                      km_json_count(a->streamed_weights), "cache_bytes", km_json_count(a->cache),
                      "scratch_bytes", km_json_count(a->scratch), "free_bytes",
                      km_json_count(a->room)));
    }
    return list;
}

static km_status open_model(infer *f, km_error *err) {
    const km_infer_bench *o = f->o;
    const km_mix *mix = km_mix_find(o->type ? o->type : "q4_k_m");
    km_config c;
    km_weighed w;
    int64_t sequences, context;
    if (!mix) return km_error_set(err, KM_ERR_RANGE, "no type '%.40s'", o->type);
    km_status s = weigh(f, mix, &c, &w, err);
    if (s != KM_OK) return s;
    needs(f, &sequences, &context);
    if (context > w.config.context)
        s = km_error_set(err, KM_ERR_RANGE,
                         "%lld tokens are asked for and the model's context is %lld",
                         (long long)context, (long long)w.config.context);
    km_model_options asked;
    if (s == KM_OK) s = km_cli_model_options(&f->b->common, &o->where, NULL, &asked, err);
    km_placing where = {.device = f->b->common.device, .devices = o->where.devices};
    if (s == KM_OK) {
        where.gpu_layers = asked.gpu_layers;
        s = km_placing_plan(&w, &where, context, sequences, f->cache, &f->m.plan, err);
    }
    km_weighed_free(&w);
    if (s != KM_OK) return s;
    km_open_split split = km_memory_split(&f->m.plan);
    f->m.ctx = km_ctx_new(split.device[0], (int)f->b->common.threads);
    if (!f->m.ctx) return km_error_set(err, KM_ERR_DEVICE, "%s", km_last_error());
    if (o->where.activations) km_ctx_set_activations(f->m.ctx, (int)o->where.activations);
    km_progress bar;
    km_progress_begin(&bar, "loading", "MiB", 1, f->b->common.quiet);
    km_open_options how = {
        .dtype = KM_DTYPE_COUNT, .split = &split, .progress = on_loading, .user = &bar};
    f->m.model = o->model ? km_net_open(f->m.ctx, o->model, &how, err)
                          : km_synthetic_model(f->m.ctx, &c, mix, 1, &split, on_loading, &bar, err);
    km_progress_end(&bar);
    if (!f->m.model) return err->code;
    km_net_devices(f->m.model, f->m.devices, sizeof f->m.devices);
    snprintf(f->name, sizeof f->name, o->model ? "%.150s" : "%.80s %s",
             o->model ? o->model : o->shape, mix->name);
    for (const km_net *p = f->m.model; p; p = p->next)
        for (int i = 0; i < p->params.n; i++)
            f->weights += (double)km_dtype_bytes(p->params.at[i].t->dtype,
                                                 km_shape_count(p->params.at[i].t->shape));
    return KM_OK;
}

/* ---- Runs ---- */

typedef struct round {
    infer *f;
    km_sequences *batch;
    km_sequences_token *token; /* one a sequence */
    int64_t n, context;
    int32_t *ids; /* of a prompt */
    /* Where the logits are on a GPU tokens are chosen there, as kermes run does: */
    km_chooser *chooser; /* (n); NULL: the host chooses the likeliest */
    int32_t *out;        /* (KM_STEP_ROWS, STEPS) */
} round_;

/* Each sequence goes on with its likeliest token. */
static km_status step(round_ *r, km_error *err) {
    int64_t vocab = r->f->m.model->config.vocab;
    km_status s = km_sequences_step(r->batch, r->token, (int)r->n, err);
    for (int64_t i = 0; i < r->n && s == KM_OK; i++) {
        r->token[i].id = km_likeliest(km_sequences_logits(r->batch, r->token[i].sequence), vocab);
        if (r->token[i].id < 0) r->token[i].id = 0;
    }
    return s;
}

/* `steps` tokens of each sequence, chosen on the device. */
static km_status steps_ahead(round_ *r, int64_t steps, km_error *err) {
    km_chooser *chooser[KM_STEP_ROWS];
    km_status s = KM_OK;
    for (int64_t from = 0; from < r->n && s == KM_OK; from += KM_STEP_ROWS) {
        int n = (int)(r->n - from < KM_STEP_ROWS ? r->n - from : KM_STEP_ROWS);
        for (int i = 0; i < n; i++) chooser[i] = &r->chooser[from + i];
        s = km_sequences_choose(r->batch, r->token + from, n, steps, chooser, r->out, err);
        for (int i = 0; i < n && s == KM_OK; i++) {
            int32_t id = r->out[(i + 1) * steps - 1];
            r->token[from + i].id = id < 0 ? 0 : id;
        }
    }
    return s;
}

static void back(round_ *r) {
    for (int64_t i = 0; i < r->n; i++)
        km_sequences_rewind(r->batch, r->token[i].sequence, r->context);
}

static km_status run(round_ *r, int job, int64_t times, double *seconds, km_error *err) {
    km_status s = KM_OK;
    double start = km_now();
    int64_t ahead = r->chooser && job != PROMPT ? km_sequences_ahead(r->batch) : 1;
    for (int64_t i = 0; r->chooser && job != PROMPT && i < times && s == KM_OK; i += ahead)
        s = steps_ahead(r, times - i < ahead ? times - i : ahead, err);
    for (int64_t i = 0; (!r->chooser || job == PROMPT) && i < times && s == KM_OK; i++) {
        if (job == PROMPT) back(r);
        s = job == PROMPT ? km_sequences_read(r->batch, 0, r->ids, (size_t)r->f->o->prompt, err)
                          : step(r, err);
    }
    *seconds = (km_now() - start) / (double)times;
    back(r);
    return s;
}

/* ---- Time of each op ---- */

static void note(void *user, const km_call *c, double seconds) {
    op_time *t = &((op_time *)user)[c->op];
    t->seconds += seconds;
    t->count++;
    if (c->op != KM_OP_LINEARS && c->op != KM_OP_GATED && c->op != KM_OP_QUANT_LINEAR &&
        c->op != KM_OP_LINEAR)
        return;
    for (int i = 1; i < c->n_in; i++)
        if (c->in[i])
            t->bytes += (double)km_dtype_bytes(c->in[i]->dtype, km_shape_count(c->in[i]->shape));
}

static km_status time_ops(round_ *r, int job, figures *g, km_error *err) {
    double ignored;
    km_status s = KM_OK;
    for (km_net *p = r->f->m.model; p; p = p->next)
        p->ctx->timed = note, p->ctx->timed_user = g->op;
    /* On a GPU some ops run by themselves for the first time, and their kernels are loaded. */
    int runs = km_net_end(r->f->m.model)->ctx->device->host ? 1 : 2;
    for (int i = 0; i < runs && s == KM_OK; i++) {
        memset(g->op, 0, sizeof g->op);
        s = run(r, job, 1, &ignored, err);
    }
    for (km_net *p = r->f->m.model; p; p = p->next) p->ctx->timed = NULL;
    return s;
}

/* ---- A job ---- */

static km_status rounds(round_ *r, int job, figures *g, km_error *err) {
    const km_bench *b = r->f->b;
    double seconds[100], spent = 0, budget = b->quick ? 0.5 : 3, each = 0;
    int64_t most = b->repeat > 0 ? b->repeat : b->quick ? 3 : 9;
    int n = 0;
    km_status s = KM_OK;
    for (int i = 0; i < (job == PROMPT ? 1 : 3) && s == KM_OK; i++) /* run, captured, replayed */
        s = run(r, job, 1, &each, err);
    int64_t times = each > 0 ? (int64_t)(0.05 / each) + 1 : STEPS;
    if (times > STEPS) times = STEPS;
    if (job == PROMPT && times > 8) times = 8;
    km_stats before = km_ctx_stats(r->f->m.ctx);
    for (; n < most && n < 100 && s == KM_OK && (n == 0 || spent < budget); n++) {
        s = run(r, job, times, &seconds[n], err);
        spent += seconds[n] * (double)times;
    }
    km_stats after = km_ctx_stats(r->f->m.ctx);
    double steps = (double)n * (double)times;
    g->heap_allocs = (double)(after.heap_allocs - before.heap_allocs) / steps;
    g->pool_misses = (double)(after.pool_misses - before.pool_misses) / steps;
    km_spread spread = km_spread_of(seconds, n);
    g->best = spread.best;
    g->median = spread.median;
    return s;
}

static km_status measure(infer *f, int job, km_error *err) {
    const km_infer_bench *o = f->o;
    km_net *m = f->m.model;
    figures *g = &f->job[job];
    km_sequences_options how = km_sequences_defaults();
    round_ r = {
        .f = f, .n = job == BATCH ? o->batch : 1, .context = job == PROMPT ? 0 : o->context};
    how.cache = f->cache;
    how.sequences = r.n;
    how.context = room_of(f, job);
    g->sequences = r.n;
    g->context = r.context;
    g->tokens = job == PROMPT ? o->prompt : r.n;
    r.batch = km_sequences_new(m->ctx, m, &how, err);
    r.token = km_calloc((size_t)r.n, sizeof *r.token);
    r.ids = km_calloc((size_t)o->prompt, sizeof *r.ids);
    if (!km_net_end(m)->ctx->device->host) {
        km_sampling how_to = km_sampling_defaults();
        how_to.temperature = 0; /* the likeliest, as the host's side of this bench takes it */
        r.chooser = km_calloc((size_t)r.n, sizeof *r.chooser);
        r.out = km_calloc(KM_STEP_ROWS * STEPS, sizeof *r.out);
        for (int64_t i = 0; i < r.n && r.chooser; i++)
            km_chooser_begin(&r.chooser[i], &how_to, m->config.vocab, (uint64_t)i);
    }
    km_status s = !r.batch ? err->code : KM_OK;
    if (s == KM_OK && (!r.token || !r.ids || (r.out == NULL) != (r.chooser == NULL)))
        s = km_no_memory(err);
    for (int64_t i = 0; i < o->prompt && s == KM_OK; i++)
        r.ids[i] = (int32_t)((uint64_t)i * 7919 % (uint64_t)m->config.vocab);
    for (int64_t i = 0; i < r.n && s == KM_OK; i++) {
        r.token[i] = (km_sequences_token){km_sequences_join(r.batch, err), (int32_t)(i % 256)};
        s = r.token[i].sequence < 0 ? err->code : KM_OK;
        if (s == KM_OK && r.context)
            s = km_sequences_pretend(r.batch, r.token[i].sequence, r.context, err);
    }
    if (s == KM_OK) s = rounds(&r, job, g, err);
    if (s == KM_OK) s = time_ops(&r, job, g, err);
    g->bytes = job == PROMPT ? NAN : km_step_bytes(m, f->cache, r.n, r.context);
    g->flops = km_net_flops_per_token(m, job == PROMPT ? o->prompt : 2 * r.context) / 3 *
               (double)g->tokens;
    g->measured = s == KM_OK;
    km_sequences_free(r.batch);
    km_free(r.token);
    km_free(r.ids);
    km_free(r.chooser);
    km_free(r.out);
    return s;
}

/* ---- Telling ---- */

/* What memory could do for it: a GPU's own copies, or all threads reading. */
static double bandwidth(const infer *f) {
    const km_limits *l = &f->b->limits;
    return l->device_copy > 0 ? l->device_copy : l->read;
}

static double of_limit(const infer *f, const figures *g) {
    return g->bytes / g->best / bandwidth(f);
}

static json_t *ops_json(const figures *g) {
    json_t *list = json_array();
    for (int i = 0; i < KM_OP_COUNT; i++) {
        const op_time *t = &g->op[i];
        if (!t->count) continue;
        json_array_append_new(
            list, json_pack("{s:s, s:i, s:o, s:o, s:o}", "op", km_op_name((km_op)i), "calls",
                            t->count, "us", km_json_number(1e6 * t->seconds, 4), "us_a_call",
                            km_json_number(1e6 * t->seconds / t->count, 4), "weights_gbs",
                            km_json_number(t->bytes ? t->bytes / t->seconds / 1e9 : NAN, 4)));
    }
    return list;
}

static json_t *job_json(const infer *f, int job) {
    const figures *g = &f->job[job];
    return json_pack("{s:s, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
                     "job", job_names[job], "sequences", (json_int_t)g->sequences, "context",
                     (json_int_t)g->context, "tokens", (json_int_t)g->tokens, "tokens_per_s",
                     km_json_number((double)g->tokens / g->best, 5), "tokens_per_s_median",
                     km_json_number((double)g->tokens / g->median, 5), "seconds",
                     km_json_number(g->best, 5), "seconds_median", km_json_number(g->median, 5),
                     "bytes_per_token", km_json_count(g->bytes / (double)g->tokens), "of_limit",
                     km_json_number(of_limit(f, g), 4), "tflops",
                     km_json_number(g->flops / g->best / 1e12, 4), "heap_allocs_per_step",
                     km_json_number(g->heap_allocs, 4), "pool_misses_per_step",
                     km_json_number(g->pool_misses, 4), "ops", ops_json(g));
}

static int print_json(const infer *f) {
    const km_limits *l = &f->b->limits;
    json_t *jobs = json_array();
    for (int i = 0; i < JOBS; i++)
        if (f->job[i].measured) json_array_append_new(jobs, job_json(f, i));
    return km_cli_print_json(json_pack(
        "{s:s, s:o, s:s, s:i, s:o, s:o, s:s, s:{s:o, s:o, s:o}, s:o, s:o, s:o}", "kermes",
        km_version(), "machine", km_machine_json(), "device", f->m.devices, "threads",
        f->b->threads, "model", km_json_text(f->name), "weights_bytes", km_json_count(f->weights),
        "cache_type", km_dtype_name(f->cache), "limits", "read_gbs",
        km_json_number(l->read / 1e9, 5), "copy_gbs", km_json_number(l->copy / 1e9, 5),
        "device_copy_gbs", km_json_number(l->device_copy > 0 ? l->device_copy / 1e9 : NAN, 5),
        "memory", plan_json(&f->m.plan), "results", jobs, "peak_memory_bytes",
        km_json_count(km_peak_memory())));
}

static void print_job(const infer *f, int job) {
    const figures *g = &f->job[job];
    char a[KM_NUMBER_TEXT], c[KM_NUMBER_TEXT], d[KM_NUMBER_TEXT];
    if (job == PROMPT)
        printf("\nprompt of %lld tokens: %s tokens/s (%s), %s TFLOP/s\n", (long long)g->tokens,
               km_format_number(a, (double)g->tokens / g->best), km_format_seconds(c, g->best),
               km_format_number(d, g->flops / g->best / 1e12));
    else
        printf("\n%s, %lld sequence%s after %lld tokens: %s tokens/s (%s a step)\n"
               "  %s a token, %.0f%% of the memory's speed\n",
               job_names[job], (long long)g->sequences, g->sequences > 1 ? "s" : "",
               (long long)g->context, km_format_number(a, (double)g->tokens / g->best),
               km_format_seconds(c, g->best), km_format_bytes(d, g->bytes / (double)g->tokens),
               100 * of_limit(f, g));
    const char *const titles[] = {"op", "calls", "us a call", "us", "GB/s of weights"};
    km_table t;
    km_table_init(&t, "lrrrr", titles);
    for (int i = 0; i < KM_OP_COUNT; i++) {
        const op_time *o = &g->op[i];
        if (!o->count) continue;
        km_table_cell(&t, "%s", km_op_name((km_op)i));
        km_table_cell(&t, "%d", o->count);
        km_table_cell(&t, "%s", km_format_number(a, 1e6 * o->seconds / o->count));
        km_table_cell(&t, "%s", km_format_number(a, 1e6 * o->seconds));
        km_table_cell(&t, "%s", o->bytes ? km_format_number(a, o->bytes / o->seconds / 1e9) : "");
    }
    km_table_print(&t, stdout, 2);
    km_table_free(&t);
}

static int print_all(const infer *f) {
    char a[KM_NUMBER_TEXT], c[KM_NUMBER_TEXT];
    printf("%s on %s: weights %s, cache in %s, memory %s GB/s (%s)\n", f->name, f->m.devices,
           km_format_bytes(a, f->weights), km_dtype_name(f->cache),
           km_format_number(c, bandwidth(f) / 1e9),
           f->b->limits.device_copy > 0 ? "the GPU's own copies" : "all threads reading");
    for (int i = 0; i < JOBS; i++)
        if (f->job[i].measured) print_job(f, i);
    printf("\nOps are timed one by one, so that they add up to more than a step.\n");
    return KM_EXIT_OK;
}

/* ---- All of it ---- */

static km_status all(infer *f, km_error *err) {
    km_bench *b = f->b;
    if (!km_bench_open(b) || !km_bench_limits(b))
        return km_error_set(err, b->error.code, "%s", b->error.text);
    km_status s = open_model(f, err);
    for (int i = 0; i < JOBS && s == KM_OK; i++)
        if (f->wanted[i]) s = measure(f, i, err);
    return s;
}

int km_bench_infer(km_bench *b, const km_infer_bench *o, const km_args *args) {
    infer f = {.b = b, .o = o};
    km_error err = {0};
    for (int i = 0; i < args->n_words; i++) {
        int job = km_choose("job", args->words[i], job_names, JOBS, &err);
        if (job < 0) return km_cli_usage("bench: %s", err.text);
        f.wanted[job] = true;
    }
    if (!o->model == !o->shape)
        return km_cli_usage("bench: give one of --model FILE and --shape NAME (%s)",
                            km_synthetic_shapes());
    if (o->type && o->model) return km_cli_usage("bench: --type is for --shape");
    if (km_cli_cache_type(o->cache_type, &f.cache, &err) != KM_OK ||
        km_cli_where_check(&o->where, &err) != KM_OK)
        return km_cli_usage("bench: %s", err.text);
    km_cli_notes(b->common.quiet);
    if (b->budget == 0) b->budget = 0.1;
    int code = all(&f, &err) == KM_OK ? b->common.json ? print_json(&f) : print_all(&f)
                                      : km_cli_fail("bench: %s", err.text);
    km_net_free(f.m.model);
    km_ctx_free(f.m.ctx);
    km_bench_close(b);
    return code;
}
