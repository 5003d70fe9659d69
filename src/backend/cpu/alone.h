/* How many rows a call of a layer or of attention may have and still treat each by itself, so that a
 * row's bits do not depend on the others; longer calls, of prompts, work in tiles. KM_FEW_ROWS, or more
 * where the calling thread has said so, as a step of many sequences does (infer/plan.c). */
#ifndef KM_BACKEND_CPU_ALONE_H
#define KM_BACKEND_CPU_ALONE_H
#include <stdint.h>

int64_t km_cpu_rows_alone(void);
void km_cpu_set_rows_alone(int64_t rows); /* 0: KM_FEW_ROWS */

#endif
