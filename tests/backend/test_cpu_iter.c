/* Walking tensors together: which axes merge, where runs begin, and that each element is visited
 * once on any number of threads. */
#include "cpu_tensor.h"
#include "backend/cpu/walk.h"
#include "backend/iter.h"

/* A tensor that is only a layout. */
static km_tensor layout(km_storage *s, km_dtype dtype, km_shape shape, const int64_t *stride) {
    km_tensor t = {.storage = s, .dtype = dtype, .shape = shape};
    if (stride)
        memcpy(t.stride, stride, (size_t)shape.ndim * sizeof *stride);
    else
        km_shape_strides(shape, t.stride);
    return t;
}

static char memory[4096];
static km_storage storage = {.data = memory, .bytes = sizeof memory};

static void contiguous_axes_merge_into_one_run(void **state) {
    km_tensor t = layout(&storage, KM_F32, KM_SHAPE(2, 3, 4), NULL);
    km_iter it;
    (void)state;
    km_iter_init(&it, 2, (const km_tensor *[]){&t, &t});
    assert_int_equal(it.ndim, 1);
    assert_int_equal(it.dim[0], 24);
    assert_int_equal(it.rows, 1);
    assert_int_equal(it.stride[0][0], 1);
}

static void a_broadcast_operand_keeps_its_axes_apart(void **state) {
    km_tensor a = layout(&storage, KM_F32, KM_SHAPE(2, 3, 4), NULL);
    km_tensor bias = layout(&storage, KM_F32, KM_SHAPE(2, 3, 4), (int64_t[]){0, 0, 1});
    km_tensor column = layout(&storage, KM_F32, KM_SHAPE(2, 3, 4), (int64_t[]){3, 1, 0});
    km_iter it;
    (void)state;
    km_iter_init(&it, 2, (const km_tensor *[]){&a, &bias});
    assert_int_equal(it.ndim, 2); /* (2, 3) merge, for 0 * 3 = 0 */
    assert_int_equal(it.dim[0], 6);
    assert_int_equal(it.dim[1], 4);
    km_iter_init(&it, 2, (const km_tensor *[]){&a, &column});
    assert_int_equal(it.ndim, 2);
    assert_int_equal(it.stride[1][0], 1);
    assert_int_equal(it.stride[1][1], 0);
}

static void axes_of_size_one_vanish_whatever_their_stride(void **state) {
    km_tensor t = layout(&storage, KM_F32, KM_SHAPE(1, 5, 1, 7, 1), (int64_t[]){99, 7, 3, 1, 42});
    km_iter it;
    (void)state;
    km_iter_init(&it, 1, (const km_tensor *[]){&t});
    assert_int_equal(it.ndim, 1);
    assert_int_equal(it.dim[0], 35);
}

static void a_scalar_is_a_run_of_one_and_an_empty_tensor_has_no_rows(void **state) {
    km_tensor scalar = layout(&storage, KM_F32, KM_SCALAR, NULL);
    km_storage none = {0};
    km_tensor empty = layout(&none, KM_F32, KM_SHAPE(3, 0, 2), NULL);
    km_iter it;
    (void)state;
    km_iter_init(&it, 1, (const km_tensor *[]){&scalar});
    assert_int_equal(it.ndim, 1);
    assert_int_equal(it.dim[0], 1);
    assert_int_equal(it.rows, 1);
    km_iter_init(&it, 1, (const km_tensor *[]){&empty});
    assert_int_equal(it.rows, 0);
}

static void rows_begin_where_the_strides_say(void **state) {
    /* (2, 3, 4) as a permuted view: no two axes merge */
    km_tensor t = layout(&storage, KM_F16, KM_SHAPE(2, 3, 4), (int64_t[]){1, 8, 2});
    t.offset = 5;
    km_iter it;
    char *ptr[KM_ITER_MAX];
    (void)state;
    km_iter_init(&it, 1, (const km_tensor *[]){&t});
    assert_int_equal(it.rows, 2);
    km_tensor apart = layout(&storage, KM_F16, KM_SHAPE(2, 3, 4), (int64_t[]){100, 10, 2});
    km_iter_init(&it, 1, (const km_tensor *[]){&apart});
    assert_int_equal(it.rows, 6);
    for (int64_t r = 0; r < 6; r++) {
        km_iter_row(&it, r, ptr);
        assert_ptr_equal(ptr[0], memory + 2 * (r / 3 * 100 + r % 3 * 10));
    }
}

static void count_run(void *arg, char *const *ptr, int64_t n) {
    int64_t stride = *(const int64_t *)arg;
    for (int64_t i = 0; i < n; i++) ptr[0][i * stride]++;
}

static void a_walk_visits_every_element_once(void **state) {
    (void)state;
    CT_EACH(km_shape, shape, KM_SHAPE(1), KM_SHAPE(100003), KM_SHAPE(70000, 3), KM_SHAPE(3, 70000),
            KM_SHAPE(40, 50, 60), KM_SHAPE(2, 3, 4, 5, 6), KM_SHAPE(5, 0, 7)) {
        for (int odd = 0; odd < 2; odd++) {
            km_tensor *t = rt_make(KM_U8, *shape, odd);
            int64_t i[KM_MAX_DIMS];
            KM_REF_EACH(i, *shape) km_ref_set_int(t, i, 7);
            km_iter it;
            km_iter_init(&it, 1, (const km_tensor *[]){t});
            rt_ctx.threads = ct_threads;
            km_cpu_walk(&rt_ctx, &it, 100, count_run, &it.stride[0][it.ndim - 1]);
            KM_REF_EACH(i, *shape) assert_int_equal(km_ref_get_int(t, i), 8);
            assert_true(rt_gaps_intact(t));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contiguous_axes_merge_into_one_run),
        cmocka_unit_test(a_broadcast_operand_keeps_its_axes_apart),
        cmocka_unit_test(axes_of_size_one_vanish_whatever_their_stride),
        cmocka_unit_test(a_scalar_is_a_run_of_one_and_an_empty_tensor_has_no_rows),
        cmocka_unit_test(rows_begin_where_the_strides_say),
        cmocka_unit_test_teardown(a_walk_visits_every_element_once, rt_teardown),
    };
    ct_threads = km_threads_new(3);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    km_threads_free(ct_threads);
    return failed;
}
