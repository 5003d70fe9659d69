/* Counted allocation. Small blocks come from malloc; aligned blocks from 64 KiB up lie in
 * huge pages, those from 4 MiB in their own, because a tensor costs a TLB miss per page and
 * a page fault per first touch when it lies in small ones. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/alloc.h"
#include "kermes.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

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
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

#define ALIGNMENT ((size_t)64)
#define LARGE ((size_t)4 << 20)  /* mapped on its own */
#define PIECE ((size_t)64 << 10) /* cut off a slab */
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

void km_string_free(char *text) { km_free(text); }

void km_free(void *p) {
    if (!p) return;
    atomic_fetch_sub_explicit(&alloc_live, 1, memory_order_relaxed);
    free(p);
}

static atomic_bool thrifty;

void km_alloc_thrifty(bool on) { atomic_store(&thrifty, on); }

void km_alloc_trim(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

#ifdef KM_MAP_LARGE
static size_t page_round(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* Maps more than asked for and gives back what lies around the aligned part. */
static void *map_aligned(size_t size, size_t alignment) {
    uint8_t *base =
        mmap(NULL, size + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return NULL;
    size_t head = (alignment - (uintptr_t)base % alignment) % alignment;
    uint8_t *p = base + head;
    if (head) munmap(base, head);
    if (head < alignment) munmap(p + size, alignment - head);
    /* A wish; a kernel without huge pages refuses it. */
    (void)madvise(p, size, atomic_load(&thrifty) ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    return p;
}

static void *map_large(size_t bytes) { return map_aligned(page_round(bytes), HUGE_PAGE); }

/* ---- Slabs: huge pages for blocks smaller than they are ---- */

/* A training step walks through tens of megabytes in blocks of a few hundred kilobytes; with small
 * pages the processor would look up addresses all the time. Pieces are cut off a slab one after the
 * other, and the slab is unmapped with its last one: the memory pools keep what they have, so
 * nothing more clever pays. A gap between pieces lets them begin at different places of a page;
 * otherwise the same places of all of them would compete for the same lines of the cache. */
typedef struct slab {
    size_t used;
    size_t live; /* pieces that are out */
} slab;

#define SLAB ((size_t)16 << 20) /* its alignment, too: a piece finds its slab by its address */
#define GAP (5 * ALIGNMENT)

static pthread_mutex_t slab_lock = PTHREAD_MUTEX_INITIALIZER;
static slab *open_slab; /* the one that pieces are cut off */

static bool is_piece(size_t bytes) { return bytes >= PIECE && bytes < LARGE; }

static void *take_piece(size_t bytes) {
    size_t need = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + GAP;
    void *p = NULL;
    pthread_mutex_lock(&slab_lock);
    if (!open_slab || open_slab->used + need > SLAB) {
        slab *fresh = map_aligned(SLAB, SLAB);
        if (fresh) {
            *fresh = (slab){.used = ALIGNMENT};
            open_slab = fresh;
        }
    }
    if (open_slab && open_slab->used + need <= SLAB) {
        p = (uint8_t *)open_slab + open_slab->used;
        open_slab->used += need;
        open_slab->live++;
    }
    pthread_mutex_unlock(&slab_lock);
    return p;
}

/* The pages that a piece has for itself go back; their addresses stay with the slab. */
static void give_pages(void *p, size_t bytes) {
    uintptr_t page = page_round(1), begin = ((uintptr_t)p + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)p + bytes) / page * page;
    if (end > begin) (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}

static void give_piece(void *p, size_t bytes) {
    slab *s = (slab *)((uintptr_t)p / SLAB * SLAB);
    if (atomic_load(&thrifty)) give_pages(p, bytes);
    pthread_mutex_lock(&slab_lock);
    if (--s->live == 0) {
        if (s == open_slab)
            s->used = ALIGNMENT;
        else
            munmap(s, SLAB);
    }
    pthread_mutex_unlock(&slab_lock);
}
#endif

void *km_alloc_aligned(size_t bytes) {
    if (refused(bytes)) return NULL;
#ifdef KM_MAP_LARGE
    if (bytes >= LARGE) return counted(map_large(bytes), 1);
    if (is_piece(bytes)) return counted(take_piece(bytes), 1);
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
    if (is_piece(bytes)) {
        give_piece(p, bytes);
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
