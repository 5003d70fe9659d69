/* Included before every file of a library that is to run with an older glibc than the one it is built
 * with (KERMES_OLD_GLIBC): symbols that newer versions moved or renewed are taken in their first one,
 * which every glibc for x86-64 since 2.31 has. */
#if defined(__x86_64__) && defined(__linux__)
#include <sys/stat.h>

#define KM_FIRST_VERSION(name) __asm__(".symver " #name "," #name "@GLIBC_2.2.5")
KM_FIRST_VERSION(dladdr);
KM_FIRST_VERSION(dlclose);
KM_FIRST_VERSION(dlerror);
KM_FIRST_VERSION(dlopen);
KM_FIRST_VERSION(dlsym);
KM_FIRST_VERSION(hypot);
KM_FIRST_VERSION(pthread_create);
KM_FIRST_VERSION(pthread_detach);
KM_FIRST_VERSION(pthread_getspecific);
KM_FIRST_VERSION(pthread_join);
KM_FIRST_VERSION(pthread_key_create);
KM_FIRST_VERSION(pthread_key_delete);
KM_FIRST_VERSION(pthread_mutex_trylock);
KM_FIRST_VERSION(pthread_once);
KM_FIRST_VERSION(pthread_setspecific);
KM_FIRST_VERSION(pthread_sigmask);
__asm__(".symver dlinfo,dlinfo@GLIBC_2.3.3");

/* Before 2.33 these were inline functions over others. */
extern int __fxstat(int version, int fd, struct stat *to);
extern int __xstat(int version, const char *path, struct stat *to);
extern int __lxstat(int version, const char *path, struct stat *to);
extern int __fxstatat(int version, int fd, const char *path, struct stat *to, int flags);
#define fstat(fd, to) __fxstat(1, fd, to)
#define stat(path, to) __xstat(1, path, to)
#define lstat(path, to) __lxstat(1, path, to)
#define fstatat(fd, path, to, flags) __fxstatat(1, fd, path, to, flags)
#endif
