/* Philox 4x32 with ten rounds, from the paper: each round multiplies two counter words by
 * fixed odd constants, crosses the halves of the products over and adds in a key that
 * walks by a Weyl sequence. */
#include "base/rng.h"

km_philox4 km_philox(uint64_t seed, uint64_t stream, uint64_t counter) {
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* the golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
    return (km_philox4){{c0, c1, c2, c3}};
}
