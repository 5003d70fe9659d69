/* Fuzzes index files. An input changes bytes of a true one, and mostly puts its checksums right
 * again, so that what is behind them is reached: what opens can be searched, decoded and saved, and
 * what is refused has a reason.
 * seeds: tests/fixtures/vectors/f4.npy tests/fixtures/vectors/x.fvecs tests/fixtures/formats/importance.dat
 */
#include "../vector/kmx_bytes.h"
#include "base/alloc.h"
#include "vector/index.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { N = 90, DIM = 6, MOST = 1 << 17 };

static uint64_t whole[3][MOST / 8]; /* every mode; aligned for the reader */
static size_t size_of[3];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok) {
    if (!ok) abort();
}

static void prepare(void) {
    char path[] = "/tmp/kermes-fuzz-XXXXXX";
    float x[N * DIM];
    for (int i = 0; i < N * DIM; i++) x[i] = (float)((i * 7919) % 101) - 50;
    int fd = mkstemp(path);
    km_ctx *ctx = km_ctx_new("cpu", 1);
    must(fd >= 0 && ctx);
    for (int mode = 0; mode < 3; mode++) {
        km_index_options o = {.size = sizeof(km_index_options),
                              .mode = (km_index_mode)mode,
                              .rerank = (km_index_vectors)mode,
                              .anchors = 4};
        if (mode != KM_INDEX_ANCHORS_ONLY) o.bytes = 5;
        km_index *index = km_index_build(ctx, x, N, DIM, NULL, &o);
        uint64_t gone = 7;
        must(index && km_index_delete(index, &gone, 1) == KM_OK);
        must(km_index_save(index, path, false) == KM_OK);
        km_index_close(index);
        FILE *f = fopen(path, "rb");
        must(f != NULL);
        size_of[mode] = fread(whole[mode], 1, MOST, f);
        must(size_of[mode] > 8192 && size_of[mode] < MOST);
        fclose(f);
    }
    km_ctx_free(ctx);
    close(fd);
    unlink(path);
}

static void use(km_index *x) {
    km_error err = {0};
    uint64_t ids[5];
    float dist[5], *query = calloc((size_t)x->dim, sizeof *query);
    km_search_options o = {.size = sizeof(km_search_options), .rerank = x->vector_bytes ? 5 : 0};
    must(query != NULL);
    if (km_index_find(x, query, 1, 5, &o, NULL, ids, dist, &err) != KM_OK) must(err.code != KM_OK);
    err = (km_error){0};
    int64_t n;
    uint64_t *all = km_index_live_ids(x, &n, &err);
    if (all && n && x->dim <= 64) {
        if (n > 100) n = 100;
        km_snapshot *v = km_index_rows(x);
        km_row_place *places = km_index_places(x, v, all, n, &err);
        float *out = malloc(sizeof *out * (size_t)(n * x->dim));
        if (places) km_index_restore(x, v, NULL, places, n, out, &err);
        km_snapshot_drop(v);
        free(out);
        km_free(places);
    }
    km_free(all);
    free(query);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint64_t copy[MOST / 8];
    if (size_of[0] == 0) prepare();
    if (size < 2) return 0;
    int mode = data[0] % 3;
    bool seal = data[1] % 8 != 0;
    size_t n = size_of[mode];
    uint8_t *bytes = (uint8_t *)copy;
    memcpy(copy, whole[mode], n);
    for (size_t i = 2; i + 3 < size && i < 64; i += 4) { /* where, and what */
        size_t at = (size_t)data[i] | (size_t)data[i + 1] << 8 | (size_t)(data[i + 2] & 1) << 16;
        if (data[i + 2] & 2) at %= 112;                                     /* the header */
        if (data[i + 2] & 4) at = n - 1 - at % (64 * 12 < n ? 64 * 12 : n); /* table, trailer */
        if (at < n) bytes[at] = data[i + 3];
    }
    if (seal) kmx_seal(bytes, n);
    km_error err = {0};
    km_kmx *f = km_kmx_parse(bytes, n, "input", &err);
    km_index *x = f ? km_index_from_file(f, &err) : NULL;
    if (!x && err.code == KM_OK) __builtin_trap(); /* a refusal without a reason */
    if (x) use(x);
    km_index_close(x);
    return 0;
}
