/* Planning and packing fast codes. */
#include "vector/stage.h"
#include "backend/cpu/codes.h"
#include "base/alloc.h"
#include "vector/levels.h"
#include <stdlib.h>
#include <string.h>

#define LEADING 0.85 /* planes lead until they hold this part of a row's energy */

/* ---- The plan ---- */

static double variance(const km_axes *a, int64_t group) {
    double v = 0;
    for (int64_t i = group * KM_STAGE_AXES; i < (group + 1) * KM_STAGE_AXES && i < a->count; i++)
        v += (double)a->amp[i] * a->amp[i];
    return v;
}

/* A plane, by what it adds to what is known of a row. */
typedef struct rank {
    double worth;
    int32_t group, place;
} rank;

static int by_worth(const void *x, const void *y) {
    const rank *a = x, *b = y;
    if (a->worth != b->worth) return a->worth < b->worth ? 1 : -1;
    return a->group < b->group ? -1 : a->group > b->group;
}

km_status km_stage_plan(km_stage *s, const km_axes *a) {
    *s = (km_stage){.groups = (a->count + KM_STAGE_AXES - 1) / KM_STAGE_AXES};
    size_t even = (size_t)(s->groups + 1) & ~(size_t)1;
    for (int64_t g = 0; g < s->groups; g++) s->planes += a->bits[g * KM_STAGE_AXES];
    s->bits = km_calloc(even, 1);
    s->at = km_calloc(even, sizeof *s->at);
    s->plane = km_calloc((size_t)s->planes + 1, sizeof *s->plane);
    rank *ranks = km_calloc((size_t)s->planes + 1, sizeof *ranks);
    double error[KM_LEVEL_BITS + 1], all = 0, held = 0;
    float unused[1 << KM_LEVEL_BITS];
    if (!s->bits || !s->at || !s->plane || !ranks) {
        km_free(ranks);
        km_stage_free(s);
        return KM_ERR_MEMORY;
    }
    for (int b = 0; b <= KM_LEVEL_BITS; b++) error[b] = km_levels(b, unused);
    for (int64_t g = 0, n = 0; g < s->groups; g++) {
        double v = variance(a, g);
        s->bits[g] = a->bits[g * KM_STAGE_AXES];
        all += v;
        for (int l = 0; l < s->bits[g]; l++)
            ranks[n++] = (rank){v * (error[l] - error[l + 1]), (int32_t)g, l};
    }
    qsort(ranks, (size_t)s->planes, sizeof *ranks, by_worth);
    int64_t lead = 0;
    for (int64_t j = 0; j < s->planes; j++) {
        rank r = ranks[j];
        s->plane[j][0] = r.group;
        s->plane[j][1] = r.place;
        s->at[r.group][r.place] = (int32_t)(1 + j);
        if (held < LEADING * all) lead = j + 1;
        held += r.worth;
    }
    s->nibbles = 2 * lead;
    s->rest_byte = 1 + lead;
    km_free(ranks);
    return KM_OK;
}

void km_stage_free(km_stage *s) {
    km_free(s->bits);
    km_free(s->at);
    km_free(s->plane);
    *s = (km_stage){0};
}

uint32_t km_stage_get(const km_stage *s, const uint8_t *code, int64_t i) {
    int64_t g = i / KM_STAGE_AXES;
    uint32_t level = 0;
    for (int l = 0; l < s->bits[g]; l++)
        level = level << 1 | (code[s->at[g][l]] >> (i % KM_STAGE_AXES) & 1);
    return level;
}

void km_stage_put(const km_stage *s, uint8_t *code, int64_t i, uint32_t level) {
    int64_t g = i / KM_STAGE_AXES;
    for (int l = 0; l < s->bits[g]; l++)
        code[s->at[g][l]] |= (uint8_t)((level >> (s->bits[g] - 1 - l) & 1) << (i % KM_STAGE_AXES));
}

/* ---- Packing ---- */

void km_stage_pack(const km_stage *s, int64_t bytes, const uint8_t *codes, int64_t n,
                   uint8_t *packed) {
    int64_t whole = n / KM_STAGE_ROWS * KM_STAGE_ROWS, rest = bytes - s->rest_byte;
    for (int64_t i = 0; i < whole; i++) packed[i] = codes[i * bytes];
    uint8_t *block = packed + whole;
    for (int64_t i = 0; i < whole; i += KM_STAGE_ROWS, block += s->nibbles * 16)
        km_simd_codes()->lay(codes + i * bytes + 1, bytes, KM_STAGE_ROWS, s->nibbles / 2, block);
    for (int64_t i = 0; i < whole; i++, block += rest)
        memcpy(block, codes + i * bytes + s->rest_byte, (size_t)rest);
    memcpy(block, codes + whole * bytes, (size_t)((n - whole) * bytes));
}

void km_stage_row(const km_stage *s, int64_t bytes, const uint8_t *packed, int64_t n, int64_t i,
                  uint8_t *code) {
    int64_t whole = n / KM_STAGE_ROWS * KM_STAGE_ROWS, rest = bytes - s->rest_byte;
    if (i >= whole) {
        memcpy(code, packed + i * bytes, (size_t)bytes);
        return;
    }
    const uint8_t *block = packed + whole + i / KM_STAGE_ROWS * s->nibbles * 16 + i % 16;
    int shift = i % KM_STAGE_ROWS < 16 ? 0 : 4;
    code[0] = packed[i];
    for (int64_t j = 0; j < s->nibbles; j += 2)
        code[1 + j / 2] =
            (uint8_t)((block[j * 16] >> shift & 15) | (block[(j + 1) * 16] >> shift & 15) << 4);
    memcpy(code + s->rest_byte, packed + whole * s->rest_byte + i * rest, (size_t)rest);
}

void km_stage_unpack(const km_stage *s, int64_t bytes, const uint8_t *packed, int64_t n,
                     uint8_t *codes) {
    for (int64_t i = 0; i < n; i++) km_stage_row(s, bytes, packed, n, i, codes + i * bytes);
}
