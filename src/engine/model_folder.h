/* The model folder: where Kermes looks when no model is named. KERMES_MODELS names it, else it is
 * kermes/models under XDG_DATA_HOME, else ~/.local/share/kermes/models. Nothing is ever copied into
 * it by Kermes but by `kermes pull`, and no other place is searched. */
#ifndef KM_ENGINE_MODEL_FOLDER_H
#define KM_ENGINE_MODEL_FOLDER_H
#include "base/error.h"
#include <limits.h>

/* The folder's path, whether or not it is there; false when it cannot be told (no HOME). */
bool km_models_folder(char out[PATH_MAX]);

/* The only model in it, or the newest: a .gguf file (of a split model, the first part) or a folder
 * with a config.json, in the folder itself or one below. *others, if not NULL, gets how many more
 * there are. */
km_status km_models_default(char out[PATH_MAX], int *others, km_error *err);

/* A model in the folder by its name, with or without .gguf, or by the beginning of its name, letters
 * large or small, where only one begins so. False when there is none; *err is set (and not
 * otherwise) when several could be meant. */
bool km_models_named(const char *name, char out[PATH_MAX], km_error *err);
/* Whether a word of the line is a model: a .gguf file, a folder with one, or a name as above;
 * `exact`: no beginnings of names. */
bool km_models_is(const char *word, bool exact);

/* Which model is meant (find.c). given: a GGUF file, a folder with a model, or a training run's, which
 * stands for its model, its best, or its newest checkpoint; or a name in the model folder; NULL: the only
 * or newest model there. Notes tell which, where that was not said. */
km_status km_find_model(const char *given, char out[PATH_MAX], km_error *err);

#endif
