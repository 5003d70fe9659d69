/* DLPack both ways: no copy, every dtype and stride, loans that end in any order and any thread. */
#include "tensor/dlpack.h"
#include "support/engine.h"
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

typedef struct lender { /* another library's tensor */
    struct DLManagedTensor m;
    struct DLManagedTensorVersioned v;
    int64_t shape[8], strides[8];
    int deleted;
} lender;

static void deleted_plain(struct DLManagedTensor *m) { ((lender *)m->manager)->deleted++; }
static void deleted_versioned(struct DLManagedTensorVersioned *m) {
    ((lender *)m->manager)->deleted++;
}

static lender *lend(lender *l, void *data, uint8_t code, uint8_t bits, int ndim, int64_t a,
                    int64_t b) {
    *l = (lender){.shape = {a, b, 1, 1, 1, 1}, .strides = {b, 1, 1, 1, 1, 1}};
    km_dl_tensor t = {.data = data, .ndim = ndim, .shape = l->shape};
    t.device.type = KM_DL_CPU;
    t.dtype.code = code;
    t.dtype.bits = bits;
    t.dtype.lanes = 1;
    l->m = (struct DLManagedTensor){t, l, deleted_plain};
    l->v.manager = l;
    l->v.deleter = deleted_versioned;
    l->v.version.major = 1;
    l->v.tensor = t;
    return l;
}

static void memory_of_others_is_used_in_place(void **state) {
    km_ctx *ctx = *state;
    float x[6] = {1, 2, 3, 4, 5, 6};
    lender l;
    lend(&l, x, KM_DL_FLOAT, 32, 2, 2, 3);
    km_tensor *t = km_from_dlpack(ctx, &l.m);
    assert_non_null(t);
    assert_ptr_equal(km_tensor_data(t), x);
    assert_int_equal((int)km_item(ctx, km_sum(ctx, t, NULL, 0, false)), 21);
    const float y[6] = {9, 8, 7, 6, 5, 4};
    assert_int_equal(km_write(ctx, t, y, sizeof y), KM_OK);
    assert_int_equal((int)x[0], 9);
    km_tensor *part = km_keep(ctx, km_narrow(ctx, t, 0, 1, 1));
    km_release(t);
    km_step_end(ctx);
    assert_int_equal(l.deleted, 0); /* a view of it is still there */
    assert_int_equal((int)km_item(ctx, km_sum(ctx, part, NULL, 0, false)), 15);
    km_release(part);
    assert_int_equal(l.deleted, 1);
}

static void strides_may_have_any_sign_and_step(void **state) {
    km_ctx *ctx = *state;
    int32_t x[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    lender l;
    lend(&l, x + 11, KM_DL_INT, 32, 2, 2, 3); /* backwards, every second one of a row */
    l.strides[0] = -6;
    l.strides[1] = -2;
    l.m.tensor.strides = l.strides;
    km_tensor *t = km_from_dlpack(ctx, &l.m);
    assert_non_null(t);
    int32_t got[6], want[6] = {11, 9, 7, 5, 3, 1};
    assert_int_equal(km_read(ctx, t, got, sizeof got), KM_OK);
    assert_memory_equal(got, want, sizeof want);
    km_release(t);
    lend(&l, x, KM_DL_INT, 32, 1, 3, 1);
    l.strides[0] = 0; /* one element, three times */
    l.m.tensor.strides = l.strides;
    l.m.tensor.byte_offset = 8;
    t = km_from_dlpack(ctx, &l.m);
    assert_int_equal((int)km_item(ctx, km_sum(ctx, t, NULL, 0, false)), 6);
    assert_int_equal(km_write(ctx, t, want, 12), KM_ERR_STATE);
    km_ctx_clear_error(ctx);
    km_release(t);
    lend(&l, NULL, KM_DL_INT, 32, 2, 0, 3); /* nothing at all */
    t = km_from_dlpack(ctx, &l.m);
    assert_non_null(t);
    assert_int_equal(km_tensor_count(km_copy(ctx, t)), 0);
    km_release(t);
    assert_int_equal(l.deleted, 1);
}

static void every_dtype_goes_out_and_comes_in_again(void **state) {
    km_ctx *ctx = *state;
    for (int d = KM_F32; d <= KM_BOOL; d++) {
        km_tensor *t = km_ones(ctx, (km_dtype)d, KM_SHAPE(2, 2));
        struct DLManagedTensor *m = km_to_dlpack(ctx, t);
        assert_non_null(m);
        assert_ptr_equal(m->tensor.data, km_tensor_data(t));
        assert_int_equal(m->tensor.dtype.bits, 8 * km_dtype_size((km_dtype)d));
        km_tensor *back = km_from_dlpack(ctx, m);
        assert_non_null(back);
        assert_int_equal(km_tensor_dtype(back), d);
        assert_ptr_equal(km_tensor_data(back), km_tensor_data(t));
        km_release(back); /* which ends the loan */
        km_step_end(ctx);
    }
}

static void what_is_read_only_stays_as_it_is(void **state) {
    km_ctx *ctx = *state;
    float x[2] = {1, 2};
    lender l;
    lend(&l, x, KM_DL_FLOAT, 32, 1, 2, 1);
    l.v.flags = KM_DL_READ_ONLY;
    km_tensor *t = km_from_dlpack_versioned(ctx, &l.v);
    assert_non_null(t);
    assert_int_equal(km_write(ctx, t, (float[]){3, 4}, 8), KM_ERR_STATE);
    km_ctx_clear_error(ctx);
    assert_null(km_to_dlpack(ctx, t));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_STATE);
    km_ctx_clear_error(ctx);
    struct DLManagedTensorVersioned *out = km_to_dlpack_versioned(ctx, t);
    assert_non_null(out);
    assert_int_equal(out->flags, KM_DL_READ_ONLY);
    assert_int_equal(out->version.major, 1);
    km_release(t);
    assert_int_equal(l.deleted, 0);
    out->deleter(out);
    km_step_end(ctx);
    assert_int_equal(l.deleted, 1);
    assert_int_equal((int)x[0], 1);
}

static void *end_loans(void *arg) {
    struct DLManagedTensor **m = arg;
    for (int i = 0; i < 50; i++) m[i]->deleter(m[i]);
    return NULL;
}

static void loans_end_in_any_thread_and_after_their_context(void **state) {
    (void)state;
    int64_t live = km_alloc_live();
    km_ctx *ctx = km_ctx_new("cpu", 1);
    struct DLManagedTensor *m[101];
    for (int i = 0; i < 101; i++) {
        m[i] = km_to_dlpack(ctx, km_full(ctx, KM_F32, KM_SHAPE(4), i));
        assert_non_null(m[i]);
    }
    km_step_end(ctx); /* the tensors are gone, the loans are not */
    pthread_t a, b;
    pthread_create(&a, NULL, end_loans, m);
    pthread_create(&b, NULL, end_loans, m + 50);
    for (int i = 0; i < 20; i++) { /* the context works on meanwhile */
        km_item(ctx, km_sum(ctx, km_ones(ctx, KM_F32, KM_SHAPE(64)), NULL, 0, false));
        km_step_end(ctx);
    }
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    km_ctx_free(ctx);
    assert_float_equal(((float *)m[100]->tensor.data)[3], 100, 0);
    m[100]->deleter(m[100]);
    assert_int_equal(km_alloc_live(), live);
}

static void refused(km_ctx *ctx, km_tensor *t, km_status code) {
    assert_null(t);
    assert_int_equal(km_ctx_status(ctx), code);
    km_ctx_clear_error(ctx);
}

static void what_cannot_be_used_is_an_error_and_stays_the_lenders(void **state) {
    km_ctx *ctx = *state;
    float x[8] = {0};
    lender l;
    refused(ctx, km_from_dlpack(ctx, NULL), KM_ERR_NULL);
    refused(ctx, km_from_dlpack_versioned(ctx, NULL), KM_ERR_NULL);
    refused(ctx, km_from_dlpack(ctx, &lend(&l, x, KM_DL_UINT, 32, 1, 2, 1)->m), KM_ERR_DTYPE);
    refused(ctx, km_from_dlpack(ctx, &lend(&l, x, KM_DL_FLOAT, 32, 6, 1, 1)->m), KM_ERR_SHAPE);
    refused(ctx, km_from_dlpack(ctx, &lend(&l, x, KM_DL_FLOAT, 32, -1, 1, 1)->m), KM_ERR_SHAPE);
    refused(ctx, km_from_dlpack(ctx, &lend(&l, x, KM_DL_FLOAT, 32, 1, -2, 1)->m), KM_ERR_SHAPE);
    refused(ctx, km_from_dlpack(ctx, &lend(&l, NULL, KM_DL_FLOAT, 32, 1, 2, 1)->m), KM_ERR_NULL);
    refused(ctx, km_from_dlpack(ctx, &lend(&l, (char *)x + 1, KM_DL_FLOAT, 32, 1, 2, 1)->m),
            KM_ERR_UNSUPPORTED);
    lend(&l, x, KM_DL_FLOAT, 32, 1, 2, 1);
    l.m.tensor.shape = NULL;
    refused(ctx, km_from_dlpack(ctx, &l.m), KM_ERR_NULL);
    lend(&l, x, KM_DL_FLOAT, 32, 1, 2, 1);
    l.m.tensor.dtype.lanes = 4;
    refused(ctx, km_from_dlpack(ctx, &l.m), KM_ERR_DTYPE);
    lend(&l, x, KM_DL_FLOAT, 32, 2, 3, 3);
    l.strides[0] = INT64_MAX;
    l.m.tensor.strides = l.strides;
    refused(ctx, km_from_dlpack(ctx, &l.m), KM_ERR_RANGE);
    lend(&l, x, KM_DL_FLOAT, 32, 1, 2, 1);
    l.m.tensor.device.type = KM_DL_CUDA;
    refused(ctx, km_from_dlpack(ctx, &l.m), KM_ERR_DEVICE);
    lend(&l, x, KM_DL_FLOAT, 32, 1, 2, 1);
    l.v.version.major = 9;
    refused(ctx, km_from_dlpack_versioned(ctx, &l.v), KM_ERR_UNSUPPORTED);
    assert_int_equal(l.deleted, 0);
    assert_null(km_to_dlpack(ctx, NULL));
    km_ctx_clear_error(ctx);
    assert_null(km_to_dlpack(ctx, km_cast(ctx, km_ones(ctx, KM_F32, KM_SHAPE(1, 32)), KM_Q4_0)));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_DTYPE);
    km_ctx_clear_error(ctx);
    assert_null(km_from_dlpack(NULL, &l.m));
    assert_null(km_to_dlpack(NULL, NULL));
}

static void no_allocation_that_fails_loses_anything(void **state) {
    km_ctx *ctx = *state;
    float x[2] = {1, 2};
    lender l;
    km_tensor *mine = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(4)));
    for (int nth = 0; nth < 6; nth++) {
        lend(&l, x, KM_DL_FLOAT, 32, 1, 2, 1);
        km_alloc_fail_nth(nth);
        km_tensor *t = km_from_dlpack(ctx, &l.m);
        struct DLManagedTensor *m = km_to_dlpack(ctx, mine);
        km_alloc_fail_nth(-1);
        km_ctx_clear_error(ctx);
        if (m) m->deleter(m);
        km_release(t);
        assert_int_equal(l.deleted, t != NULL);
        km_step_end(ctx);
    }
    km_release(mine);
}

#define ON_CPU(f) cmocka_unit_test_prestate_setup_teardown(f, engine_open, engine_close, "cpu")

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_CPU(memory_of_others_is_used_in_place),
        ON_CPU(strides_may_have_any_sign_and_step),
        ON_CPU(every_dtype_goes_out_and_comes_in_again),
        ON_CPU(what_is_read_only_stays_as_it_is),
        cmocka_unit_test(loans_end_in_any_thread_and_after_their_context),
        ON_CPU(what_cannot_be_used_is_an_error_and_stays_the_lenders),
        ON_CPU(no_allocation_that_fails_loses_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
