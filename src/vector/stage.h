/* How levels lie in a fast code, so that a scan can look at a part first.
 *
 *   8 bits: scale    nibbles: the leading bits of axes, four to a nibble    the axes' other bits
 *
 * A nibble holds the leading bit of four axes, two bits of two, or four of one. Lists of codes are
 * packed in groups of rows, each group as
 *
 *   the rows' scales   blocks of 32 rows' nibbles   the rows' other bytes   rows that fill no block
 *
 * In a block, byte 16 j + i holds nibble j of row i (low half) and of row i + 16 (high half): one
 * register of table look-ups for 32 rows. A scan reads scales and nibbles of all rows, and the rest
 * of the few that may be near. */
#ifndef KM_VECTOR_STAGE_H
#define KM_VECTOR_STAGE_H
#include "vector/axes.h"

#define KM_STAGE_ROWS 32     /* of a block */
#define KM_STAGE_GROUP 1024  /* rows packed together */
#define KM_STAGE_SCALE 8     /* bits before the nibbles */

typedef struct km_stage {
    int64_t nibbles;          /* of a block; even */
    int32_t (*slot)[4];       /* (nibbles) the axes of a nibble, -1 where it has fewer */
    uint8_t *lead;            /* (padded) leading bits of an axis: 0, 1, 2 or 4 */
    int32_t *lead_at, *rest_at; /* (padded) where its leading and its other bits begin in a code */
    int64_t rest_byte;        /* the first byte of a code that blocks do not hold */
} km_stage;

/* Plans the codes of axes with levels. */
km_status km_stage_plan(km_stage *s, const km_axes *a);
void km_stage_free(km_stage *s);

/* The level of axis i in a code, and setting it in one whose bits are 0. */
uint32_t km_stage_get(const km_stage *s, const km_axes *a, const uint8_t *code, int64_t i);
void km_stage_put(const km_stage *s, const km_axes *a, uint8_t *code, int64_t i, uint32_t level);

/* One group of n rows of `bytes` each, n <= KM_STAGE_GROUP. */
void km_stage_pack(const km_stage *s, int64_t bytes, const uint8_t *codes, int64_t n,
                   uint8_t *packed);
void km_stage_unpack(const km_stage *s, int64_t bytes, const uint8_t *packed, int64_t n,
                     uint8_t *codes);
/* Row i of a packed group of n, as a plain code. */
void km_stage_row(const km_stage *s, int64_t bytes, const uint8_t *packed, int64_t n, int64_t i,
                  uint8_t *code);

#endif
