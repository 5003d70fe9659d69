/* Models of random weights in the sizes of well-known ones, as GGUF files: enough to measure speed
 * and memory with, on any machine and without a download. They run, and mean nothing. */
#ifndef KM_MODEL_SYNTHETIC_H
#define KM_MODEL_SYNTHETIC_H
#include "model/mix.h"
#include "model/parts.h"

/* "smollm2-135m", "qwen2.5-0.5b", "llama-3.2-1b", "qwen2.5-3b", "llama-3.1-8b". */
km_status km_synthetic_shape(km_config *c, const char *name, km_error *err);
const char *km_synthetic_shapes(void); /* the names, with commas between them */

/* Called with the bytes written; returning false stops (KM_ERR_STATE). May be NULL. */
typedef bool (*km_synthetic_progress)(void *user, uint64_t done, uint64_t total);

/* Writes such a model of a complete config, as fast as the disk takes it: no weights are encoded,
 * blocks are random bytes under scales that give a matrix's rows length 1. Its tokenizer takes a
 * text byte by byte, so a text of n bytes is n tokens. The same seed gives the same file. An
 * existing file is replaced when the new one is complete. */
km_status km_synthetic_write(const char *path, const km_config *c, const km_mix *mix, uint64_t seed,
                             km_synthetic_progress progress, void *user, km_error *err);

/* The same kind of model in the memory of the context's device, without a file: matrices in the
 * types that the mix gives them, all made of a few MiB of random blocks over and over. split (may
 * be NULL): over several devices. NULL with *err set. */
km_net *km_synthetic_model(km_ctx *ctx, const km_config *c, const km_mix *mix, uint64_t seed,
                           const km_open_split *split, km_synthetic_progress progress, void *user,
                           km_error *err);

/* Random elements of a dtype with that spread (0: ones); whole blocks. */
void km_synthetic_fill(km_dtype dtype, uint64_t key, float sd, void *dst, size_t bytes);
/* The spread of a tensor's elements by its name and shape. */
float km_synthetic_spread(const char *gguf, km_shape shape);
/* Whether there can be a random model of a config. */
km_status km_synthetic_check(const km_config *c, km_error *err);

#endif
