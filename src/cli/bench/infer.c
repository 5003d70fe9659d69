/* kermes bench decode, prompt, batch: a model, of a file or of random weights, run as kermes run
 * does it; tokens a second, the bytes a token must read against the memory's speed, time of each
 * op. Batches are measured one after the other, from few sequences to many. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/bench/infer.h"
#include "infer/sample.h"
#include "infer/sequences.h"
#include "ops/op.h"
#include "report/html.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const km_infer_job_names[KM_INFER_JOBS] = {"decode", "prompt", "batch"};

#define MIXED "mixed" /* which is a batch of the library's (together.c) */
#define STEPS 64      /* of a round, at most: the context has room for as many */

bool km_bench_is_infer(const char *word) {
    for (int i = 0; i < KM_INFER_JOBS; i++)
        if (strcmp(word, km_infer_job_names[i]) == 0) return true;
    return strcmp(word, MIXED) == 0;
}

/* ---- The model ---- */

static int64_t room_of(const km_infer_run *f, int job) {
    const km_infer_bench *o = f->o;
    return job == KM_INFER_PROMPT ? o->prompt : o->context + STEPS;
}

/* The cache that the largest job needs. */
static void needs(const km_infer_run *f, int64_t *sequences, int64_t *context) {
    *sequences = f->wanted[KM_INFER_BATCH] ? f->batches.value[f->batches.n - 1] : 1;
    *context = 1;
    for (int i = 0; i < KM_INFER_JOBS; i++)
        if (f->wanted[i] && room_of(f, i) > *context) *context = room_of(f, i);
}

static km_status weigh(km_infer_run *f, const km_mix *mix, km_config *c, km_weighed *w,
                       km_error *err) {
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

static bool whole_on_one(const km_memory_plan *p) { return p->n == 1; }

/* Where everything goes. Of several batches the largest are left out until the cache of the others
 * fits: beside all layers where there is a GPU, else into the host's memory. */
static km_status place(km_infer_run *f, const km_weighed *w, const km_placing *where,
                       km_error *err) {
    for (;; f->batches.n--) {
        int64_t sequences, context;
        needs(f, &sequences, &context);
        km_cache_options c = {.dtype = f->cache, .sequences = sequences, .context = context};
        *err = (km_error){0};
        km_status s = km_placing_plan(w, where, context, sequences, f->cache, &f->m.plan, err);
        bool one = f->batches.n <= 1 || !f->wanted[KM_INFER_BATCH];
        bool host = s == KM_OK && strncmp(f->m.plan.part[0].device, "cpu", 3) == 0;
        bool fits = s == KM_OK && (where->devices || whole_on_one(&f->m.plan)) &&
                    (!host || km_bench_fits((double)km_cache_bytes(&w->config, &c)));
        if (one || fits) return s;
        km_note(KM_LOG_WARN, "there is no memory for a batch of %lld sequences, which is left out",
                (long long)sequences);
    }
}

static km_status open_model(km_infer_run *f, km_error *err) {
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
        s = place(f, &w, &where, err);
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
    km_infer_run *f;
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
    int64_t ahead = r->chooser && job != KM_INFER_PROMPT ? km_sequences_ahead(r->batch) : 1;
    for (int64_t i = 0; r->chooser && job != KM_INFER_PROMPT && i < times && s == KM_OK; i += ahead)
        s = steps_ahead(r, times - i < ahead ? times - i : ahead, err);
    for (int64_t i = 0; (!r->chooser || job == KM_INFER_PROMPT) && i < times && s == KM_OK; i++) {
        if (job == KM_INFER_PROMPT) back(r);
        s = job == KM_INFER_PROMPT
                ? km_sequences_read(r->batch, 0, r->ids, (size_t)r->f->o->prompt, err)
                : step(r, err);
    }
    *seconds = (km_now() - start) / (double)times;
    back(r);
    return s;
}

/* ---- Time of each op ---- */

static void note(void *user, const km_call *c, double seconds) {
    km_op_time *t = &((km_op_time *)user)[c->op];
    t->seconds += seconds;
    t->count++;
    if (c->op != KM_OP_LINEARS && c->op != KM_OP_GATED && c->op != KM_OP_QUANT_LINEAR &&
        c->op != KM_OP_LINEAR)
        return;
    for (int i = 1; i < c->n_in; i++)
        if (c->in[i])
            t->bytes += (double)km_dtype_bytes(c->in[i]->dtype, km_shape_count(c->in[i]->shape));
}

static km_status time_ops(round_ *r, int job, km_infer_figures *g, km_error *err) {
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

static km_status rounds(round_ *r, int job, km_infer_figures *g, km_error *err) {
    const km_bench *b = r->f->b;
    double seconds[100], spent = 0, budget = b->quick ? 0.5 : 3, each = 0;
    int64_t most = b->repeat > 0 ? b->repeat : b->quick ? 3 : 9;
    int n = 0;
    km_status s = KM_OK;
    for (int i = 0; i < (job == KM_INFER_PROMPT ? 1 : 3) && s == KM_OK;
         i++) /* run, captured, replayed */
        s = run(r, job, 1, &each, err);
    int64_t times = each > 0 ? (int64_t)(0.05 / each) + 1 : STEPS;
    if (times > STEPS) times = STEPS;
    if (job == KM_INFER_PROMPT && times > 8) times = 8;
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

/* sequences: 1, but for a batch. */
static km_status measure(km_infer_run *f, km_infer_job job, int64_t sequences, km_error *err) {
    const km_infer_bench *o = f->o;
    km_net *m = f->m.model;
    km_infer_figures *g = &f->done[f->n_done];
    km_sequences_options how = km_sequences_defaults();
    round_ r = {.f = f, .n = sequences, .context = job == KM_INFER_PROMPT ? 0 : o->context};
    g->job = job;
    how.cache = f->cache;
    how.sequences = r.n;
    how.context = room_of(f, job);
    g->sequences = r.n;
    g->context = r.context;
    g->tokens = job == KM_INFER_PROMPT ? o->prompt : r.n;
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
    g->bytes = job == KM_INFER_PROMPT ? NAN : km_step_bytes(m, f->cache, r.n, r.context);
    g->flops = km_net_flops_per_token(m, job == KM_INFER_PROMPT ? o->prompt : 2 * r.context) / 3 *
               (double)g->tokens;
    f->n_done += s == KM_OK;
    km_sequences_free(r.batch);
    km_free(r.token);
    km_free(r.ids);
    km_free(r.chooser);
    km_free(r.out);
    return s;
}

/* ---- A batch of the library's ---- */

/* A file of random weights, for as long as the bench runs. */
static km_status write_random(const km_infer_bench *o, char *path, size_t size, km_error *err) {
    km_config c;
    const char *folder = getenv("TMPDIR");
    const km_mix *mix = km_mix_find(o->type ? o->type : "q4_k_m");
    if (!mix) return km_error_set(err, KM_ERR_RANGE, "no type '%.40s'", o->type);
    km_status s = km_synthetic_shape(&c, o->shape, err);
    snprintf(path, size, "%s/kermes-bench-%ld.gguf", folder ? folder : "/tmp", (long)getpid());
    return s == KM_OK ? km_synthetic_write(path, &c, mix, 1, NULL, NULL, err) : s;
}

static km_status measure_together(km_infer_run *f, km_error *err) {
    const km_infer_bench *o = f->o;
    km_model_options how;
    char path[1024] = "";
    f->together_how = (km_together_how){.sequences = o->batch.n ? o->batch.value[0] : 64,
                                        .context = o->context,
                                        .prompt = o->prompt,
                                        .seconds = f->b->quick ? 1 : 4};
    km_status s = km_cli_model_options(&f->b->common, &o->where, NULL, &how, err);
    how.cache = f->cache;
    snprintf(f->name, sizeof f->name, o->model ? "%.150s" : "%.80s %s",
             o->model ? o->model : o->shape, o->type ? o->type : "q4_k_m");
    if (s == KM_OK && !o->model) s = write_random(o, path, sizeof path, err);
    km_model *m = s == KM_OK ? km_model_open(o->model ? o->model : path, &how) : NULL;
    if (s == KM_OK && !m) s = km_error_set(err, km_last_status(), "%s", km_last_error());
    if (m) s = km_bench_together(m, &f->together_how, &f->mixed, err);
    km_model_close(m);
    if (*path) unlink(path);
    return s;
}

/* ---- All of it ---- */

static bool any_job(const km_infer_run *f) {
    bool any = false;
    for (int i = 0; i < KM_INFER_JOBS; i++) any |= f->wanted[i];
    return any;
}

static km_status all(km_infer_run *f, km_error *err) {
    km_bench *b = f->b;
    if (f->together && measure_together(f, err) != KM_OK) return err->code;
    if (!any_job(f)) return KM_OK;
    if (!f->done) return km_no_memory(err);
    if (!km_bench_open(b) || !km_bench_limits(b))
        return km_error_set(err, b->error.code, "%s", b->error.text);
    km_status s = open_model(f, err);
    for (int i = 0; i < KM_INFER_BATCH && s == KM_OK; i++)
        if (f->wanted[i]) s = measure(f, (km_infer_job)i, 1, err);
    if (!f->wanted[KM_INFER_BATCH]) return s;
    km_progress bar;
    km_progress_begin(&bar, "batch", "sizes", f->batches.n, b->common.quiet);
    for (int i = 0; i < f->batches.n && s == KM_OK; i++) {
        s = measure(f, KM_INFER_BATCH, f->batches.value[i], err);
        km_progress_step(&bar, i + 1, NULL);
    }
    km_progress_end(&bar);
    return s;
}

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int write_page(const km_infer_run *f, const char *path) {
    km_text page = {0};
    km_error err = {0};
    km_infer_html(f, &page);
    km_status s = km_html_write(&page, path, &err);
    km_text_free(&page);
    return s == KM_OK ? KM_EXIT_OK : km_cli_fail("%s", err.text);
}

int km_bench_infer(km_bench *b, const km_infer_bench *o, const km_args *args, const char *html) {
    static const km_sizes curve = {{1, 2, 4, 8, 16, 32, 64, 128, 256, 512}, 10},
                          quick = {{1, 4, 16, 64}, 4};
    km_infer_run f = {.b = b, .o = o, .batches = o->batch.n ? o->batch : b->quick ? quick : curve};
    km_error err = {0};
    for (int i = 0; i < args->n_words; i++) {
        if (strcmp(args->words[i], MIXED) == 0) {
            f.together = true;
            continue;
        }
        int job = km_choose("job", args->words[i], km_infer_job_names, KM_INFER_JOBS, &err);
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
    if (html && !km_cli_can_write(html, &err)) return km_cli_fail("%s", err.text);
    km_cli_notes(b->common.quiet);
    if (b->budget == 0) b->budget = 0.1;
    qsort(f.batches.value, (size_t)f.batches.n, sizeof *f.batches.value, by_size);
    f.done = km_calloc(KM_INFER_FIGURES, sizeof *f.done);
    int code = all(&f, &err) == KM_OK ? KM_EXIT_OK : km_cli_fail("bench: %s", err.text);
    if (code == KM_EXIT_OK && html) code = write_page(&f, html);
    if (code == KM_EXIT_OK && b->common.json)
        code = km_cli_print_json(km_infer_json(&f));
    else if (code == KM_EXIT_OK)
        km_infer_print(&f);
    km_net_free(f.m.model);
    km_ctx_free(f.m.ctx);
    km_free(f.done);
    km_bench_close(b);
    return code;
}
