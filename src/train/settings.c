/* The table of settings, their JSON form and their checks. */
#include "train/settings.h"
#include "base/json_read.h"
#include "base/sized.h"
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

km_status km_train_defaults_sized(km_train_settings *out, size_t size) {
    km_train_settings own = {.size = sizeof(km_train_settings),
                             .val = 0.1,
                             .model = "tiny",
                             .dropout = -1,
                             .batch = 12,
                             .accumulate = 1,
                             .steps = 2000,
                             .warmup = 100,
                             .lr = -1,
                             .min_lr = -1,
                             .schedule = "cosine",
                             .optimizer = "adamw",
                             .dtype = "f32",
                             .weight_decay = 0.1,
                             .beta1 = 0.9,
                             .beta2 = 0.99,
                             .eps = 1e-8,
                             .momentum = 0.9,
                             .grad_clip = 1,
                             .loss_scale = 65536,
                             .seed = 1,
                             .eval_every = 250,
                             .eval_batches = 64,
                             .save_every = 500,
                             .keep = 2,
                             .log_every = 10,
                             .sample_tokens = 200,
                             .sample_temperature = 0.8,
                             .device = "auto",
                             .comm = "auto"};
    return KM_HAND_OUT(out, size, &own, km_train_settings);
}

/* ---- The table ---- */

#define AT(field) offsetof(km_train_settings, field)
#define MANY 1e15

const km_setting km_train_table[] = {
    {"data", KM_SETTING_LIST, KM_SETTING_FREE, "FILE[:W]", AT(data), 0, 0,
     "text file, folder of text files or token file; several with weights:\n"
     "--data a.txt:0.7 --data b.txt"},
    {"out", KM_SETTING_TEXT, KM_SETTING_CALL, "DIR", AT(out), 0, 0,
     "folder of the run: checkpoints, log, report, the model at the end"},
    {"cache", KM_SETTING_TEXT, KM_SETTING_FREE, "DIR", AT(cache), 0, 0,
     "folder for tokenised text, shared by runs (default: DIR/cache)"},
    {"tokenizer", KM_SETTING_TEXT, KM_SETTING_FIXED, "T", AT(tokenizer), 0, 0,
     "char, bytes, bpe:N (learn N tokens from the text), or a tokenizer.json,\n"
     ".gguf or folder (default: that of --init, or else char)"},
    {"special", KM_SETTING_FLAG, KM_SETTING_FIXED, NULL, AT(special), 0, 0,
     "<|endoftext|> and the like in the text mean those tokens"},
    {"val", KM_SETTING_NUMBER, KM_SETTING_FIXED, "X", AT(val), 0, 0.9,
     "share of the text, from its end, for validation (default 0.1)"},

    {"model", KM_SETTING_TEXT, KM_SETTING_FIXED, "NAME", AT(model), 0, 0,
     "tiny (default), mini, small, gpt2, gpt2-medium, gpt2-large, gpt2-xl, or\n"
     "llama, llama-tiny, llama-mini, llama-small"},
    {"layers", KM_SETTING_INT, KM_SETTING_FIXED, "N", AT(layers), 1, 10000,
     "transformer blocks (default: the preset's, as for the next ones)"},
    {"heads", KM_SETTING_INT, KM_SETTING_FIXED, "N", AT(heads), 1, 10000, "attention heads"},
    {"kv-heads", KM_SETTING_INT, KM_SETTING_FIXED, "N", AT(kv_heads), 1, 10000,
     "heads of keys and values, which divide the heads (llama)"},
    {"dim", KM_SETTING_INT, KM_SETTING_FIXED, "N", AT(dim), 1, 1 << 20,
     "width, a multiple of the heads"},
    {"hidden", KM_SETTING_INT, KM_SETTING_FIXED, "N", AT(hidden), 1, 1 << 22,
     "width inside the MLP"},
    {"context", KM_SETTING_INT, KM_SETTING_FIXED, "N", AT(context), 1, 1 << 24,
     "tokens of a sample"},
    {"dropout", KM_SETTING_NUMBER, KM_SETTING_FIXED, "P", AT(dropout), 0, 0.99,
     "share of activations left out in training"},
    {"vocab-pad", KM_SETTING_INT, KM_SETTING_FIXED, "N", AT(vocab_pad), 0, 4096,
     "round the table of tokens up to a multiple of N rows"},
    {"init", KM_SETTING_TEXT, KM_SETTING_FIXED, "DIR", AT(init), 0, 0,
     "start from these weights (Hugging Face folder, checkpoint, run): fine-tuning"},
    {"lora-rank", KM_SETTING_INT, KM_SETTING_FIXED, "N", AT(lora_rank), 0, 4096,
     "train only a low-rank correction of the weights"},
    {"lora-alpha", KM_SETTING_NUMBER, KM_SETTING_FIXED, "X", AT(lora_alpha), 0, MANY,
     "its scale is alpha / rank (default: twice the rank)"},
    {"lora-targets", KM_SETTING_TEXT, KM_SETTING_FIXED, "PATTERNS", AT(lora_targets), 0, 0,
     "which layers, as 'c_attn,c_proj' (default: c_attn, or q_proj and v_proj)"},
    {"freeze", KM_SETTING_TEXT, KM_SETTING_FIXED, "PATTERNS", AT(freeze), 0, 0,
     "leave parameters of these names as they are, as 'transformer.h.0.*'"},
    {"recompute", KM_SETTING_FLAG, KM_SETTING_FREE, NULL, AT(recompute), 0, 0,
     "keep fewer activations and compute them again: less memory, slower"},

    {"batch", KM_SETTING_INT, KM_SETTING_FIXED, "N", AT(batch), 1, 1 << 20,
     "samples in one pass, on each rank (default 12)"},
    {"accumulate", KM_SETTING_INT, KM_SETTING_FIXED, "N", AT(accumulate), 1, 1 << 20,
     "passes to a step (default 1)"},
    {"steps", KM_SETTING_INT, KM_SETTING_FREE, "N", AT(steps), 1, MANY, "default 2000"},
    {"lr", KM_SETTING_NUMBER, KM_SETTING_FREE, "X", AT(lr), 1e-30, 1e6,
     "learning rate (default 1e-3)"},
    {"min-lr", KM_SETTING_NUMBER, KM_SETTING_FREE, "X", AT(min_lr), 0, 1e6,
     "where the schedule ends (default: a tenth of --lr)"},
    {"warmup", KM_SETTING_INT, KM_SETTING_FREE, "N", AT(warmup), 0, MANY,
     "steps in which the rate rises (default 100)"},
    {"schedule", KM_SETTING_TEXT, KM_SETTING_FREE, "NAME", AT(schedule), 0, 0,
     "cosine (default), linear, constant or wsd"},
    {"decay-steps", KM_SETTING_INT, KM_SETTING_FREE, "N", AT(decay_steps), 0, MANY,
     "steps of wsd's decline at the end (default: a tenth of --steps)"},
    {"optimizer", KM_SETTING_TEXT, KM_SETTING_FIXED, "NAME", AT(optimizer), 0, 0,
     "adamw (default), adam or sgd"},
    {"weight-decay", KM_SETTING_NUMBER, KM_SETTING_FREE, "X", AT(weight_decay), 0, 1e3,
     "of matrices; norms and biases have none (default 0.1)"},
    {"beta1", KM_SETTING_NUMBER, KM_SETTING_FREE, "X", AT(beta1), 0, 0.999999, "default 0.9"},
    {"beta2", KM_SETTING_NUMBER, KM_SETTING_FREE, "X", AT(beta2), 0, 0.999999, "default 0.99"},
    {"eps", KM_SETTING_NUMBER, KM_SETTING_FREE, "X", AT(eps), 1e-30, 1, "default 1e-8"},
    {"momentum", KM_SETTING_NUMBER, KM_SETTING_FREE, "X", AT(momentum), 0, 0.999999,
     "of sgd (default 0.9)"},
    {"nesterov", KM_SETTING_FLAG, KM_SETTING_FREE, NULL, AT(nesterov), 0, 0,
     "sgd looks ahead along its momentum"},
    {"grad-clip", KM_SETTING_NUMBER, KM_SETTING_FREE, "X", AT(grad_clip), 0, MANY,
     "largest norm of the gradients; 0: any (default 1)"},
    {"dtype", KM_SETTING_TEXT, KM_SETTING_FIXED, "T", AT(dtype), 0, 0,
     "f32 (default), bf16 or f16, the latter two with f32 weights behind them"},
    {"loss-scale", KM_SETTING_NUMBER, KM_SETTING_FREE, "X", AT(loss_scale), 1, 16777216,
     "the first one, for f16; it adapts by itself (default 65536)"},
    {"seed", KM_SETTING_INT, KM_SETTING_FIXED, "N", AT(seed), 0, MANY,
     "of weights, samples and dropout (default 1)"},

    {"eval-every", KM_SETTING_INT, KM_SETTING_FREE, "N", AT(eval_every), 0, MANY,
     "steps between validations; 0: at the end only (default 250)"},
    {"eval-batches", KM_SETTING_INT, KM_SETTING_FREE, "N", AT(eval_batches), 0, MANY,
     "batches of a validation, always the same; 0: all the text (default 64)"},
    {"patience", KM_SETTING_INT, KM_SETTING_FREE, "N", AT(patience), 0, MANY,
     "stop after N validations without improvement; 0: never (default)"},
    {"save-every", KM_SETTING_INT, KM_SETTING_FREE, "N", AT(save_every), 0, MANY,
     "steps between checkpoints; 0: at the end only (default 500)"},
    {"keep", KM_SETTING_INT, KM_SETTING_FREE, "N", AT(keep), 1, MANY,
     "checkpoints that stay, the last ones (default 2); DIR/best stays anyway"},
    {"no-best", KM_SETTING_FLAG, KM_SETTING_FREE, NULL, AT(no_best), 0, 0,
     "do not keep the weights with the lowest validation loss in DIR/best"},
    {"log-every", KM_SETTING_INT, KM_SETTING_FREE, "N", AT(log_every), 1, 100000,
     "steps between lines of DIR/log.jsonl (default 10)"},
    {"sample-every", KM_SETTING_INT, KM_SETTING_FREE, "N", AT(sample_every), 0, MANY,
     "steps between samples of what the model writes; 0: none (default)"},
    {"sample-prompt", KM_SETTING_TEXT, KM_SETTING_FREE, "TEXT", AT(sample_prompt), 0, 0,
     "how they begin (default: the text's first line)"},
    {"sample-tokens", KM_SETTING_INT, KM_SETTING_FREE, "N", AT(sample_tokens), 1, 1 << 20,
     "their length (default 200)"},
    {"sample-temperature", KM_SETTING_NUMBER, KM_SETTING_FREE, "X", AT(sample_temperature), 0, 100,
     "0 is the likeliest token each time (default 0.8)"},
    {"overfit-batch", KM_SETTING_FLAG, KM_SETTING_FIXED, NULL, AT(overfit_batch), 0, 0,
     "learn the same batch in every step: its loss must go to 0"},
    {"no-graph", KM_SETTING_FLAG, KM_SETTING_CALL, NULL, AT(no_graph), 0, 0,
     "do not capture the step as a GPU graph"},
    {"resume", KM_SETTING_FLAG, KM_SETTING_CALL, NULL, AT(resume), 0, 0,
     "go on from the last checkpoint in --out, with the settings stored there"},
    {"device", KM_SETTING_TEXT, KM_SETTING_CALL, "NAME", AT(device), 0, 0,
     "auto (default), cpu, gpu, metal, cuda or cuda:N"},
    {"threads", KM_SETTING_INT, KM_SETTING_CALL, "N", AT(threads), 0, 1024,
     "threads on the CPU (default: one per core)"},
    {"comm", KM_SETTING_TEXT, KM_SETTING_CALL, "HOW", AT(comm), 0, 0,
     "how the ranks of mpirun talk: auto (default), mpi, nccl, none"},
    {0},
};

/* ---- JSON ---- */

static void *field(const km_train_settings *s, const km_setting *r) {
    return (char *)(uintptr_t)s + r->offset;
}

static bool same_name(const char *key, const char *name) {
    for (; *key && *name; key++, name++)
        if (*key != *name && !(*key == '_' && *name == '-')) return false;
    return *key == *name;
}

static km_status wrong(const char *shown, const char *key, const char *what, km_error *err) {
    return km_error_set(err, KM_ERR_FORMAT, "%s: \"%.60s\" %s", shown, key, what);
}

static km_status set_list(km_train_list *list, const json_t *v, const char *key, const char *shown,
                          km_error *err) {
    *list = (km_train_list){.n = 0};
    if (json_is_string(v)) list->at[list->n++] = json_string_value(v);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *text = json_string_value(json_array_get(v, i));
        if (!text || list->n == KM_TRAIN_MAX_DATA)
            return wrong(shown, key, "must be a list of at most 32 texts", err);
        list->at[list->n++] = text;
    }
    return list->n ? KM_OK : wrong(shown, key, "must be a text or a list of texts", err);
}

static km_status set_one(km_train_settings *s, const km_setting *r, const json_t *v,
                         const char *key, const char *shown, km_error *err) {
    char text[96];
    double number = json_number_value(v);
    if (json_is_null(v)) return KM_OK; /* the default */
    switch (r->kind) {
    case KM_SETTING_FLAG:
        if (!json_is_boolean(v)) return wrong(shown, key, "must be true or false", err);
        *(bool *)field(s, r) = json_is_true(v);
        return KM_OK;
    case KM_SETTING_TEXT:
        if (!json_is_string(v)) return wrong(shown, key, "must be a text", err);
        *(const char **)field(s, r) = json_string_value(v);
        return KM_OK;
    case KM_SETTING_LIST: return set_list(field(s, r), v, key, shown, err);
    case KM_SETTING_INT:
    case KM_SETTING_NUMBER: break;
    }
    if (r->kind == KM_SETTING_INT ? !json_is_integer(v) : !json_is_number(v))
        return wrong(shown, key,
                     r->kind == KM_SETTING_INT ? "must be a whole number" : "must be a number",
                     err);
    if ((r->lo != 0 || r->hi != 0) && !(number >= r->lo && number <= r->hi)) {
        snprintf(text, sizeof text, "must be between %.10g and %.10g", r->lo, r->hi);
        return wrong(shown, key, text, err);
    }
    if (r->kind == KM_SETTING_INT)
        *(int64_t *)field(s, r) = json_integer_value(v);
    else
        *(double *)field(s, r) = number;
    return KM_OK;
}

km_status km_train_from_json(km_train_settings *s, const json_t *o, bool call, const char *shown,
                             km_error *err) {
    const char *key;
    json_t *v;
    if (!json_is_object(o))
        return km_error_set(err, KM_ERR_FORMAT, "%s: settings are a JSON object", shown);
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        const km_setting *r = km_train_table;
        while (r->name && !same_name(key, r->name)) r++;
        if (!r->name || (r->rule == KM_SETTING_CALL && !call))
            return wrong(shown, key, r->name ? "belongs on the command line" : "is no setting",
                         err);
        km_status status = set_one(s, r, v, key, shown, err);
        if (status != KM_OK) return status;
    }
    return KM_OK;
}

static json_t *one_to_json(const km_train_settings *s, const km_setting *r) {
    const void *p = field(s, r);
    const char *text;
    switch (r->kind) {
    case KM_SETTING_FLAG: return json_boolean(*(const bool *)p);
    case KM_SETTING_INT:
        /* 0 stands for the preset's where it is out of range. */
        return *(const int64_t *)p < r->lo ? json_null() : json_integer(*(const int64_t *)p);
    case KM_SETTING_NUMBER:
        return *(const double *)p < r->lo ? json_null() : json_real(*(const double *)p);
    case KM_SETTING_TEXT:
        text = *(const char *const *)p;
        return text ? json_string(text) : json_null();
    case KM_SETTING_LIST: break;
    }
    const km_train_list *list = p;
    json_t *a = json_array();
    for (int i = 0; i < list->n; i++) json_array_append_new(a, json_string(list->at[i]));
    return a;
}

json_t *km_train_to_json(const km_train_settings *s) {
    json_t *o = json_object();
    for (const km_setting *r = km_train_table; r->name && o; r++) {
        if (r->rule == KM_SETTING_CALL) continue;
        if (json_object_set_new(o, r->name, one_to_json(s, r)) != 0) {
            json_decref(o); /* out of memory, or a name that is not UTF-8 */
            return NULL;
        }
    }
    return o;
}

km_status km_train_same_run(const km_train_settings *now, const km_train_settings *stored,
                            km_error *err) {
    for (const km_setting *r = km_train_table; r->name; r++) {
        if (r->rule != KM_SETTING_FIXED) continue;
        json_t *a = one_to_json(now, r), *b = one_to_json(stored, r);
        bool same = json_equal(a, b);
        char *was = json_dumps(b, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        if (!same)
            km_error_set(err, KM_ERR_STATE,
                         "--resume cannot change --%s: it was %.100s when this run began", r->name,
                         was ? was : "something else");
        free(was);
        json_decref(a);
        json_decref(b);
        if (!same) return KM_ERR_STATE;
    }
    return KM_OK;
}

km_status km_train_stored(const char *out, km_train_settings *s, json_t **run, km_error *err) {
    char path[PATH_MAX];
    km_error why = {0};
    if (snprintf(path, sizeof path, "%s/run.json", out) >= (int)sizeof path) path[0] = 0;
    *run = km_json_load(path, &why);
    if (!*run)
        return km_error_set(err, KM_ERR_FILE, "no run to resume in '%s': %.200s", out, why.text);
    return km_train_from_json(s, json_object_get(*run, "settings"), false, path, err);
}

/* ---- Checks ---- */

static int optimizer_named(const char *name) {
    static const char *const names[] = {"adamw", "adam", "sgd"};
    static const km_optim_kind kinds[] = {KM_OPTIM_ADAMW, KM_OPTIM_ADAM, KM_OPTIM_SGD};
    for (int i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0) return (int)kinds[i];
    return -1;
}

static int dtype_named(const char *name) {
    static const km_dtype dtypes[] = {KM_F32, KM_BF16, KM_F16};
    for (int i = 0; i < 3; i++)
        if (strcmp(name, km_dtype_name(dtypes[i])) == 0) return (int)dtypes[i];
    return -1;
}

double km_train_lr(const km_train_settings *s, int64_t dim) {
    if (s->lr >= 0) return s->lr;
    if (optimizer_named(s->optimizer) == KM_OPTIM_SGD) return 0.1;
    double lr = 0.384 / (double)dim;
    if (lr > 3e-3) lr = 3e-3;
    return s->init ? lr / 10 : lr;
}

km_schedule km_train_schedule(const km_train_settings *s, int64_t dim) {
    double lr = km_train_lr(s, dim);
    km_schedule out = {.lr = lr,
                       .min_lr = s->min_lr < 0 ? lr / 10 : s->min_lr,
                       .warmup = s->warmup < s->steps ? s->warmup : s->steps,
                       .steps = s->steps};
    km_schedule_named(s->schedule, &out.kind);
    if (out.kind == KM_SCHEDULE_WSD) {
        out.decay = s->decay_steps ? s->decay_steps : s->steps / 10;
        if (out.decay > out.steps - out.warmup) out.decay = out.steps - out.warmup;
    }
    return out;
}

km_dtype km_train_dtype(const km_train_settings *s) { return (km_dtype)dtype_named(s->dtype); }

km_optim_settings km_train_optim(const km_train_settings *s) {
    km_optim_settings o = km_optim_defaults();
    o.kind = (km_optim_kind)optimizer_named(s->optimizer);
    o.beta1 = s->beta1;
    o.beta2 = s->beta2;
    o.eps = s->eps;
    o.momentum = s->momentum;
    o.nesterov = s->nesterov;
    o.weight_decay = s->weight_decay;
    o.max_norm = s->grad_clip;
    o.loss_scale = km_train_dtype(s) == KM_F16 ? s->loss_scale : 0;
    return o;
}

km_status km_train_config(const km_train_settings *s, km_config *c, km_error *err) {
    km_status status = km_config_preset(c, s->model, err);
    if (status != KM_OK) return status;
    if (s->dim || s->heads) c->head_dim = 0;
    if (s->layers) c->layers = (int)s->layers;
    if (s->heads) {
        c->heads = (int)s->heads;
        c->kv_heads = 0;
    }
    if (s->kv_heads) c->kv_heads = (int)s->kv_heads;
    if (s->dim) {
        c->dim = s->dim;
        c->hidden = 0;
    }
    if (s->hidden) c->hidden = s->hidden;
    if (s->context) c->context = s->context;
    if (s->vocab_pad) c->vocab_pad = s->vocab_pad;
    if (s->dropout >= 0) c->dropout = s->dropout;
    return km_config_complete(c, err);
}

static km_status check_tokenizer(const char *t, km_error *err) {
    long n;
    char *end;
    if (strncmp(t, "bpe", 3) != 0 || (t[3] && t[3] != ':')) return KM_OK;
    n = t[3] ? strtol(t + 4, &end, 10) : 0;
    if (!t[3] || !t[4] || *end || n < 257 || n > 1000000)
        return km_error_set(err, KM_ERR_RANGE,
                            "--tokenizer bpe:N takes a vocabulary of 257 to 1000000 tokens, as "
                            "bpe:4096, not '%.60s'",
                            t);
    return KM_OK;
}

km_status km_train_settings_check(const km_train_settings *s, km_error *err) {
    km_schedule_kind kind;
    if (!s->out) return km_error_set(err, KM_ERR_NULL, "no folder for the run: use --out DIR");
    if (s->data.n == 0)
        return km_error_set(err, KM_ERR_NULL, "no text to learn from: use --data FILE");
    if (!km_schedule_named(s->schedule, &kind))
        return km_error_set(err, KM_ERR_RANGE,
                            "--schedule is cosine, linear, constant or wsd, not '%.60s'",
                            s->schedule);
    if (optimizer_named(s->optimizer) < 0)
        return km_error_set(err, KM_ERR_RANGE, "--optimizer is adamw, adam or sgd, not '%.60s'",
                            s->optimizer);
    if (dtype_named(s->dtype) < 0)
        return km_error_set(err, KM_ERR_RANGE, "--dtype is f32, bf16 or f16, not '%.60s'",
                            s->dtype);
    if (s->lr >= 0 && s->min_lr > s->lr)
        return km_error_set(err, KM_ERR_RANGE, "--min-lr %g is above --lr %g", s->min_lr, s->lr);
    if (s->init && (s->layers || s->heads || s->kv_heads || s->dim || s->hidden || s->vocab_pad))
        return km_error_set(err, KM_ERR_RANGE,
                            "--init brings the model's sizes with it; leave out --layers, "
                            "--heads, --dim and the like");
    if (s->lora_rank && s->freeze)
        return km_error_set(err, KM_ERR_RANGE,
                            "--lora-rank freezes all weights; leave out --freeze");
    if (s->lora_rank && !s->init)
        return km_error_set(err, KM_ERR_RANGE,
                            "--lora-rank corrects weights that exist: name them with --init DIR");
    km_status status = s->tokenizer ? check_tokenizer(s->tokenizer, err) : KM_OK;
    if (status != KM_OK) return status;
    km_config c = {.dim = 1}; /* where --init brings it, the trainer looks again */
    if (!s->init) status = km_train_config(s, &c, err);
    if (status != KM_OK) return status;
    km_schedule schedule = km_train_schedule(s, c.dim);
    return km_schedule_check(&schedule, err);
}
