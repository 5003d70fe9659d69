/* The parts of kermes info: each turns one kind of thing into a JSON object. */
#ifndef KM_CLI_INFO_PARTS_H
#define KM_CLI_INFO_PARTS_H
#include "cli/info.h"
#include "format/gguf.h"
#include "format/safetensors.h"

json_t *km_info_safetensors(const km_safetensors *f, bool list);
json_t *km_info_gguf(const km_gguf *g, const km_info_options *o);
/* A config.json that was read from path. What Kermes cannot run says why. */
json_t *km_info_config(const char *path, const json_t *config, const km_info_options *o);
json_t *km_info_tokenizer(const char *path, km_error *err); /* NULL with the error set */

#endif
