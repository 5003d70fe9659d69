/* Arrays that grow: a pointer and a capacity, which belong to the caller and begin as NULL and 0.
 *   if (!km_array_reserve(&list->at, &list->cap, list->n + 1)) return km_no_memory(err);
 *   list->at[list->n++] = item;
 */
#ifndef KM_BASE_ARRAY_H
#define KM_BASE_ARRAY_H
#include <stdbool.h>
#include <stddef.h>

/* Room for `want` elements in *array (of any type), whose *cap (any whole number) has room for some
 * already: it grows by doubling. False when out of memory or beyond all sizes: nothing has changed. */
#define km_array_reserve(array, cap, want)                                                         \
    ((size_t)(want) <= (size_t) * (cap) ||                                                         \
     (size_t)(*(cap) = km_array_grow((array), sizeof **(array), (size_t) * (cap), (size_t)(want),  \
                                     sizeof *(cap))) >= (size_t)(want))

/* What the macro calls: the new capacity, or `cap` as it was. count_bytes: of the capacity's type. */
size_t km_array_grow(void *array, size_t size, size_t cap, size_t want, size_t count_bytes);

#endif
