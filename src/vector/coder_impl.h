/* What a coder holds; shared by training, files and scans. A code is
 *
 *   8 bits: scale    class_bits: class    the class' ring of trellis bits
 *
 * lowest bit first, or for levels, which know no classes, what stage.h says. */
#ifndef KM_VECTOR_CODER_IMPL_H
#define KM_VECTOR_CODER_IMPL_H
#include "vector/axes.h"
#include "vector/coder.h"
#include "vector/levels.h"
#include "vector/stage.h"
#include "vector/trellis.h"
#include <stdbool.h>
#include <string.h>

#define KM_SCALE_BITS 8
#define KM_SCALE_STEPS 255  /* scale 0 is a residual of zero, then steps of a geometric row */
#define KM_CODER_CLASSES 16 /* at most */
#define KM_CODER_PAD 8      /* bytes that may be read behind a row made ready for a scan */

/* ---- Up to 8 bits at any place of a byte string, lowest first ---- */

static inline uint32_t km_bits_get(const uint8_t *p, int64_t at, int n) {
    if (n == 0) return 0;
    uint32_t v = p[at >> 3];
    if ((at & 7) + n > 8) v |= (uint32_t)p[(at >> 3) + 1] << 8;
    return v >> (at & 7) & ((1u << n) - 1);
}

/* Into bits that are 0. */
static inline void km_bits_put(uint8_t *p, int64_t at, int n, uint32_t v) {
    if (n == 0) return;
    p[at >> 3] |= (uint8_t)(v << (at & 7));
    if ((at & 7) + n > 8) p[(at >> 3) + 1] |= (uint8_t)(v >> (8 - (at & 7)));
}

struct km_coder {
    int64_t dim;
    int64_t bytes;
    km_code_mode mode;
    km_code_turn turn;
    uint64_t seed;
    double error;
    bool trellis;                /* or levels: fast codes, and dense ones too short for a ring */
    float scale_low, scale_step; /* scale of step b >= 1: scale_low * exp(scale_step * (b - 1)) */
    float lost;                  /* |r|^2 - |r^|^2 is about lost * scale^2 */
    int classes, class_bits;
    km_axes axes[KM_CODER_CLASSES];
    int64_t turned;           /* padded axes of all classes */
    float *signs;             /* of the Hadamard rotation, or NULL */
    const km_trellis *tables; /* or NULL */
    km_stage stage;           /* of levels */
    float scales[KM_SCALE_STEPS + 1];
    float levels[KM_LEVEL_BITS + 1][1 << KM_LEVEL_BITS];
};

static inline int64_t km_coder_head(const km_coder *c) { return KM_SCALE_BITS + c->class_bits; }

/* Fills what follows from the stored fields and prepared axes: scales, levels, signs, tables. */
km_status km_coder_prepare(km_coder *c, km_error *err);

/* rows (KM_TURN_ROWS, dim) to out (KM_TURN_ROWS, turned): the axes of all classes, each padded. Rows
 * are changed where the rotation is Hadamard's. */
void km_coder_turn_rows(const km_coder *c, float *rows, float *out);

/* The class that suits a row best: z (turned), of squared norm dim. */
int km_coder_class(const km_coder *c, const float *z);

static inline int km_code_class(const km_coder *c, const uint8_t *code) {
    return c->class_bits ? (int)km_bits_get(code, KM_SCALE_BITS, c->class_bits) : 0;
}

/* A code to `out` (bytes + KM_CODER_PAD), the ring's first bits repeated behind its last. */
void km_code_ready(const km_coder *c, const km_axes *a, const uint8_t *code, uint8_t *out);

/* A row's values (count), to be multiplied by scale and turned back. */
void km_code_values(const km_coder *c, const km_axes *a, const uint8_t *code, float *values);

/* Classes of rows (classes.c). Fills c->axes of c->classes classes from u (n, dim), rows of squared norm
 * dim; all other fields of c that its codes depend on are set. */
km_status km_classes_learn(km_coder *c, km_threads *t, const float *u, int64_t n);

#endif
