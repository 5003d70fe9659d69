/* Training: from settings to a folder with a model in it.
 *
 *     km_train_settings s = km_train_defaults();
 *     s.data.at[s.data.n++] = "text.txt";
 *     s.out = "run";
 *     km_train_result r;
 *     if (km_train(&s, NULL, &r, &err) != KM_OK) ...
 *
 * The folder holds run.json (the settings), tokenizer.json, cache/ (tokens), step-N/ (checkpoints,
 * train/checkpoint.h), best/ and model/ (Hugging Face folders), log.jsonl and report.html. */
#ifndef KM_TRAIN_TRAIN_H
#define KM_TRAIN_TRAIN_H
#include "train/settings.h"

/* Where a run stands; a figure that is not known is NaN. */
typedef struct km_train_status {
    int64_t step, steps;
    double train_loss; /* mean since the line before */
    double val_loss;   /* the last one */
    double best_val;   /* the lowest */
    int64_t best_step;
    double lr, norm;     /* of the last step; the norm is before clipping */
    double loss_scale;   /* 1 without one */
    int64_t skipped;     /* steps so far whose gradients were not finite */
    double tokens_per_s; /* of late */
    double mfu;          /* share of the device's rate; see km_measure_products */
    double left;         /* seconds, estimated; at the start a guess from the device's rate */
    double seconds;      /* of training so far, earlier parts of the run included */
} km_train_status;

typedef enum km_train_event {
    KM_TRAIN_PREPARE, /* text: what is being done ("tokenising"); step of steps */
    KM_TRAIN_START,   /* text: one line on model, data and device */
    KM_TRAIN_STEP,    /* a step was queued: step alone is up to date */
    KM_TRAIN_LOG,     /* figures are up to date */
    KM_TRAIN_EVAL,    /* val_loss is new */
    KM_TRAIN_SAVE,    /* text: the checkpoint's folder */
    KM_TRAIN_SAMPLE,  /* text: what the model wrote */
    KM_TRAIN_NOTE     /* text: something to know, such as skipped steps */
} km_train_event;

typedef struct km_train_hooks {
    void (*event)(void *user, km_train_event e, const km_train_status *s, const char *text);
    bool (*stop)(void *user); /* asked after each step; true: save and stop. May be NULL. */
    void *user;
} km_train_hooks;

typedef enum km_train_end {
    KM_TRAIN_DONE,   /* all steps */
    KM_TRAIN_EARLY,  /* --patience ran out */
    KM_TRAIN_STOPPED /* the stop hook said so */
} km_train_end;

typedef struct km_train_result {
    km_train_status status;
    double last_val; /* validation loss of the last step; status.val_loss is that of DIR/model */
    km_train_end end;
    double tokens_per_s; /* over this part of the run; evaluation and saving not counted */
    double wall;         /* seconds of this call, all included */
    int64_t parameters, trained;
    int rank;   /* of this process; only rank 0 should print */
    bool tells; /* an error: rank 0 tells it, or the rank on which alone it happened */
    char device[24];
} km_train_result;

/* hooks may be NULL. *r is filled as far as the run got, also on failure. */
km_status km_train(const km_train_settings *s, const km_train_hooks *hooks, km_train_result *r,
                   km_error *err);

#endif
