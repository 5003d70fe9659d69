/* Models from one file format into another: Hugging Face folders (a checkpoint is one) and GGUF, in
 * all directions, for the architectures that Kermes knows. From GGUF into GGUF every tensor and
 * all metadata stay, and only types change. Weights go from the mapped source to the
 * target piece by piece, so a model of any size needs little memory. */
#ifndef KM_MODEL_CONVERT_H
#define KM_MODEL_CONVERT_H
#include "model/config.h"
#include "model/mix.h"

typedef void (*km_convert_progress)(void *user, uint64_t done, uint64_t total); /* bytes */

typedef struct km_conversion {
    const char *in;        /* a folder with config.json and model.safetensors, or a GGUF file */
    const char *out;       /* a name that ends in .gguf, or a folder that exists and is empty */
    km_dtype dtype;        /* f32, f16, bf16, or KM_DTYPE_COUNT: as stored. GGUF keeps norms, biases
                            * and positions in f32 whatever is asked. */
    const km_mix *mix;     /* into GGUF: a mix of types, in place of dtype; NULL: none */
    const char *imatrix;   /* with a mix: a file that says which weights matter (imatrix.h) */
    int threads;           /* 0: one per core; the result does not depend on it */
    const char *tokenizer; /* a tokenizer.json or GGUF; NULL: the one of `in` */
    bool no_tokenizer;     /* leave it out */
    km_convert_progress progress; /* may be NULL */
    void *user;
} km_conversion;

typedef struct km_conversion_done {
    km_config config;
    bool from_gguf, to_gguf;
    int tensors;
    uint64_t parameters, bytes; /* of tensors written */
    int64_t tokens;             /* of the tokenizer that was written; 0: none */
    int unweighed;              /* matrices that the importance matrix does not know */
} km_conversion_done;

/* A failure leaves a GGUF target as it was; a folder may hold some of the new files. */
km_status km_convert_weights(const km_conversion *o, km_conversion_done *done, km_error *err);

/* "file.gguf" or "FILE.GGUF" */
bool km_names_gguf(const char *path);
/* The same by name, or by the first bytes of the file there: stores of models name files by sums. */
bool km_is_gguf(const char *path);

#endif
