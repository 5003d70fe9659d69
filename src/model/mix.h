/* Mixes of types by the names that people know from GGUF files: "q4_k_m" is q4_k with more bits for
 * the matrices that suffer most from having few. Which ones get more is the rule of llama.cpp's
 * quantiser, so that a file of that name is what its name promises. */
#ifndef KM_MODEL_MIX_H
#define KM_MODEL_MIX_H
#include "model/config.h"

typedef struct km_mix {
    const char *name;   /* "q4_k_m" */
    km_dtype base;      /* of most matrices */
    uint32_t file_type; /* what GGUF's general.file_type says of such a file */
} km_mix;

/* By name, in any case; "q4_k" stands for "q4_k_m" and so on. NULL: no such mix. */
const km_mix *km_mix_find(const char *name);
const km_mix *km_mix_at(int i); /* all of them, in a list; NULL past its end */

/* The type of one tensor, by its name and shape in GGUF: (out, in) of a matrix. What is no matrix,
 * and positions, stay f32. Rows that are not whole blocks get a type of smaller blocks.
 * layers, gqa: of the model, gqa being heads to a head of keys. tied: it has no "output.weight".
 * importance: there is an importance matrix. */
typedef struct km_mix_model {
    int layers, gqa;
    bool tied, importance;
} km_mix_model;
km_dtype km_mix_dtype(const km_mix *m, const km_mix_model *model, const char *gguf, km_shape shape);

#endif
