/* kermes perplexity: how well a model predicts a text. */
#include "base/file.h"
#include "cli/progress.h"
#include "cli/use_model.h"
#include "report/json.h"
#include <math.h>

typedef struct perplexity_settings {
    km_common common;
    const char *model, *file;
    const char *save, *against, *imatrix; /* files; or NULL */
    int64_t context, stride, pieces;
    bool decode;
    km_cli_where where;
} perplexity_settings;

static bool tick(void *user, int64_t done, int64_t total) {
    km_progress *bar = user;
    bar->total = total;
    km_progress_step(bar, done, NULL);
    return true;
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

static int print(const perplexity_settings *o, const km_perplexity_result *r) {
    const km_divergence *d = &r->divergence;
    double value = exp(r->loss);
    double bits = r->bytes ? r->loss * (double)r->tokens / (double)r->bytes / log(2) : NAN;
    if (o->common.json) {
        json_t *v = json_pack(
            "{s:o, s:o, s:I, s:o, s:I, s:I, s:I, s:o, s:o, s:o}", "model", km_json_text(o->model),
            "file", km_json_text(o->file), "context", (json_int_t)r->context, "context_asked",
            o->context ? json_integer(o->context) : json_null(), "pieces", (json_int_t)r->windows,
            "tokens", (json_int_t)r->tokens, "bytes", (json_int_t)r->bytes, "loss",
            km_json_number(r->loss, 6), "perplexity", km_json_number(value, 6), "bits_per_byte",
            km_json_number(bits, 6));
        if (o->stride) json_object_set_new(v, "stride", json_integer(o->stride));
        if (o->against) json_object_set_new(v, "divergence", divergence_json(d));
        if (o->imatrix) json_object_set_new(v, "imatrix_layers", json_integer(r->imatrix_layers));
        return km_cli_print_json(v);
    }
    printf("perplexity %.4f over %lld tokens (loss %.5f, %.4f bits per byte), in pieces of %lld\n",
           value, (long long)r->tokens, r->loss, bits, (long long)r->context);
    if (o->against)
        printf("divergence %.6f +- %.6f from %s (perplexity %.4f, ratio %.5f)\n"
               "  median %.6f, 90%% %.6f, 95%% %.6f, 99%% %.6f, 99.9%% %.6f, most %.6f\n"
               "same likeliest token %.3f%%, probabilities differ by %.3f%% (rms)\n",
               d->mean, d->error, o->against, exp(d->saved_loss), exp(d->loss - d->saved_loss),
               d->median, d->p90, d->p95, d->p99, d->p999, d->most, 100 * d->same_top,
               100 * d->rms_p);
    if (o->imatrix) printf("%s knows the inputs of %d layers\n", o->imatrix, r->imatrix_layers);
    return KM_EXIT_OK;
}

static int measure(const perplexity_settings *o, km_model *m) {
    km_error err = {0};
    km_map text = {0};
    km_progress bar;
    km_perplexity_result got = {.size = sizeof got};
    km_perplexity_options how = km_perplexity_defaults();
    int64_t most = km_model_describe(m).context;
    km_cli_context_told(o->context, most);
    how.context = o->context > most ? most : o->context;
    how.stride = o->stride;
    how.windows = o->pieces;
    how.decode = o->decode;
    how.save_logits = o->save;
    how.against = o->against;
    how.imatrix = o->imatrix;
    how.dataset = o->file;
    how.progress = tick;
    how.user = &bar;
    if (km_map_open(&text, o->file, &err) != KM_OK) return km_cli_fail("%s", err.text);
    km_progress_begin(&bar, "perplexity", "tokens", 0, o->common.quiet);
    km_status s = km_perplexity(m, text.data ? (const char *)text.data : "", text.size, &how, &got);
    km_progress_end(&bar);
    if (s != KM_OK) km_error_set(&err, s, "%s", km_last_error());
    s = km_map_done(&text, s, &err);
    return s == KM_OK ? print(o, &got) : km_cli_fail("%s", err.text);
}

static int run(const perplexity_settings *o) {
    km_error err = {0};
    km_model_options how;
    if (km_cli_model_options(&o->common, &o->where, NULL, &how, &err) != KM_OK)
        return km_cli_fail("%s", err.text);
    km_model *m = km_cli_model_open(o->model, &how, &o->common);
    int code = m ? measure(o, m) : km_cli_fail("%s", km_last_error());
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
        {"stride", KM_OPTION_INT, "N", &o.stride, 1, 1 << 24,
         "tokens from one piece's begin to the next's: pieces overlap, and each\n"
         "predicts what the one before did not reach (default: a piece)"},
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
