/* kermes perplexity: how well a model predicts a text. */
#include "infer/perplexity.h"
#include "base/file.h"
#include "base/progress.h"
#include "cli/use_model.h"
#include "report/json.h"
#include <math.h>

typedef struct settings {
    km_common common;
    const char *model, *file;
    int64_t context;
} settings;

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
    km_map_close(&map);
    return s;
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

static int print(const settings *o, const km_perplexity *p, int64_t context) {
    double value = exp(p->loss);
    if (o->common.json)
        return km_cli_print_json(json_pack("{s:o, s:o, s:I, s:I, s:o, s:o}", "model",
                                           km_json_text(o->model), "file", km_json_text(o->file),
                                           "context", (json_int_t)context, "tokens",
                                           (json_int_t)p->tokens, "loss",
                                           km_json_number(p->loss, 6), "perplexity",
                                           km_json_number(value, 6)));
    printf("perplexity %.4f over %lld tokens (loss %.5f), in pieces of %lld\n", value,
           (long long)p->tokens, p->loss, (long long)context);
    return KM_EXIT_OK;
}

static int run(const settings *o) {
    km_error err = {0};
    km_ids ids = {0};
    km_perplexity got = {0};
    km_cli_model m;
    int code = KM_EXIT_FAILED;
    km_status s = km_cli_model_open(&m, o->model, NULL, &o->common,
                                    &(km_open_options){.dtype = KM_DTYPE_COUNT}, &err);
    if (s == KM_OK) s = read_ids(m.token, o->file, &ids, &err);
    if (s == KM_OK) {
        int64_t most = m.model->config.context, context = o->context < most ? o->context : most;
        km_progress bar;
        km_progress_begin(&bar, "perplexity", "tokens", (int64_t)ids.len, o->common.quiet);
        s = km_perplexity_of(m.ctx, m.model, &ids, context, leading(m.token), tick, &bar, &got,
                             &err);
        km_progress_end(&bar);
        if (s == KM_OK) code = print(o, &got, context);
    }
    if (s != KM_OK) km_cli_fail("%s", err.text);
    km_ids_free(&ids);
    km_cli_model_close(&m);
    return code;
}

int km_command_perplexity(int argc, char **argv) {
    settings o = {.common = KM_COMMON_DEFAULTS, .context = 512};
    o.common.device = "cpu";
    const km_option options[] = {
        {"model", KM_OPTION_TEXT, "PATH", &o.model, 0, 0,
         "a GGUF file, a Hugging Face folder, or a training run's; also -m"},
        {"file", KM_OPTION_TEXT, "FILE", &o.file, 0, 0, "the text"},
        {"context", KM_OPTION_INT, "N", &o.context, 2, 1 << 24,
         "tokens in a piece (default 512; never more than the model's)"},
        KM_OPTION_DEVICE_ROW(o.common, "where to compute (default: cpu)"),
        KM_OPTION_THREADS_ROW(o.common),
        KM_OPTION_OUTPUT_ROWS(o.common),
        {0},
    };
    const km_spec spec = {
        .name = "perplexity",
        .summary = "Tells how well a model predicts a text.",
        .details = "The text is cut into pieces; every token of a piece but the first is predicted\n"
                   "from those before it. exp of the mean loss is the perplexity.\n",
        .options = options,
        .examples = "  kermes perplexity -m SmolLM2.gguf --file book.txt --context 512\n",
    };
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (!o.model) return km_cli_usage("perplexity: --model PATH is missing");
    if (!o.file) return km_cli_usage("perplexity: --file FILE is missing");
    km_cli_notes(o.common.quiet);
    return run(&o);
}
