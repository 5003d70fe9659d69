/* Files that were lent, for km_map_open. */
#ifndef KM_BASE_FILE_LENT_H
#define KM_BASE_FILE_LENT_H
#include "base/file.h"

/* Whether there is one of this name: *m is its memory, or *fd a descriptor to be closed. */
bool km_file_lent(const char *name, km_map *m, int *fd);

#endif
