/* One conversion in progress: what convert.c and convert_token.c share. */
#ifndef KM_MODEL_CONVERT_JOB_H
#define KM_MODEL_CONVERT_JOB_H
#include "model/convert.h"
#include "model/layout.h"
#include <jansson.h>

typedef struct km_convert_item {
    struct km_convert_job *job;
    const km_layout_row *row;
    const km_stored *stored;
    km_dtype dtype; /* in the target */
} km_convert_item;

typedef struct km_convert_job {
    const km_convert_options *o;
    km_config config;
    km_store from, to;
    km_weights weights;
    km_layout layout;
    km_stored *stored;      /* one a row, as the next */
    km_convert_item *items;
    uint64_t parameters, done, total; /* the last two in bytes */
    int64_t tokens;         /* of the tokenizer written */
    int32_t bos, eos;       /* of a tokenizer that came from GGUF; 0 when tokens is */
} km_convert_job;

/* The tokenizer into GGUF metadata, or into the target's folder. */
km_status km_convert_token_gguf(km_convert_job *j, km_gguf_out *out, km_error *err);
km_status km_convert_token_folder(km_convert_job *j, km_error *err);
/* bos_token_id and eos_token_id of config.json, where it does not say them yet. */
void km_convert_token_ids(const km_convert_job *j, json_t *config);

km_status km_convert_save_json(const char *folder, const char *name, json_t *o, km_error *err);

#endif
