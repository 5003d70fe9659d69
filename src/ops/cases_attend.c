/* Trial calls for attention over the paged cache: prompts and single tokens, mixed sequences, rows
 * that do not count, grouped heads, every dtype of a cache, every option. */
#include "backend/attend.h"
#include "ops/cases.h"

typedef struct attend_form {
    int64_t rows, heads, kv_heads, d, sequences, pages; /* pages: of one sequence */
    int64_t
        past; /* tokens there already; -1: one row each; -2: rows that do not count, chunks of two
                   * sequences, then a row of each of the others */
    int64_t window, dims;
    double base, softcap, magnitude;
    bool adjacent, norms, divided;
} attend_form;

static const attend_form forms[] = {
    {1, 1, 1, 16, 1, 1, 0, .base = 0},
    {1, 4, 2, 32, 1, 2, 70, .base = 10000, .dims = 32},
    {5, 6, 2, 64, 5, 3, -1, .base = 500000, .dims = 64},
    {16, 9, 3, 64, 16, 2, -1, .base = 10000, .dims = 64, .adjacent = true},
    {7, 4, 4, 32, 1, 2, 61, .base = 10000, .dims = 16, .norms = true},
    {40, 3, 1, 32, 1, 3, 100, .base = 10000, .dims = 32, .divided = true},
    {70, 4, 2, 64, 1, 4, 0, .base = 10000, .dims = 64, .window = 33},
    {3, 2, 1, 96, 3, 4, -1, .base = 10000, .dims = 96, .window = 65, .norms = true},
    {33, 8, 1, 32, 1, 2, 5, .base = 10000, .dims = 32, .softcap = 3},
    {2, 2, 2, 128, 2, 6, -1, .base = 1e6, .dims = 128, .softcap = 5, .adjacent = true},
    {130, 5, 5, 48, 1, 4, 100, .base = 10000, .dims = 24, .window = 200, .norms = true},
    {1, 16, 2, 256, 1, 12, 700, .base = 10000, .dims = 256},
    {0, 2, 1, 32, 1, 1, 0, .base = 10000, .dims = 32},
    /* Rotated in part and magnified: a token, a few, many. */
    {1, 4, 2, 64, 1, 2, 70, .base = 10000, .dims = 48, .magnitude = 1.4, .divided = true},
    {5, 6, 2, 32, 5, 3, -1, .base = 10000, .dims = 24, .magnitude = 0.7},
    {70, 4, 2, 64, 1, 4, 3, .base = 10000, .dims = 48, .magnitude = 1.19, .divided = true},
    /* Heads of sizes that tensor cores do not take: few elements, no multiple of 8 or 16, many. */
    {1, 2, 1, 20, 1, 2, 70, .base = 10000, .dims = 20},
    {3, 4, 2, 72, 3, 3, -1, .base = 10000, .dims = 20, .window = 50, .softcap = 3, .norms = true},
    {66, 3, 3, 7, 1, 3, 100, .base = 0},
    {9, 2, 1, 320, 1, 4, 150, .base = 10000, .dims = 320, .adjacent = true, .divided = true},
    /* One token after many, mixed steps, guesses after many tokens, a chunk over several tiles. */
    {1, 8, 1, 128, 1, 40, 2500, .base = 10000, .dims = 128},
    {48, 8, 1, 64, 12, 5, -2, .base = 10000, .dims = 64},
    {40, 14, 2, 128, 9, 6, -2, .base = 10000, .dims = 128, .norms = true, .softcap = 20},
    {60, 2, 2, 64, 7, 4, -2, .base = 10000, .dims = 64, .window = 70},
    {24, 4, 2, 96, 6, 3, -2, .base = 10000, .dims = 96, .window = 65},
    {21, 3, 1, 72, 5, 3, -2, .base = 10000, .dims = 36, .adjacent = true},
    {5, 8, 1, 64, 1, 36, 2200, .base = 10000, .dims = 64},
    {150, 6, 2, 128, 1, 5, 130, .base = 10000, .dims = 128},
};

/* in[ROWS] and in[TABLE]: p.axis is the form. */
static void derive_places(km_ctx *ctx, const km_case *c, km_tensor **in) {
    const attend_form *f = &forms[c->p.axis];
    km_lane *lane = km_ctx_lane(ctx, km_ref_device());
    km_tensor *rows = km_tensor_new(ctx, lane, "case", KM_I32, KM_SHAPE(f->rows, 2));
    km_tensor *table = km_tensor_new(ctx, lane, "case", KM_I32, KM_SHAPE(f->sequences, f->pages));
    if (!rows || !table) return;
    int32_t *row = km_tensor_ptr(rows), *page = km_tensor_ptr(table);
    for (int64_t i = 0; i < f->rows; i++) {
        int64_t most = f->pages * KM_KV_PAGE;
        row[2 * i] = (int32_t)(f->past < 0 ? (i * 5 + 3) % f->sequences : 0);
        row[2 * i + 1] = (int32_t)(f->past < 0 ? (i * 53 + 17) % most : f->past + i);
        if (f->past < 0 && i % 4 == 1) row[2 * i + 1] = -1;
    }
    for (int64_t i = 0, singles = f->sequences - 2; f->past == -2 && i < f->rows; i++) {
        int64_t chunk = (f->rows - 3 - singles) / 2, at = i - 3;
        bool counts = at >= 0, is_chunk = at < 2 * chunk;
        int64_t own = f->rows - 1 - i; /* sequences from 2 on, the last row's first */
        row[2 * i] = (int32_t)(!counts ? -1 : is_chunk ? at / chunk : own < singles ? 2 + own : 0);
        row[2 * i + 1] = (int32_t)(is_chunk ? 50 * (1 + at / chunk) + at % chunk
                                            : (i * 53 + 17) % (f->pages * KM_KV_PAGE));
        if (counts && !is_chunk && own >= singles) row[2 * i + 1] = -1;
    }
    /* Pages in no order, and none twice: of pages + 1 for each sequence. */
    for (int64_t i = 0; i < f->sequences * f->pages; i++)
        page[i] = (int32_t)(f->sequences * f->pages - i);
    in[KM_ATTEND_ROWS] = rows;
    in[KM_ATTEND_TABLE] = table;
}

static km_case_in some(km_shape shape, int dtype) {
    return (km_case_in){.shape = shape, .values = KM_V_NORMAL, .dtype = dtype};
}

void km_cases_attend(km_case_fn fn, void *user) {
    static const km_dtype caches[] = {KM_F32, KM_F16, KM_BF16, KM_Q8_0, KM_Q4_0};
    static const km_case_in absent = {.absent = true, .dtype = -1};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        for (int k = 0; k < 5; k++) {
            const attend_form *f = &forms[i];
            if (km_dtype_is_block(caches[k]) && f->d % 32) continue;
            km_shape cache = KM_SHAPE(f->sequences * f->pages + 1, f->kv_heads, KM_KV_PAGE, f->d);
            km_case c = {
                .op = KM_OP_ATTEND,
                .n_in = KM_ATTEND_INPUTS,
                .dtypes = KM_BIT(KM_F32) | KM_BIT(KM_F16) | KM_BIT(KM_BF16),
                .no_gradient = true,
                .derive = derive_places,
                .p = {.axis = (int)i,
                      .n = {[KM_N_HEADS] = f->heads,
                            [KM_N_KV_HEADS] = f->kv_heads,
                            [KM_N_WINDOW] = f->window,
                            [KM_N_ROTATION] =
                                f->dims | (int64_t)(f->adjacent ? KM_ROPE_ADJACENT : KM_ROPE_HALVES)
                                              << 32},
                      .f = {[KM_F_SCALE] = 1 / sqrt((double)f->d),
                            [KM_F_ATTEND_BASE] = f->base,
                            [KM_F_SOFTCAP] = f->softcap,
                            [KM_F_ATTEND_EPS] = 1e-5,
                            [KM_F_MAGNITUDE] = f->magnitude}}};
            c.in[KM_ATTEND_Q] = some(KM_SHAPE(f->rows, f->heads * f->d), -1);
            c.in[KM_ATTEND_K] = some(KM_SHAPE(f->rows, f->kv_heads * f->d), -1);
            c.in[KM_ATTEND_V] = some(KM_SHAPE(f->rows, f->kv_heads * f->d), -1);
            c.in[KM_ATTEND_V].layout = i % 3 == 1 ? KM_L_OFFSET : KM_L_PLAIN;
            c.in[KM_ATTEND_CACHE_K] = some(cache, (int)caches[k]);
            c.in[KM_ATTEND_CACHE_V] = some(cache, (int)caches[k]);
            c.in[KM_ATTEND_ROWS] = some(KM_SHAPE(f->rows, 2), KM_I32);
            c.in[KM_ATTEND_TABLE] = some(KM_SHAPE(f->sequences, f->pages), KM_I32);
            c.in[KM_ATTEND_ROWS].values = c.in[KM_ATTEND_TABLE].values = KM_V_DERIVED;
            c.in[KM_ATTEND_Q_NORM] = f->norms ? some(KM_SHAPE(f->d), KM_F32) : absent;
            c.in[KM_ATTEND_K_NORM] = c.in[KM_ATTEND_Q_NORM];
            c.in[KM_ATTEND_DIVISORS] = absent;
            if (f->divided) c.in[KM_ATTEND_DIVISORS] = some(KM_SHAPE(f->dims / 2), KM_F32);
            c.in[KM_ATTEND_DIVISORS].values = KM_V_POSITIVE;
            if (!fn(user, &c)) return;
        }
}
