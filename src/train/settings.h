/* The settings of a training run. Each is one row of a table, from which come the flags of
 * `kermes train`, the JSON form (--config FILE, DIR/run.json) and what --resume may change. */
#ifndef KM_TRAIN_SETTINGS_H
#define KM_TRAIN_SETTINGS_H
#include "base/error.h"
#include "model/config.h"
#include "nn/optim.h"
#include <jansson.h>

extern const km_setting km_train_table[]; /* ends with a row without a name */

/* Overlays what the JSON object says; texts are owned by it, so it must stay. An unknown key or a
 * wrong type is an error, with `shown` as the file's name; `call`: what belongs to a call and not to a
 * run may be there, too. */
km_status km_train_from_json(km_train_settings *s, const json_t *o, bool call, const char *shown,
                             km_error *err);
json_t *km_train_to_json(const km_train_settings *s); /* those not of KM_SETTING_CALL; or NULL */
/* An error that names the first fixed setting in which they differ. */
km_status km_train_same_run(const km_train_settings *now, const km_train_settings *stored,
                            km_error *err);

/* The settings of the run in `out`, over those in *s; *run owns the texts. */
km_status km_train_stored(const char *out, km_train_settings *s, json_t **run, km_error *err);

/* Checks what can be checked before anything is opened. */
km_status km_train_settings_check(const km_train_settings *s, km_error *err);

/* Parts of the settings in the form in which others take them; s has been checked. */
km_status km_train_config(const km_train_settings *s, km_config *c, km_error *err);
/* The learning rate: the one given, or 0.384 / dim and at most 3e-3 (so 1e-3 for a width of 384, as
 * published recipes have it), a tenth of that when fine-tuning, and 0.1 for sgd. */
double km_train_lr(const km_train_settings *s, int64_t dim);
km_schedule km_train_schedule(const km_train_settings *s, int64_t dim);
km_dtype km_train_dtype(const km_train_settings *s);
km_optim_settings km_train_optim(const km_train_settings *s);

#endif
