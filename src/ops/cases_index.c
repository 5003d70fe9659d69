/* Trial calls for indices, masks, order and joining. */
#include "ops/cases_put.h"
#include <string.h>

/* ---- Indexing ---- */

void km_cases_embeddings(km_case_sink *s, km_op op) {
    static const struct {
        int64_t v, c, n;
    } sizes[] = {{1, 1, 1},     {7, 5, 3},       {4, 3, 20},     {5, 4, 0},
                 {65, 33, 130}, {300, 129, 700}, {40, 64, 3000}, {70000, 8, 100}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int wide = 0; wide < 2; wide++) {
            int64_t v = sizes[i].v, w = sizes[i].c, n = sizes[i].n;
            km_case c = {.op = op, .n_in = 2, .dtypes = KM_CASE_HALVES, .no_gradient = i > 3};
            bool back = op == KM_OP_EMBEDDING_GRAD;
            c.in[0] = km_case_input(back ? KM_SHAPE(2, n, w) : KM_SHAPE(v, w), 0, 0);
            c.in[1] = km_case_typed(KM_SHAPE(2, n), KM_V_INDEX, wide ? KM_I64 : KM_I32, v);
            if (back) c.p.n[KM_N_TABLE_ROWS] = v;
            km_case_put(s, &c);
        }
}

void km_cases_gathers(km_case_sink *s, km_op op) {
    const struct {
        km_shape x, index;
        int axis;
    } list[] = {{KM_SHAPE(5), KM_SHAPE(9), 0},
                {KM_SHAPE(4, 6), KM_SHAPE(4, 3), 1},
                {KM_SHAPE(4, 6), KM_SHAPE(7, 6), 0},
                {KM_SHAPE(4, 6), KM_SHAPE(2, 9), 1},
                {KM_SHAPE(3, 4, 5), KM_SHAPE(3, 6, 5), 1},
                {KM_SHAPE(4, 6), KM_SHAPE(4, 0), 1},
                {KM_SHAPE(65, 130), KM_SHAPE(65, 300), 1},
                {KM_SHAPE(5, 6, 7), KM_SHAPE(3, 8, 4), 1},
                {KM_SHAPE(5, 6, 7), KM_SHAPE(9, 2, 7), 0},
                {KM_SHAPE(9000), KM_SHAPE(7000), 0}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        int64_t limit = list[i].x.dim[list[i].axis];
        km_case c = {.op = op,
                     .p = {.axis = list[i].axis},
                     .no_gradient = i == 6 || i == 9,
                     .dtypes = (KM_FLOATS & ~KM_BIT(KM_F64)) | KM_CASE_SMALL_INTS};
        km_dtype wide = i & 1 ? KM_I32 : KM_I64;
        c.in[0] = km_case_input(list[i].x, 0, i == 1 ? KM_L_TURNED : KM_L_PLAIN);
        if (op == KM_OP_INDEX_SELECT) {
            c.n_in = 2;
            c.in[1] =
                km_case_typed(KM_SHAPE(list[i].index.dim[list[i].axis]), KM_V_INDEX, wide, limit);
        } else {
            c.n_in = op == KM_OP_GATHER ? 2 : 3;
            c.in[1] = km_case_typed(list[i].index, KM_V_INDEX, wide, limit);
            c.in[2] = km_case_input(list[i].index, 0, 0);
        }
        if (op != KM_OP_SCATTER_ADD) c.dtypes |= KM_BIT(KM_BOOL);
        km_case_put(s, &c);
    }
}

/* Room for all that could be picked (zeros fill the rest), and for fewer than are. */
void km_cases_masks(km_case_sink *s, km_op op) {
    static const km_shape shapes[] = {{0, {0}},       {1, {0}},        {1, {1}},
                                      {1, {9}},       {2, {5, 7}},     {3, {4, 0, 3}},
                                      {3, {2, 3, 4}}, {2, {33, 1000}}, {1, {70001}}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int less = 0; less < 2; less++) {
            int64_t n = km_shape_count(shapes[i]), room = less ? n / 4 : n;
            km_case c = {.op = op,
                         .n_in = 2,
                         .p = {.n = {[KM_N_ROOM] = room}},
                         .no_gradient = n > 3000,
                         .dtypes = KM_ANY & ~KM_BIT(KM_F64)};
            km_case_layout layout = i == 4 ? KM_L_TURNED : i == 6 ? KM_L_BACK : KM_L_PLAIN;
            c.in[0] =
                km_case_input(shapes[i], op == KM_OP_NONZERO ? KM_V_BOOL : KM_V_NORMAL, layout);
            c.in[1] = km_case_typed(shapes[i], KM_V_BOOL, KM_BOOL, 0);
            c.in[2] = km_case_input(KM_SHAPE(room), 0, 0);
            if (op == KM_OP_NONZERO) c.n_in = 1;
            if (op == KM_OP_MASKED_SCATTER) { /* the rule counts on a src that is long enough */
                c.n_in = 3;
                c.no_gradient |= less;
            }
            km_case_put(s, &c);
        }
}

/* Lines of every length that a kernel treats in a way of its own; equals and NaN among them. */
void km_cases_orders(km_case_sink *s, km_op op) {
    const struct {
        km_shape x;
        int axis;
        int64_t k;
        km_values values;
    } list[] = {{KM_SHAPE(1), 0, 1, 0},
                {KM_SHAPE(17), 0, 17, 0},
                {KM_SHAPE(5, 7), 1, 3, 0},
                {KM_SHAPE(5, 7), 0, 5, 0},
                {KM_SHAPE(2, 3, 4), 1, 2, 0},
                {KM_SHAPE(0, 4), 1, 4, 0},
                {KM_SHAPE(4, 0), 1, 0, 0},
                {KM_SHAPE(3, 1000), 1, 1000, 0},
                {KM_SHAPE(3, 1000), 1, 40, KM_V_SPECIAL},
                {KM_SHAPE(2, 5000), 1, 900, KM_V_SPECIAL},
                {KM_SHAPE(300, 9), 0, 300, KM_V_LOW}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (int flip = 0; flip < 2; flip++) {
            km_case c = {
                .op = op,
                .n_in = 1,
                .p = {.axis = list[i].axis, .n = {[KM_N_TOP_K] = list[i].k, [KM_N_FALLING] = flip}},
                .dtypes = (KM_FLOATS & ~KM_BIT(KM_F64)) | KM_CASE_SMALL_INTS,
                .no_gradient = i > 6};
            km_values values = list[i].values;
            if (op == KM_OP_CUMSUM) { /* nothing to agree on once a sum is NaN or infinite */
                memset(c.p.n, 0, sizeof c.p.n);
                c.p.n[KM_N_FROM_END] = flip;
                values = KM_V_NORMAL;
            } else {
                c.dtypes |= KM_BIT(KM_BOOL);
            }
            if (values) c.dtypes &= KM_CASE_HALVES;
            c.in[0] = km_case_input(list[i].x, values, i == 2 ? KM_L_TURNED : KM_L_PLAIN);
            km_case_put(s, &c);
        }
}

void km_cases_one_hots(km_case_sink *s, km_op op) {
    static const km_shape shapes[] = {{0, {0}}, {1, {0}}, {1, {7}}, {3, {2, 3, 4}}};
    for (int i = 0; i < 4; i++)
        for (int d = 0; d < KM_PLAIN_COUNT; d++) {
            if (d == KM_F64) continue;
            km_case c = {.op = op,
                         .n_in = 1,
                         .in = {km_case_typed(shapes[i], KM_V_INDEX, d & 1 ? KM_I32 : KM_I64, 5)},
                         .p = {.n = {[KM_N_CLASSES] = 5}, .dtype = (km_dtype)d},
                         .dtypes = KM_BIT(KM_I32)};
            km_case_put(s, &c);
        }
}

void km_cases_concats(km_case_sink *s, km_op op) {
    const struct {
        km_case_in a, b, c;
        int axis;
    } list[] = {{km_case_input(KM_SHAPE(3), 0, 0), km_case_input(KM_SHAPE(1), 0, 0),
                 km_case_input(KM_SHAPE(5), 0, 0), 0},
                {km_case_input(KM_SHAPE(2, 3), 0, 0), km_case_input(KM_SHAPE(2, 4), 0, KM_L_TURNED),
                 km_case_input(KM_SHAPE(2, 1), 0, 0), 1},
                {km_case_input(KM_SHAPE(2, 3), 0, KM_L_STEP), km_case_input(KM_SHAPE(0, 3), 0, 0),
                 km_case_input(KM_SHAPE(4, 3), 0, 0), 0},
                {km_case_input(KM_SHAPE(2, 3, 4), 0, 0),
                 km_case_input(KM_SHAPE(2, 5, 4), 0, KM_L_REPEAT),
                 km_case_input(KM_SHAPE(2, 1, 4), 0, 0), 1},
                {km_case_input(KM_SHAPE(64, 100), 0, 0), km_case_input(KM_SHAPE(64, 130), 0, 0),
                 km_case_input(KM_SHAPE(64, 7), 0, 0), 1}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        km_case c = {.op = op,
                     .n_in = 3,
                     .in = {list[i].a, list[i].b, list[i].c},
                     .p = {.axis = list[i].axis},
                     .dtypes = KM_ANY & ~KM_BIT(KM_F64),
                     .no_gradient = i == 4};
        km_case_put(s, &c);
    }
}
