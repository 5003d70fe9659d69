/* How a model's tensors are called and stored in files: the names and layouts of Hugging Face and
 * of GGUF for each of them, and elements brought from one layout into the other. Nothing here needs
 * a device: files are converted from mapping to writer, piece by piece. */
#ifndef KM_MODEL_LAYOUT_H
#define KM_MODEL_LAYOUT_H
#include "format/gguf.h"
#include "format/safetensors.h"
#include "model/config.h"

typedef enum km_store { KM_STORE_HF, KM_STORE_GGUF } km_store;

typedef struct km_layout_row {
    char name[144]; /* Hugging Face: "transformer.h.0.attn.c_attn.weight" */
    char gguf[96];  /* "blk.0.attn_qkv.weight" */
    km_shape shape; /* as computed with: a matrix is (out, in) */
    bool conv1d;    /* Hugging Face stores it as (in, out) */
    int rope_heads; /* > 0: GGUF stores the rows of a head with rotated pairs side by side, where
                      * Hugging Face has them half a head apart */
    bool full;      /* GGUF keeps it in f32: norms, biases, positions */
    bool bias;      /* may be missing where the config has no biases: zeros then */
} km_layout_row;

typedef struct km_layout {
    km_layout_row *row;
    int n;
} km_layout;

km_status km_layout_of(const km_config *c, km_layout *l, km_error *err); /* of a complete config */
void km_layout_free(km_layout *l);
km_shape km_layout_shape(const km_layout_row *r, km_store s); /* as stored there */

/* The weights of a model on disk. */
typedef struct km_weights {
    km_safetensors *st; /* one of the two is NULL */
    km_gguf *gguf;
    bool blocks; /* matrices may be of block dtypes: they are used as they are, not copied */
} km_weights;

typedef struct km_stored { /* one tensor there */
    km_dtype dtype;
    const void *data; /* may be unaligned; NULL: zeros, of dtype f32 */
} km_stored;

/* Finds every row and checks its shape and dtype; a tensor without a row is an error, unless it is
 * ballast of older files. found[l->n]. */
km_status km_weights_find(const km_weights *w, const km_config *c, const km_layout *l,
                          km_stored *found, km_error *err);

/* Elements [first, first + n) of the row as `to` stores it, in dtype `as`, from `from`'s storage. A
 * number that f16 cannot hold is an error. */
km_status km_layout_copy(const km_layout_row *r, const km_stored *s, km_store from, km_store to,
                         km_dtype as, size_t first, size_t n, void *dst, km_error *err);

/* ---- Configurations in GGUF ---- */

km_status km_config_from_gguf(km_config *c, const km_gguf *g, km_error *err);
void km_config_put_gguf(const km_config *c, km_gguf_out *out); /* the architecture and its keys */

#endif
