/* The pieces of one run, as setup.c makes them and loop.c uses them. */
#ifndef KM_TRAIN_TRAINER_H
#define KM_TRAIN_TRAINER_H
#include "comm/comm.h"
#include "train/checkpoint.h"
#include "train/dataset.h"
#include "train/history.h"
#include "train/stepper.h"
#include "train/train.h"
#include <limits.h>

typedef struct km_trainer {
    const km_train_settings *s;
    const km_train_hooks *hooks;
    km_error *err;
    km_comm *comm; /* NULL: one rank */
    int rank, ranks;

    int lock;  /* of the run's folder; -1: none */
    bool made; /* the folder was not there before */
    km_text_source *sources;
    km_token *token;
    km_dataset data;
    km_window_sampler sampler;
    km_ctx *ctx;
    km_config config;
    int64_t context; /* tokens of a sample, at most the model's */
    int64_t from;    /* the step of the checkpoint to go on from; -1: none */
    km_net *model;
    km_optimizer *optimizer;
    km_schedule schedule;
    km_stepper stepper;
    km_train_history history;
    km_train_state state;
    char about[512]; /* one line on model, data and device */

    double peak;                        /* operations a second of the device; NaN: unknown */
    double flops;                       /* of one token in training */
    double started;                     /* km_now at the call */
    double pause;                       /* seconds of this part spent in validation and saving */
    double busy_since;                  /* when the part's first step began, pauses taken out */
    double window_since, window_tokens; /* since the last line of the log */
    double part_tokens;                 /* trained on in this part of the run */
    double earlier_seconds;             /* of training, before this part of the run */
    int64_t saved;                      /* the step of the last checkpoint; -1: none */
    int64_t skips_told;                 /* skipped steps already reported */
    int64_t skips_in_a_row;
    bool prompt_told; /* that the samples' prompt is cut */
    int bad_losses;   /* losses in a row that are not finite */
    km_train_result *result;
} km_trainer;

/* Everything up to the first step. On failure the trainer must still be closed. */
km_status km_trainer_open(km_trainer *t);
void km_trainer_close(km_trainer *t);

/* After what one rank alone may have failed at: an error on every rank if there was one on any. */
km_status km_trainer_agree(km_trainer *t, km_status s);
/* Writes run.json; finished: the step at which all files of the run were complete, or -1. */
km_status km_trainer_write_run(km_trainer *t, int64_t finished);
void km_trainer_tell(km_trainer *t, km_train_event e, const char *text);
void km_trainer_path(const km_trainer *t, char out[PATH_MAX], const char *name); /* OUT/name */
km_checkpoint_parts km_trainer_parts(km_trainer *t);

/* What the model writes now, told as KM_TRAIN_SAMPLE. */
km_status km_trainer_sample(km_trainer *t);

#endif
