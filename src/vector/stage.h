/* How levels lie in a fast code, so that a scan can look at the part that matters most first.
 *
 *   byte 0: scale    then a byte for each plane, the planes that tell most first
 *
 * Axes come in groups of eight that have the same number of bits, and a plane is one bit of each of
 * them. Lists of codes are packed in groups of rows, each as
 *
 *   the rows' scales   blocks of 32 rows' leading planes   the rows' other bytes   rows left over
 *
 * A leading plane is two nibbles. In a block, byte 16 j + i holds nibble j of row i (low half) and of
 * row i + 16 (high half): one register of table look-ups for 32 rows. A scan reads scales and leading
 * planes of all rows, and the rest of the few that may be near. */
#ifndef KM_VECTOR_STAGE_H
#define KM_VECTOR_STAGE_H
#include "vector/axes.h"

#define KM_STAGE_ROWS 32    /* of a block */
#define KM_STAGE_GROUP 1024 /* rows packed together */
#define KM_STAGE_AXES 8     /* of a plane */

typedef struct km_stage {
    int64_t groups, planes; /* groups of axes; planes of a code */
    int64_t nibbles;        /* of the leading planes, two each */
    int64_t rest_byte;      /* the first byte of a code that blocks do not hold */
    uint8_t *bits;          /* (groups, padded to an even number) bits of an axis */
    int32_t (*at)[8];       /* (groups likewise) the byte of each plane, highest bit first */
    int32_t (*plane)[2];    /* (planes) group and place: 0 for its highest bit */
} km_stage;

/* Plans the codes of axes with levels, whose bits are the same within each group. */
km_status km_stage_plan(km_stage *s, const km_axes *a);
void km_stage_free(km_stage *s);

/* The level of axis i in a code, and setting it in one whose bits are 0. */
uint32_t km_stage_get(const km_stage *s, const uint8_t *code, int64_t i);
void km_stage_put(const km_stage *s, uint8_t *code, int64_t i, uint32_t level);

/* One group of n rows of `bytes` each, n <= KM_STAGE_GROUP. */
void km_stage_pack(const km_stage *s, int64_t bytes, const uint8_t *codes, int64_t n,
                   uint8_t *packed);
void km_stage_unpack(const km_stage *s, int64_t bytes, const uint8_t *packed, int64_t n,
                     uint8_t *codes);
/* Row i of a packed group of n, as a plain code. */
void km_stage_row(const km_stage *s, int64_t bytes, const uint8_t *packed, int64_t n, int64_t i,
                  uint8_t *code);

#endif
