/* Compresses made-up vectors into an index, searches it, changes it, and saves it. */
#include <kermes.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 2000, DIM = 32, K = 5 };

/* Points around twenty places. */
static void make_vectors(float *x, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < DIM; j++) {
            float place = (float)(((i % 20 + 3) * (j + 5) * 37) % 100) / 10;
            x[i * DIM + j] = place + (float)rand() / (float)RAND_MAX;
        }
}

int main(void) {
    static float x[N * DIM];
    srand(1);
    make_vectors(x, N);
    km_ctx *ctx = km_ctx_new("auto", 0);
    km_index *index =
        ctx ? km_index_build(ctx, x, N, DIM, NULL,
                             &(km_index_options){.size = sizeof(km_index_options), .bytes = 16})
            : NULL;
    if (!index) {
        fprintf(stderr, "%s\n", km_last_error());
        km_ctx_free(ctx);
        return 1;
    }
    km_index_info info = km_index_describe(index);
    printf("%d vectors of %d bytes: %.1f bytes each, everything counted\n", N, 4 * DIM,
           info.total_bytes / N);

    uint64_t ids[K];
    float distances[K];
    int ok = km_index_search(index, x + 7 * DIM, 1, K, NULL, 0, ids, distances) == KM_OK;
    for (int i = 0; ok && i < K; i++)
        printf("  vector %llu at distance %.3f\n", (unsigned long long)ids[i], distances[i]);
    ok = ok && ids[0] == 7;

    uint64_t gone = 7, added = 5000;
    ok = ok && km_index_delete(index, &gone, 1) == KM_OK &&
         km_index_add(ctx, index, x + 7 * DIM, 1, &added) == KM_OK &&
         km_index_search(index, x + 7 * DIM, 1, 1, NULL, 0, ids, distances) == KM_OK;
    if (ok) printf("after a change it is vector %llu\n", (unsigned long long)ids[0]);
    ok = ok && ids[0] == added;

    const char *path = "/tmp/kermes-example.kmx";
    ok = ok && km_index_save(index, path, true) == KM_OK;
    km_index_close(index);
    index = ok ? km_index_open(path) : NULL;
    ok = index && km_index_describe(index).count == N;
    if (!ok) fprintf(stderr, "%s\n", km_last_error());
    km_index_close(index);
    remove(path);
    km_ctx_free(ctx);
    return ok ? 0 : 1;
}
