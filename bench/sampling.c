/* What choosing a token costs on a vocabulary of 152 K, for each kind of setting, in microseconds
 * of the processor's time: the best of many picks. Logits are as a model's that is in doubt:
 * normal, sd 2, with a hundred tokens around 10; "flat" is that at temperature 20, the hardest for
 * top-p. What masks of a grammar cost is in grammar.c's figures; here half of the tokens are
 * masked. */
#include "base/alloc.h"
#include "infer/sample.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { V = 151936, RUNS = 60, SETS = 8 };

typedef struct kind {
    const char *name;
    km_sampling set;
    bool masked;
} kind;

static double now(void) { /* of this thread's own time, so that a busy machine does not count */
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static float normal(uint32_t *state) {
    double u[2];
    for (int i = 0; i < 2; i++) {
        *state = *state * 1664525u + 1013904223u;
        u[i] = ((*state >> 8) + 0.5) * 0x1p-24;
    }
    return (float)(sqrt(-2 * log(u[0])) * cos(6.283185307 * u[1]));
}

static double best_pick(const kind *k, const float *logits, const uint64_t *mask) {
    km_error err = {0};
    km_sampler *s = km_sampler_new(&k->set, V, NULL, &err);
    if (!s) return NAN;
    double best = INFINITY;
    for (int i = 0; i < 512; i++) km_sampler_see(s, &(int32_t){i * 37 % 300}, 1, NULL);
    for (int i = 0; i < RUNS; i++) {
        double start = now();
        int32_t id = km_sampler_pick(s, logits + (size_t)(i % SETS) * V, k->masked ? mask : NULL);
        km_sampler_see(s, &id, 1, NULL);
        double took = now() - start;
        if (took < best) best = took;
    }
    km_sampler_free(s);
    return best;
}

int main(void) {
    const km_sampling plain = km_sampling_defaults();
    kind kinds[] = {{"greedy", plain, false},
                    {"temperature alone", plain, false},
                    {"top-k 40", plain, false},
                    {"top-k 40, top-p 0.95, min-p 0.05", plain, false},
                    {"top-p 0.95", plain, false},
                    {"min-p 0.05", plain, false},
                    {"typical 0.9", plain, false},
                    {"mirostat 2", plain, false},
                    {"all penalties, top-k 40", plain, false},
                    {"top-p 0.95, flat", plain, false},
                    {"top-k 40, half masked", plain, true}};
    kinds[0].set.temperature = 0;
    kinds[2].set.top_k = 40;
    kinds[3].set.top_k = 40, kinds[3].set.top_p = 0.95, kinds[3].set.min_p = 0.05;
    kinds[4].set.top_p = 0.95;
    kinds[5].set.min_p = 0.05;
    kinds[6].set.typical = 0.9;
    kinds[7].set.mirostat = 2;
    km_sampling *all = &kinds[8].set;
    all->top_k = 40, all->repeat_penalty = 1.1, all->frequency_penalty = 0.1;
    all->dry_multiplier = 0.8, all->repeat_last = -1;
    kinds[9].set.top_p = 0.95, kinds[9].set.temperature = 20;
    kinds[10].set.top_k = 40;
    float *logits = km_alloc(sizeof *logits * V * SETS);
    uint64_t *mask = km_alloc(sizeof *mask * (V / 64 + 1));
    if (!logits || !mask) return 1;
    uint32_t state = 1;
    for (size_t i = 0; i < (size_t)V * SETS; i++)
        logits[i] = 2 * normal(&state) + (i % 1499 == 0 ? 10 : 0);
    for (int i = 0; i <= V / 64; i++) mask[i] = 0x5a5a0ff0f0f0a5a5u * (uint64_t)(2 * i + 1);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        printf("%-36s %7.0f us\n", kinds[i].name, 1e6 * best_pick(&kinds[i], logits, mask));
    km_free(logits);
    km_free(mask);
    return 0;
}
