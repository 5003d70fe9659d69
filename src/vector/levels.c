/* Lloyd's conditions on the normal density, whose integrals are known in closed form. */
#include "vector/levels.h"
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#define COUNT (1 << KM_LEVEL_BITS)

enum { FIRST = 20 }; /* plain rounds before Newton's */

static double density(double x) { return 0.3989422804014327 * exp(-0.5 * x * x); }
static double below(double x) { return 0.5 * erfc(-x * 0.7071067811865476); }

/* One round: every level to the mean of its cell, or, by Newton's rule, to where all of them would
 * be such means. A cell's mean m over (a, b) depends on its own level and its neighbours' alone, so
 * the system is tridiagonal: dm/da = f(a)(m - a)/mass, dm/db = f(b)(b - m)/mass. Plain rounds take
 * thousands where there are many levels, Newton's a few once it is near. Returns the largest move. */
static double step(double *x, int half, bool newton, double *error) {
    double low[COUNT / 2], diagonal[COUNT / 2], high[COUNT / 2], want[COUNT / 2], kept = 0;
    for (int i = 0; i < half; i++) {
        double a = i ? 0.5 * (x[i - 1] + x[i]) : 0, fa = density(a), b = 0, fb = 0;
        double mass = below(-a);
        if (i + 1 < half) {
            b = 0.5 * (x[i] + x[i + 1]);
            fb = density(b);
            mass -= below(-b);
        }
        double m = (fa - fb) / mass;
        low[i] = i ? -0.5 * fa * (m - a) / mass : 0; /* the lowest border stays at 0 */
        high[i] = -0.5 * fb * (b - m) / mass;
        diagonal[i] = 1 + low[i] + high[i];
        want[i] = m - x[i];
        kept += 2 * mass * m * m;
    }
    *error = 1 - kept; /* each level is its cell's mean */
    if (newton) {      /* elimination, top to bottom and back */
        for (int i = 1; i < half; i++) {
            double f = low[i] / diagonal[i - 1];
            diagonal[i] -= f * high[i - 1];
            want[i] -= f * want[i - 1];
        }
        want[half - 1] /= diagonal[half - 1];
        for (int i = half - 2; i >= 0; i--)
            want[i] = (want[i] - high[i] * want[i + 1]) / diagonal[i];
    }
    double moved = 0;
    for (int i = 0; i < half; i++) {
        x[i] += want[i];
        moved = fmax(moved, fabs(want[i]));
    }
    return moved;
}

static double work_out(int bits, float *levels) {
    int n = 1 << bits, half = n / 2;
    if (bits == 0) {
        levels[0] = 0.0f;
        return 1.0;
    }
    /* The positive half only: the other mirrors it. The start is the density's cube root, which is
     * right for many levels (Panter and Dite). */
    double x[COUNT / 2];
    for (int i = 0; i < half; i++) {
        double p = (i + 0.5) / half, lo = 0, hi = 12;
        for (int k = 0; k < 60; k++) {
            double mid = 0.5 * (lo + hi);
            if (2 * below(mid / 1.7320508075688772) - 1 < p)
                lo = mid;
            else
                hi = mid;
        }
        x[i] = lo;
    }
    double error = 1;
    for (int round = 0; round < 20000; round++) {
        double moved = step(x, half, round >= FIRST, &error);
        if (moved < 1e-10) break;
    }
    for (int i = 0; i < half; i++) {
        levels[half + i] = (float)x[i];
        levels[half - 1 - i] = (float)-x[i];
    }
    return error;
}

/* They take a moment and never change, so they are worked out once. */
static struct {
    float levels[COUNT];
    double error;
} known[KM_LEVEL_BITS + 1];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void work_out_all(void) {
    for (int b = 0; b <= KM_LEVEL_BITS; b++) known[b].error = work_out(b, known[b].levels);
}

double km_levels(int bits, float *levels) {
    pthread_once(&once, work_out_all);
    memcpy(levels, known[bits].levels, sizeof *levels << bits);
    return known[bits].error;
}

int km_level_of(int bits, const float *levels, float x) {
    int lo = 0;
    for (int step = (1 << bits) / 2; step > 0; step /= 2) {
        int mid = lo + step;
        if (x >= 0.5f * (levels[mid - 1] + levels[mid])) lo = mid;
    }
    return lo;
}

/* +1 or -1: bit l of index i, the highest first. */
static double sign(int bits, int i, int l) { return i >> (bits - 1 - l) & 1 ? 1 : -1; }

void km_level_planes(int bits, const float *levels, int lead, float *weight, double *along,
                     double *square) {
    int n = 1 << bits;
    double mass[COUNT], low = 0, m[KM_LEVEL_BITS][KM_LEVEL_BITS + 1] = {{0}};
    for (int i = 0; i < n; i++) {
        double high = i + 1 < n ? below(0.5 * ((double)levels[i] + levels[i + 1])) : 1;
        mass[i] = high - low;
        low = high;
        for (int l = 0; l < lead; l++) {
            for (int k = 0; k < lead; k++) m[l][k] += mass[i] * sign(bits, i, l) * sign(bits, i, k);
            m[l][lead] += mass[i] * sign(bits, i, l) * levels[i];
        }
    }
    for (int l = 0; l < lead; l++) /* least squares: a small positive definite system */
        for (int k = 0; k < lead; k++) {
            double f = m[k][l] / m[l][l];
            for (int j = l; j <= lead && k != l; j++) m[k][j] -= f * m[l][j];
        }
    for (int l = 0; l < lead; l++) weight[l] = (float)(m[l][lead] / m[l][l]);
    km_level_estimate(bits, levels, lead, weight, along, square);
}

void km_level_estimate(int bits, const float *levels, int lead, const float *weight, double *along,
                       double *square) {
    int n = 1 << bits;
    double low = 0;
    *along = *square = 0;
    for (int i = 0; i < n; i++) {
        double high = i + 1 < n ? below(0.5 * ((double)levels[i] + levels[i + 1])) : 1, e = 0;
        for (int l = 0; l < lead; l++) e += sign(bits, i, l) * weight[l];
        *along += (high - low) * levels[i] * e;
        *square += (high - low) * e * e;
        low = high;
    }
}
