/* Describing files: each part turns one kind of thing into a JSON object. */
#ifndef KM_ENGINE_DESCRIBE_H
#define KM_ENGINE_DESCRIBE_H
#include "format/gguf.h"
#include "format/safetensors.h"
#include <jansson.h>

json_t *km_info_safetensors(const km_safetensors *f, bool list);
json_t *km_info_gguf(const km_gguf *g, const km_describe_options *o);
/* A config.json that was read from path. What Kermes cannot run says why. */
json_t *km_info_config(const char *path, const json_t *config, const km_describe_options *o);
json_t *km_info_tokenizer(const char *path, km_error *err); /* NULL with the error set */
json_t *km_info_index(const char *path, const km_describe_options *o,
                      km_error *err);                  /* or a manifest */
json_t *km_info_rows(const char *path, km_error *err); /* a file of vectors */

/* The folder with a model's files: `path` itself, or of a training run its model, its best or its
 * latest checkpoint. Writes it to out[PATH_MAX] and returns true; false when it is no such run. */
bool km_run_folder(const char *path, char *out);

#endif
