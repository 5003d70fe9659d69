/* Training: from settings to a folder with a model in it.
 *
 *     km_train_settings s = km_train_defaults();
 *     s.data.at[s.data.n++] = "text.txt";
 *     s.out = "run";
 *     km_train_result r;
 *     if (km_train_run(&s, NULL, &r, &err) != KM_OK) ...
 *
 * The folder holds run.json (the settings), tokenizer.json, cache/ (tokens), step-N/ (checkpoints,
 * train/checkpoint.h), best/ and model/ (Hugging Face folders), log.jsonl and report.html. */
#ifndef KM_TRAIN_TRAIN_H
#define KM_TRAIN_TRAIN_H
#include "train/settings.h"

/* hooks may be NULL. *r is filled as far as the run got, also on failure. */
km_status km_train_run(const km_train_settings *s, const km_train_hooks *hooks, km_train_result *r,
                       km_error *err);

#endif
