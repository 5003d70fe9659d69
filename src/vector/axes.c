/* Sharing bits (water-filling), and axes in bytes. */
#include "vector/axes.h"
#include "backend/cpu/codes.h"
#include "backend/cpu/nearest.h"
#include "base/alloc.h"
#include "vector/levels.h"
#include "vector/stage.h"
#include "vector/trellis.h"
#include <math.h>
#include <string.h>

#define LEAST_RATE 0.12 /* an axis that would get fewer bits is left out */

km_status km_axes_alloc(km_axes *a, int64_t dim, int64_t count, bool principal) {
    *a = (km_axes){.dim = dim, .count = count};
    a->padded = (count + KM_AXES_PAD - 1) / KM_AXES_PAD * KM_AXES_PAD;
    a->bits = km_calloc((size_t)a->padded, 1);
    a->amp = km_calloc((size_t)a->padded, sizeof *a->amp);
    if (principal) a->stored = km_alloc((size_t)(count * dim));
    if (a->bits && a->amp && (!principal || a->stored)) return KM_OK;
    km_axes_free(a);
    return KM_ERR_MEMORY;
}

void km_axes_free(km_axes *a) {
    km_free(a->bits);
    km_free(a->amp);
    km_free(a->stored);
    km_free(a->axis);
    km_free(a->at);
    *a = (km_axes){0};
}

/* ---- Bits ---- */

/* The water level at which `count` Gaussian axes take `bits` in all. */
static double water_level(const double *variance, int64_t count, double bits) {
    double lo = variance[0] * 1e-12, hi = variance[0];
    for (int i = 0; i < 80; i++) {
        double mid = sqrt(lo * hi), sum = 0;
        for (int64_t j = 0; j < count && variance[j] > mid; j++)
            sum += 0.5 * log2(variance[j] / mid);
        if (sum > bits)
            lo = mid;
        else
            hi = mid;
    }
    return hi;
}

static int64_t above(const double *variance, int64_t dim, double level) {
    int64_t n = 0;
    while (n < dim && variance[n] > level) n++;
    return n;
}

/* Rates that follow the water, rounded so that neighbours share what one alone cannot have. */
static int64_t trellis_bits(const double *variance, int64_t dim, int64_t bits, uint8_t *out,
                            double *level) {
    int64_t some = above(variance, dim, variance[0] * 1e-9);
    double water = water_level(variance, some, (double)bits);
    int64_t count = above(variance, some, water * exp2(2 * LEAST_RATE));
    if (count * KM_TRELLIS_RATE < bits) count = bits < some ? bits : some;
    if (count < 1) count = 1;
    water = water_level(variance, count, (double)bits);
    double sum = 0;
    int64_t given = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += fmax(0.5 * log2(variance[i] / water), 0);
        int64_t k = (int64_t)floor(sum + 1e-4) - given;
        if (k < 0) k = 0;
        if (k > KM_TRELLIS_RATE) k = KM_TRELLIS_RATE;
        out[i] = (uint8_t)k;
        given += k;
    }
    for (int64_t i = 0; given < bits && i < count; i++) { /* what the cap has left over */
        int64_t k =
            KM_TRELLIS_RATE - out[i] < bits - given ? KM_TRELLIS_RATE - out[i] : bits - given;
        out[i] = (uint8_t)(out[i] + k);
        given += k;
    }
    for (int64_t i = count - 1; given > bits && i >= 0; i--) {
        int64_t k = out[i] < given - bits ? out[i] : given - bits;
        out[i] = (uint8_t)(out[i] - k);
        given -= k;
    }
    *level = water;
    return count;
}

static double group_variance(const double *variance, int64_t dim, int64_t group) {
    double v = 0;
    for (int64_t i = group * KM_STAGE_AXES; i < (group + 1) * KM_STAGE_AXES && i < dim; i++)
        v += variance[i];
    return v;
}

/* One bit after the other to the group of eight axes where it saves most. The last group may be
 * short and takes as many bits as the others. */
static int64_t level_bits(const double *variance, int64_t dim, int64_t bits, uint8_t *out,
                          double *level) {
    double error[KM_LEVEL_BITS + 1];
    float unused[1 << KM_LEVEL_BITS];
    int64_t groups = (dim + KM_STAGE_AXES - 1) / KM_STAGE_AXES, left = bits / KM_STAGE_AXES;
    for (int b = 0; b <= KM_LEVEL_BITS; b++) error[b] = km_levels(b, unused);
    memset(out, 0, (size_t)dim);
    double lost = 0;
    for (bool more = true; more && left > 0;) {
        /* Groups are sorted, so of those with as many bits the first gains most; all whose gain is
         * within a hair of the best take a bit in this round. */
        double best = 0;
        for (int64_t g = 0; g < groups; g++) {
            const int b = out[g * KM_STAGE_AXES];
            double v = group_variance(variance, dim, g);
            if (b < KM_LEVEL_BITS) best = fmax(best, v * (error[b] - error[b + 1]));
        }
        more = best > 0;
        for (int64_t g = 0; more && g < groups && left > 0; g++) {
            const int b = out[g * KM_STAGE_AXES];
            double v = group_variance(variance, dim, g);
            if (b == KM_LEVEL_BITS || v * (error[b] - error[b + 1]) < best * (1 - 1e-9)) continue;
            for (int64_t i = g * KM_STAGE_AXES; i < (g + 1) * KM_STAGE_AXES && i < dim; i++)
                out[i] = (uint8_t)(b + 1);
            left--;
        }
    }
    int64_t count = 0;
    for (int64_t j = 0; j < dim; j++) {
        if (!out[j]) continue;
        count = j + 1;
        lost += variance[j] * error[out[j]];
    }
    if (count < 1) count = 1;
    *level = lost / (double)count;
    return count;
}

/* ---- Axes ---- */

static void store_axes(km_axes *a, const double *vectors) {
    for (int64_t i = 0; i < a->count; i++) {
        const double *v = vectors + i * a->dim;
        double top = 0;
        for (int64_t j = 0; j < a->dim; j++) top = fmax(top, fabs(v[j]));
        for (int64_t j = 0; j < a->dim; j++)
            a->stored[i * a->dim + j] = (int8_t)lrint(top > 0 ? v[j] / top * 127 : 0);
    }
}

/* Blocks of rows lose their parts along all rows before them, then along each other. */
static km_status orthonormal(km_axes *a) {
    enum { B = KM_TURN_ROWS };
    const km_nearest_kernels *k = km_simd_nearest();
    int64_t dim = a->dim, count = a->count;
    float *part = km_alloc((size_t)(B * (count + dim)) * sizeof *part);
    if (!part) return KM_ERR_MEMORY;
    float *rows = part + B * count;
    for (int64_t first = 0; first < count; first += B) {
        int64_t n = count - first < B ? count - first : B;
        float *block = a->axis + first * dim;
        memset(rows, 0, (size_t)(B * dim) * sizeof *rows);
        for (int64_t i = 0; i < n; i++) {
            float norm = sqrtf(k->square(block + i * dim, dim));
            k->add(rows + i * dim, block + i * dim, norm > 0 ? 1 / norm : 0, dim);
        }
        km_simd_codes()->turn(rows, a->axis, first, dim, part, count);
        for (int64_t i = 0; i < n; i++) {
            float *row = rows + i * dim;
            for (int64_t j = 0; j < first; j++)
                k->add(row, a->axis + j * dim, -part[i * count + j], dim);
            for (int64_t j = 0; j < i; j++) {
                const float *other = rows + j * dim;
                double s = 0;
                for (int64_t c = 0; c < dim; c++) s += (double)row[c] * other[c];
                k->add(row, other, (float)-s, dim);
            }
            float norm = sqrtf(k->square(row, dim));
            for (int64_t c = 0; c < dim; c++) row[c] = norm > 1e-4f ? row[c] / norm : 0;
        }
        memcpy(block, rows, (size_t)(n * dim) * sizeof *rows);
    }
    km_free(part);
    return KM_OK;
}

km_status km_axes_prepare(km_axes *a, bool trellis, int64_t first) {
    a->ring = 0;
    for (int64_t i = 0; i < a->count; i++) a->ring += a->bits[i];
    if (trellis) {
        a->at = km_calloc((size_t)a->padded * 2, sizeof *a->at);
        if (!a->at) return KM_ERR_MEMORY;
        a->table = a->at + a->padded;
        km_trellis_windows(a->count, a->bits, a->ring, a->at);
        for (int64_t i = 0; i < a->padded; i++) {
            a->at[i] += (int32_t)first;
            a->table[i] = a->bits[i] * KM_TRELLIS_STATES;
        }
    }
    if (!a->stored) return KM_OK;
    a->axis = km_alloc((size_t)(a->count * a->dim) * sizeof *a->axis);
    if (!a->axis) return KM_ERR_MEMORY;
    for (int64_t i = 0; i < a->count * a->dim; i++) a->axis[i] = a->stored[i];
    return orthonormal(a);
}

km_status km_axes_make(km_axes *a, int64_t dim, const double *variance, const double *vectors,
                       int64_t bits, bool trellis, int64_t first) {
    uint8_t *share = km_alloc((size_t)dim);
    double water = 0;
    *a = (km_axes){0};
    if (!share) return KM_ERR_MEMORY;
    int64_t count = trellis ? trellis_bits(variance, dim, bits, share, &water)
                            : level_bits(variance, dim, bits, share, &water);
    km_status s = km_axes_alloc(a, dim, vectors ? count : dim, vectors != NULL);
    if (s == KM_OK) {
        a->water = (float)water;
        memcpy(a->bits, share, (size_t)count);
        for (int64_t i = 0; i < count; i++)
            a->amp[i] = (float)sqrt(fmax(trellis ? variance[i] - water : variance[i], 0));
        if (vectors) store_axes(a, vectors);
        s = km_axes_prepare(a, trellis, first);
    }
    if (s != KM_OK) km_axes_free(a);
    km_free(share);
    return s;
}
