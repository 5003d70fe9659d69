/* Checkpoints: DIR/step-N is a Hugging Face folder (config.json, model.safetensors,
 * tokenizer.json) with two files more, optimizer.safetensors and state.json. It is made under
 * another name and renamed when all of it is on disk, so a folder of that name is complete. The
 * state holds a checksum of every other file. docs/formats/checkpoint.md has the details. */
#ifndef KM_TRAIN_CHECKPOINT_H
#define KM_TRAIN_CHECKPOINT_H
#include "model/net.h"
#include "nn/optim.h"
#include "token/token.h"

/* What a run is beyond its weights and moments: numbers, since samples and dropout are functions
 * of seed and step. */
typedef struct km_train_state {
    int64_t step;             /* steps done */
    uint64_t data, tokenizer; /* km_dataset_hash, km_token_hash */
    double best_val;          /* NaN before the first validation */
    int64_t best_step, bad_evals;
    int64_t evaluated; /* the step of the last validation; -1: none */
    double train_loss, val_loss;
    double seconds; /* of training so far */
    double tokens;  /* trained on so far */
    float *losses;  /* of steps since the last line of the log, n of them */
    int n_losses;
} km_train_state;

typedef struct km_checkpoint_parts {
    km_ctx *ctx;
    km_net *model;
    km_optimizer *optimizer;
    const km_token *token;
    int rank, ranks; /* all ranks call; rank 0 writes */
} km_checkpoint_parts;

/* Writes OUT/step-N, N being state->step. On failure (disk full) nothing of it is left, and older
 * checkpoints are as they were. */
km_status km_checkpoint_save(const char *out, const km_checkpoint_parts *p,
                             const km_train_state *state, km_error *err);
/* The highest N of the folders OUT/step-N; -1 when there is none. */
int64_t km_checkpoint_latest(const char *out);
/* Checks OUT/step-N against its checksums and reads its state alone; state->losses is the caller's
 * to km_free. */
km_status km_checkpoint_open(const char *out, int64_t step, km_train_state *state, km_error *err);
/* Fills model and optimiser from OUT/step-N. A model with corrections (LoRA) must have been loaded
 * from that folder before they were added. */
km_status km_checkpoint_load(const char *out, int64_t step, const km_checkpoint_parts *p,
                             km_error *err);
void km_checkpoint_prune(const char *out, int64_t keep); /* all but the last `keep` go */

/* A Hugging Face folder at `path` in place of one that may be there; what was there is gone only
 * when the new one is whole. adapter: the corrections (LoRA) alone, as PEFT stores them. */
km_status km_net_export(const char *path, const km_checkpoint_parts *p, bool adapter,
                        km_error *err);

/* ---- Folders ---- */

/* FOLDER/NAME into out, which has room for PATH_MAX bytes; "" when it is longer. */
void km_folder_join(char *out, const char *folder, const char *name);
/* A temporary name beside `path`, likewise, that km_folder_sweep knows. */
void km_folder_temp(char *out, const char *path);

km_status km_folder_make(const char *path,
                         km_error *err); /* with its parents; fine if it is there */
void km_folder_remove(const char *path); /* with all that is in it */
/* Renames `temp` to `path` and flushes both to disk; a folder at `path` is replaced. */
km_status km_folder_publish(const char *temp, const char *path, km_error *err);
/* What a killed run has left in `out`: temporary files and folders. */
void km_folder_sweep(const char *out);

#endif
