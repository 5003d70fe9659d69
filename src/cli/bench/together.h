/* kermes bench mixed: a batch as km_batch makes it, alone, while prompts come in, and with half of its
 * texts under a schema (together.c). */
#ifndef KM_CLI_BENCH_TOGETHER_H
#define KM_CLI_BENCH_TOGETHER_H
#include "kermes.h"
#include "base/error.h"

typedef struct km_together_how {
    int64_t sequences, context; /* that go on together, each after so many tokens */
    int64_t prompt;             /* tokens of those that come in */
    double seconds;             /* of each measurement */
} km_together_how;

typedef struct km_together_rate {
    double tokens_per_s; /* made, all together */
    double prompt_per_s; /* tokens of prompts read */
    double p50, p99;     /* seconds between two tokens of one text */
} km_together_rate;

typedef struct km_together {
    km_together_rate plain, mixed, schema;
    double prompt_alone; /* tokens of prompts a second, with nothing beside */
} km_together;

km_status km_bench_together(km_model *m, const km_together_how *how, km_together *out,
                            km_error *err);

#endif
