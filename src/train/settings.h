/* The settings of a training run. Each is one row of a table, from which come the flags of
 * `kermes train`, the JSON form (--config FILE, DIR/run.json) and what --resume may change. */
#ifndef KM_TRAIN_SETTINGS_H
#define KM_TRAIN_SETTINGS_H
#include "base/error.h"
#include "model/config.h"
#include "nn/optim.h"
#include "nn/schedule.h"
#include <jansson.h>

#define KM_TRAIN_MAX_DATA 32

typedef struct km_train_list {
    const char *at[KM_TRAIN_MAX_DATA];
    int n;
} km_train_list;

typedef struct km_train_settings {
    /* The text and how it is read */
    km_train_list data;    /* "FILE", "FOLDER" or either with ":WEIGHT" */
    const char *out;       /* the run's folder */
    const char *cache;     /* for token files; NULL: OUT/cache */
    const char *tokenizer; /* "char", "bytes", "bpe:N" or a file; NULL: init's, or "char" */
    bool special;
    double val;

    /* The model */
    const char *model; /* a preset */
    const char *init;  /* a folder to start from; NULL: random weights */
    int64_t layers, heads, kv_heads, dim, hidden, context, vocab_pad; /* 0: the preset's */
    double dropout;                                                   /* below 0: the preset's */
    int64_t lora_rank;        /* 0: all weights are trained */
    double lora_alpha;        /* 0: twice the rank */
    const char *lora_targets; /* patterns with commas between them; NULL: model/lora.h's */
    const char *freeze;       /* patterns with commas between them */
    bool recompute;

    /* The steps */
    int64_t batch, accumulate, steps, warmup, decay_steps;
    double lr;     /* below 0: by the model's width, km_train_lr */
    double min_lr; /* below 0: a tenth of lr */
    const char *schedule, *optimizer, *dtype;
    double weight_decay, beta1, beta2, eps, momentum, grad_clip, loss_scale;
    bool nesterov;
    int64_t seed;

    /* What happens along the way */
    int64_t eval_every, eval_batches, save_every, keep, log_every, patience;
    int64_t sample_every, sample_tokens;
    const char *sample_prompt;
    double sample_temperature;
    bool overfit_batch, no_best, no_graph, resume;
    const char *device;
    int64_t threads;
    const char *comm; /* "auto", "none", "mpi" or "nccl": how ranks talk */
} km_train_settings;

km_train_settings km_train_defaults(void);

typedef enum km_setting_kind {
    KM_SETTING_FLAG,   /* bool */
    KM_SETTING_INT,    /* int64_t */
    KM_SETTING_NUMBER, /* double */
    KM_SETTING_TEXT,   /* const char * */
    KM_SETTING_LIST    /* km_train_list */
} km_setting_kind;

typedef enum km_setting_rule {
    KM_SETTING_FIXED, /* belongs to the run: --resume may not change it */
    KM_SETTING_FREE,  /* may change from one part of the run to the next */
    KM_SETTING_CALL   /* of this call alone; not stored */
} km_setting_rule;

typedef struct km_setting {
    const char *name; /* as the flag; underscores serve in JSON, too */
    km_setting_kind kind;
    km_setting_rule rule;
    const char *value; /* how help names it */
    size_t offset;     /* in km_train_settings */
    double lo, hi;     /* of numbers, inclusive; both 0: any */
    const char *help;
} km_setting;

extern const km_setting km_train_table[]; /* ends with a row without a name */

/* Overlays what the JSON object says; texts are owned by it, so it must stay. An unknown key or a
 * wrong type is an error, with `shown` as the file's name. */
km_status km_train_from_json(km_train_settings *s, const json_t *o, const char *shown,
                             km_error *err);
json_t *km_train_to_json(const km_train_settings *s); /* those not of KM_SETTING_CALL; or NULL */
/* An error that names the first fixed setting in which they differ. */
km_status km_train_same_run(const km_train_settings *now, const km_train_settings *stored,
                            km_error *err);

/* The settings of the run in `out`, over those in *s; *run owns the texts. */
km_status km_train_stored(const char *out, km_train_settings *s, json_t **run, km_error *err);

/* Checks what can be checked before anything is opened. */
km_status km_train_check(const km_train_settings *s, km_error *err);

/* Parts of the settings in the form in which others take them; s has been checked. */
km_status km_train_config(const km_train_settings *s, km_config *c, km_error *err);
/* The learning rate: the one given, or 0.384 / dim and at most 3e-3 (so 1e-3 for a width of 384, as
 * published recipes have it), a tenth of that when fine-tuning, and 0.1 for sgd. */
double km_train_lr(const km_train_settings *s, int64_t dim);
km_schedule km_train_schedule(const km_train_settings *s, int64_t dim);
km_dtype km_train_dtype(const km_train_settings *s);
km_optim_settings km_train_optim(const km_train_settings *s);

#endif
