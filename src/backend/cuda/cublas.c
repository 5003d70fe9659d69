/* cuBLASLt. It thinks in columns: our row-major out (m, n) = a b is its out^T (n, m) = b^T a^T, so
 * b goes in as its A, a as its B, and a bias along our columns is one along its rows, which is the
 * one it can add.
 *
 * Which of its kernels serves a product is asked once for each shape, layout and alignment and
 * kept as a plan. The answer comes from its tables, so it is the same in every process; with
 * KERMES_TUNE=1 its candidates are timed instead. Split sums of f16 and bf16 are added in f32. */
#include "backend/cuda/cublas.h"
#include "backend/cuda/lane.h"
#include "backend/cuda/library.h"
#include "base/alloc.h"
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#define WORKSPACE_BYTES ((uint64_t)32 << 20)
#define PLAN_SLOTS 512
#define MOST_PLANS 4096
#define CANDIDATES 12

/* Everything the choice of a kernel depends on. Compared as bytes: made by memset first. */
typedef struct plan_key {
    int64_t m, n, k, lda, ldb, ldo, batch, batch_a, batch_b, batch_o;
    uint32_t align_a, align_b, align_o;
    int32_t dtype, compute, epilogue;
    bool turn_a, turn_b;
} plan_key;

typedef struct cublas_plan {
    struct cublas_plan *next;
    plan_key key;
    bool usable; /* false: there is no kernel for it */
    km_lt_desc desc;
    km_lt_layout a, b, o; /* cuBLASLt's A is our b */
    km_lt_algo algo;
    size_t workspace;
} cublas_plan;

/* One device's handle and plans. The lock is held over a launch, since a plan's desc holds the
 * pointers of bias and pre. */
typedef struct lt_device {
    pthread_mutex_t lock;
    bool tried;
    km_lt_handle handle; /* NULL when it would not start */
    cublas_plan *slot[PLAN_SLOTS];
    int plans;
} lt_device;

static km_lt_api lt;
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static enum { LT_UNKNOWN, LT_ABSENT, LT_OPEN } state;
static void *library;
static void *(*symbols)(const char *symbol);
static lt_device devices[KM_CUDA_MAX_DEVICES];

/* ---- The library ---- */

static bool resolve(void) {
    bool all = true;
    void *p;
#define FIND(name, symbol, params)                                                                 \
    p = symbols ? symbols(symbol) : dlsym(library, symbol);                                        \
    all = all && p;                                                                                \
    memcpy(&lt.name, &p, sizeof p);
    KM_LT_NEEDED(FIND)
#undef FIND
    return all;
}

static bool library_open(void) {
    char note[256];
    int versions[4] = {0};
    pthread_mutex_lock(&open_lock);
    if (state == LT_UNKNOWN) {
        for (int i = 0; i < KM_CUDA_MAX_DEVICES; i++) pthread_mutex_init(&devices[i].lock, NULL);
        km_cuda_library_versions(versions);
        versions[versions[1] ? 2 : 1] = 11;
        if (!symbols) library = km_cuda_library_open("libcublasLt.so", versions, note, sizeof note);
        state = (symbols || library) && resolve() ? LT_OPEN : LT_ABSENT;
    }
    bool open = state == LT_OPEN;
    pthread_mutex_unlock(&open_lock);
    return open;
}

/* The device's state, locked; NULL without cuBLASLt. */
static lt_device *device_lock(km_lane *lane) {
    if (!library_open() || km_cuda_ready(lane) != KM_OK) return NULL;
    lt_device *dev = &devices[km_cuda_dev_of(lane)->index];
    pthread_mutex_lock(&dev->lock);
    if (!dev->tried) {
        dev->tried = true;
        if (lt.create(&dev->handle) != KM_LT_OK) dev->handle = NULL;
    }
    if (dev->handle) return dev;
    pthread_mutex_unlock(&dev->lock);
    return NULL;
}

/* ---- Plans ---- */

static void plan_clear(cublas_plan *p) {
    if (p->desc) lt.desc_destroy(p->desc);
    if (p->a) lt.layout_destroy(p->a);
    if (p->b) lt.layout_destroy(p->b);
    if (p->o) lt.layout_destroy(p->o);
    p->desc = NULL;
    p->a = p->b = p->o = NULL;
    p->usable = false;
}

static void plans_free(lt_device *dev) {
    for (int i = 0; i < PLAN_SLOTS; i++)
        while (dev->slot[i]) {
            cublas_plan *p = dev->slot[i];
            dev->slot[i] = p->next;
            plan_clear(p);
            km_free(p);
        }
    dev->plans = 0;
}

void km_cublas_close(int device) {
    if (state != LT_OPEN || device < 0 || device >= KM_CUDA_MAX_DEVICES) return;
    lt_device *dev = &devices[device];
    pthread_mutex_lock(&dev->lock);
    plans_free(dev);
    if (dev->handle) lt.destroy(dev->handle);
    dev->handle = NULL;
    dev->tried = false;
    pthread_mutex_unlock(&dev->lock);
}

void km_cublas_use_symbols(void *(*lookup)(const char *symbol)) {
    for (int i = 0; i < KM_CUDA_MAX_DEVICES; i++) km_cublas_close(i);
    pthread_mutex_lock(&open_lock);
    if (library) dlclose(library);
    library = NULL;
    symbols = lookup;
    state = LT_UNKNOWN;
    pthread_mutex_unlock(&open_lock);
}

static int element_of(km_dtype d) {
    return d == KM_F32    ? KM_LT_F32
           : d == KM_F16  ? KM_LT_F16
           : d == KM_BF16 ? KM_LT_BF16
                          : KM_LT_F64;
}

/* A matrix of cols columns (ours: rows) of `rows` elements. */
static bool make_layout(km_lt_layout *out, const plan_key *k, int64_t rows, int64_t cols,
                        int64_t ld, int64_t stride) {
    int32_t batch = (int32_t)k->batch;
    if (lt.layout_create(out, element_of((km_dtype)k->dtype), (uint64_t)rows, (uint64_t)cols, ld) !=
        KM_LT_OK)
        return false;
    return batch == 1 ||
           (lt.layout_set(*out, KM_LT_BATCH, &batch, sizeof batch) == KM_LT_OK &&
            lt.layout_set(*out, KM_LT_BATCH_STRIDE, &stride, sizeof stride) == KM_LT_OK);
}

static bool describe(cublas_plan *p) {
    const plan_key *k = &p->key;
    int32_t turn_a = k->turn_b, turn_b = k->turn_a; /* in its words */
    uint32_t epilogue = (uint32_t)k->epilogue;
    if (lt.desc_create(&p->desc, k->compute, k->dtype == KM_F64 ? KM_LT_F64 : KM_LT_F32) !=
        KM_LT_OK)
        return false;
    if (lt.desc_set(p->desc, KM_LT_TURN_A, &turn_a, sizeof turn_a) != KM_LT_OK ||
        lt.desc_set(p->desc, KM_LT_TURN_B, &turn_b, sizeof turn_b) != KM_LT_OK ||
        lt.desc_set(p->desc, KM_LT_EPILOGUE, &epilogue, sizeof epilogue) != KM_LT_OK)
        return false;
    if (epilogue & KM_LT_KEEP &&
        lt.desc_set(p->desc, KM_LT_AUX_LD, &k->ldo, sizeof k->ldo) != KM_LT_OK)
        return false;
    return make_layout(&p->a, k, k->turn_b ? k->k : k->n, k->turn_b ? k->n : k->k, k->ldb,
                       k->batch_b) &&
           make_layout(&p->b, k, k->turn_a ? k->m : k->k, k->turn_a ? k->k : k->m, k->lda,
                       k->batch_a) &&
           make_layout(&p->o, k, k->n, k->m, k->ldo, k->batch_o);
}

static bool set_pointers(const cublas_plan *p, const km_cuda_gemm *g) {
    const void *aux = g->slope ? g->slope : g->pre;
    if (g->bias && lt.desc_set(p->desc, KM_LT_BIAS, &g->bias, sizeof g->bias) != KM_LT_OK)
        return false;
    return !aux || lt.desc_set(p->desc, KM_LT_AUX, &aux, sizeof aux) == KM_LT_OK;
}

/* Its candidates for the plan, best first by its own reckoning. */
static int candidates(lt_device *dev, const cublas_plan *p, int asked, km_lt_found *found) {
    const plan_key *k = &p->key;
    bool half = k->dtype == KM_F16 || k->dtype == KM_BF16;
    uint64_t workspace = WORKSPACE_BYTES;
    uint32_t reductions = half ? KM_LT_REDUCE_F32 : KM_LT_REDUCE_ANY;
    km_lt_wish wish = NULL;
    int count = 0;
    if (lt.wish_create(&wish) != KM_LT_OK) return 0;
    if (lt.wish_set(wish, KM_LT_MAX_WORKSPACE, &workspace, sizeof workspace) != KM_LT_OK ||
        lt.wish_set(wish, KM_LT_REDUCTIONS, &reductions, sizeof reductions) != KM_LT_OK ||
        lt.wish_set(wish, KM_LT_ALIGN_A, &k->align_b, sizeof k->align_b) != KM_LT_OK ||
        lt.wish_set(wish, KM_LT_ALIGN_B, &k->align_a, sizeof k->align_a) != KM_LT_OK ||
        lt.wish_set(wish, KM_LT_ALIGN_C, &k->align_o, sizeof k->align_o) != KM_LT_OK ||
        lt.wish_set(wish, KM_LT_ALIGN_D, &k->align_o, sizeof k->align_o) != KM_LT_OK ||
        lt.find(dev->handle, p->desc, p->a, p->b, p->o, p->o, wish, asked, found, &count) !=
            KM_LT_OK)
        count = 0;
    lt.wish_destroy(wish);
    int usable = 0;
    for (int i = 0; i < count; i++)
        if (found[i].state == KM_LT_OK && found[i].workspace <= WORKSPACE_BYTES)
            found[usable++] = found[i];
    return usable;
}

static int launch(lt_device *dev, km_lane *lane, const cublas_plan *p, const km_cuda_gemm *g,
                  void *out, void *workspace) {
    float alpha = (float)g->alpha, beta = (float)g->beta;
    bool wide = g->dtype == KM_F64;
    return lt.matmul(dev->handle, p->desc, wide ? (const void *)&g->alpha : &alpha, g->b, p->a,
                     g->a, p->b, wide ? (const void *)&g->beta : &beta, g->out, p->o, out, p->o,
                     &p->algo, workspace, p->workspace, km_cuda_stream(lane));
}

/* ---- Tuning ---- */

/* Milliseconds of `count` products by the plan's algorithm; negative when it fails. */
static float time_some(lt_device *dev, km_lane *lane, const cublas_plan *p, const km_cuda_gemm *g,
                       void *out, void *workspace, const km_cu_event event[2], int count) {
    float ms = -1;
    bool ok = KM_CU(event_record, event[0], km_cuda_stream(lane)) == KM_CU_OK;
    for (int i = 0; i < count && ok; i++) ok = launch(dev, lane, p, g, out, workspace) == KM_LT_OK;
    if (!ok || KM_CU(event_record, event[1], km_cuda_stream(lane)) != KM_CU_OK ||
        KM_CU(event_sync, event[1]) != KM_CU_OK ||
        KM_CU(event_ms, &ms, event[0], event[1]) != KM_CU_OK)
        return -1;
    return ms;
}

/* Milliseconds of one product: the best of a few runs, each long enough to drown its start. */
static float time_plan(lt_device *dev, km_lane *lane, const cublas_plan *p, const km_cuda_gemm *g,
                       void *out, void *workspace, const km_cu_event event[2]) {
    if (time_some(dev, lane, p, g, out, workspace, event, 1) < 0) return -1; /* warms up */
    float one = time_some(dev, lane, p, g, out, workspace, event, 4) / 4, best = -1;
    if (one < 0) return -1;
    int count = one > 0.5f ? 1 : one > 0.02f ? (int)(0.5f / one) : 25;
    for (int i = 0; i < 3; i++) {
        float ms = time_some(dev, lane, p, g, out, workspace, event, count) / (float)count;
        if (ms > 0 && (best < 0 || ms < best)) best = ms;
    }
    return best;
}

/* Times the candidates and leaves the quickest in the plan. Results go to out itself, or to a
 * copy where out is also an input. */
static void tune(lt_device *dev, km_lane *lane, cublas_plan *p, const km_cuda_gemm *g,
                 const km_lt_found *found, int count) {
    km_cu_event event[2] = {NULL, NULL};
    size_t out_cap = 0, work_cap = 0;
    int64_t elements = (g->batch - 1) * g->batch_o + (g->m - 1) * g->ldo + g->n;
    void *copy = NULL, *workspace = km_mempool_get(&lane->pool, WORKSPACE_BYTES, &work_cap);
    if (g->beta != 0)
        copy = km_mempool_get(&lane->pool, (size_t)elements * km_dtype_size(g->dtype), &out_cap);
    float best = -1;
    int chosen = 0;
    if (workspace && (copy || g->beta == 0) && KM_CU(event_create, &event[0], 0) == KM_CU_OK &&
        KM_CU(event_create, &event[1], 0) == KM_CU_OK)
        for (int i = 0; i < count; i++) {
            p->algo = found[i].algo;
            p->workspace = found[i].workspace;
            float ms = time_plan(dev, lane, p, g, copy ? copy : g->out, workspace, event);
            if (ms > 0 && (best < 0 || ms < 0.98f * best)) {
                best = ms;
                chosen = i;
            }
        }
    p->algo = found[chosen].algo;
    p->workspace = found[chosen].workspace;
    for (int i = 0; i < 2; i++)
        if (event[i]) km_cuda_api()->event_destroy(event[i]);
    if (copy) km_mempool_put(&lane->pool, copy, out_cap);
    if (workspace) km_mempool_put(&lane->pool, workspace, work_cap);
}

/* ---- A product ---- */

static uint64_t hash(const plan_key *k) {
    uint64_t word[sizeof *k / 8], h = 0;
    _Static_assert(sizeof *k % 8 == 0, "a key is whole words");
    memcpy(word, k, sizeof word);
    for (size_t i = 0; i < sizeof *k / 8; i++) {
        h = (h ^ word[i]) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    return h;
}

static cublas_plan *plan_for(lt_device *dev, km_lane *lane, const plan_key *key,
                             const km_cuda_gemm *g) {
    km_lt_found found[CANDIDATES];
    uint64_t slot = hash(key) % PLAN_SLOTS;
    for (cublas_plan *p = dev->slot[slot]; p; p = p->next)
        if (memcmp(&p->key, key, sizeof *key) == 0) return p;
    if (dev->plans >= MOST_PLANS) plans_free(dev); /* shapes without end: start over */
    cublas_plan *p = km_calloc(1, sizeof *p);
    if (!p) return NULL;
    p->key = *key;
    bool timed = km_cuda_gemm_settings()->tune && !km_cuda_queue_of(lane)->capturing;
    int count =
        describe(p) && set_pointers(p, g) ? candidates(dev, p, timed ? CANDIDATES : 1, found) : 0;
    p->usable = count > 0;
    if (count > 1) {
        tune(dev, lane, p, g, found, count);
    } else if (count == 1) {
        p->algo = found[0].algo;
        p->workspace = found[0].workspace;
    } else {
        plan_clear(p);
    }
    p->next = dev->slot[slot];
    dev->slot[slot] = p;
    dev->plans++;
    return p;
}

static uint32_t alignment(const void *p, int64_t batch, size_t size) {
    uintptr_t bits = (uintptr_t)p | (uintptr_t)batch * size | 256;
    return (uint32_t)(bits & -bits);
}

/* The epilogue that does all of it, or -1. Its gelu is good for 16 bits, not for 24. */
static int epilogue_of(const km_cuda_gemm *g) {
    int bias = g->bias ? KM_LT_ADD_BIAS : 0, bits = bias ? bias : KM_LT_PLAIN;
    bool half = g->dtype == KM_F16 || g->dtype == KM_BF16;
    if (g->slope) {
        bool fits = half && g->batch == 1 && !g->bias && !g->pre && g->act == KM_ACT_GELU;
        fits = fits && g->ldo % 8 == 0 && (uintptr_t)g->slope % 16 == 0;
        return fits ? KM_LT_GELU_GRAD | KM_LT_KEEP : -1;
    }
    if (g->act == KM_ACT_RELU && !g->pre) {
        bits = KM_LT_RELU | bias;
    } else if (g->act == KM_ACT_GELU && half) {
        bits = KM_LT_GELU | bias | (g->pre ? KM_LT_KEEP : 0);
        if (g->pre && (g->ldo % 8 != 0 || (uintptr_t)g->pre % 16 != 0)) return -1;
    } else if (g->act != KM_ACT_NONE || g->pre) {
        return -1;
    }
    if (bits != KM_LT_PLAIN && g->batch != 1) return -1;
    if (bias && (uintptr_t)g->bias % 16 != 0) return -1;
    return bits;
}

km_status km_cublas_gemm(km_lane *lane, const km_cuda_gemm *g) {
    int epilogue = epilogue_of(g);
    size_t size = km_dtype_size(g->dtype), cap = 0;
    void *workspace = NULL;
    if (epilogue < 0 || g->batch > INT32_MAX) return KM_ERR_UNSUPPORTED;
    lt_device *dev = device_lock(lane);
    if (!dev) return km_failed(lane->ctx) ? lane->ctx->error.code : KM_ERR_UNSUPPORTED;

    plan_key key;
    bool many = g->batch > 1;
    memset(&key, 0, sizeof key);
    key.m = g->m, key.n = g->n, key.k = g->k, key.lda = g->lda, key.ldb = g->ldb, key.ldo = g->ldo;
    key.batch = g->batch;
    if (many) key.batch_a = g->batch_a, key.batch_b = g->batch_b, key.batch_o = g->batch_o;
    key.align_a = alignment(g->a, key.batch_a, size);
    key.align_b = alignment(g->b, key.batch_b, size);
    key.align_o = alignment(g->out, key.batch_o, size);
    key.dtype = (int32_t)g->dtype;
    bool tf32 = lane->ctx->tf32 || km_cuda_gemm_settings()->tf32;
    key.compute = g->dtype == KM_F64           ? KM_LT_COMPUTE_F64
                  : g->dtype == KM_F32 && tf32 ? KM_LT_COMPUTE_TF32
                                               : KM_LT_COMPUTE_F32;
    key.epilogue = epilogue;
    key.turn_a = g->turn_a, key.turn_b = g->turn_b;

    km_status s = KM_ERR_UNSUPPORTED;
    cublas_plan *p = plan_for(dev, lane, &key, g);
    if (p && p->usable && set_pointers(p, g)) {
        s = KM_OK;
        if (p->workspace && !(workspace = km_cuda_scratch(lane, p->workspace, &cap)))
            s = lane->ctx->error.code;
        int status = s == KM_OK ? launch(dev, lane, p, g, g->out, workspace) : KM_LT_OK;
        if (s == KM_OK && status == KM_LT_OK) lane->launches++;
        if (status == KM_LT_UNSUPPORTED || status == KM_LT_INVALID || status == KM_LT_ARCH) {
            plan_clear(p); /* a promise it does not keep */
            s = KM_ERR_UNSUPPORTED;
        } else if (status != KM_LT_OK) {
            s = km_fail(lane->ctx, KM_ERR_GPU, "%s: cuBLASLt: status %d", lane->device->name,
                        status);
        }
    }
    pthread_mutex_unlock(&dev->lock);
    km_cuda_scratch_free(lane, workspace, cap);
    return s;
}
