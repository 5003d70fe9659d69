/* Writes a model of random weights in the size of a well-known one, to measure speed with:
 *     build/release/bench/random_model llama-3.2-1b q4_k_m model.gguf [layers] */
#include "model/synthetic.h"
#include "cli/progress.c"
#include <stdio.h>
#include <stdlib.h>

static bool on_progress(void *user, uint64_t done, uint64_t total) {
    km_progress *p = user;
    p->total = (int64_t)(total >> 20);
    km_progress_step(p, (int64_t)(done >> 20), NULL);
    return true;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: random_model SHAPE TYPE OUT.gguf [LAYERS]\nshapes: %s\n",
                km_synthetic_shapes());
        return 2;
    }
    km_config c;
    km_error err = {0};
    km_progress bar;
    const km_mix *mix = km_mix_find(argv[2]);
    if (!mix) {
        fprintf(stderr, "random_model: no type '%s'\n", argv[2]);
        return 2;
    }
    km_status s = km_synthetic_shape(&c, argv[1], &err);
    if (s == KM_OK && argc > 4) c.layers = atoi(argv[4]);
    km_progress_begin(&bar, "random_model", "MiB", 1, false);
    if (s == KM_OK) s = km_synthetic_write(argv[3], &c, mix, 1, on_progress, &bar, &err);
    km_progress_end(&bar);
    if (s != KM_OK) fprintf(stderr, "random_model: %s\n", err.text);
    return s == KM_OK ? 0 : 1;
}
