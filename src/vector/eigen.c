/* Rows of `a` are kept contiguous throughout: the reflections that make the matrix tridiagonal are
 * stored in its lower rows, multiplied out from the last to the first, and the rotations of the QL
 * steps then act on pairs of rows of the transposed product. */
#include "vector/transform.h"
#include <math.h>
#include <string.h>

#define MAX_STEPS 60

static double dot(int64_t n, const double *x, const double *y) {
    double s[4] = {0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++) s[j] += x[i + j] * y[i + j];
    for (; i < n; i++) s[0] += x[i] * y[i];
    return (s[0] + s[1]) + (s[2] + s[3]);
}

static void add(int64_t n, double f, const double *x, double *y) {
    for (int64_t i = 0; i < n; i++) y[i] += f * x[i];
}

/* Row i of `a` (its first i numbers) is reflected onto its last: with v the reflection's vector of
 * length sqrt 2, A - v w' - w v' for the leading block. v replaces the row; all zero: none. */
static void tridiagonal(int64_t n, double *a, double *diagonal, double *side, double *w) {
    for (int64_t i = n - 1; i > 0; i--) {
        double *v = a + i * n;
        double rest = dot(i - 1, v, v), last = v[i - 1];
        diagonal[i] = v[i];
        if (rest == 0) {
            side[i] = last;
            memset(v, 0, (size_t)i * sizeof *v);
            continue;
        }
        double norm = sqrt(rest + last * last);
        side[i] = last > 0 ? -norm : norm;
        v[i - 1] = last - side[i];
        double scale = sqrt(2 / (rest + v[i - 1] * v[i - 1]));
        for (int64_t j = 0; j < i; j++) v[j] *= scale;
        memset(w, 0, (size_t)i * sizeof *w); /* w = A v from the lower triangle */
        for (int64_t j = 0; j < i; j++) {
            const double *row = a + j * n;
            w[j] += dot(j, row, v) + row[j] * v[j];
            add(j, v[j], row, w);
        }
        add(i, -0.5 * dot(i, v, w), v, w);
        for (int64_t j = 0; j < i; j++) {
            add(j + 1, -v[j], w, a + j * n);
            add(j + 1, -w[j], v, a + j * n);
        }
    }
    diagonal[0] = a[0];
    side[0] = 0;
}

/* The product of the reflections, transposed: row k will become eigenvector k. */
static void accumulate(int64_t n, double *a, double *w) {
    a[0] = 1;
    for (int64_t i = 1; i < n; i++) { /* the leading (i, i) block is done */
        double *v = a + i * n;
        memcpy(w, v, (size_t)i * sizeof *w);
        for (int64_t k = 0; k < i; k++) add(i, -dot(i, a + k * n, w), w, a + k * n);
        for (int64_t k = 0; k < i; k++) a[k * n + i] = 0;
        memset(v, 0, (size_t)i * sizeof *v);
        v[i] = 1;
    }
}

static void turn_rows(int64_t n, double *p, double *q, double c, double s) {
    for (int64_t i = 0; i < n; i++) {
        double x = p[i], y = q[i];
        p[i] = c * x - s * y;
        q[i] = s * x + c * y;
    }
}

/* QL with Wilkinson's shift; side[i] couples i and i + 1. */
static bool settle(int64_t n, double *d, double *side, double *a) {
    double top = 0; /* what is nothing beside this is nothing, also where the diagonal is 0 */
    for (int64_t i = 0; i < n; i++) top = fmax(top, fabs(d[i]) + fabs(side[i]));
    for (int64_t l = 0; l < n; l++) {
        for (int step = 0;; step++) {
            int64_t m = l;
            while (m + 1 < n && fabs(side[m]) > 1e-16 * (fabs(d[m]) + fabs(d[m + 1]) + 0.1 * top))
                m++;
            if (m == l) break;
            if (step == MAX_STEPS) return false;
            double half = (d[l + 1] - d[l]) / (2 * side[l]), r = hypot(half, 1);
            double g = d[m] - d[l] + side[l] / (half + (half < 0 ? -r : r));
            double s = 1, c = 1, shift = 0;
            int64_t i = m - 1;
            for (; i >= l; i--) {
                double f = s * side[i], b = c * side[i];
                r = hypot(f, g);
                side[i + 1] = r;
                if (r == 0) {
                    d[i + 1] -= shift;
                    side[m] = 0;
                    break;
                }
                s = f / r;
                c = g / r;
                g = d[i + 1] - shift;
                r = (d[i] - g) * s + 2 * c * b;
                shift = s * r;
                d[i + 1] = g + shift;
                g = c * r - b;
                turn_rows(n, a + i * n, a + (i + 1) * n, c, s);
            }
            if (i >= l) continue;
            d[l] -= shift;
            side[l] = g;
            side[m] = 0;
        }
    }
    return true;
}

bool km_eigen(int64_t n, double *a, double *value, double *work) {
    if (n == 1) {
        value[0] = a[0];
        a[0] = 1;
        return true;
    }
    double *side = work, *w = work + n;
    tridiagonal(n, a, value, side, w);
    accumulate(n, a, w);
    memmove(side, side + 1, (size_t)(n - 1) * sizeof *side);
    side[n - 1] = 0;
    if (!settle(n, value, side, a)) return false;
    for (int64_t i = 0; i < n; i++) { /* largest first */
        int64_t top = i;
        for (int64_t j = i + 1; j < n; j++)
            if (value[j] > value[top]) top = j;
        if (top == i) continue;
        double v = value[i];
        value[i] = value[top];
        value[top] = v;
        memcpy(w, a + i * n, (size_t)n * sizeof *w);
        memcpy(a + i * n, a + top * n, (size_t)n * sizeof *w);
        memcpy(a + top * n, w, (size_t)n * sizeof *w);
    }
    return true;
}
