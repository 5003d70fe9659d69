/* Mapped reading and atomic writing. A writer fills a temporary file beside its target and
 * renames it at commit; a target that is no regular file (a pipe, /dev/stdout) cannot be
 * renamed over and is written in place. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/file.h"
#include "base/alloc.h"
#include "base/guard.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BUFFER ((size_t)256 << 10)
#define MAX_WRITE ((size_t)1 << 30) /* one write call; Linux takes at most 2 GiB */

/* ---- Reading ---- */

km_status km_map_open(km_map *m, const char *path, km_error *err) {
    *m = (km_map){0};
    if (!path) return km_error_set(err, KM_ERR_NULL, "no file name given");
    int fd = -1;
    if (km_file_lent(path, m, &fd)) {
        if (fd < 0) return KM_OK;
    } else { /* Not blocking: opening a pipe nobody writes to must fail below, not hang here. */
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    }
    if (fd < 0)
        return km_error_set(err, KM_ERR_FILE, "cannot open '%s': %s", path, strerror(errno));
    km_status status = KM_OK;
    struct stat st;
    if (fstat(fd, &st) != 0) {
        status = km_error_set(err, KM_ERR_FILE, "cannot open '%s': %s", path, strerror(errno));
    } else if (S_ISDIR(st.st_mode)) {
        status = km_error_set(err, KM_ERR_FILE, "cannot open '%s': it is a folder", path);
    } else if (!S_ISREG(st.st_mode)) {
        status = km_error_set(err, KM_ERR_FILE, "cannot open '%s': not a regular file", path);
    } else if ((uintmax_t)st.st_size > PTRDIFF_MAX) {
        status = km_error_set(err, KM_ERR_FILE, "cannot map '%s': too large", path);
    } else if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            status = km_error_set(err, errno == ENOMEM ? KM_ERR_MEMORY : KM_ERR_FILE,
                                  "cannot map '%s': %s", path, strerror(errno));
        } else {
            m->data = p;
            m->size = (size_t)st.st_size;
            m->guard = km_guard_add(p, m->size, path);
        }
    }
    close(fd);
    return status;
}

void km_map_close(km_map *m) {
    km_guard_drop(m->guard);
    if (m->data && !m->lent) munmap((void *)(uintptr_t)m->data, m->size);
    *m = (km_map){0};
}

km_status km_map_check(const km_map *m, km_error *err) {
    km_error gone = {0};
    if (km_guard_check(m->guard, &gone) == KM_OK) return KM_OK;
    if (err) *err = gone;
    return gone.code;
}

km_status km_map_done(km_map *m, km_status status, km_error *err) {
    km_status gone = km_map_check(m, err);
    km_map_close(m);
    return gone != KM_OK ? gone : status;
}

/* ---- Writing ---- */

struct km_writer {
    int fd;
    char *path;   /* the target, links resolved */
    char *folder; /* where it lies: "." or up to the last slash */
    char *temp;   /* the temporary file; NULL when writing in place */
    uint64_t offset;
    size_t filled;
    bool passing;
    km_error error;
    uint8_t buffer[BUFFER];
};

static char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return km_strdup(".");
    char *folder = km_strdup(path);
    if (folder) folder[slash == path ? 1 : slash - path] = 0;
    return folder;
}

/* A file in w->folder that nobody else has, in w->temp. Its name does not contain the target's,
 * which may be as long as names can be. */
static km_status open_temp(km_writer *w, const char *shown, km_error *err) {
    static _Atomic unsigned serial;
    size_t size = strlen(w->folder) + 64;
    w->temp = km_alloc(size);
    if (!w->temp) return km_no_memory_for(err, "'%s'", shown);
    for (int attempt = 0; attempt < 100; attempt++) {
        struct timespec ts;
        clock_gettime(CLOCK_REALTIME, &ts);
        snprintf(w->temp, size, "%s/.kermes-%ld-%u-%lx.tmp", w->folder, (long)getpid(),
                 atomic_fetch_add_explicit(&serial, 1, memory_order_relaxed), (long)ts.tv_nsec);
        w->fd = open(w->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (w->fd >= 0) return KM_OK;
        if (errno != EEXIST && errno != EINTR) break;
    }
    const char *why = strerror(errno);
    if (errno == ENOENT)
        km_error_set(err, KM_ERR_FILE, "cannot write '%s': folder '%s' does not exist", shown,
                     w->folder);
    else
        km_error_set(err, KM_ERR_FILE, "cannot write '%s': no new file in folder '%s': %s", shown,
                     w->folder, why);
    km_free(w->temp); /* nothing of that name is ours to unlink */
    w->temp = NULL;
    return KM_ERR_FILE;
}

static km_status open_target(km_writer *w, const char *path, km_error *err) {
    char resolved[PATH_MAX];
    struct stat st;
    const char *target = path;
    bool exists = stat(path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode))
        return km_error_set(err, KM_ERR_FILE, "cannot write '%s': it is a folder", path);
    if (exists && access(path, W_OK) != 0)
        return km_error_set(err, KM_ERR_FILE, "cannot write '%s': %s", path, strerror(errno));
    if (exists && !S_ISREG(st.st_mode)) {
        do w->fd = open(path, O_WRONLY | O_CLOEXEC);
        while (w->fd < 0 && errno == EINTR);
        if (w->fd < 0)
            return km_error_set(err, KM_ERR_FILE, "cannot write '%s': %s", path, strerror(errno));
    } else if (exists && realpath(path, resolved)) {
        target = resolved; /* the file changes, not a link to it */
    }
    w->path = km_strdup(target);
    w->folder = folder_of(target);
    if (!w->path || !w->folder) return km_no_memory_for(err, "'%s'", path);
    return w->fd >= 0 ? KM_OK : open_temp(w, path, err);
}

static void writer_free(km_writer *w) {
    if (w->fd >= 0) close(w->fd);
    if (w->temp) unlink(w->temp);
    km_free(w->temp);
    km_free(w->folder);
    km_free(w->path);
    km_free(w);
}

km_writer *km_writer_open(const char *path, km_error *err) {
    if (!path || !*path) {
        km_error_set(err, KM_ERR_NULL, "no file name given");
        return NULL;
    }
    km_writer *w = km_alloc(sizeof *w);
    if (!w) {
        km_no_memory_for(err, "'%s'", path);
        return NULL;
    }
    w->fd = -1;
    w->path = w->folder = w->temp = NULL;
    w->offset = 0;
    w->filled = 0;
    w->error.code = KM_OK;
    w->passing = false;
    if (open_target(w, path, err) != KM_OK) {
        writer_free(w);
        return NULL;
    }
    return w;
}

static km_status fail(km_writer *w, int number) {
    return km_error_set(&w->error, KM_ERR_FILE, "cannot write '%s': %s", w->path, strerror(number));
}

/* The kernel reads for us when it writes out a mapping, and says EFAULT where we would fault. */
static bool lost_source(km_writer *w, const uint8_t *data, size_t n) {
    km_error gone = {0};
    if (km_guard_touch(data, n, &gone) == KM_OK) return false;
    km_error_set(&w->error, gone.code, "cannot write '%.150s': %.340s", w->path, gone.text);
    return true;
}

static km_status write_all(km_writer *w, const uint8_t *data, size_t n) {
    while (n > 0) {
        ssize_t done = write(w->fd, data, n < MAX_WRITE ? n : MAX_WRITE);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0 && errno == EFAULT && lost_source(w, data, n)) return w->error.code;
        if (done < 0) return fail(w, errno);
        if (done == 0) return fail(w, ENOSPC);
        data += done;
        n -= (size_t)done;
    }
    return KM_OK;
}

static km_status flush(km_writer *w) {
    size_t n = w->filled;
    w->filled = 0;
    return write_all(w, w->buffer, n);
}

km_status km_writer_put(km_writer *w, const void *data, size_t n) {
    if (!w) return KM_ERR_NULL;
    if (w->error.code != KM_OK) return w->error.code;
    if (n == 0) return KM_OK;
    if (n > BUFFER - w->filled && flush(w) != KM_OK) return w->error.code;
    if (n >= BUFFER) {
        if (write_all(w, data, n) != KM_OK) return w->error.code;
    } else {
        memcpy(w->buffer + w->filled, data, n);
        w->filled += n;
    }
    w->offset += n;
    return KM_OK;
}

km_status km_writer_printf(km_writer *w, const char *fmt, ...) {
    if (!w) return KM_ERR_NULL;
    if (w->error.code != KM_OK) return w->error.code;
    char small[1024], *text = small;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    if (n < 0) return fail(w, errno);
    if ((size_t)n >= sizeof small) {
        text = km_alloc((size_t)n + 1);
        if (!text) return km_no_memory_for(&w->error, "'%s'", w->path);
        va_start(ap, fmt);
        vsnprintf(text, (size_t)n + 1, fmt, ap);
        va_end(ap);
    }
    km_status status = km_writer_put(w, text, (size_t)n);
    if (text != small) km_free(text);
    return status;
}

uint64_t km_writer_offset(const km_writer *w) { return w ? w->offset : 0; }

void km_writer_passing(km_writer *w) {
    if (w) w->passing = true;
}

/* A rename is on disk only when its folder is. Where a folder cannot be opened or flushed at
 * all there is nothing more to do, and that is no failure. */
static km_status flush_folder(km_writer *w) {
    int fd = open(w->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return KM_OK;
    km_status status = KM_OK;
    if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP && errno != EROFS)
        status = fail(w, errno);
    close(fd);
    return status;
}

static km_status finish(km_writer *w) {
    if (w->error.code != KM_OK || flush(w) != KM_OK) return w->error.code;
    int synced;
    do synced = w->passing ? 0 : fsync(w->fd);
    while (synced != 0 && errno == EINTR);
    /* Pipes and terminals know no fsync. */
    if (synced != 0 && (w->temp || (errno != EINVAL && errno != ENOTSUP))) return fail(w, errno);
    int closed = close(w->fd);
    w->fd = -1;
    if (closed != 0 && errno != EINTR) return fail(w, errno);
    if (!w->temp) return KM_OK;
    if (rename(w->temp, w->path) != 0) return fail(w, errno);
    km_free(w->temp); /* it is the target now: not ours to unlink */
    w->temp = NULL;
    return w->passing ? KM_OK : flush_folder(w);
}

km_status km_writer_commit(km_writer *w, km_error *err) {
    if (!w) return km_error_set(err, KM_ERR_NULL, "no file is open for writing");
    km_status status = finish(w);
    if (status != KM_OK) km_error_set(err, status, "%s", w->error.text);
    writer_free(w);
    return status;
}

void km_writer_abort(km_writer *w) {
    if (w) writer_free(w);
}
