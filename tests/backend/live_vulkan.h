/* What tests on a Vulkan device share. Any device serves, software (Mesa's lavapipe) too; each such
 * program ends with exit code 77 and says why where there is none. */
#ifndef KM_TESTS_BACKEND_LIVE_VULKAN_H
#define KM_TESTS_BACKEND_LIVE_VULKAN_H
#include "backend/backend.h"
#include "backend/vulkan/device.h"
#include "support/sanitized.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VULKAN "vulkan:0"

#define assert_says(text, part)                                                                    \
    do {                                                                                           \
        if (!strstr(text, part)) fail_msg("\"%s\" does not say \"%s\"", text, part);               \
    } while (0)

/* The pipeline cache goes to a folder of the test's own, made under the working folder. */
static inline const char *vulkan_cache_folder(void) {
    static char folder[] = "vulkan_cache_XXXXXX";
    static char *made;
    if (!made && (made = mkdtemp(folder)) != NULL) {
        char path[512];
        if (realpath(made, path)) setenv("XDG_CACHE_HOME", path, 1);
    }
    return made;
}

static inline bool vulkan_missing(void) {
    km_error err = {0};
    if (THREADS_SANITIZED) { /* drivers have threads that it knows nothing of */
        printf("skipped: not under the thread sanitizer\n");
        return true;
    }
    vulkan_cache_folder();
    if (km_vulkan_device(0, &err)) return false;
    printf("skipped: %s\n", err.text);
    return true;
}

/* Ops of training and of vectors, whose tests are backend/vulkan_train and vector/vulkan_vectors. */
static inline bool vulkan_op_of_training(km_op op) {
    static const km_op ops[] = {KM_OP_ARANGE,
                                KM_OP_UNIFORM,
                                KM_OP_NORMAL,
                                KM_OP_DROPOUT,
                                KM_OP_NE,
                                KM_OP_WHERE,
                                KM_OP_MASKED_FILL,
                                KM_OP_LAYER_NORM_GRAD,
                                KM_OP_RMS_NORM_GRAD,
                                KM_OP_CROSS_ENTROPY,
                                KM_OP_MSE,
                                KM_OP_BCE,
                                KM_OP_MSE_GRAD,
                                KM_OP_BCE_GRAD,
                                KM_OP_EMBEDDING_GRAD,
                                KM_OP_ATTENTION,
                                KM_OP_ATTENTION_GRAD,
                                KM_OP_CROSS_ENTROPY_GRAD,
                                KM_OP_ROPE,
                                KM_OP_SGD,
                                KM_OP_ADAMW,
                                KM_OP_SUMSQ_CHUNKS,
                                KM_OP_OPTIM_CONTROL,
                                KM_OP_NEAREST,
                                KM_OP_CELL_SUMS,
                                KM_OP_SCAN_CODES,
                                KM_OP_ENCODE_LEVELS,
                                KM_OP_ENCODE_TRELLIS,
                                KM_OP_INDEX_SELECT,
                                KM_OP_GATHER,
                                KM_OP_EMBEDDING};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (ops[i] == op) return true;
    return op >= KM_OP_EQ && op <= KM_OP_GE; /* one shader: ne serves for all */
}

static inline void vulkan_clean(void) {
    char command[128];
    if (!vulkan_cache_folder()) return;
    snprintf(command, sizeof command, "rm -rf '%s'", vulkan_cache_folder());
    if (system(command) != 0) printf("cannot remove %s\n", vulkan_cache_folder());
}

#endif
