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
json_t *km_info_index(const char *path, const km_info_options *o,
                      km_error *err);                  /* or a manifest */
json_t *km_info_rows(const char *path, km_error *err); /* a file of vectors */
void km_info_print_index(const json_t *x);             /* NULL is fine, as below */
void km_info_print_rows(const json_t *r);

#endif
