/* The only door to the heap. Everything Kermes allocates goes through here, so that
 * a test can count allocations (a steady step makes none) and make any one of them
 * fail (nothing leaks, the next step works). All functions are thread safe. */
#ifndef KM_BASE_ALLOC_H
#define KM_BASE_ALLOC_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *km_alloc(size_t bytes);               /* uninitialised; NULL when out of memory */
void *km_calloc(size_t count, size_t size); /* zeroed; NULL on overflow of count * size */
void *km_realloc(void *p, size_t bytes);    /* p stays valid when NULL is returned */
char *km_strdup(const char *s);
void km_free(void *p);                       /* for the four above */
void *km_alloc_aligned(size_t bytes);        /* 64-byte aligned; large blocks ask for huge pages */
void km_free_aligned(void *p, size_t bytes); /* bytes as given to km_alloc_aligned */

/* While it is on, memory stays near what is in use: small pages, and those of freed blocks go back to
 * the system at once. Slower, for work with a budget. */
void km_alloc_thrifty(bool on);
void km_alloc_trim(void); /* gives what the heap keeps for later back */

uint64_t km_alloc_count(void); /* successful allocations since the process began */
int64_t km_alloc_live(void);   /* allocated and not yet freed, by count */
/* Fault injection: the nth allocation from now (0 = the very next) returns NULL, once.
 * A negative n switches it off. For tests. */
void km_alloc_fail_nth(int64_t n);

#endif
