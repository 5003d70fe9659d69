/* Which model is meant by what a person or program gave. */
#ifndef KM_ENGINE_FIND_H
#define KM_ENGINE_FIND_H
#include "base/error.h"
#include <limits.h>

/* given: a GGUF file, a folder with a model, or a training run's, which stands for its model, its
 * best, or its newest checkpoint; or a name in the model folder; NULL: the only or newest model
 * there. Notes tell which, where that was not said. */
km_status km_find_model(const char *given, char out[PATH_MAX], km_error *err);

#endif
