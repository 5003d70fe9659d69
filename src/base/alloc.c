/* Counted allocation. Small blocks come from malloc; aligned blocks from 4 MiB up are
 * mapped on a huge-page boundary, because a tensor of that size costs a TLB miss per page
 * and a page fault per first touch when it lies in small ones. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/alloc.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Under AddressSanitizer every block comes from its own allocator, which sees overruns. */
#if defined(__SANITIZE_ADDRESS__)
#define KM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KM_ASAN 1
#endif
#endif
#if defined(__linux__) && !defined(KM_ASAN)
#define KM_MAP_LARGE 1
#include <sys/mman.h>
#include <unistd.h>
#endif

#define ALIGNMENT ((size_t)64)
#define LARGE ((size_t)4 << 20)
#define HUGE_PAGE ((size_t)2 << 20)

static _Atomic uint64_t alloc_count;
static _Atomic int64_t alloc_live;
static _Atomic int64_t fail_after = -1; /* allocations until the injected failure; < 0: off */

static bool refused(size_t bytes) {
    if (atomic_load_explicit(&fail_after, memory_order_relaxed) >= 0 &&
        atomic_fetch_sub_explicit(&fail_after, 1, memory_order_relaxed) == 0)
        return true;
    return bytes > PTRDIFF_MAX - HUGE_PAGE;
}

static void *counted(void *p, int64_t live) {
    if (p) {
        atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed);
        if (live) atomic_fetch_add_explicit(&alloc_live, live, memory_order_relaxed);
    }
    return p;
}

void *km_alloc(size_t bytes) {
    if (refused(bytes)) return NULL;
    return counted(malloc(bytes ? bytes : 1), 1);
}

void *km_calloc(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || refused(bytes)) return NULL;
    return counted(calloc(1, bytes ? bytes : 1), 1);
}

void *km_realloc(void *p, size_t bytes) {
    if (refused(bytes)) return NULL;
    return counted(realloc(p, bytes ? bytes : 1), p ? 0 : 1);
}

char *km_strdup(const char *s) {
    size_t n = strlen(s) + 1;
    char *copy = km_alloc(n);
    return copy ? memcpy(copy, s, n) : NULL;
}

void km_free(void *p) {
    if (!p) return;
    atomic_fetch_sub_explicit(&alloc_live, 1, memory_order_relaxed);
    free(p);
}

#ifdef KM_MAP_LARGE
static size_t page_round(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* Maps one huge page too many and gives back what lies around the aligned part. */
static void *map_large(size_t bytes) {
    size_t size = page_round(bytes);
    uint8_t *base =
        mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return NULL;
    size_t head = (HUGE_PAGE - (uintptr_t)base % HUGE_PAGE) % HUGE_PAGE;
    uint8_t *p = base + head;
    if (head) munmap(base, head);
    if (head < HUGE_PAGE) munmap(p + size, HUGE_PAGE - head);
    (void)madvise(p, size, MADV_HUGEPAGE); /* a wish; a kernel without huge pages refuses it */
    return p;
}
#endif

void *km_alloc_aligned(size_t bytes) {
    if (refused(bytes)) return NULL;
#ifdef KM_MAP_LARGE
    if (bytes >= LARGE) return counted(map_large(bytes), 1);
#endif
    void *p = NULL;
    if (posix_memalign(&p, ALIGNMENT, bytes ? bytes : 1) != 0) return NULL;
    return counted(p, 1);
}

void km_free_aligned(void *p, size_t bytes) {
    if (!p) return;
    atomic_fetch_sub_explicit(&alloc_live, 1, memory_order_relaxed);
#ifdef KM_MAP_LARGE
    if (bytes >= LARGE) {
        munmap(p, page_round(bytes));
        return;
    }
#endif
    (void)bytes;
    free(p);
}

uint64_t km_alloc_count(void) { return atomic_load_explicit(&alloc_count, memory_order_relaxed); }

int64_t km_alloc_live(void) { return atomic_load_explicit(&alloc_live, memory_order_relaxed); }

void km_alloc_fail_nth(int64_t n) {
    atomic_store_explicit(&fail_after, n < 0 ? -1 : n, memory_order_relaxed);
}
