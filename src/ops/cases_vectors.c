/* Trial calls for the nearest of many vectors; codes have files of their own. */
#include "ops/cases_put.h"

/* Whole numbers make every distance exact, so that ties are ties on every device. */
void km_cases_nearests(km_case_sink *s, km_op op) {
    static const int64_t sizes[][3] = {
        {0, 3, 4},      {1, 1, 1},     {5, 1, 3},      {7, 19, 1},      {33, 5, 2},
        {130, 65, 16},  {97, 257, 33}, {256, 128, 64}, {300, 130, 200}, {65, 1000, 12},
        {40, 300, 784}, {9, 70, 1500}, {2000, 96, 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int form = 0; form < 3; form++) {
            km_case c = {.op = op, .n_in = 2, .dtypes = KM_CASE_HALVES, .no_gradient = true};
            km_values v = form == 2 ? KM_V_OFFSET : form == 1 ? KM_V_BOOL : KM_V_NORMAL;
            if (form == 2) c.dtypes = KM_BIT(KM_F32);
            c.in[0] =
                km_case_input(KM_SHAPE(sizes[i][0], sizes[i][2]), v, i % 3 == 2 ? KM_L_OFFSET : 0);
            c.in[1] = km_case_typed(KM_SHAPE(sizes[i][1], sizes[i][2]), v, KM_F32, 0);
            km_case_put(s, &c);
        }
}

void km_cases_cells(km_case_sink *s, km_op op) {
    static const int64_t sizes[][3] = {{0, 3, 4},     {1, 1, 1},      {5, 1, 3},     {7, 19, 1},
                                       {33, 5, 2},    {130, 65, 16},  {97, 257, 33}, {3000, 3, 64},
                                       {5000, 1, 20}, {40, 300, 784}, {2000, 96, 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int form = 0; form < 4; form++) {
            int64_t n = sizes[i][0], k = sizes[i][1];
            km_case c = {.op = op,
                         .n_in = 4,
                         .dtypes = KM_CASE_HALVES,
                         .no_gradient = true,
                         .p = {.n = {[KM_N_CELLS] = k}}};
            c.in[0] = km_case_input(KM_SHAPE(n, sizes[i][2]), KM_V_NORMAL, 0);
            c.in[1] =
                km_case_typed(KM_SHAPE(n), KM_V_INDEX, KM_I32, k + (form == 3)); /* one beyond */
            c.in[2] = form & 1 ? km_case_typed(KM_SHAPE(n), KM_V_UNIT, KM_F32, 0) : KM_CASE_ABSENT;
            c.in[3] =
                form & 2 ? km_case_typed(KM_SHAPE(n), KM_V_POSITIVE, KM_F32, 0) : KM_CASE_ABSENT;
            km_case_put(s, &c);
        }
}
