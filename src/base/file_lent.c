/* Files without a name: a list of memory and descriptors that callers lent, by names of ours. */
#include "base/file.h"
#include "base/alloc.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct lent_file {
    struct lent_file *next;
    char name[40];
    const void *data;
    size_t bytes;
    int fd; /* -1: it is memory */
} lent_file;

static lent_file *lent_files;
static unsigned long lent_count;
static pthread_mutex_t lent_lock = PTHREAD_MUTEX_INITIALIZER;

static km_status lend(lent_file file, char *name, size_t room, km_error *err) {
    lent_file *f = km_alloc(sizeof *f);
    if (!f) return km_no_memory_for(err, "a file's name");
    *f = file;
    pthread_mutex_lock(&lent_lock);
    snprintf(f->name, sizeof f->name, "(lent %lu).gguf", ++lent_count);
    f->next = lent_files;
    lent_files = f;
    pthread_mutex_unlock(&lent_lock);
    snprintf(name, room, "%s", f->name);
    return KM_OK;
}

km_status km_file_lend(const void *data, size_t bytes, char *name, size_t room, km_error *err) {
    return lend((lent_file){.data = data, .bytes = bytes, .fd = -1}, name, room, err);
}

km_status km_file_lend_fd(int fd, char *name, size_t room, km_error *err) {
    int copy = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0)
        return km_error_set(err, KM_ERR_FILE, "descriptor %d cannot be used: %s", fd,
                            fd < 0 ? "it is negative" : strerror(errno));
    km_status s = lend((lent_file){.fd = copy}, name, room, err);
    if (s != KM_OK) close(copy);
    return s;
}

bool km_file_lent(const char *name, km_map *m, int *fd) {
    bool found = false;
    if (strncmp(name, "(lent ", 6) != 0) return false;
    pthread_mutex_lock(&lent_lock);
    for (const lent_file *f = lent_files; f && !found; f = f->next) {
        if (strcmp(f->name, name) != 0) continue;
        found = true;
        *fd = f->fd < 0 ? -1 : fcntl(f->fd, F_DUPFD_CLOEXEC, 0);
        if (f->fd < 0) *m = (km_map){.data = f->data, .size = f->bytes, .lent = true};
    }
    pthread_mutex_unlock(&lent_lock);
    return found;
}

void km_file_take_back(const char *name) {
    pthread_mutex_lock(&lent_lock);
    for (lent_file **at = &lent_files; *at; at = &(*at)->next) {
        lent_file *f = *at;
        if (strcmp(f->name, name) != 0) continue;
        *at = f->next;
        if (f->fd >= 0) close(f->fd);
        km_free(f);
        break;
    }
    pthread_mutex_unlock(&lent_lock);
}
