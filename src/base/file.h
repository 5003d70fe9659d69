/* Files: read by mapping, written beside and renamed, so a reader never sees half a file. */
#ifndef KM_BASE_FILE_H
#define KM_BASE_FILE_H
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct km_map { /* a read-only mapping; all-zero when closed */
    const uint8_t *data;
    size_t size; /* 0 is a valid size: data is then NULL */
    bool lent;   /* the memory is somebody else's: km_file_lend */
    int guard;   /* base/guard.h: what a file that shrinks no longer has reads as zeros */
} km_map;

km_status km_map_open(km_map *m, const char *path, km_error *err);
void km_map_close(km_map *m);
/* KM_OK, or the file became shorter while it was read: KM_ERR_FILE, in place of what *err said, since
 * what was found wrong may be the zeros. Whoever keeps a mapping asks after each use. */
km_status km_map_check(const km_map *m, km_error *err);
/* Closes the mapping after a reader that returned `status`: that, or km_map_check's. */
km_status km_map_done(km_map *m, km_status status, km_error *err);

/* Files without a name get one, under which km_map_open finds them until they are taken back: memory
 * that stays as it is until then, or a descriptor, of which a copy is kept. */
km_status km_file_lend(const void *data, size_t bytes, char *name, size_t room, km_error *err);
km_status km_file_lend_fd(int fd, char *name, size_t room, km_error *err);
void km_file_take_back(const char *name);

/* An atomic write: the bytes go to a temporary file in the same folder; commit flushes it to
 * disk, renames it over `path` and flushes the folder. Abort (or a crash) leaves `path` as it was. */
typedef struct km_writer km_writer;
km_writer *km_writer_open(const char *path, km_error *err); /* NULL on failure */
km_status km_writer_put(km_writer *w, const void *data,
                        size_t n); /* sticky: the first failure stays */
km_status km_writer_printf(km_writer *w, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
uint64_t km_writer_offset(const km_writer *w);           /* bytes put so far */
km_status km_writer_commit(km_writer *w, km_error *err); /* frees w either way */
void km_writer_abort(km_writer *w);                      /* NULL is fine */
/* The file is read once and gone before a crash could matter: commit does not flush it. */
void km_writer_passing(km_writer *w);

/* Files that were lent, for km_map_open (file_lent.c). */
/* Whether there is one of this name: *m is its memory, or *fd a descriptor to be closed. */
bool km_file_lent(const char *name, km_map *m, int *fd);

#endif
