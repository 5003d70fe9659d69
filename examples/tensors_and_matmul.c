/* Tensors, views and products: makes two matrices, multiplies them, looks at the result in a few
 * ways, and shows how an error is reported. */
#include <kermes.h>
#include <math.h>
#include <stdio.h>

static void print_matrix(km_ctx *ctx, const char *name, km_tensor *t) {
    float values[64];
    int64_t rows = km_tensor_dim(t, 0), cols = km_tensor_dim(t, 1);
    if (km_read(ctx, t, values, (size_t)(rows * cols) * sizeof *values) != KM_OK) return;
    printf("%s (%lld x %lld)\n", name, (long long)rows, (long long)cols);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) printf("%8.2f", values[i * cols + j]);
        printf("\n");
    }
}

int main(void) {
    km_ctx *ctx = km_ctx_new("auto", 0);
    if (!ctx) {
        fprintf(stderr, "%s\n", km_last_error());
        return 1;
    }
    printf("Kermes %s on %s\n\n", km_version(), km_ctx_device(ctx));

    const float data[] = {1, 2, 3, 4, 5, 6};
    km_tensor *a = km_from_data(ctx, KM_F32, KM_SHAPE(2, 3), data);
    km_tensor *at = km_transpose(ctx, a, 0, 1); /* a view: nothing is copied */
    km_tensor *c = km_matmul(ctx, a, at);       /* (2, 3) x (3, 2) -> (2, 2) */
    print_matrix(ctx, "a", a);
    print_matrix(ctx, "a a^T", c);

    km_tensor *row = km_from_data(ctx, KM_F32, KM_SHAPE(2), (float[]){10, 20});
    print_matrix(ctx, "a a^T + row", km_add(ctx, c, row)); /* broadcast, as in NumPy */
    print_matrix(ctx, "softmax of each row", km_softmax(ctx, c, -1));
    double total = km_item(ctx, km_sum(ctx, c, NULL, 0, false));
    printf("sum of a a^T: %g\n\n", total);
    if (km_ctx_status(ctx) != KM_OK) {
        fprintf(stderr, "%s\n", km_ctx_error(ctx));
        return 1;
    }

    /* A call that cannot work fails the context, and says why. */
    km_tensor *wrong = km_matmul(ctx, a, a);
    printf("A product that does not fit gives %s:\n  %s\n", wrong ? "a tensor" : "NULL",
           km_ctx_error(ctx));
    int ok = !wrong && km_ctx_status(ctx) == KM_ERR_SHAPE && fabs(total - 14 - 77 - 64) < 1e-4;

    km_ctx_clear_error(ctx);
    km_step_end(ctx); /* every tensor above is gone */
    km_ctx_free(ctx);
    return ok ? 0 : 1;
}
