/* Folders that appear whole or not at all. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "train/checkpoint.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void km_folder_join(char *out, const char *folder, const char *name) {
    if (snprintf(out, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX) out[0] = 0;
}

void km_folder_temp(char *out, const char *path) {
    const char *slash = strrchr(path, '/');
    int parent = slash ? (int)(slash - path) + 1 : 0;
    if (snprintf(out, PATH_MAX, "%.*s.kermes-%s-%ld.tmp", parent, path, path + parent,
                 (long)getpid()) >= PATH_MAX)
        out[0] = 0;
}

km_status km_folder_make(const char *path, km_error *err) {
    char part[PATH_MAX];
    struct stat st;
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part)
        return km_error_set(err, KM_ERR_FILE, "cannot make a folder: its name is too %s",
                            n ? "long" : "short");
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (part[i] && part[i] != '/') continue;
        part[i] = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return km_error_set(err, KM_ERR_FILE, "cannot make the folder '%.300s': %s", part,
                                strerror(errno));
        part[i] = path[i];
    }
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        return km_error_set(err, KM_ERR_FILE, "'%s' is not a folder", path);
    return KM_OK;
}

static void remove_at(int parent, const char *name) {
    if (unlinkat(parent, name, 0) == 0) return;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return;
    DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return;
    }
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) remove_at(fd, e->d_name);
    closedir(d);
    unlinkat(parent, name, AT_REMOVEDIR);
}

void km_folder_remove(const char *path) { remove_at(AT_FDCWD, path); }

static void flush(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd); /* where folders cannot be flushed there is nothing more to do */
    close(fd);
}

km_status km_folder_publish(const char *temp, const char *path, km_error *err) {
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%s", path);
    char *slash = strrchr(parent, '/');
    if (slash) *slash = 0;
    flush(temp);
    bool done = rename(temp, path) == 0;
    if (!done && (errno == EEXIST || errno == ENOTEMPTY)) {
        /* Swap the two in one go; the old one then has the temporary name. */
#ifdef RENAME_EXCHANGE
        done = renameat2(AT_FDCWD, temp, AT_FDCWD, path, RENAME_EXCHANGE) == 0;
#else
        errno = ENOSYS;
#endif
        if (!done && (errno == EINVAL || errno == ENOSYS)) { /* a file system that cannot */
            km_folder_remove(path);
            done = rename(temp, path) == 0;
        }
    }
    if (!done) {
        km_error_set(err, KM_ERR_FILE, "cannot rename '%.200s' to '%.200s': %s", temp, path,
                     strerror(errno));
        km_folder_remove(temp);
        return KM_ERR_FILE;
    }
    flush(slash ? parent : ".");
    km_folder_remove(temp); /* the old one, where there was one */
    return KM_OK;
}

void km_folder_sweep(const char *out) {
    DIR *d = opendir(out);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        bool ours = strncmp(e->d_name, ".kermes-", 8) == 0 && n > 4 &&
                    strcmp(e->d_name + n - 4, ".tmp") == 0;
        if (ours) remove_at(dirfd(d), e->d_name);
    }
    closedir(d);
}
