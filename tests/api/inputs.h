/* What tests of many calls begin with: the small model, vectors in four groups, names of files. */
#ifndef KM_TESTS_API_INPUTS_H
#define KM_TESTS_API_INPUTS_H
#include "engine/tiny_model.h"
#include <math.h>
#include <unistd.h>

enum { DIM = 8, VECTORS = 64 };

static inline float *some_vectors(void) { /* (VECTORS, DIM) */
    static float x[VECTORS * DIM];
    for (int i = 0; i < VECTORS * DIM; i++) x[i] = sinf((float)i * 1.7f) + (float)(i / DIM % 4);
    return x;
}

static inline const char *in_tmp(const char *name) { /* good until the call after the next */
    static char path[2][4200];
    static int turn;
    const char *folder = getenv("TMPDIR");
    char *out = path[turn++ % 2];
    snprintf(out, sizeof path[0], "%s/kermes-api-%d-%s", folder ? folder : "/tmp", (int)getpid(),
             name);
    return out;
}

#endif
