/* One conversion in progress: what convert.c, convert_fill.c and convert_token.c share. */
#ifndef KM_MODEL_CONVERT_JOB_H
#define KM_MODEL_CONVERT_JOB_H
#include "base/threads.h"
#include "model/convert.h"
#include "model/imatrix.h"
#include "model/layout.h"
#include <jansson.h>

typedef struct km_convert_item {
    struct km_convert_job *job;
    const km_layout_row *row;
    const km_stored *stored;
    km_dtype dtype;          /* in the target */
    const float *importance; /* (in), of the row's inputs; or NULL */
} km_convert_item;

typedef struct km_convert_job {
    const km_conversion *o;
    km_config config;
    km_store from, to;
    km_weights weights;
    km_layout layout;  /* of the model; of GGUF into GGUF, the file's tensors as they are */
    km_stored *stored; /* one a row, as the next */
    km_convert_item *items;
    km_imatrix *imatrix; /* or NULL */
    km_threads *threads;
    float *scratch; /* a piece of each thread */
    float *whole;   /* a tensor of a few bits as floats, where its elements change places */
    const km_convert_item *whole_of;
    uint64_t parameters, done, total; /* the last two in bytes */
    int unweighed;                    /* matrices that the importance matrix does not know */
    int64_t tokens;                   /* of the tokenizer written */
    int32_t bos, eos;                 /* of a tokenizer that came from GGUF; 0 when tokens is */
} km_convert_job;

/* Bytes of the item as the target stores it, for the writers of files; user is a km_convert_item. */
km_status km_convert_fill(void *user, size_t offset, void *dst, size_t bytes, km_error *err);
/* Threads and memory for it; free is harmless without. */
km_status km_convert_fill_open(km_convert_job *j, km_error *err);
void km_convert_fill_close(km_convert_job *j);

/* The tokenizer into GGUF metadata, or into the target's folder. */
km_status km_convert_token_gguf(km_convert_job *j, km_gguf_out *out, km_error *err);
km_status km_convert_token_folder(km_convert_job *j, km_error *err);
/* bos_token_id and eos_token_id of config.json, where it does not say them yet. */
void km_convert_token_ids(const km_convert_job *j, json_t *config);

km_status km_convert_save_json(const char *folder, const char *name, json_t *o, km_error *err);

#endif
