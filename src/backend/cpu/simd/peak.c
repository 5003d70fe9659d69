/* The limits of one core: multiply-adds without memory, and reads without arithmetic to speak of. */
#include "backend/cpu/peak.h"
#include "backend/cpu/simd/simd.h"

/* Independent chains: enough for two units of latency 5, few enough for 16 registers. Spelled out
 * as variables, since compilers tend to keep an array in memory. */
#define CHAINS 12
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

static float fma_loop(int64_t rounds) {
    vf scale = v_set1(0.9999f), step = v_set1(0.0001f); /* tends to 1: no overflow, no denormals */
#define START(i) vf a##i = v_set1(i);
#define ROUND(i) a##i = v_fma(a##i, scale, step);
#define TOTAL(i) +a##i
    EACH(START)
    for (int64_t r = 0; r < rounds; r++) {
        EACH(ROUND)
    }
    vf sum = v_zero() EACH(TOTAL);
    return sum[0];
}

static float read_loop(const float *x, int64_t n) {
    vf s[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    int64_t i = 0;
    for (; i + 4 * KM_VF <= n; i += 4 * KM_VF)
        for (int j = 0; j < 4; j++) s[j] = s[j] + v_load(x + i + j * KM_VF);
    vf sum = s[0] + s[1] + s[2] + s[3];
    float total = 0;
    for (int j = 0; j < KM_VF; j++) total += sum[j];
    for (; i < n; i++) total += x[i];
    return total;
}

const km_peak_loops KM_SIMD(km_peak) = {fma_loop, 2 * CHAINS *KM_VF, read_loop};
