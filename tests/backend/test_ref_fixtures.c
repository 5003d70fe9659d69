/* The reference backend against PyTorch in float64, every case of tests/fixtures/ops.txt, and against
 * NumPy, those of index.txt; then
 * the same cases in odd layouts (same bits) and in the narrower floats (rounded once). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "backend/ref_tensor.h"

#define TOLERANCE 1e-12 /* relative to the larger of 1 and the expected value */

typedef struct fixture {
    char name[128];
    km_op op;
    km_params p;
    int n_in, n_out;
    km_tensor *in[8], *want[KM_MAX_OUTPUTS];
} fixture;

/* ---- Reading the file ---- */

static const char *const op_names[KM_OP_COUNT] = {
#define OP_NAME(NAME, name) [KM_OP_##NAME] = #name,
    KM_OP_LIST(OP_NAME)
#undef OP_NAME
};

static void set_param(fixture *f, const char *field, const char *value) {
    double v = strtod(value, NULL);
    int k = field[0] ? field[1] - '0' : -1;
    if (!strcmp(field, "axis"))
        f->p.axis = (int)v;
    else if (!strcmp(field, "axes"))
        f->p.axes = (uint32_t)v;
    else if (!strcmp(field, "keepdim"))
        f->p.keepdim = v != 0;
    else if (!strcmp(field, "causal"))
        f->p.causal = v != 0;
    else if (!strcmp(field, "act"))
        f->p.act = (km_act)v;
    else if (field[0] == 'n' && k >= 0 && k < 4)
        f->p.n[k] = (int64_t)v;
    else if (field[0] == 'f' && k >= 0 && k < 6)
        f->p.f[k] = v;
    else
        fail_msg("%s: no such parameter: %s", f->name, field);
}

/* "f64 [2,3] 0.5 1 ..." or "none" */
static km_tensor *read_tensor(const fixture *f, char *text) {
    if (!strncmp(text, "none", 4)) return NULL;
    km_dtype dtype = KM_DTYPE_COUNT;
    size_t len = strcspn(text, " ");
    for (int d = 0; d < KM_DTYPE_COUNT; d++) {
        const char *name = km_dtype_name((km_dtype)d);
        if (strlen(name) == len && !strncmp(text, name, len)) dtype = (km_dtype)d;
    }
    if (dtype == KM_DTYPE_COUNT) fail_msg("%s: no such dtype: %s", f->name, text);
    char *at = strchr(text, '[') + 1;
    km_shape shape = {0};
    while (*at != ']') {
        shape.dim[shape.ndim++] = strtoll(at, &at, 10);
        if (*at == ',') at++;
    }
    at++;
    km_tensor *t = rt_new(dtype, shape);
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, shape) {
        char *end;
        double v = strtod(at, &end);
        if (end == at) fail_msg("%s: too few values", f->name);
        km_ref_set(t, i, v);
        at = end;
    }
    return t;
}

/* The next case, false at the end of the file. */
static bool next_fixture(FILE *file, fixture *f) {
    static char line[1 << 16];
    bool open = false;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] == 0 || line[0] == '#') continue;
        if (!strcmp(line, "end")) return true;
        char *rest = strchr(line, ' ');
        assert_non_null(rest);
        *rest++ = 0;
        if (!strcmp(line, "case")) {
            *f = (fixture){.op = KM_OP_COUNT};
            snprintf(f->name, sizeof f->name, "%s", rest);
            size_t len = strcspn(rest, " ");
            for (int op = 0; op < KM_OP_COUNT; op++)
                if (strlen(op_names[op]) == len && !strncmp(rest, op_names[op], len))
                    f->op = (km_op)op;
            if (f->op == KM_OP_COUNT) fail_msg("no such op: %s", rest);
            open = true;
        } else if (!strcmp(line, "param")) {
            char *value = strchr(rest, ' ');
            assert_non_null(value);
            *value++ = 0;
            set_param(f, rest, value);
        } else if (!strcmp(line, "in")) {
            assert_true(f->n_in < 8);
            f->in[f->n_in++] = read_tensor(f, rest);
        } else {
            assert_string_equal(line, "out");
            assert_true(f->n_out < KM_MAX_OUTPUTS);
            f->want[f->n_out++] = read_tensor(f, rest);
        }
    }
    assert_false(open && !feof(file));
    return false;
}

/* Runs `check` on every case. */
static void each_of_file(const char *name, int at_least, void (*check)(const fixture *f)) {
    char path[4096];
    const char *src = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/tests/fixtures/%s", src ? src : ".", name);
    FILE *file = fopen(path, "r");
    if (!file) fail_msg("%s cannot be read", path);
    fixture f;
    int n = 0;
    while (next_fixture(file, &f)) {
        check(&f);
        rt_teardown(NULL);
        n++;
    }
    fclose(file);
    assert_true(n >= at_least);
}

static void each_fixture(void (*check)(const fixture *f)) {
    each_of_file("ops.txt", 150, check);
    each_of_file("index.txt", 40, check);
}

/* ---- Running a case ---- */

/* Outputs that are f32 even when the inputs are narrower; see op_list.h. */
static bool is_statistic(const fixture *f, int output) {
    switch (f->op) {
    case KM_OP_SUMSQ:
    case KM_OP_SUMSQ_CHUNKS:
    case KM_OP_MSE:
    case KM_OP_BCE: return true;
    case KM_OP_CROSS_ENTROPY: return output < 2;
    case KM_OP_LAYER_NORM:
    case KM_OP_RMS_NORM:
    case KM_OP_ATTENTION: return output > 0;
    case KM_OP_ADD_LAYER_NORM:
    case KM_OP_ADD_RMS_NORM: return output > 1;
    default: return false;
    }
}

/* Runs f with its floats in the given dtype; integers stay as they are. */
static void run(const fixture *f, km_dtype dtype, bool odd, km_tensor **out) {
    km_tensor *in[8];
    for (int i = 0; i < f->n_in; i++) {
        bool is_float = f->in[i] && km_dtype_is_float(f->in[i]->dtype);
        in[i] = rt_copy(f->in[i], is_float ? dtype : f->in[i] ? f->in[i]->dtype : dtype, odd);
    }
    for (int i = 0; i < f->n_out; i++) {
        km_dtype d = f->want[i]->dtype;
        if (d == KM_F64) d = is_statistic(f, i) && dtype != KM_F64 ? KM_F32 : dtype;
        out[i] = rt_make(d, f->want[i]->shape, odd);
    }
    assert_int_equal(rt_run(f->op, &f->p, in, f->n_in, out, f->n_out), KM_OK);
    for (int i = 0; i < f->n_in; i++)
        if (in[i] && !rt_gaps_intact(in[i])) fail_msg("%s: wrote to input %d", f->name, i);
    for (int i = 0; i < f->n_out; i++)
        if (!rt_gaps_intact(out[i])) fail_msg("%s: wrote outside output %d", f->name, i);
}

static void agrees_with_torch(const fixture *f) {
    km_tensor *out[KM_MAX_OUTPUTS];
    run(f, KM_F64, false, out);
    for (int o = 0; o < f->n_out; o++) {
        int64_t i[KM_MAX_DIMS];
        KM_REF_EACH(i, out[o]->shape) {
            double got = km_ref_get(out[o], i), want = km_ref_get(f->want[o], i);
            bool same = got == want || (isnan(got) && isnan(want)) ||
                        fabs(got - want) <= TOLERANCE * fmax(1, fabs(want));
            if (!same) fail_msg("%s: output %d has %.17g for %.17g", f->name, o, got, want);
        }
    }
}

static void same_bits(const fixture *f, const char *how, int o, const km_tensor *a,
                      const km_tensor *b) {
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, a->shape) {
        double x = km_ref_get(a, i), y = km_ref_get(b, i);
        if (!(x == y && signbit(x) == signbit(y)) && !(isnan(x) && isnan(y)))
            fail_msg("%s: output %d has %.17g (%s) for %.17g", f->name, o, x, how, y);
    }
}

static void ignores_layout(const fixture *f) {
    km_tensor *plain[KM_MAX_OUTPUTS], *odd[KM_MAX_OUTPUTS];
    run(f, KM_F64, false, plain);
    run(f, KM_F64, true, odd);
    for (int o = 0; o < f->n_out; o++) same_bits(f, "in odd strides", o, odd[o], plain[o]);
}

/* On inputs that the narrow dtype holds exactly, its result is f64's rounded once. */
static void rounds_once(const fixture *f) {
    /* Their sum is rounded before the norm, by definition. */
    if (f->op == KM_OP_ADD_LAYER_NORM || f->op == KM_OP_ADD_RMS_NORM) return;
    const km_dtype narrow[] = {KM_F32, KM_F16, KM_BF16};
    for (int d = 0; d < 3; d++) {
        fixture exact = *f;
        for (int i = 0; i < f->n_in; i++)
            if (f->in[i] && f->in[i]->dtype == KM_F64)
                exact.in[i] = rt_copy(rt_copy(f->in[i], narrow[d], false), KM_F64, false);
        km_tensor *got[KM_MAX_OUTPUTS], *wide[KM_MAX_OUTPUTS];
        run(&exact, narrow[d], false, got);
        run(&exact, KM_F64, false, wide);
        for (int o = 0; o < f->n_out; o++)
            same_bits(f, km_dtype_name(narrow[d]), o, got[o],
                      rt_copy(wide[o], got[o]->dtype, false));
    }
}

/* ---- Tests ---- */

static void every_op_with_a_kernel_has_a_reference(void **state) {
    for (int op = 0; op < KM_OP_COUNT; op++) {
        bool is_view = op >= KM_OP_SLICE; /* and what is composed of other ops */
        if (is_view)
            assert_null(km_ref_backend.kernel[op]);
        else if (!km_ref_backend.kernel[op])
            fail_msg("%s has no kernel", op_names[op]);
    }
}

static bool covered[KM_OP_COUNT];
static void mark_covered(const fixture *f) { covered[f->op] = true; }

static void every_op_but_fills_copies_and_dropout_has_a_fixture(void **state) {
    each_fixture(mark_covered);
    for (int op = 0; op < KM_OP_COUNT; op++) {
        bool elsewhere = op <= KM_OP_CAST || op == KM_OP_DROPOUT; /* test_ref_fill.c */
        /* Composed of kernels that have one; and weights in blocks: tests/tensor/test_quant.c. */
        elsewhere |= op == KM_OP_LINEAR_DX || op == KM_OP_LINEAR_DW;
        elsewhere |= op >= KM_OP_DEQUANTISE && op <= KM_OP_QUANT_EMBEDDING;
        /* Of whole models, against transformers: tests/model/test_archs.c. */
        elsewhere |= op == KM_OP_ATTEND;
        /* Definitions, word for word: tests/vector/test_nearest.c. */
        elsewhere |= op == KM_OP_NEAREST || op == KM_OP_CELL_SUMS;
        /* Against what does the same on the host: tests/infer/test_choose.c,
         * tests/vector/test_device_index.c, tests/vector/test_device_coder.c. */
        elsewhere |= op == KM_OP_SAMPLE || op == KM_OP_LOGPROBS || op == KM_OP_SCAN_CODES;
        elsewhere |= op == KM_OP_ENCODE_LEVELS || op == KM_OP_ENCODE_TRELLIS;
        /* Against their definitions: tests/ops/test_order.c. */
        elsewhere |= op == KM_OP_SORT || op == KM_OP_CUMSUM || op == KM_OP_ONE_HOT;
        if (km_ref_backend.kernel[op] && !elsewhere && !covered[op])
            fail_msg("%s has no fixture", op_names[op]);
    }
}

static void kernels_agree_with_torch_in_f64(void **state) { each_fixture(agrees_with_torch); }
static void kernels_give_the_same_bits_in_any_layout(void **state) { each_fixture(ignores_layout); }
static void narrow_floats_are_the_f64_result_rounded_once(void **state) {
    each_fixture(rounds_once);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_with_a_kernel_has_a_reference),
        cmocka_unit_test_teardown(every_op_but_fills_copies_and_dropout_has_a_fixture, rt_teardown),
        cmocka_unit_test_teardown(kernels_agree_with_torch_in_f64, rt_teardown),
        cmocka_unit_test_teardown(kernels_give_the_same_bits_in_any_layout, rt_teardown),
        cmocka_unit_test_teardown(narrow_floats_are_the_f64_result_rounded_once, rt_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
