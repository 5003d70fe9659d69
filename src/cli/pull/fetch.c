/* Fetching a file in pieces. Beside FILE.part lies FILE.part.map, a line on what is being fetched and
 * a letter for each piece, 1 when it is on the disk. */
#include "cli/pull/fetch.h"
#include "base/alloc.h"
#include "base/log.h"
#include "cli/progress.h"
#include "base/sha256.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { AT_A_TIME = 4, MOST_FAILURES = 6 };

typedef struct fetch_piece {
    int64_t first, last; /* bytes, inclusive */
    int64_t done;        /* bytes of it on the disk */
    struct fetch_job *job;
} fetch_piece;

typedef struct fetch_job {
    km_web *http;
    const km_fetch *f;
    char *place; /* the address behind the redirects */
    char part[PATH_MAX], map[PATH_MAX];
    int fd, map_fd;
    int64_t size; /* -1: nobody knows */
    char sum[65];
    bool ranges;
    fetch_piece *pieces;
    int64_t n, next, finished, piece_bytes;
    int64_t bytes; /* on the disk */
    int running, failures, write_error;
    bool stop; /* nothing more is wanted */
    km_progress bar;
} fetch_job;

static int64_t piece_bytes(void) {
    const char *small = getenv("KERMES_PULL_PIECE"); /* for tests */
    int64_t n = small ? strtoll(small, NULL, 10) : 0;
    return n > 0 ? n : (int64_t)16 << 20;
}

/* ---- The disk ---- */

static km_status disk_error(const fetch_job *j, int number, km_error *err) {
    if (number == ENOSPC || number == EDQUOT)
        return km_error_set(
            err, KM_ERR_FILE,
            "the disk is full: %.200s needs %lld MiB more; what is there is kept, and "
            "the same command goes on",
            j->f->shown, (long long)((j->size - j->bytes) >> 20) + 1);
    return km_error_set(err, KM_ERR_FILE, "cannot write %.200s: %s", j->part, strerror(number));
}

static km_status check_room(const fetch_job *j, km_error *err) {
    struct statvfs fs;
    struct stat st;
    if (j->size < 0 || fstatvfs(j->fd, &fs) != 0 || fstat(j->fd, &st) != 0) return KM_OK;
    int64_t room = (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
    int64_t there = (int64_t)st.st_blocks * 512;
    if (j->size - there <= room) return KM_OK;
    return km_error_set(
        err, KM_ERR_FILE,
        "there is no room for %.200s: it needs %lld MiB, and the disk has %lld left", j->f->shown,
        (long long)((j->size - there) >> 20) + 1, (long long)(room >> 20));
}

static bool put_bytes(void *user, int64_t at, const void *data, size_t n) {
    fetch_piece *p = user;
    fetch_job *j = p->job;
    if (j->stop) return false;
    if (j->ranges && at + (int64_t)n > p->last + 1) return false; /* more than was asked for */
    for (size_t done = 0; done < n;) {
        ssize_t wrote = pwrite(j->fd, (const char *)data + done, n - done, at + (int64_t)done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) {
            j->write_error = errno;
            return false;
        }
        done += (size_t)wrote;
    }
    p->done += (int64_t)n;
    j->bytes += (int64_t)n;
    km_progress_step(&j->bar, j->bytes >> 20, NULL);
    return true;
}

/* ---- What an earlier attempt left ---- */

static int header_of(const fetch_job *j, char out[160]) {
    return snprintf(out, 160, "kermes part 1 %lld %lld %s\n", (long long)j->size,
                    (long long)j->piece_bytes, j->sum[0] ? j->sum : "-");
}

static void read_map(fetch_job *j) {
    char header[160], found[160];
    int n = header_of(j, header);
    bool same = pread(j->map_fd, found, (size_t)n, 0) == n && memcmp(found, header, (size_t)n) == 0;
    for (int64_t i = 0; i < j->n && same; i++) {
        char c = 0;
        if (pread(j->map_fd, &c, 1, n + i) == 1 && c == '1') {
            fetch_piece *p = &j->pieces[i];
            p->done = p->last - p->first + 1;
            j->bytes += p->done;
            j->finished++;
        }
    }
    if (same) return;
    if (ftruncate(j->map_fd, 0) != 0 || pwrite(j->map_fd, header, (size_t)n, 0) != n) return;
    for (int64_t i = 0; i < j->n; i++)
        if (pwrite(j->map_fd, "0", 1, n + i) != 1) return;
}

static void mark(fetch_job *j, const fetch_piece *p) {
    char header[160];
    if (!j->ranges) return;
    fdatasync(j->fd);
    if (pwrite(j->map_fd, "1", 1, header_of(j, header) + (p - j->pieces)) != 1)
        km_note(KM_LOG_WARN, "cannot write %s", j->map);
}

static km_status open_part(fetch_job *j, km_error *err) {
    int a = snprintf(j->part, sizeof j->part, "%s.part", j->f->path);
    int b = snprintf(j->map, sizeof j->map, "%s.part.map", j->f->path);
    if (a >= PATH_MAX || b >= PATH_MAX)
        return km_error_set(err, KM_ERR_FILE, "the path is too long");
    j->fd = open(j->part, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    j->map_fd = open(j->map, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (j->fd < 0 || j->map_fd < 0)
        return km_error_set(err, KM_ERR_FILE, "cannot write %.200s: %s", j->part, strerror(errno));
    if (flock(j->fd, LOCK_EX | LOCK_NB) != 0)
        return km_error_set(err, KM_ERR_STATE, "another kermes is fetching %.200s", j->f->shown);
    return check_room(j, err);
}

static km_status make_pieces(fetch_job *j, km_error *err) {
    j->piece_bytes = piece_bytes();
    j->n = j->ranges ? (j->size + j->piece_bytes - 1) / j->piece_bytes : 1;
    if (j->n < 1) j->n = 1;
    j->pieces = km_calloc((size_t)j->n, sizeof *j->pieces);
    if (!j->pieces) return km_error_set(err, KM_ERR_MEMORY, "pull: out of memory");
    for (int64_t i = 0; i < j->n; i++) {
        fetch_piece *p = &j->pieces[i];
        p->job = j;
        p->first = j->ranges ? i * j->piece_bytes : 0;
        p->last = j->ranges && i + 1 < j->n ? p->first + j->piece_bytes - 1 : j->size - 1;
    }
    return KM_OK;
}

/* ---- The transfers ---- */

static bool is_done(const fetch_piece *p) { return p->done == p->last - p->first + 1; }

static km_status begin_piece(fetch_job *j, fetch_piece *p, km_error *err) {
    if (!j->ranges) {
        j->bytes -= p->done;
        p->done = 0;
    }
    km_transfer *t = km_web_start(j->http, j->place, j->ranges ? p->first + p->done : -1, p->last,
                                  put_bytes, p, err);
    if (!t) return err->code;
    j->running++;
    return KM_OK;
}

/* A place behind a redirect can be good for a while only. */
static km_status find_place(fetch_job *j, km_web_head *head, km_error *err) {
    km_free(j->place);
    j->place = NULL;
    return km_web_find(j->http, j->f->url, &j->place, head, err);
}

static km_status wrong(const fetch_job *j, const km_web_head *head, const fetch_piece *p,
                       km_error *err) {
    if (j->ranges && head->status == 206 && head->total >= 0 && head->total != j->size)
        return km_error_set(err, KM_ERR_FORMAT,
                            "%.200s: the server now says %lld bytes, and %lld before", j->f->shown,
                            (long long)head->total, (long long)j->size);
    if (j->ranges && (head->status == 200 || (head->status == 206 && head->first > p->last)))
        return km_error_set(err, KM_ERR_FORMAT,
                            "%.200s: the server sends other bytes than asked for", j->f->shown);
    return KM_OK;
}

/* After a transfer: the piece is done, or is tried again, or all is lost. */
static km_status after(fetch_job *j, km_transfer *t, km_error *err) {
    fetch_piece *p = km_web_user(t);
    km_web_head head = *km_web_headers(t);
    char why[200];
    const char *failure = km_web_failure(t);
    snprintf(why, sizeof why, "%s", failure ? failure : "");
    km_web_free(t);
    j->running--;
    if (j->write_error) return disk_error(j, j->write_error, err);
    if (j->size < 0 && !failure && head.status == 200) p->last = p->done - 1; /* told by its end */
    km_status s = wrong(j, &head, p, err);
    if (s != KM_OK) return s;
    if (is_done(p) && head.status / 100 == 2) {
        j->finished++;
        j->failures = 0;
        mark(j, p);
        return KM_OK;
    }
    if (++j->failures > MOST_FAILURES)
        return km_error_set(err, KM_ERR_FILE,
                            "%.200s: %s; what is there is kept, and the same command goes on",
                            j->f->shown, *why ? why : "the connection was cut again and again");
    bool wait = head.status == 429 || head.status / 100 == 5;
    int64_t seconds = wait ? (head.retry_after > 0 ? head.retry_after : 1 << j->failures) : 0;
    if (seconds > 300) seconds = 300;
    if (seconds) {
        km_progress_hide(&j->bar);
        km_note(KM_LOG_INFO, "the server asks to wait; going on in %lld s", (long long)seconds);
        km_web_pause(seconds);
    }
    km_web_head again;
    if (head.status == 401 || head.status == 403 || head.status == 404 || head.status == 410)
        s = find_place(j, &again, err);
    return s == KM_OK ? begin_piece(j, p, err) : s;
}

static km_status transfer(fetch_job *j, km_error *err) {
    km_status s = KM_OK;
    while (s == KM_OK && j->finished < j->n) {
        while (s == KM_OK && j->running < AT_A_TIME && j->next < j->n) {
            fetch_piece *p = &j->pieces[j->next++];
            if (!is_done(p) || j->size < 0) s = begin_piece(j, p, err);
        }
        km_transfer *t = s == KM_OK && j->running ? km_web_wait(j->http) : NULL;
        if (t) s = after(j, t, err);
    }
    j->stop = true;
    while (j->running > 0) { /* what still runs is not wanted any more */
        km_transfer *t = km_web_wait(j->http);
        if (!t) continue;
        km_web_free(t);
        j->running--;
    }
    return s;
}

/* ---- The end ---- */

static km_status check_sum(const fetch_job *j, km_error *err) {
    if (!j->sum[0]) {
        km_note(KM_LOG_INFO,
                "%s: the server tells no sum, so that its %lld bytes are all that is checked",
                j->f->shown, (long long)j->bytes);
        return KM_OK;
    }
    km_sha256 sha;
    uint8_t sum[32];
    char hex[65];
    const size_t room = (size_t)1 << 20;
    char *buffer = km_alloc(room);
    if (!buffer) return km_error_set(err, KM_ERR_MEMORY, "pull: out of memory");
    km_sha256_begin(&sha);
    ssize_t n;
    for (int64_t at = 0; (n = pread(j->fd, buffer, room, at)) > 0; at += n)
        km_sha256_put(&sha, buffer, (size_t)n);
    km_free(buffer);
    if (n < 0)
        return km_error_set(err, KM_ERR_FILE, "cannot read %.200s: %s", j->part, strerror(errno));
    km_sha256_end(&sha, sum);
    km_hex(hex, sum, sizeof sum);
    if (strcasecmp(hex, j->sum) == 0) return KM_OK;
    unlink(j->part);
    unlink(j->map);
    return km_error_set(
        err, KM_ERR_FORMAT,
        "%.200s is not what the hub says it is (SHA-256 %.12s..., not %.12s...) and was "
        "thrown away",
        j->f->shown, hex, j->sum);
}

static km_status complete(fetch_job *j, km_error *err) {
    if (j->size >= 0 && ftruncate(j->fd, j->size) != 0) return disk_error(j, errno, err);
    km_status s = check_sum(j, err);
    if (s != KM_OK) return s;
    if (fsync(j->fd) != 0) return disk_error(j, errno, err);
    if (rename(j->part, j->f->path) != 0)
        return km_error_set(err, KM_ERR_FILE, "cannot rename %.200s: %s", j->part, strerror(errno));
    unlink(j->map);
    return KM_OK;
}

static km_status find_out(fetch_job *j, km_error *err) {
    km_web_head head;
    km_status s = find_place(j, &head, err);
    if (s != KM_OK) return s;
    j->ranges = head.status == 206 && head.total >= 0;
    j->size = j->ranges ? head.total : head.status == 416 ? 0 : head.length;
    snprintf(j->sum, sizeof j->sum, "%s", *j->f->sum ? j->f->sum : head.sum);
    if (j->f->size >= 0 && j->size >= 0 && j->size != j->f->size)
        return km_error_set(err, KM_ERR_FORMAT,
                            "%.200s has %lld bytes on the server, and %lld in the hub's list",
                            j->f->shown, (long long)j->size, (long long)j->f->size);
    if (j->size < 0) j->size = j->f->size;
    return KM_OK;
}

km_status km_fetch_file(km_web *h, const km_fetch *f, km_error *err) {
    fetch_job *j = km_calloc(1, sizeof *j);
    if (!j) return km_error_set(err, KM_ERR_MEMORY, "pull: out of memory");
    j->http = h;
    j->f = f;
    j->fd = j->map_fd = -1;
    km_status s = find_out(j, err);
    if (s == KM_OK) s = open_part(j, err);
    if (s == KM_OK) s = make_pieces(j, err);
    if (s == KM_OK && j->ranges) read_map(j);
    if (s == KM_OK && j->bytes > 0)
        km_note(KM_LOG_INFO, "%s: going on after %lld of %lld MiB", f->shown,
                (long long)(j->bytes >> 20), (long long)(j->size >> 20));
    if (s == KM_OK && j->size != 0) {
        km_progress_begin(&j->bar, f->shown, "MiB", j->size < 0 ? 1 : (j->size >> 20) + 1,
                          f->quiet);
        j->bar.first = j->bytes >> 20;
        s = transfer(j, err);
        km_progress_end(&j->bar);
    }
    if (s == KM_OK) s = complete(j, err);
    if (j->fd >= 0) close(j->fd);
    if (j->map_fd >= 0) close(j->map_fd);
    km_free(j->pieces);
    km_free(j->place);
    km_free(j);
    return s;
}
