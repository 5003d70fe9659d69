/* What a C program gets out of kermes.h: tokens a second of one greedy generation, or seconds of one
 * search of a whole file of queries, as a line of JSON. bench/library_speed.py sets it beside the
 * command and Python.
 *
 * Usage: library_speed generate MODEL PROMPT TOKENS THREADS
 *        library_speed search INDEX QUERIES.npy THREADS */
#include <kermes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int fail(void) {
    fprintf(stderr, "library_speed: %s\n", km_last_error());
    return 1;
}

typedef struct heard {
    double first;   /* when the first token came */
    uint64_t bytes; /* FNV-1a of the text */
} heard;

static bool hear(void *user, const km_piece_event *e) {
    heard *h = user;
    if (h->first == 0) h->first = now();
    for (size_t i = 0; i < e->bytes; i++)
        h->bytes = (h->bytes ^ (unsigned char)e->text[i]) * UINT64_C(0x100000001b3);
    return true;
}

static int generate(char **argv) {
    km_model_options o = km_model_defaults();
    o.device = "cpu";
    o.threads = atoi(argv[3]);
    km_model *m = km_model_open(argv[0], &o);
    km_session *s = m ? km_session_new(m) : NULL;
    if (!s) return fail();
    heard h = {.bytes = UINT64_C(0xcbf29ce484222325)};
    km_generation how = km_generation_defaults(m);
    km_generated got = {.size = sizeof got};
    how.max_tokens = atoll(argv[2]);
    how.sampling.temperature = 0;
    how.sampling.repeat_penalty = 1;
    how.on_token = hear;
    how.user = &h;
    if (km_generate(s, argv[1], strlen(argv[1]), &how, &got) != KM_OK) return fail();
    printf("{\"tokens\": %lld, \"tokens_per_s\": %.4f, \"text\": \"%016llx\"}\n",
           (long long)got.tokens, (double)(got.tokens - 1) / (now() - h.first),
           (unsigned long long)h.bytes);
    km_session_free(s);
    km_model_close(m);
    return 0;
}

static int search(char **argv) {
    km_index *index = km_index_open(argv[0]);
    km_vectors *v = km_vectors_open(argv[1], NULL);
    if (!index || !v) return fail();
    int64_t n = km_vectors_count(v), dim = km_vectors_dim(v), k = 10;
    float *q = malloc(sizeof *q * (size_t)(n * dim)),
          *distances = malloc(sizeof *distances * (size_t)(n * k));
    uint64_t *ids = malloc(sizeof *ids * (size_t)(n * k));
    if (!q || !ids || !distances || km_vectors_read(v, 0, n, q) != KM_OK) return fail();
    int threads = atoi(argv[2]);
    if (km_index_search(index, q, 1, k, NULL, threads, ids, distances) != KM_OK) return fail();
    double began = now();
    if (km_index_search(index, q, n, k, NULL, threads, ids, distances) != KM_OK) return fail();
    printf("{\"queries\": %lld, \"seconds\": %.6f}\n", (long long)n, now() - began);
    free(q);
    free(ids);
    free(distances);
    km_vectors_close(v);
    km_index_close(index);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 6 && strcmp(argv[1], "generate") == 0) return generate(argv + 2);
    if (argc == 5 && strcmp(argv[1], "search") == 0) return search(argv + 2);
    fprintf(stderr, "usage: library_speed generate MODEL PROMPT TOKENS THREADS\n"
                    "       library_speed search INDEX QUERIES.npy THREADS\n");
    return 2;
}
