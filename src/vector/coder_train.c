/* Training a coder: the transforms that may serve are tried on rows held out, and the best is kept. */
#include "base/alloc.h"
#include "vector/coder_impl.h"
#include <math.h>

#define TRAIN_FLOATS (20 << 20) /* of the rows looked at */
#define HELD_OUT 256            /* rows that transforms are compared on */
#define MEASURED 1024           /* rows that tell what is lost */
#define PCA_DIM 1536            /* beyond it principal axes take too long and too much room */

typedef struct trial {
    km_threads *t;
    const km_coder_options *o;
    int64_t dim, n, held;
    float *u, *scale; /* (n, dim), (n): rows of squared norm dim; the held ones come last */
    float low, step;  /* of scales */
} trial;

/* Rows spread over all, each with its scale; those of zero norm tell nothing and are left out. */
static km_status take_rows(trial *x, const float *residuals, int64_t all) {
    int64_t dim = x->dim, most = TRAIN_FLOATS / dim > 4096 ? TRAIN_FLOATS / dim : 4096;
    int64_t n = all < most ? all : most, held = n / 8 < HELD_OUT ? n / 8 : HELD_OUT;
    double low = INFINITY, high = 0;
    x->u = km_alloc((size_t)(n * dim) * sizeof *x->u);
    x->scale = km_alloc((size_t)n * sizeof *x->scale);
    if (!x->u || !x->scale) return KM_ERR_MEMORY;
    /* Held-out rows stand at the end: every (n / held)th. */
    int64_t nth = held ? n / held : n + 1, front = 0, back = n, kept = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t from = (int64_t)((double)i * (double)all / (double)n);
        const float *r = residuals + from * dim;
        double norm = 0;
        for (int64_t j = 0; j < dim; j++) norm += (double)r[j] * r[j];
        norm = sqrt(norm / (double)dim);
        if (!(norm > 1e-30)) continue;
        bool hold = i % nth == nth - 1 && n - back < held;
        int64_t to = hold ? --back : front++;
        kept++;
        for (int64_t j = 0; j < dim; j++) x->u[to * dim + j] = (float)(r[j] / norm);
        x->scale[to] = (float)norm;
        low = fmin(low, norm);
        high = fmax(high, norm);
    }
    if (front < back && kept > front) { /* close the gap that zero rows have left */
        memmove(x->u + front * dim, x->u + back * dim, (size_t)((n - back) * dim) * sizeof *x->u);
        memmove(x->scale + front, x->scale + back, (size_t)(n - back) * sizeof *x->scale);
    }
    x->n = kept;
    x->held = kept - front;
    if (kept == 0) low = high = 1;
    low = fmax(low, high * 1e-3) * 0.5;
    high *= 2;
    x->low = (float)low;
    x->step = (float)(log(high / low) / (KM_SCALE_STEPS - 1));
    return KM_OK;
}

static km_coder *shell(const trial *x, km_code_turn turn, int classes) {
    km_coder *c = km_calloc(1, sizeof *c);
    if (!c) return NULL;
    c->dim = x->dim;
    c->mode = x->o->mode;
    c->turn = turn;
    c->seed = x->o->seed;
    c->classes = classes;
    while (1 << c->class_bits < classes) c->class_bits++;
    int64_t most = (km_coder_head(c) + x->dim * KM_LEVEL_BITS + 7) / 8;
    c->bytes = (int64_t)fmin(x->o->bytes, (double)most);
    c->trellis = c->mode == KM_CODE_DENSE && c->bytes * 8 - km_coder_head(c) >= KM_TRELLIS_LENGTH &&
                 x->dim * KM_TRELLIS_RATE >= KM_TRELLIS_LENGTH;
    c->scale_low = x->low;
    c->scale_step = x->step;
    return c;
}

/* A coder of the given kind from the first n rows of the trial. */
static km_coder *build(const trial *x, km_code_turn turn, int classes, int64_t n, km_error *err) {
    km_coder *c = shell(x, turn, classes);
    km_status s = c ? KM_OK : KM_ERR_MEMORY;
    if (s == KM_OK && turn == KM_TURN_PCA) {
        s = km_classes_learn(c, x->t, x->u, n);
    } else if (s == KM_OK) {
        double *variance = km_alloc((size_t)x->dim * sizeof *variance);
        s = variance ? KM_OK : KM_ERR_MEMORY;
        for (int64_t i = 0; variance && i < x->dim; i++) variance[i] = 1;
        if (s == KM_OK)
            s = km_axes_make(&c->axes[0], x->dim, variance, NULL, c->bytes * 8 - km_coder_head(c),
                             c->trellis, km_coder_head(c));
        km_free(variance);
    }
    for (int k = 0; s == KM_OK && k < classes; k++)
        if (c->trellis && c->axes[k].ring < KM_TRELLIS_LENGTH) s = KM_ERR_STATE;
    if (s == KM_OK) s = km_coder_prepare(c, err);
    if (s != KM_OK) {
        if (s != KM_ERR_STATE) km_error_set(err, s, "coder: out of memory");
        km_coder_free(c);
        return NULL;
    }
    return c;
}

/* Codes rows [first, first + n) and tells the mean squared error; sets c->lost on the way. */
static double try_rows(const trial *x, km_coder *c, int64_t first, int64_t n, km_error *err) {
    int64_t dim = x->dim;
    float *r = km_alloc((size_t)(n * dim) * sizeof *r);
    float *back = km_alloc((size_t)(n * dim) * sizeof *back);
    uint8_t *codes = km_alloc((size_t)(n * c->bytes));
    double error = 0, lost = 0, scales = 0;
    if (!r || !back || !codes) goto memory;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < dim; j++)
            r[i * dim + j] = x->u[(first + i) * dim + j] * x->scale[first + i];
    if (km_coder_encode(c, x->t, r, n, codes) || km_coder_decode(c, x->t, codes, n, back))
        goto memory;
    for (int64_t i = 0; i < n; i++) {
        double s = c->scales[codes[i * c->bytes]];
        scales += s * s;
        for (int64_t j = 0; j < dim; j++) {
            double a = r[i * dim + j], b = back[i * dim + j];
            error += (a - b) * (a - b);
            lost += a * a - b * b;
        }
    }
    c->lost = scales > 0 ? (float)(lost / scales) : 0;
    km_free(r);
    km_free(back);
    km_free(codes);
    return error / (double)n;
memory:
    km_free(r);
    km_free(back);
    km_free(codes);
    km_error_set(err, KM_ERR_MEMORY, "coder: out of memory");
    return NAN;
}

/* As many classes as rows can fill and as take at most half of what the codes take. */
static int affordable_classes(const trial *x, int64_t n) {
    double rows = (double)(x->o->rows > 0 ? x->o->rows : n), dim = (double)x->dim;
    double axes = fmin(dim, x->o->bytes * 8 * 0.5);
    int k = 1;
    while (2 * k <= KM_CODER_CLASSES && 2 * k * axes * dim <= 0.6 * rows * x->o->bytes &&
           2 * k * x->dim <= x->n)
        k *= 2;
    return k;
}

km_coder *km_coder_train(km_threads *t, const float *residuals, int64_t n,
                         const km_coder_options *o, km_error *err) {
    trial x = {.t = t, .o = o, .dim = o->dim};
    km_coder *best = NULL;
    km_error own = {0};
    if (!err) err = &own;
    if (o->dim < 1 || o->dim > KM_CODER_MAX_DIM || n < 1 || !(o->bytes >= 1)) {
        km_error_set(err, KM_ERR_RANGE, "coder: %lld rows of %lld in %g bytes", (long long)n,
                     (long long)o->dim, o->bytes);
        return NULL;
    }
    if (take_rows(&x, residuals, n) != KM_OK) {
        km_error_set(err, KM_ERR_MEMORY, "coder: out of memory for a sample");
        goto done;
    }
    int many = o->mode == KM_CODE_DENSE && o->bytes >= 8 ? affordable_classes(&x, n) : 1;
    bool choose = o->turn == KM_TURN_AUTO && x.held > 0;
    bool pca = o->turn != KM_TURN_HADAMARD && x.dim <= PCA_DIM && x.n > 1 && o->bytes >= 2 &&
               (choose || o->turn == KM_TURN_PCA);
    double least = INFINITY;
    struct kind {
        km_code_turn turn;
        int classes;
    } kinds[3], won = {KM_TURN_HADAMARD, 1};
    int count = 0;
    if (o->turn != KM_TURN_PCA || !pca) kinds[count++] = (struct kind){KM_TURN_HADAMARD, 1};
    if (pca) kinds[count++] = (struct kind){KM_TURN_PCA, many};
    int64_t fit = choose ? x.n - x.held : x.n;
    for (int i = 0; i < count && err->code == KM_OK; i++) {
        km_coder *c = build(&x, kinds[i].turn, kinds[i].classes, fit, err);
        double e = c && choose ? try_rows(&x, c, fit, x.held, err) : 0;
        if (c && e < least) {
            least = e;
            won = kinds[i];
            km_coder_free(best);
            best = c;
        } else {
            km_coder_free(c);
        }
    }
    if (best && fit < x.n && won.turn == KM_TURN_PCA && won.classes == 1 && err->code == KM_OK) {
        km_coder_free(best); /* once more, from all rows */
        best = build(&x, won.turn, won.classes, x.n, err);
    }
    if (!best && err->code == KM_OK) best = build(&x, KM_TURN_HADAMARD, 1, x.n, err);
    if (best && x.n > 0) best->error = try_rows(&x, best, 0, x.n < MEASURED ? x.n : MEASURED, err);
    if (err->code != KM_OK) {
        km_coder_free(best);
        best = NULL;
    }
done:
    km_free(x.u);
    km_free(x.scale);
    return best;
}
