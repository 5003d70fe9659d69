/* Text to try training on, written by a small grammar: sentences of simple English in which verbs
 * agree with their subjects and things recur, so that there is something to learn. The same seed
 * gives the same text everywhere. */
#ifndef KM_TRAIN_DEMO_H
#define KM_TRAIN_DEMO_H
#include "base/error.h"
#include "base/text.h"
#include <stdint.h>

/* Adds whole sentences until there are at least `bytes`. */
void km_demo_text(km_text *out, uint64_t seed, size_t bytes);
km_status km_demo_write(const char *path, uint64_t seed, size_t bytes, km_error *err);

#endif
