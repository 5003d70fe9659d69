/* The table of mappings is fixed in size and read without a lock, because the reader is a signal
 * handler, in whatever thread took the fault. An entry is free (begin 0), being filled (begin 1), or
 * watched; a begin that is the same before and after the end was read belongs to that end. */
#include "base/guard.h"
#include "base/alloc.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { GUARDS = 4096, FILLING = 1 };

typedef struct guard {
    atomic_uintptr_t begin, end;
    atomic_uint faults;     /* pages that were not there; more are replaced each time */
    atomic_uintptr_t first; /* offset of the first fault */
    char *path;             /* not for the handler */
} guard;

static guard guards[GUARDS];
static atomic_int used;          /* entries that ever were: all others are free */
static atomic_int broken;        /* mappings with faults that are still there */
static uintptr_t page;           /* bytes */
static struct sigaction before;  /* what SIGBUS did before */
static atomic_bool before_reset; /* it was of the kind that serves once, and has */

/* ---- In the handler: nothing here takes a lock or allocates ---- */

static guard *find(uintptr_t at) {
    int n = atomic_load(&used);
    for (int i = 0; i < n; i++) {
        guard *g = &guards[i];
        uintptr_t begin = atomic_load(&g->begin), end = atomic_load(&g->end);
        if (begin > FILLING && at >= begin && at < end && atomic_load(&g->begin) == begin) return g;
    }
    return NULL;
}

/* The system call itself: sanitizers' own mmap is not for handlers. */
static bool put_zeros(uintptr_t at, size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
#if defined(SYS_mmap)
    return (uintptr_t)syscall(SYS_mmap, at, bytes, PROT_READ, flags, -1, 0L) == at;
#else
    return mmap((void *)at, bytes, PROT_READ, flags, -1, 0) != MAP_FAILED;
#endif
}

/* Zeros over the page, and over twice as many pages with each further fault: what was cut off a file
 * is all that follows, and a fault for every page of it would take minutes and most of the mappings
 * that a process may have. The flag comes first, so that nobody sees zeros without it. */
static bool repair(uintptr_t at) {
    guard *g = find(at);
    if (!g) return false;
    uintptr_t begin = atomic_load(&g->begin), end = atomic_load(&g->end), from = at & ~(page - 1);
    unsigned faults = atomic_fetch_add(&g->faults, 1);
    if (faults == 0) {
        atomic_store(&g->first, at - begin);
        atomic_fetch_add(&broken, 1);
    }
    size_t left = (end - from + page - 1) & ~(page - 1);
    size_t bytes = faults < 40 ? (size_t)page << faults : left;
    return put_zeros(from, bytes < left ? bytes : left);
}

/* As if our handler were not there. */
static void pass_on(int sig, siginfo_t *info, void *context) {
    bool fault = info->si_code > 0; /* else somebody sent it */
    bool handler = before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN;
    if (handler && (before.sa_flags & SA_RESETHAND))
        handler = !atomic_exchange(&before_reset, true);
    if (handler && (before.sa_flags & SA_SIGINFO)) {
        before.sa_sigaction(sig, info, context);
    } else if (handler) {
        before.sa_handler(sig);
    } else if (fault || before.sa_handler != SIG_IGN) {
        /* A fault that nobody handles ends the process, ignored or not: the instruction faults
         * again when we return. A signal that was sent waits until then. */
        struct sigaction end = {.sa_handler = SIG_DFL};
        sigaction(sig, &end, NULL);
        if (!fault) raise(sig);
    }
}

/* Wrong alignment (BUS_ADRALN) is no matter of files, wherever it happens. */
static void on_bus(int sig, siginfo_t *info, void *context) {
    int saved = errno;
    bool of_page = info->si_code > 0 && info->si_code != BUS_ADRALN;
    if (!of_page || !repair((uintptr_t)info->si_addr)) pass_on(sig, info, context);
    errno = saved;
}

/* ---- Outside ---- */

static bool installed;

/* With the mask and the manner of the handler before us, which runs inside ours. */
static void install(void) {
    const char *off = getenv("KERMES_SIGBUS");
    page = (uintptr_t)sysconf(_SC_PAGESIZE);
    if ((off && strcmp(off, "0") == 0) || sigaction(SIGBUS, NULL, &before) != 0) return;
    struct sigaction ours = {.sa_sigaction = on_bus, .sa_mask = before.sa_mask};
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | (before.sa_flags & (SA_NODEFER | SA_RESTART));
    installed = sigaction(SIGBUS, &ours, NULL) == 0;
}

static guard *take_entry(void) {
    for (int i = 0; i < GUARDS; i++) {
        uintptr_t none = 0;
        if (!atomic_compare_exchange_strong(&guards[i].begin, &none, FILLING)) continue;
        int n = atomic_load(&used);
        while (n <= i && !atomic_compare_exchange_weak(&used, &n, i + 1)) {}
        return &guards[i];
    }
    return NULL;
}

int km_guard_add(const void *data, size_t size, const char *path) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
    char *copy = installed ? km_strdup(path) : NULL;
    guard *g = copy ? take_entry() : NULL;
    if (!g) {
        km_free(copy);
        return 0;
    }
    g->path = copy;
    atomic_store(&g->faults, 0);
    atomic_store(&g->end, (uintptr_t)data + size);
    atomic_store(&g->begin, (uintptr_t)data);
    return (int)(g - guards) + 1;
}

void km_guard_drop(int n) {
    if (n == 0) return;
    guard *g = &guards[n - 1];
    atomic_store(&g->begin, FILLING);
    if (atomic_load(&g->faults)) atomic_fetch_sub(&broken, 1);
    km_free(g->path);
    g->path = NULL;
    atomic_store(&g->begin, 0);
}

km_status km_guard_check(int n, km_error *err) {
    if (n == 0 || !km_guard_broken()) return KM_OK;
    const guard *g = &guards[n - 1];
    if (!atomic_load(&g->faults)) return KM_OK;
    return km_error_set(err, KM_ERR_FILE,
                        "'%.300s' changed while it was in use: byte %zu of %zu is no longer there; "
                        "put the whole file back and open it again",
                        g->path, (size_t)atomic_load(&g->first),
                        (size_t)(atomic_load(&g->end) - atomic_load(&g->begin)));
}

bool km_guard_broken(void) { return atomic_load_explicit(&broken, memory_order_relaxed) != 0; }

km_status km_guard_touch(const void *p, size_t n, km_error *err) {
    const volatile char *at = p;
    if (!n || !find((uintptr_t)p)) return KM_OK;
    for (size_t i = 0; i < n; i += page) (void)at[i];
    (void)at[n - 1];
    return km_guard_check_at(p, err);
}

km_status km_guard_check_at(const void *p, km_error *err) {
    if (!p || !km_guard_broken()) return KM_OK;
    guard *g = find((uintptr_t)p);
    return g ? km_guard_check((int)(g - guards) + 1, err) : KM_OK;
}
