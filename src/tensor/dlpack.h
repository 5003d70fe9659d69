/* DLPack's structs, declared from its published ABI (major version 1): other libraries hand tensors
 * over in these without copying them. */
#ifndef KM_TENSOR_DLPACK_H
#define KM_TENSOR_DLPACK_H
#include <stdint.h>

enum { KM_DL_CPU = 1, KM_DL_CUDA = 2, KM_DL_CUDA_HOST = 3, KM_DL_CUDA_MANAGED = 13 };
enum { KM_DL_INT = 0, KM_DL_UINT = 1, KM_DL_FLOAT = 2, KM_DL_BFLOAT = 4, KM_DL_BOOL = 6 };
enum { KM_DL_MAJOR = 1, KM_DL_MINOR = 0, KM_DL_READ_ONLY = 1 };

typedef struct km_dl_tensor {
    void *data; /* of element (0, 0, ...) less byte_offset */
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides; /* strides in elements; NULL: row-major */
    uint64_t byte_offset;
} km_dl_tensor;

struct DLManagedTensor {
    km_dl_tensor tensor;
    void *manager;
    void (*deleter)(struct DLManagedTensor *self); /* may be NULL */
};

struct DLManagedTensorVersioned {
    struct {
        uint32_t major, minor;
    } version;
    void *manager;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    km_dl_tensor tensor;
};

#endif
