/* Classes of rows: data of many kinds is no Gaussian cloud but a union of them, each with principal axes
 * of its own. Rows are put into a few classes by k-means and then, in turns, each class gets its axes and
 * its shares of the bits, and each row goes to the class that codes it with the least error. A code says
 * its row's class. */
#include "vector/coder_impl.h"
#include "backend/cpu/nearest.h"
#include "base/alloc.h"
#include "vector/transform.h"
#include <math.h>

#define ROUNDS 3       /* of axes and assignments */
#define FEW 2          /* rows per dimension that a class' axes want */
#define MEANS 12       /* rounds of k-means */
#define MEAN_ROWS 8192 /* rows it looks at */

typedef struct learn {
    km_coder *c;
    const float *u;
    int64_t n, used;
    int32_t *label, *order; /* (n); order: rows sorted by class */
    int64_t start[KM_CODER_CLASSES + 1];
    float *sums;    /* (classes, dim, dim) second moments, upper triangles */
    double *matrix; /* (classes, dim, dim) */
    double *values; /* (classes, 3 dim) */
    km_status status[KM_CODER_CLASSES];
    float *space; /* (workers, KM_TURN_ROWS (dim + turned)) */
    int64_t stride;
} learn;

/* ---- A start ---- */

static int nearest(const float *x, const float *means, int k, int64_t dim) {
    int best = 0;
    float least = INFINITY;
    for (int j = 0; j < k; j++) {
        float d = km_simd_nearest()->distance(x, means + j * dim, dim);
        if (d < least) least = d, best = j;
    }
    return best;
}

static void sizes(const learn *l, int64_t i, float *x) {
    int64_t dim = l->c->dim;
    for (int64_t j = 0; j < dim; j++) x[j] = fabsf(l->u[i * dim + j]);
}

/* k-means of |u|, which tells which dimensions a row is large in: rows are residuals, so their means
 * tell nothing. */
static km_status start_classes(learn *l) {
    int64_t dim = l->c->dim, rows = l->n < MEAN_ROWS ? l->n : MEAN_ROWS;
    int k = l->c->classes;
    float *x = km_calloc((size_t)((rows + 2 * k + 1) * dim), sizeof *x);
    if (!x) return KM_ERR_MEMORY;
    float *means = x + rows * dim, *sums = means + k * dim, *one = sums + k * dim;
    for (int64_t i = 0; i < rows; i++) sizes(l, i * l->n / rows, x + i * dim);
    for (int j = 0; j < k; j++)
        memcpy(means + j * dim, x + (2 * j + 1) * rows / (2 * k) * dim, (size_t)dim * sizeof *x);
    for (int round = 0; round < MEANS; round++) {
        int64_t count[KM_CODER_CLASSES] = {0};
        memset(sums, 0, (size_t)(k * dim) * sizeof *sums);
        for (int64_t i = 0; i < rows; i++) {
            int j = nearest(x + i * dim, means, k, dim);
            km_simd_nearest()->add(sums + j * dim, x + i * dim, 1, dim);
            count[j]++;
        }
        for (int j = 0; j < k; j++)
            for (int64_t i = 0; i < dim && count[j]; i++)
                means[j * dim + i] = sums[j * dim + i] / (float)count[j];
    }
    for (int64_t i = 0; i < l->n; i++) {
        sizes(l, i, one);
        l->label[i] = nearest(one, means, k, dim);
    }
    km_free(x);
    return KM_OK;
}

/* ---- Axes ---- */

static void sort_rows(learn *l) {
    int64_t count[KM_CODER_CLASSES + 1] = {0}, at[KM_CODER_CLASSES];
    for (int64_t i = 0; i < l->used; i++) count[l->label[i] + 1]++;
    l->start[0] = 0;
    for (int k = 0; k < l->c->classes; k++) {
        at[k] = l->start[k];
        l->start[k + 1] = l->start[k] + count[k + 1];
    }
    for (int64_t i = 0; i < l->used; i++) l->order[at[l->label[i]]++] = (int32_t)i;
}

/* Rows [begin, end) of every class' second moments. */
static void moments(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    learn *l = arg;
    int64_t dim = l->c->dim;
    for (int k = 0; k < l->c->classes; k++) {
        float *sums = l->sums + k * dim * dim;
        memset(sums + begin * dim, 0, (size_t)((end - begin) * dim) * sizeof *sums);
        for (int64_t i = l->start[k]; i < l->start[k + 1]; i += 4) {
            const float *x[4], *from[4];
            for (int r = 0; r < 4; r++)
                x[r] = l->u + l->order[i + r < l->start[k + 1] ? i + r : i] * dim;
            for (int64_t j = begin; j < end; j++) {
                float w[4];
                for (int r = 0; r < 4; r++) {
                    w[r] = i + r < l->start[k + 1] ? x[r][j] : 0;
                    from[r] = x[r] + j;
                }
                km_simd_codes()->add4(sums + j * dim + j, from, w, dim - j);
            }
        }
    }
}

static void axes_of(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    learn *l = arg;
    km_coder *c = l->c;
    int64_t dim = c->dim;
    for (int64_t k = begin; k < end; k++) {
        const float *sums = l->sums + k * dim * dim;
        double *m = l->matrix + k * dim * dim, *value = l->values + k * 3 * dim;
        int64_t rows = l->start[k + 1] - l->start[k];
        double by = rows > 0 ? 1.0 / (double)rows : 0;
        for (int64_t i = 0; i < dim; i++)
            for (int64_t j = i; j < dim; j++)
                m[i * dim + j] = m[j * dim + i] = by * sums[i * dim + j];
        km_axes_free(&c->axes[k]);
        l->status[k] = KM_ERR_STATE;
        if (!km_eigen(dim, m, value, value + dim)) continue;
        for (int64_t i = 0; i < dim; i++) value[i] = value[i] > 0 ? value[i] : 0;
        if (value[0] == 0) { /* nobody is here: nothing is along its axes */
            memset(m, 0, (size_t)(dim * dim) * sizeof *m);
            for (int64_t i = 0; i < dim; i++) m[i * dim + i] = value[i] = 1;
        }
        l->status[k] = km_axes_make(&c->axes[k], dim, value, m, c->bytes * 8 - km_coder_head(c),
                                    c->trellis, km_coder_head(c));
    }
}

static void assign(void *arg, int64_t begin, int64_t end, int worker) {
    learn *l = arg;
    const km_coder *c = l->c;
    float *rows = l->space + worker * l->stride, *turned = rows + KM_TURN_ROWS * c->dim;
    for (int64_t first = begin; first < end; first += KM_TURN_ROWS) {
        int64_t n = end - first < KM_TURN_ROWS ? end - first : KM_TURN_ROWS;
        memcpy(rows, l->u + first * c->dim, (size_t)(n * c->dim) * sizeof *rows);
        km_coder_turn_rows(c, rows, turned);
        for (int64_t i = 0; i < n; i++)
            l->label[first + i] = km_coder_class(c, turned + i * c->turned);
    }
}

/* Axes from the first n rows. */
static km_status make_axes(learn *l, km_threads *t, int64_t n) {
    int64_t dim = l->c->dim;
    l->used = n;
    sort_rows(l);
    km_threads_for(t, dim, dim / 8 + 1, moments, l);
    km_threads_for(t, l->c->classes, 1, axes_of, l);
    for (int k = 0; k < l->c->classes; k++)
        if (l->status[k] != KM_OK) return l->status[k];
    l->c->turned = 0;
    for (int k = 0; k < l->c->classes; k++) l->c->turned += l->c->axes[k].padded;
    return KM_OK;
}

km_status km_classes_learn(km_coder *c, km_threads *t, const float *u, int64_t n) {
    int64_t square = c->dim * c->dim, k = c->classes;
    learn l = {.c = c, .u = u, .n = n};
    l.stride = KM_TURN_ROWS * (c->dim + k * (c->dim + KM_AXES_PAD));
    l.label = km_calloc((size_t)n * 2, sizeof *l.label);
    l.sums = km_alloc((size_t)(k * square) * sizeof *l.sums);
    l.matrix = km_alloc((size_t)(k * (square + 3 * c->dim)) * sizeof *l.matrix);
    l.space = km_calloc((size_t)(l.stride * km_threads_count(t)), sizeof *l.space);
    km_status s = l.label && l.sums && l.matrix && l.space ? KM_OK : KM_ERR_MEMORY;
    if (s == KM_OK) {
        l.order = l.label + n;
        l.values = l.matrix + k * square;
        if (k > 1) s = start_classes(&l);
    }
    /* Some of the rows are enough until the last round. */
    int64_t some = k * FEW * c->dim < n ? k * FEW * c->dim : n;
    if (s == KM_OK) s = make_axes(&l, t, k > 1 ? some : n);
    for (int round = 1; s == KM_OK && k > 1 && round < ROUNDS; round++) {
        int64_t rows = round + 1 < ROUNDS ? some : n;
        km_threads_for(t, rows, 64, assign, &l);
        s = make_axes(&l, t, rows);
    }
    km_free(l.label);
    km_free(l.sums);
    km_free(l.matrix);
    km_free(l.space);
    return s;
}
