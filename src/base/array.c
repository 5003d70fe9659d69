/* Arrays that grow by doubling. */
#include "base/array.h"
#include "base/alloc.h"
#include <stdint.h>
#include <string.h>

#define FIRST 16 /* elements, when less is asked for */

size_t km_array_grow(void *array, size_t size, size_t cap, size_t want, size_t count_bytes) {
    size_t most = (size_t)PTRDIFF_MAX / size;
    if (count_bytes < sizeof(size_t) && most > INT32_MAX) most = INT32_MAX;
    if (want > most) return cap;
    size_t more = cap < FIRST ? FIRST : cap <= most / 2 ? 2 * cap : most;
    if (more < want) more = want;
    void *old, *grown;
    memcpy(&old, array, sizeof old);
    grown = km_realloc(old, more * size);
    if (!grown) return cap;
    memcpy(array, &grown, sizeof grown);
    return more;
}
