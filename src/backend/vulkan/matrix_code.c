/* Cooperative matrices: glslc knows those of SPV_NV_cooperative_matrix, drivers those of
 * SPV_KHR_cooperative_matrix, and the instructions differ in little. A type says in addition what its matrices
 * are for, left and right factor or sum, which is told from the specialisation constants that are its sizes
 * (KM_MATRIX_M, N, K of shaders/layer_matrix.glsl); the layout in memory is a number in place of a bool, and
 * comes before the stride. */
#include "backend/vulkan/dev.h"
#include "base/alloc.h"
#include <string.h>

enum { SPEC_M = 20, SPEC_N = 21, SPEC_K = 22 };
enum {
    OP_EXTENSION = 10,
    OP_CAPABILITY = 17,
    OP_TYPE_INT = 21,
    OP_CONSTANT_TRUE = 41,
    OP_CONSTANT = 43,
    OP_DECORATE = 71,
    OP_TYPE_NV = 5358,
    OP_LOAD_NV = 5359,
    OP_STORE_NV = 5360,
    OP_MUL_ADD_NV = 5361,
    OP_LENGTH_NV = 5362,
    OP_TYPE_KHR = 4456,
    OP_LOAD_KHR = 4457,
    OP_STORE_KHR = 4458,
    OP_MUL_ADD_KHR = 4459,
    OP_LENGTH_KHR = 4460,
    DECORATION_SPEC_ID = 1,
    CAPABILITY_NV = 5357,
    CAPABILITY_KHR = 6022,
    HEADER = 5
};

bool km_vulkan_has_matrices(const uint32_t *code, size_t words) {
    for (size_t i = HEADER; i < words && (code[i] & 0xffff) == OP_CAPABILITY; i += code[i] >> 16)
        if (code[i + 1] == CAPABILITY_NV) return true;
    return false;
}

typedef struct matrix_ids {
    uint32_t m, n, k;   /* the specialisation constants */
    uint32_t is_true;   /* the constant */
    uint32_t number[3]; /* constants 0 to 2: layouts (by rows, by columns) and uses */
} matrix_ids;

/* 0: a left factor, 1: a right one, 2: sums. */
static uint32_t use_of(const matrix_ids *ids, uint32_t rows, uint32_t columns) {
    if (rows == ids->m && columns == ids->k) return 0;
    if (rows == ids->k && columns == ids->n) return 1;
    return 2;
}

uint32_t *km_vulkan_matrix_code(const uint32_t *code, size_t words, size_t *made) {
    matrix_ids ids = {0};
    size_t types = 0, n = HEADER;
    if (words < HEADER) return NULL;
    for (size_t i = HEADER, len; i < words; i += len) {
        uint32_t op = code[i] & 0xffff;
        len = code[i] >> 16;
        if (len == 0 || i + len > words) return NULL;
        if (op == OP_DECORATE && len == 4 && code[i + 2] == DECORATION_SPEC_ID) {
            if (code[i + 3] == SPEC_M) ids.m = code[i + 1];
            if (code[i + 3] == SPEC_N) ids.n = code[i + 1];
            if (code[i + 3] == SPEC_K) ids.k = code[i + 1];
        }
        if (op == OP_CONSTANT_TRUE) ids.is_true = code[i + 2];
        types += op == OP_TYPE_NV;
    }
    if (!ids.m || !ids.n || !ids.k) return NULL;
    /* A word more to a type, and three constants. */
    uint32_t *to = km_alloc((words + types + 12) * sizeof *to);
    if (!to) return NULL;
    memcpy(to, code, HEADER * sizeof *to);
    for (int i = 0; i < 3; i++) ids.number[i] = to[3]++; /* the bound of ids */
    for (size_t i = HEADER; i < words; i += code[i] >> 16) {
        uint32_t op = code[i] & 0xffff, len = code[i] >> 16, *at = to + n;
        memcpy(at, code + i, len * sizeof *at);
        n += len;
        switch (op) {
        case OP_CAPABILITY:
            if (at[1] == CAPABILITY_NV) at[1] = CAPABILITY_KHR;
            break;
        case OP_EXTENSION: { /* both names take 28 bytes */
            static const char nv[] = "SPV_NV_cooperative_matrix";
            if (len == 8 && memcmp(at + 1, nv, sizeof nv) == 0)
                memcpy(at + 1, "SPV_KHR_cooperative_matrix\0", 28);
            break;
        }
        case OP_TYPE_INT:
            if (at[2] != 32 || at[3] != 0) break;
            for (uint32_t v = 0; v < 3; v++) {
                const uint32_t constant[] = {4 << 16 | OP_CONSTANT, at[1], ids.number[v], v};
                memcpy(to + n, constant, sizeof constant);
                n += 4;
            }
            break;
        case OP_TYPE_NV:
            at[0] = (len + 1) << 16 | OP_TYPE_KHR;
            to[n++] = ids.number[use_of(&ids, at[4], at[5])];
            break;
        case OP_LOAD_NV: { /* type, result, pointer, stride, by columns? */
            uint32_t stride = at[4], layout = ids.number[ids.is_true && at[5] == ids.is_true];
            at[0] = len << 16 | OP_LOAD_KHR;
            at[4] = layout;
            at[5] = stride;
            break;
        }
        case OP_STORE_NV: { /* pointer, matrix, stride, by columns? */
            uint32_t stride = at[3], layout = ids.number[ids.is_true && at[4] == ids.is_true];
            at[0] = len << 16 | OP_STORE_KHR;
            at[3] = layout;
            at[4] = stride;
            break;
        }
        case OP_MUL_ADD_NV: at[0] = len << 16 | OP_MUL_ADD_KHR; break;
        case OP_LENGTH_NV: at[0] = len << 16 | OP_LENGTH_KHR; break;
        default: break;
        }
    }
    *made = n;
    return to;
}
