/* A temporary folder for tests of models in files. */
#ifndef KM_TESTS_MODEL_FOLDER_H
#define KM_TESTS_MODEL_FOLDER_H
#include "train/checkpoint.h"
#include <stdlib.h>
#include <string.h>

static char folder[64];

static inline int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/kermes-model-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int remove_folder(void **state) {
    (void)state;
    km_folder_remove(folder);
    return 0;
}

#endif
