/* Rows on their way from the order of the input to the order of cells: they are put into a file
 * without a name as they come, and taken out cell by cell. The file is gone with the process,
 * however that ends. */
#ifndef KM_VECTOR_SPILL_H
#define KM_VECTOR_SPILL_H
#include "vector/index.h"

typedef struct km_spill km_spill;

/* The file lies in the folder of `path`. */
km_spill *km_spill_new(const km_index *x, const char *path, km_error *err);
void km_spill_free(km_spill *s); /* NULL is fine */
km_status km_spill_put(km_spill *s, const uint64_t *ids, const km_encoded *e, int64_t n,
                       km_error *err);
int64_t km_spill_rows(const km_spill *s);
uint64_t km_spill_largest_id(const km_spill *s);
/* Writes the sections that hold rows, with at most `memory` bytes of them at a time. */
km_status km_spill_write(km_spill *s, km_kmx_writer *w, int id_bits, size_t memory, km_error *err);

#endif
