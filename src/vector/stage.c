/* Planning and packing fast codes. */
#include "vector/stage.h"
#include "base/alloc.h"
#include "vector/bits.h"
#include <string.h>

/* ---- The plan ---- */

/* Bit l of an axis is worth its variance / 4^l: leading are those worth at least `worth`. */
static int leading(const km_axes *a, int64_t i, double worth) {
    double v = (double)a->amp[i] * a->amp[i];
    int n = 0;
    while (n < a->bits[i] && n < 4 && v >= worth) v *= 0.25, n++;
    return n == 3 ? (a->bits[i] >= 4 ? 4 : 2) : n;
}

/* About a quarter of the bits lead, and at least one for every axis that is worth as much as the
 * mean: the first bits of axes that are all alike. */
static void choose_leading(km_stage *s, const km_axes *a) {
    double lo = 0, hi = 0;
    int64_t want = a->ring / 4, all = 0;
    for (int64_t i = 0; i < a->count; i++) {
        double v = (double)a->amp[i] * a->amp[i];
        if (v > hi) hi = v;
        all += a->bits[i] > 0;
    }
    if (want > all) want = all;
    hi *= 2;
    for (int round = 0; round < 60; round++) {
        double mid = 0.5 * (lo + hi);
        int64_t sum = 0;
        for (int64_t i = 0; i < a->count; i++) sum += leading(a, i, mid);
        if (sum < want) hi = mid;
        else lo = mid;
    }
    for (int64_t i = 0; i < a->count; i++) s->lead[i] = (uint8_t)leading(a, i, lo);
}

/* Fills nibbles with axes of `lead` leading bits; those that fill none lead no longer. */
static void fill_nibbles(km_stage *s, const km_axes *a, int lead) {
    int32_t some[4];
    int n = 0, each = 4 / lead;
    for (int64_t i = 0; i < a->count; i++) {
        if (s->lead[i] != lead) continue;
        some[n++] = (int32_t)i;
        if (n < each) continue;
        for (int j = 0; j < 4; j++) s->slot[s->nibbles][j] = j < each ? some[j] : -1;
        for (int j = 0; j < each; j++)
            s->lead_at[some[j]] = (int32_t)(KM_STAGE_SCALE + 4 * s->nibbles + lead * j);
        s->nibbles++;
        n = 0;
    }
    while (n > 0) s->lead[some[--n]] = 0;
}

km_status km_stage_plan(km_stage *s, const km_axes *a) {
    size_t n = (size_t)a->padded;
    *s = (km_stage){0};
    s->lead = km_calloc(n, 1);
    s->slot = km_calloc(n + 1, sizeof *s->slot);
    s->lead_at = km_calloc(2 * n, sizeof *s->lead_at);
    if (!s->lead || !s->slot || !s->lead_at) {
        km_stage_free(s);
        return KM_ERR_MEMORY;
    }
    s->rest_at = s->lead_at + n;
    choose_leading(s, a);
    for (int lead = 4; lead > 0; lead /= 2) fill_nibbles(s, a, lead);
    int64_t at = KM_STAGE_SCALE + 4 * s->nibbles;
    for (int64_t i = 0; i < a->count; i++) {
        if (s->lead[i] == 0) s->lead_at[i] = (int32_t)KM_STAGE_SCALE;
        s->rest_at[i] = (int32_t)at;
        at += a->bits[i] - s->lead[i];
        if (a->bits[i] == s->lead[i]) s->rest_at[i] = KM_STAGE_SCALE;
    }
    s->nibbles &= ~(int64_t)1; /* blocks hold whole bytes; an odd nibble is left to the rest */
    s->rest_byte = 1 + s->nibbles / 2;
    return KM_OK;
}

void km_stage_free(km_stage *s) {
    km_free(s->slot);
    km_free(s->lead);
    km_free(s->lead_at);
    *s = (km_stage){0};
}

/* The leading bits are the level's highest. */
uint32_t km_stage_get(const km_stage *s, const km_axes *a, const uint8_t *code, int64_t i) {
    int rest = a->bits[i] - s->lead[i];
    return km_bits_get(code, s->lead_at[i], s->lead[i]) << rest | km_bits_get(code, s->rest_at[i], rest);
}

void km_stage_put(const km_stage *s, const km_axes *a, uint8_t *code, int64_t i, uint32_t level) {
    int rest = a->bits[i] - s->lead[i];
    km_bits_put(code, s->lead_at[i], s->lead[i], level >> rest);
    km_bits_put(code, s->rest_at[i], rest, level & ((1u << rest) - 1));
}

/* ---- Packing ---- */

static uint8_t nibble(const uint8_t *code, int64_t j) {
    return code[1 + j / 2] >> (j % 2 * 4) & 15;
}

void km_stage_pack(const km_stage *s, int64_t bytes, const uint8_t *codes, int64_t n,
                   uint8_t *packed) {
    int64_t whole = n / KM_STAGE_ROWS * KM_STAGE_ROWS, rest = bytes - s->rest_byte;
    for (int64_t i = 0; i < whole; i++) packed[i] = codes[i * bytes];
    uint8_t *block = packed + whole;
    for (int64_t first = 0; first < whole; first += KM_STAGE_ROWS)
        for (int64_t j = 0; j < s->nibbles; j++)
            for (int64_t i = first; i < first + 16; i++)
                *block++ = (uint8_t)(nibble(codes + i * bytes, j) |
                                     nibble(codes + (i + 16) * bytes, j) << 4);
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
        code[1 + j / 2] = (uint8_t)((block[j * 16] >> shift & 15) |
                                    (block[(j + 1) * 16] >> shift & 15) << 4);
    memcpy(code + s->rest_byte, packed + whole * s->rest_byte + i * rest, (size_t)rest);
}

void km_stage_unpack(const km_stage *s, int64_t bytes, const uint8_t *packed, int64_t n,
                     uint8_t *codes) {
    for (int64_t i = 0; i < n; i++) km_stage_row(s, bytes, packed, n, i, codes + i * bytes);
}
