/* Modules: shared objects of ours that are built and packaged apart (kermes-mpi.so, kermes-cuda.so),
 * opened at run time where they are installed. They are looked for beside the program and beside the
 * library, in the folders where a build, an installation, a package or a wheel puts them, and at last
 * where packages of the system are. */
#ifndef KM_BASE_MODULE_H
#define KM_BASE_MODULE_H
#include <stdbool.h>
#include <stddef.h>

#define KM_MODULE_PATH 4096

/* Where `file` is: what the environment variable `variable` names, or the first that can be read of
 * the usual places. False where there is none; a name given by the variable is not looked at. */
bool km_module_find(const char *file, const char *variable, char path[KM_MODULE_PATH]);

/* dlopen of what km_module_find finds, with dlopen's flags. NULL with why[0] = 0 where there is none,
 * and with the loader's reason where it cannot be opened. */
void *km_module_open(const char *file, const char *variable, int flags, char *why, size_t room);

#endif
