/* Mapped files that shrink. Reading a page that its file no longer has (somebody cut it short, or the
 * disk fails) is SIGBUS, which ends a process without a word. Here such a fault inside one of our own
 * mappings puts zeros in the page's place and flags the mapping; whoever read from it asks afterwards
 * and fails with a line that names the file. Any other SIGBUS goes to the handler that was there
 * before ours, as if ours were not there.
 *
 * The handler is installed with the first mapping, once, and stays. KERMES_SIGBUS=0 in the
 * environment leaves the signal alone. */
#ifndef KM_BASE_GUARD_H
#define KM_BASE_GUARD_H
#include "base/error.h"
#include <stddef.h>

/* Watches a mapping made with mmap, until km_guard_drop. 0: too many are watched, or there was no
 * memory; such a mapping faults as any other. */
int km_guard_add(const void *data, size_t size, const char *path);
void km_guard_drop(int guard); /* before munmap; 0 is fine */

/* KM_OK while all that was read of the mapping was the file's own; else KM_ERR_FILE with the file and
 * the first place that could not be read. To be asked after reading, and before the result is used. */
km_status km_guard_check(int guard, km_error *err);
/* The same of the mapping that p lies in; KM_OK where it lies in none. One load while nothing has
 * faulted anywhere. */
km_status km_guard_check_at(const void *p, km_error *err);
bool km_guard_broken(void); /* some mapping that is still there has had a fault */
/* Reads a byte of each page of n bytes, if they lie in a watched mapping, and checks it: what a system
 * call that read them would only call EFAULT. */
km_status km_guard_touch(const void *p, size_t n, km_error *err);

#endif
