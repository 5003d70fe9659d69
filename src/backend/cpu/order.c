/* Sort, top-k, running sums and one-hot rows; threads share out lines. Elements become keys whose
 * order as whole numbers is that of the values (NaN last), with the place behind them, so that all keys
 * differ: a few are selected by partition, many sorted by radix. 64-bit integers take 16 bytes a key. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/split.h"
#include <string.h>

typedef struct order_call {
    const char *x;
    char *out;
    int64_t *index;
    km_dtype dtype;
    size_t size;
    int64_t n, k, inner;
    bool flip; /* descending; of cumsum: from the end */
    char *scratch;
    size_t each; /* of a thread */
} order_call;

/* ---- Keys of 32 bits with places of 32 behind them ---- */

static inline uint32_t float_key(uint32_t bits) {
    if ((bits & 0x7fffffffu) > 0x7f800000u) return UINT32_MAX; /* NaN */
    if (bits == 0x80000000u) bits = 0;                         /* -0 is 0 */
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static inline uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static uint32_t key_at(const order_call *c, const char *p) {
    switch (c->dtype) {
    case KM_F32: return float_key(bits_of(*(const float *)(const void *)p));
    case KM_F16: return float_key(bits_of(km_f16_to_f32(*(const uint16_t *)(const void *)p)));
    case KM_BF16: return float_key((uint32_t) * (const uint16_t *)(const void *)p << 16);
    case KM_I32: return (uint32_t) * (const int32_t *)(const void *)p ^ 0x80000000u;
    case KM_I8: return (uint8_t)(*p ^ 0x80);
    case KM_BOOL: return *p != 0;
    default: return (uint8_t)*p;
    }
}

/* Brings the k smallest of a[0..n) to its front, in any order. All differ. */
static void select_few(uint64_t *a, int64_t n, int64_t k) {
    int64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        uint64_t x = a[lo], y = a[lo + (hi - lo) / 2], z = a[hi];
        uint64_t pivot = x < y ? (y < z ? y : x < z ? z : x) : (x < z ? x : y < z ? z : y);
        int64_t i = lo, j = hi;
        while (i <= j) {
            while (a[i] < pivot) i++;
            while (a[j] > pivot) j--;
            if (i <= j) {
                uint64_t t = a[i];
                a[i++] = a[j];
                a[j--] = t;
            }
        }
        if (k - 1 <= j)
            hi = j;
        else if (k - 1 >= i)
            lo = i;
        else
            return;
    }
}

static void insertion_sort(uint64_t *a, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        uint64_t v = a[i];
        int64_t j = i;
        for (; j > 0 && a[j - 1] > v; j--) a[j] = a[j - 1];
        a[j] = v;
    }
}

/* By radix, byte after byte of the upper half; places are in order already where they came so. */
static void radix_sort(uint64_t *a, uint64_t *b, int64_t n, int first_byte) {
    uint64_t *from = a, *to = b;
    for (int byte = first_byte; byte < 8; byte++) {
        int64_t count[256] = {0}, at = 0;
        for (int64_t i = 0; i < n; i++) count[from[i] >> 8 * byte & 255]++;
        if (count[from[0] >> 8 * byte & 255] == n) continue;
        for (int v = 0; v < 256; v++) {
            int64_t here = count[v];
            count[v] = at;
            at += here;
        }
        for (int64_t i = 0; i < n; i++) to[count[from[i] >> 8 * byte & 255]++] = from[i];
        uint64_t *t = from;
        from = to;
        to = t;
    }
    if (from != a) memcpy(a, from, (size_t)n * sizeof *a);
}

static void sort_keys(uint64_t *a, uint64_t *b, int64_t n, int64_t k) {
    bool few = k < n / 4;
    if (few) select_few(a, n, k);
    if (k <= 48 && (few || n <= 48))
        insertion_sort(a, few ? k : n);
    else /* a selection leaves places in any order: all bytes count then */
        radix_sort(a, b, few ? k : n, few ? 0 : 4);
}

static void sort_lines(void *arg, int64_t begin, int64_t end, int worker) {
    const order_call *c = arg;
    uint64_t *keys = (uint64_t *)(void *)(c->scratch + (size_t)worker * c->each);
    uint32_t flip = c->flip ? UINT32_MAX : 0;
    for (int64_t line = begin; line < end; line++) {
        int64_t o = line / c->inner, i = line % c->inner;
        const char *x = c->x + (size_t)(o * c->n * c->inner + i) * c->size;
        size_t step = (size_t)c->inner * c->size;
        for (int64_t j = 0; j < c->n; j++)
            keys[j] = (uint64_t)(key_at(c, x + (size_t)j * step) ^ flip) << 32 | (uint64_t)j;
        sort_keys(keys, keys + c->n, c->n, c->k);
        int64_t at = o * c->k * c->inner + i;
        for (int64_t j = 0; j < c->k; j++) {
            int64_t place = (int64_t)(keys[j] & UINT32_MAX);
            memcpy(c->out + (size_t)(at + j * c->inner) * c->size, x + (size_t)place * step,
                   c->size);
            c->index[at + j * c->inner] = place;
        }
    }
}

/* ---- 64-bit integers ---- */

typedef struct wide_key {
    uint64_t key;
    int64_t place;
} wide_key;

/* Stable, so equals stay in the order of their places. */
static wide_key *radix_sort_wide(wide_key *from, wide_key *to, int64_t n) {
    for (int byte = 0; byte < 8; byte++) {
        int64_t count[256] = {0}, at = 0;
        for (int64_t i = 0; i < n; i++) count[from[i].key >> 8 * byte & 255]++;
        if (count[from[0].key >> 8 * byte & 255] == n) continue;
        for (int v = 0; v < 256; v++) {
            int64_t here = count[v];
            count[v] = at;
            at += here;
        }
        for (int64_t i = 0; i < n; i++) to[count[from[i].key >> 8 * byte & 255]++] = from[i];
        wide_key *t = from;
        from = to;
        to = t;
    }
    return from;
}

static void sort_wide_lines(void *arg, int64_t begin, int64_t end, int worker) {
    const order_call *c = arg;
    wide_key *keys = (wide_key *)(void *)(c->scratch + (size_t)worker * c->each);
    const int64_t *all = (const int64_t *)(const void *)c->x;
    int64_t *out = (int64_t *)(void *)c->out;
    uint64_t flip = c->flip ? UINT64_MAX : 0;
    for (int64_t line = begin; line < end; line++) {
        int64_t o = line / c->inner, i = line % c->inner;
        const int64_t *x = all + o * c->n * c->inner + i;
        for (int64_t j = 0; j < c->n; j++)
            keys[j] = (wide_key){((uint64_t)x[j * c->inner] ^ (uint64_t)1 << 63) ^ flip, j};
        const wide_key *sorted = radix_sort_wide(keys, keys + c->n, c->n);
        int64_t at = o * c->k * c->inner + i;
        for (int64_t j = 0; j < c->k; j++) {
            out[at + j * c->inner] = x[sorted[j].place * c->inner];
            c->index[at + j * c->inner] = sorted[j].place;
        }
    }
}

static km_status sort(km_ctx *ctx, const km_call *call) {
    const km_tensor *x = call->in[0];
    km_axis_split s = km_split_at(x->shape, call->p->axis);
    bool wide = x->dtype == KM_I64;
    if (x->dtype == KM_F64 || s.n > UINT32_MAX) return KM_ERR_UNSUPPORTED;
    order_call c = {.x = km_tensor_ptr(x),
                    .out = km_tensor_ptr(call->out[0]),
                    .index = km_tensor_ptr(call->out[1]),
                    .dtype = x->dtype,
                    .size = km_dtype_size(x->dtype),
                    .n = s.n,
                    .k = call->p->n[KM_N_TOP_K],
                    .inner = s.inner,
                    .flip = call->p->n[KM_N_FALLING] != 0};
    int64_t lines = s.outer * s.inner;
    if (lines == 0 || c.k == 0) return KM_OK;
    c.each = ((size_t)s.n * 2 * (wide ? sizeof(wide_key) : sizeof(uint64_t)) + 127) / 64 * 64;
    int64_t grain = km_grain(s.n * 32);
    c.scratch = km_ctx_scratch(ctx, c.each * (size_t)km_useful_threads(ctx, lines, grain));
    if (!c.scratch) return KM_ERR_MEMORY;
    km_threads_for(ctx->threads, lines, grain, wide ? sort_wide_lines : sort_lines, &c);
    return KM_OK;
}

/* ---- Running sums: floats in f64, so that long lines lose nothing ---- */

#define SUM_LINE(T, A, load, store)                                                                \
    do {                                                                                           \
        const T *x = (const T *)(const void *)c->x + at;                                           \
        T *out = (T *)(void *)c->out + at;                                                         \
        A sum = 0;                                                                                 \
        for (int64_t k = 0; k < c->n; k++) {                                                       \
            int64_t j = (c->flip ? c->n - 1 - k : k) * c->inner;                                   \
            sum += load(x[j]);                                                                     \
            out[j] = store(sum);                                                                   \
        }                                                                                          \
    } while (0)

static inline uint16_t to_f16(double v) { return km_f32_to_f16((float)v); }
static inline uint16_t to_bf16(double v) { return km_f32_to_bf16((float)v); }

static void sum_lines(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const order_call *c = arg;
    for (int64_t line = begin; line < end; line++) {
        int64_t at = line / c->inner * c->n * c->inner + line % c->inner;
        switch (c->dtype) {
        case KM_F32: SUM_LINE(float, double, (double), (float)); break;
        case KM_F16: SUM_LINE(uint16_t, double, km_f16_to_f32, to_f16); break;
        case KM_BF16: SUM_LINE(uint16_t, double, km_bf16_to_f32, to_bf16); break;
        case KM_I32: SUM_LINE(int32_t, uint64_t, (uint64_t)(int64_t), (int32_t)); break;
        case KM_I64: SUM_LINE(int64_t, uint64_t, (uint64_t), (int64_t)); break;
        case KM_I8: SUM_LINE(int8_t, uint64_t, (uint64_t)(int64_t), (int8_t)); break;
        default: SUM_LINE(uint8_t, uint64_t, (uint64_t), (uint8_t));
        }
    }
}

static km_status cumsum(km_ctx *ctx, const km_call *call) {
    const km_tensor *x = call->in[0];
    km_axis_split s = km_split_at(x->shape, call->p->axis);
    if (x->dtype == KM_F64) return KM_ERR_UNSUPPORTED;
    order_call c = {.x = km_tensor_ptr(x),
                    .out = km_tensor_ptr(call->out[0]),
                    .dtype = x->dtype,
                    .n = s.n,
                    .inner = s.inner,
                    .flip = call->p->n[KM_N_FROM_END] != 0};
    if (s.outer * s.n * s.inner == 0) return KM_OK;
    km_threads_for(ctx->threads, s.outer * s.inner,
                   km_grain(s.n * (int64_t)km_dtype_size(x->dtype)), sum_lines, &c);
    return KM_OK;
}

/* ---- One-hot rows: zeros, and one element a row ---- */

static km_status one_hot(km_ctx *ctx, const km_call *call) {
    const km_tensor *ids = call->in[0], *out = call->out[0];
    int64_t rows = km_shape_count(ids->shape), n = call->p->n[KM_N_CLASSES];
    size_t size = km_dtype_size(out->dtype);
    char *to = km_tensor_ptr(out);
    const void *from = km_tensor_ptr(ids);
    union {
        float f32;
        double f64;
        uint16_t half;
        int64_t i64;
        uint8_t u8;
    } one = {.i64 = 1}; /* integers of every width, in little-endian order */
    if (rows * n == 0) return KM_OK;
    if (out->dtype == KM_F32) one.f32 = 1;
    if (out->dtype == KM_F64) one.f64 = 1;
    if (out->dtype == KM_F16) one.half = km_f32_to_f16(1);
    if (out->dtype == KM_BF16) one.half = km_f32_to_bf16(1);
    memset(to, 0, (size_t)(rows * n) * size);
    for (int64_t r = 0; r < rows; r++) {
        int64_t id = km_index_at(from, ids->dtype == KM_I64, r);
        memcpy(to + (size_t)(r * n + id) * size, &one, size);
    }
    return KM_OK;
}

void km_cpu_register_order(km_kernel *k) {
    k[KM_OP_SORT] = sort;
    k[KM_OP_CUMSUM] = cumsum;
    k[KM_OP_ONE_HOT] = one_hot;
}
