/* How a model wants to be sampled: what its file says (GGUF's general.sampling.*, or a folder's
 * generation_config.json), or else what its makers say of the family. */
#ifndef KM_ENGINE_MODEL_SAMPLING_H
#define KM_ENGINE_MODEL_SAMPLING_H
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

typedef enum km_suggestion {
    KM_SUGGEST_TEMPERATURE,
    KM_SUGGEST_TOP_K,
    KM_SUGGEST_TOP_P,
    KM_SUGGEST_MIN_P,
    KM_SUGGEST_REPEAT_PENALTY,
    KM_SUGGEST_COUNT
} km_suggestion;

typedef struct km_suggested {
    double value[KM_SUGGEST_COUNT]; /* NaN: nothing is said */
    char from[64]; /* "general.sampling", "generation_config.json", "the smollm2 family" */
} km_suggested;

/* path: a GGUF file or a model's folder. What cannot be read or is out of range is left out; a value
 * out of range is also noted. */
km_suggested km_suggested_of(const char *path);

#endif
