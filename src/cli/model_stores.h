/* Models on this machine: in the model folder, and what other programs have left in their stores
 * (ollama, LM Studio, the Hugging Face cache). Nothing is copied or changed. */
#ifndef KM_CLI_MODEL_STORES_H
#define KM_CLI_MODEL_STORES_H
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct km_found_model {
    char name[256];
    char path[PATH_MAX];
    const char *store; /* "kermes", "ollama", "lm-studio", "huggingface" */
    int64_t bytes;     /* of all its parts */
    int64_t used;      /* seconds since 1970: when it was last read or written */
    bool folder;
} km_found_model;

typedef struct km_found_models {
    km_found_model *at;
    size_t n, room;
    bool failed; /* out of memory */
} km_found_models;

/* The model folder's path, whether it is there or not; false: it cannot be told. */
bool km_stores_folder(char out[PATH_MAX]);
void km_stores_kermes(km_found_models *out);
void km_stores_others(km_found_models *out);
void km_stores_free(km_found_models *m);

#endif
