/* kermes perplexity: how well a model predicts a text. */
#include "infer/perplexity.h"
#include "base/alloc.h"
#include "base/file.h"
#include "cli/progress.h"
#include "cli/use_model.h"
#include "engine/engine.h"
#include "infer/collect.h"
#include "infer/divergence.h"
#include "report/json.h"
#include <math.h>

typedef struct perplexity_settings {
    km_common common;
    const char *model, *file;
    const char *save, *against, *imatrix; /* files; or NULL */
    int64_t context, pieces;
    bool decode;
    km_cli_where where;
} perplexity_settings;

typedef struct results {
    km_perplexity p;
    km_divergence d; /* with --against */
    int layers;      /* with --imatrix-out: how many it knows */
} results;

static bool tick(void *user, int64_t done, int64_t total) {
    (void)total;
    km_progress_step(user, done, NULL);
    return true;
}

static km_status read_ids(const km_token *token, const char *file, km_ids *ids, km_error *err) {
    km_map map = {0};
    km_status s = km_map_open(&map, file, err);
    if (s == KM_OK)
        s = km_token_encode(token, (const char *)map.data, map.size, KM_TOKEN_PLAIN, ids, err);
    return km_map_done(&map, s, err);
}

/* The beginning-of-text token, where the tokenizer puts it before every text. */
static int32_t leading(const km_token *token) {
    km_ids ids = {0};
    km_error err = {0};
    int32_t bos = km_token_bos(token);
    km_token_encode(token, "a", 1, KM_TOKEN_ADD_SPECIAL, &ids, &err);
    bool leads = ids.len > 0 && ids.data[0] == bos && bos >= 0;
    km_ids_free(&ids);
    return leads ? bos : -1;
}

static json_t *divergence_json(const km_divergence *d) {
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "mean",
                     km_json_number(d->mean, 6), "standard_error", km_json_number(d->error, 3),
                     "min", km_json_number(d->least, 4), "median", km_json_number(d->median, 6),
                     "p90", km_json_number(d->p90, 6), "p95", km_json_number(d->p95, 6), "p99",
                     km_json_number(d->p99, 6), "p99.9", km_json_number(d->p999, 6), "max",
                     km_json_number(d->most, 6), "same_top", km_json_number(d->same_top, 6),
                     "saved_perplexity", km_json_number(exp(d->saved_loss), 6), "perplexity_ratio",
                     km_json_number(exp(d->loss - d->saved_loss), 6), "rms_probability_difference",
                     km_json_number(d->rms_p, 5));
}

static int print(const perplexity_settings *o, const results *r, int64_t context) {
    const km_perplexity *p = &r->p;
    const km_divergence *d = &r->d;
    double value = exp(p->loss);
    if (o->common.json) {
        json_t *v = json_pack(
            "{s:o, s:o, s:I, s:o, s:I, s:o, s:o}", "model", km_json_text(o->model), "file",
            km_json_text(o->file), "context", (json_int_t)context, "context_asked",
            o->context ? json_integer(o->context) : json_null(), "tokens", (json_int_t)p->tokens,
            "loss", km_json_number(p->loss, 6), "perplexity", km_json_number(value, 6));
        if (o->against) json_object_set_new(v, "divergence", divergence_json(d));
        if (o->imatrix) json_object_set_new(v, "imatrix_layers", json_integer(r->layers));
        return km_cli_print_json(v);
    }
    printf("perplexity %.4f over %lld tokens (loss %.5f), in pieces of %lld\n", value,
           (long long)p->tokens, p->loss, (long long)context);
    if (o->against)
        printf("divergence %.6f +- %.6f from %s (perplexity %.4f, ratio %.5f)\n"
               "  median %.6f, 90%% %.6f, 95%% %.6f, 99%% %.6f, 99.9%% %.6f, most %.6f\n"
               "same likeliest token %.3f%%, probabilities differ by %.3f%% (rms)\n",
               d->mean, d->error, o->against, exp(d->saved_loss), exp(d->loss - d->saved_loss),
               d->median, d->p90, d->p95, d->p99, d->p999, d->most, 100 * d->same_top,
               100 * d->rms_p);
    if (o->imatrix) printf("%s knows the inputs of %d layers\n", o->imatrix, r->layers);
    return KM_EXIT_OK;
}

/* What a run may do beside measuring: save predictions, compare them, watch layers. */
typedef struct extras {
    km_logits_writer *writer;
    km_comparison *comparison;
    km_collector *collector;
} extras;

static km_status on_row(void *user, const float *logits, int32_t came, km_error *err) {
    extras *e = user;
    km_status s = e->writer ? km_logits_put(e->writer, logits, came, err) : KM_OK;
    if (s == KM_OK && e->comparison) s = km_compare_row(e->comparison, logits, came, err);
    return s;
}

static km_status open_extras(const perplexity_settings *o, km_model *m, const km_ids *ids,
                             km_perplexity_options *how, extras *e, km_error *err) {
    km_logits_about about = km_logits_of(m->ground->net, ids, how);
    if (o->against && !(e->comparison = km_compare_open(o->against, &about, err))) return err->code;
    if (o->save && !(e->writer = km_logits_create(o->save, &about, err))) return err->code;
    if (o->imatrix && !(e->collector = km_collect_begin(m->ground->ctx, m->ground->net, err)))
        return err->code;
    if (e->writer || e->comparison) {
        how->row = on_row;
        how->row_user = e;
    }
    return KM_OK;
}

static km_status save_imatrix(const perplexity_settings *o, extras *e, int64_t context, results *r,
                              km_error *err) {
    km_imatrix *m = km_collect_end(e->collector, err);
    e->collector = NULL;
    if (!m) return err->code;
    m->chunks = r->p.pieces;
    m->chunk_size = context;
    m->dataset = km_strdup(o->file);
    r->layers = m->n;
    km_status s = km_imatrix_save(m, o->imatrix, err);
    km_imatrix_free(m);
    return s;
}

/* Finishes what went well, and drops the rest. */
static km_status close_extras(const perplexity_settings *o, extras *e, int64_t context, km_status s,
                              results *r, km_error *err) {
    if (s == KM_OK && e->comparison) s = km_compare_result(e->comparison, &r->d, err);
    km_compare_close(e->comparison);
    if (s == KM_OK && e->collector) s = save_imatrix(o, e, context, r, err);
    if (e->collector) km_imatrix_free(km_collect_end(e->collector, &(km_error){0}));
    if (s == KM_OK && e->writer) return km_logits_commit(e->writer, err);
    km_logits_abort(e->writer);
    return s;
}

static km_status measure(const perplexity_settings *o, km_model *m, int64_t context, results *r,
                         km_error *err) {
    km_ids ids = {0};
    extras e = {0};
    km_progress bar;
    km_status s = read_ids(m->token, o->file, &ids, err);
    km_perplexity_options how = {.context = context,
                                 .pieces = o->pieces,
                                 .decode = o->decode,
                                 .bos = leading(m->token),
                                 .progress = tick,
                                 .user = &bar};
    if (s == KM_OK) s = open_extras(o, m, &ids, &how, &e, err);
    if (s == KM_OK) {
        int64_t most = o->pieces ? o->pieces * context : (int64_t)ids.len;
        km_progress_begin(&bar, "perplexity", "tokens",
                          most < (int64_t)ids.len ? most : (int64_t)ids.len, o->common.quiet);
        s = km_perplexity_of(m->ground->ctx, m->ground->net, &ids, &how, &r->p, err);
        km_progress_end(&bar);
    }
    s = close_extras(o, &e, context, s, r, err);
    km_ids_free(&ids);
    return s;
}

static int run(const perplexity_settings *o) {
    km_error err = {0};
    results got = {0};
    int code = KM_EXIT_FAILED;
    km_model_options how;
    km_status s = km_cli_model_options(&o->common, &o->where, NULL, &how, &err);
    km_model *m = s == KM_OK ? km_cli_model_open(o->model, &how, &o->common) : NULL;
    if (!m && s == KM_OK) s = km_error_set(&err, km_last_status(), "%s", km_last_error());
    if (s == KM_OK) {
        int64_t most = km_model_describe(m).context, context = o->context ? o->context : 512;
        if (context > most) context = most;
        km_cli_context_told(o->context, most);
        s = measure(o, m, context, &got, &err);
        if (s == KM_OK) code = print(o, &got, context);
    }
    if (s != KM_OK) km_cli_fail("%s", err.text);
    km_model_close(m);
    return code;
}

int km_command_perplexity(int argc, char **argv) {
    perplexity_settings o = {
        .common = KM_COMMON_DEFAULTS,
    };
    const km_option options[] = {
        {"model", KM_OPTION_TEXT, "PATH", &o.model, 0, 0,
         "a GGUF file, a Hugging Face folder, or a training run's; also -m\n"
         "(default: the newest in the model folder)"},
        {"file", KM_OPTION_TEXT, "FILE", &o.file, 0, 0, "the text"},
        {"context", KM_OPTION_INT, "N", &o.context, 2, 1 << 24,
         "tokens in a piece (default 512; never more than the model's)"},
        {"pieces", KM_OPTION_INT, "N", &o.pieces, 1, 1e9, "read so many pieces at most"},
        {"decode", KM_OPTION_FLAG, NULL, &o.decode, 0, 0,
         "one token at a time, as text is written, not a piece at once"},
        {"save-logits", KM_OPTION_TEXT, "FILE", &o.save, 0, 0,
         "save the predictions, to compare other models with"},
        {"against", KM_OPTION_TEXT, "FILE", &o.against, 0, 0,
         "how far the predictions are from those saved: Kullback-Leibler divergence"},
        {"imatrix-out", KM_OPTION_TEXT, "FILE", &o.imatrix, 0, 0,
         "write an importance matrix for kermes convert --imatrix"},
        KM_OPTION_DEVICE_ROW(o.common, "where to compute (default: auto, a GPU if there is one)"),
        KM_OPTION_WHERE_ROWS(o.where),
        KM_OPTION_THREADS_ROW(o.common),
        KM_OPTION_OUTPUT_ROWS(o.common),
        {0},
    };
    const km_spec spec = {
        .name = "perplexity",
        .summary = "Tells how well a model predicts a text.",
        .details =
            "The text is cut into pieces; every token of a piece but the first is predicted\n"
            "from those before it. exp of the mean loss is the perplexity. With --decode tokens\n"
            "go through the model one by one, by the kernels that write text.\n",
        .options = options,
        .examples =
            "  kermes perplexity -m SmolLM2.gguf --file book.txt --context 512\n"
            "  kermes perplexity -m model-f16.gguf --file book.txt --pieces 20 --save-logits f16\n"
            "  kermes perplexity -m model-q4.gguf --file book.txt --pieces 20 --against f16\n"
            "  kermes perplexity -m model-q4.gguf --file book.txt --pieces 1 --decode\n"
            "  kermes perplexity -m model-f16.gguf --file book.txt --imatrix-out im.gguf\n",
    };
    km_args args;
    km_error err = {0};
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (km_cli_where_check(&o.where, &err) != KM_OK) return km_cli_usage("%s", err.text);
    if (!o.file) return km_cli_usage("perplexity: --file FILE is missing");
    if (o.decode && o.imatrix)
        return km_cli_usage("perplexity: --imatrix-out reads pieces at once; leave --decode out");
    km_cli_notes(o.common.quiet);
    return run(&o);
}
