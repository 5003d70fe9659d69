/* Commands that use a model: finding it, opening it, showing its text. */
#include "cli/use_model.h"
#include "base/log.h"
#include "model/convert.h"
#include "train/checkpoint.h"
#include <string.h>
#include <sys/stat.h>

static bool is_model(const char *folder) {
    char path[PATH_MAX];
    struct stat st;
    int n = snprintf(path, sizeof path, "%s/config.json", folder);
    return n > 0 && n < (int)sizeof path && stat(path, &st) == 0;
}

static km_status find_model(const char *given, char out[PATH_MAX], km_error *err) {
    static const char *const parts[] = {"", "/model", "/best"};
    if (km_names_gguf(given) && snprintf(out, PATH_MAX, "%s", given) < PATH_MAX) return KM_OK;
    for (int i = 0; i < 3; i++) {
        if (snprintf(out, PATH_MAX, "%s%s", given, parts[i]) >= PATH_MAX)
            return km_error_set(err, KM_ERR_FILE, "the path '%.60s...' is too long", given);
        if (is_model(out)) return KM_OK;
    }
    int64_t step = km_checkpoint_latest(given);
    if (step >= 0 && snprintf(out, PATH_MAX, "%s/step-%lld", given, (long long)step) < PATH_MAX)
        return KM_OK;
    return km_error_set(err, KM_ERR_FILE,
                        "'%.200s' holds no model: neither config.json nor a training run's model, "
                        "best or step-N",
                        given);
}

km_status km_cli_model_open(km_cli_model *m, const char *given, const char *tokenizer,
                            const km_common *common, const km_open_options *how, km_error *err) {
    *m = (km_cli_model){0};
    if (find_model(given, m->path, err) != KM_OK) return err->code;
    m->token = km_token_load(tokenizer ? tokenizer : m->path, err);
    if (!m->token) return err->code;
    m->ctx = km_ctx_new(common->device, (int)common->threads);
    if (!m->ctx) return km_error_set(err, KM_ERR_DEVICE, "%s", km_last_error());
    if (strcmp(m->path, given) != 0) km_note(KM_LOG_INFO, "the model is that in %s", m->path);
    m->model = km_model_open(m->ctx, m->path, how, err);
    return m->model ? KM_OK : err->code;
}

void km_cli_model_close(km_cli_model *m) {
    km_model_free(m->model);
    km_ctx_free(m->ctx);
    km_token_free(m->token);
}

void km_cli_show_before(km_cli_text *t) {
    if (t->before) fputs(t->before, stdout);
    t->before = NULL;
}

bool km_cli_show(void *user, int32_t id, const char *text, size_t bytes) {
    km_cli_text *t = user;
    (void)id;
    if (t->json) {
        km_text_put(&t->text, text, bytes);
        return km_text_ok(&t->text);
    }
    km_cli_show_before(t);
    fwrite(text, 1, bytes, stdout);
    return fflush(stdout) == 0 && !ferror(stdout);
}
