/* What kermes info finds out, as one JSON value: the text is printed from it as well. */
#ifndef KM_CLI_INFO_H
#define KM_CLI_INFO_H
#include "base/error.h"
#include "kermes.h"
#include <jansson.h>

typedef struct km_info_options {
    bool tensors;    /* list them all */
    bool verify;     /* check every block of an index */
    int64_t context; /* for the memory needed; 0: the model's own */
    km_dtype cache;  /* of keys and values */
} km_info_options;

/* NULL with the error set when the path is nothing that Kermes knows, or damaged. */
json_t *km_info_gather(const char *path, const km_info_options *o, km_error *err);

/* The folder with a model's files: `path` itself, or of a training run its model, its best or its
 * latest checkpoint. Writes it to out[PATH_MAX] and returns true; false when it is no such run. */
bool km_run_folder(const char *path, char *out);

#endif
