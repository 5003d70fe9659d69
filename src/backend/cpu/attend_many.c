/* Many rows: those that follow one another in a sequence look together. A task is a few panels of
 * queries (lanes) that share a key head; it walks over the keys once, a block at a time in f32, and
 * keeps a running maximum, sum and weighted sum for each lane, as plain attention does. Blocks begin
 * at multiples of their size, so that a row's result does not depend on its neighbours. */
#include "backend/cpu/attend.h"
#include "backend/cpu/attention.h"
#include "base/util.h"

#if defined(KM_ISA_ONLY_BASE) || defined(KM_WITHOUT_AMX)
static const km_attend_tiles *tiles_now(void) { return NULL; }
#else
extern const km_attend_tiles km_attend_tiles_amx;
static const km_attend_tiles *tiles_now(void) {
    return km_gemm_isa() == KM_ISA_AMX ? &km_attend_tiles_amx : NULL;
}
#endif

#define KEYS KM_ATTEND_KEYS
#define PANELS 4      /* of a task at most */
#define TILE_PANELS 8 /* by tiles, for which keys and values are laid out first */

typedef struct attend_run {
    int64_t row, n;       /* rows row .. row + n - 1 */
    const int32_t *pages; /* of their sequence */
    int64_t position;     /* of the first; the others follow */
    int64_t tasks;        /* before it, to a key head */
} attend_run;

typedef struct many {
    km_attend_job *j;
    const km_gemm_kernels *gemm;
    const km_attention_kernels *soft;
    const km_attend_tiles *tiles; /* or NULL */
    int64_t d;                    /* of an operand's rows: the head's, or for tiles the next 32 */
    attend_run *runs;
    int64_t n_runs, tasks, panels;
    float *scratch;
    int64_t each; /* floats of scratch, for each thread */
} many;

/* Lane i is query (lane + i) % group of row (lane + i) / group of the run. */
typedef struct attend_panel {
    int64_t lane, lanes;
    int64_t most;     /* keys that any of them sees */
    float *q, *acc;   /* (d, nr) */
    float *max, *sum; /* (nr) */
} attend_panel;

static int64_t position_of(const many *m, const attend_run *r, int64_t lane) {
    return r->position + km_min64(lane / m->j->a.group, r->n - 1);
}

static void begin_panel(const many *m, const attend_run *r, attend_panel *p, int64_t h) {
    const km_attend_call *a = &m->j->a;
    int64_t nr = m->gemm->nr;
    const float *q = m->j->q + ((h * a->rows + r->row) * a->group + p->lane) * a->d;
    p->most = position_of(m, r, p->lane + p->lanes - 1) + 1;
    if (m->tiles)
        m->tiles->lay_queries(q, p->lanes, a->d, (uint16_t *)(void *)p->q);
    else
        m->gemm->pack_turned(p->q, q, KM_F32, a->d, a->d, p->lanes);
    memset(p->acc, 0, sizeof *p->acc * (size_t)(m->d * nr));
    for (int64_t i = 0; i < nr; i++) {
        p->max[i] = -INFINITY;
        p->sum[i] = 0;
    }
}

/* -inf where a lane's window has not begun. */
static void hide(const many *m, const attend_run *r, const attend_panel *p, int64_t first,
                 int64_t n, float *s) {
    int64_t nr = m->gemm->nr;
    for (int64_t i = 0; i < p->lanes; i++) {
        int64_t begins = km_attend_first(&m->j->a, position_of(m, r, p->lane + i)) - first;
        for (int64_t k = 0; k < n && k < begins; k++) s[k * nr + i] = -INFINITY;
    }
}

/* s (n, nr) = keys times a panel's queries. */
static void score(const many *m, const attend_panel *p, const float *k, int64_t n, float *s) {
    const km_attend_call *a = &m->j->a;
    int64_t nr = m->gemm->nr, vl = m->gemm->vl;
    if (m->tiles)
        m->tiles->scores((const uint16_t *)(const void *)k, n, (const uint16_t *)(const void *)p->q,
                         a->d, p->lanes, a->cache == KM_BF16, s);
    else
        m->gemm->panel(n, km_ceil_div(p->lanes, vl) * vl, a->d, k, a->d, 1, p->q, nr, NULL, s, nr,
                       1, 0);
}

/* acc += values times the weights s. */
static void add_values(const many *m, const attend_panel *p, const float *v, int64_t n, float *s) {
    const km_attend_call *a = &m->j->a;
    int64_t nr = m->gemm->nr, vl = m->gemm->vl;
    if (m->tiles)
        m->tiles->values((const uint16_t *)(const void *)v, n, a->d, s, p->lanes,
                         a->cache == KM_BF16, (uint16_t *)(void *)(s + KEYS * nr), p->acc);
    else
        m->gemm->panel(a->d, km_ceil_div(p->lanes, vl) * vl, n, v, 1, a->d, s, nr, NULL, p->acc, nr,
                       1, 1);
}

static void meet(const many *m, const attend_run *r, attend_panel *p, int64_t first, int64_t n,
                 const float *k, const float *v, float *s) {
    const km_attend_call *a = &m->j->a;
    int64_t nr = m->gemm->nr, vl = m->gemm->vl, vecs = km_ceil_div(p->lanes, vl);
    int32_t seen[128];
    n = km_min64(n, p->most - first);
    if (n <= 0) return;
    int64_t last = position_of(m, r, p->lane + p->lanes - 1);
    if (km_attend_first(a, position_of(m, r, p->lane)) >= first + n)
        return; /* before all windows */
    bool masked = position_of(m, r, p->lane) + 1 < first + n;
    for (int64_t i = 0; i < vecs * vl && masked; i++) {
        int64_t sees = position_of(m, r, p->lane + i) + 1 - first;
        seen[i] = (int32_t)(sees < 0 ? 0 : km_min64(sees, n));
    }
    score(m, p, k, n, s);
    if (a->softcap > 0) m->j->kern->cap(s, nr, n, vecs * vl, (float)a->softcap);
    if (km_attend_first(a, last) > first) hide(m, r, p, first, n, s);
    m->soft->soften(s, n, seen, masked, vecs, p->max, p->sum, p->acc, a->d);
    add_values(m, p, v, n, s);
}

static void end_panel(const many *m, const attend_run *r, attend_panel *p, int64_t h, float *rows) {
    const km_attend_call *a = &m->j->a;
    float by[128], log_sum[128];
    m->soft->settle(p->max, p->sum, m->gemm->nr, log_sum, by);
    m->soft->turn_back(rows, a->d, p->acc, a->d, p->lanes, by);
    for (int64_t i = 0; i < p->lanes; i++) {
        int64_t lane = p->lane + i, head = h * a->group + lane % a->group;
        m->j->kern->encode(a->dtype, rows + i * a->d, a->d,
                           km_attend_out(m->j, r->row + lane / a->group, head));
    }
}

/* Keys or values first .. first + n - 1 of key head h as floats. */
static void decode_block(const many *m, const attend_run *r, int cache, int64_t h, int64_t first,
                         int64_t n, float *to) {
    const km_attend_call *a = &m->j->a;
    const char *from = km_tensor_ptr(m->j->c->in[cache]);
    for (int64_t t = first, step; t < first + n; t += step) {
        step = km_min64(first + n - t, KM_KV_PAGE - t % KM_KV_PAGE);
        int64_t page = r->pages[t / KM_KV_PAGE];
        if (page < 0 || page >= a->pages) /* before every window, and given back */
            memset(to + (t - first) * a->d, 0, sizeof *to * (size_t)(step * a->d));
        else
            m->j->kern->decode(a->cache, from + km_attend_at(a, r->pages, t, h), step * a->d,
                               to + (t - first) * a->d);
    }
}

/* Likewise as the products take them. */
static void bring(const many *m, const attend_run *r, int64_t h, int64_t first, int64_t n,
                  float *keys, float *values, float *room) {
    int64_t d = m->j->a.d;
    decode_block(m, r, KM_ATTEND_CACHE_K, h, first, n, m->tiles ? room : keys);
    if (m->tiles) m->tiles->lay_keys(room, n, d, (uint16_t *)(void *)keys);
    decode_block(m, r, KM_ATTEND_CACHE_V, h, first, n, m->tiles ? room : values);
    if (m->tiles) m->tiles->lay_values(room, n, d, (uint16_t *)(void *)values);
}

static void run_task(const many *m, int64_t index, float *scratch) {
    const km_attend_call *a = &m->j->a;
    int64_t task = m->tasks - 1 - index / a->kv_heads, h = index % a->kv_heads, nr = m->gemm->nr;
    int64_t k = m->n_runs - 1;
    while (m->runs[k].tasks > task) k--;
    const attend_run *r = &m->runs[k];
    attend_panel panels[TILE_PANELS];
    int64_t count = 0, most = 0, lanes = r->n * a->group;
    float *s = scratch, *keys = s + (m->tiles ? 2 : 1) * KEYS * nr, *values = keys + KEYS * m->d;
    float *room = values + KEYS * m->d, *rows = room + (m->tiles ? KEYS * m->d : 0);
    float *next = rows + nr * m->d;
    int64_t begin = (task - r->tasks) * m->panels * nr;
    for (int64_t lane = begin; count < m->panels && lane < lanes; lane += nr) {
        attend_panel *p = &panels[count++];
        *p = (attend_panel){.lane = lane, .lanes = km_min64(nr, lanes - lane)};
        p->q = next;
        p->acc = p->q + m->d * nr;
        p->max = p->acc + m->d * nr;
        p->sum = p->max + nr;
        next = p->sum + nr;
        begin_panel(m, r, p, h);
        most = p->most;
    }
    int64_t from = km_attend_first(a, position_of(m, r, begin));
    for (int64_t first = from / KEYS * KEYS; first < most; first += KEYS) {
        int64_t n = km_min64(KEYS, most - first);
        bring(m, r, h, first, n, keys, values, room);
        for (int64_t i = 0; i < count; i++) meet(m, r, &panels[i], first, n, keys, values, s);
    }
    for (int64_t i = 0; i < count; i++) end_panel(m, r, &panels[i], h, rows);
}

static void run_tasks(void *arg, int64_t begin, int64_t end, int worker) {
    const many *m = arg;
    for (int64_t i = begin; i < end; i++) run_task(m, i, m->scratch + worker * m->each);
}

/* Rows that follow one another in a sequence; rows that do not count give 0. */
static void find_runs(many *m) {
    const km_attend_call *a = &m->j->a;
    const int32_t *pages;
    int64_t position;
    for (int64_t r = 0; r < a->rows; r++) {
        if (!km_attend_place(a, r, &pages, &position)) {
            memset(km_attend_out(m->j, r, 0), 0,
                   (size_t)(a->heads * a->d) * km_dtype_size(a->dtype));
            continue;
        }
        attend_run *last = m->n_runs ? &m->runs[m->n_runs - 1] : NULL;
        if (last && last->row + last->n == r && last->pages == pages &&
            last->position + last->n == position)
            last->n++;
        else
            m->runs[m->n_runs++] =
                (attend_run){.row = r, .n = 1, .pages = pages, .position = position};
    }
}

static void count_tasks(many *m) {
    m->tasks = 0;
    for (int64_t i = 0; i < m->n_runs; i++) {
        m->runs[i].tasks = m->tasks;
        m->tasks += km_ceil_div(m->runs[i].n * m->j->a.group, m->panels * m->gemm->nr);
    }
}

km_status km_cpu_attend_many(km_ctx *ctx, km_attend_job *j) {
    const km_attend_call *a = &j->a;
    many m = {.j = j, .tiles = tiles_now(), .panels = PANELS, .d = a->d};
    if (m.tiles) {
        m.panels = TILE_PANELS;
        m.d = (a->d + 31) & ~(int64_t)31;
    }
    m.gemm = km_gemm_kernels_of(km_gemm_isa());
    m.soft = km_attention_kernels_of(km_gemm_isa());
    int64_t nr = m.gemm->nr, threads = km_threads_count(ctx->threads);
    m.each = KEYS * nr + 2 * KEYS * m.d + nr * m.d + m.panels * nr * (2 * m.d + 2);
    if (m.tiles) m.each += KEYS * (nr + m.d);
    m.each = (m.each + 31) & ~(int64_t)15;
    size_t list = ((size_t)a->rows * sizeof(attend_run) / sizeof(float) + 31) & ~(size_t)15;
    float *room = km_attend_scratch(ctx, j, list + (size_t)(threads * m.each));
    if (!room) return KM_ERR_MEMORY;
    room += (64 - (uintptr_t)room % 64) % 64 / sizeof *room;
    m.runs = (attend_run *)(void *)room;
    m.scratch = room + list;
    find_runs(&m);
    if (km_attend_prepare(ctx, j) != KM_OK) return ctx->error.code;
    count_tasks(&m);
    while (m.panels > 1 && m.tasks * a->kv_heads < 4 * threads) {
        m.panels /= 2;
        count_tasks(&m);
    }
    km_threads_for(ctx->threads, m.tasks * a->kv_heads, 1, run_tasks, &m);
    return KM_OK;
}
