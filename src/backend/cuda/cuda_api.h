/* What Kermes uses of the CUDA driver's binary interface, in our own words, so that the host side
 * builds where no CUDA toolkit is. Handles are opaque pointers, a device address is a 64-bit
 * number, and every function returns 0 or an error number. Symbols carry the version suffix that
 * their signature here belongs to. */
#ifndef KM_BACKEND_CUDA_CUDA_API_H
#define KM_BACKEND_CUDA_CUDA_API_H
#include <stddef.h>
#include <stdint.h>

typedef int km_cu_result;
typedef int km_cu_device;
typedef uint64_t km_cu_ptr;
typedef struct km_cu_context_handle *km_cu_context;
typedef struct km_cu_module_handle *km_cu_module;
typedef struct km_cu_function_handle *km_cu_function;
typedef struct km_cu_stream_handle *km_cu_stream;
typedef struct km_cu_event_handle *km_cu_event;
typedef struct km_cu_graph_handle *km_cu_graph;
typedef struct km_cu_graph_exec_handle *km_cu_graph_exec;
typedef struct km_cu_node_handle *km_cu_node;

/* errors we tell apart */
enum {
    KM_CU_OK = 0,
    KM_CU_INVALID_VALUE = 1,
    KM_CU_OUT_OF_MEMORY = 2,
    KM_CU_STUB_LIBRARY = 34,
    KM_CU_DEVICE_UNAVAILABLE = 46,
    KM_CU_NO_DEVICE = 100,
    KM_CU_INVALID_IMAGE = 200,
    KM_CU_NO_BINARY = 209,
    KM_CU_ECC_UNCORRECTABLE = 214,
    KM_CU_NVLINK_UNCORRECTABLE = 220,
    KM_CU_NO_JIT = 221,
    KM_CU_NEW_PTX = 222,
    KM_CU_CONTAINED = 226,
    KM_CU_INVALID_SOURCE = 300,
    KM_CU_NOT_FOUND = 500,
    KM_CU_NOT_READY = 600,
    KM_CU_ILLEGAL_ADDRESS = 700,
    KM_CU_LAUNCH_TIMEOUT = 702,
    KM_CU_CONTEXT_DESTROYED = 709,
    KM_CU_ASSERT = 710,
    KM_CU_HARDWARE_STACK = 714, /* up to KM_CU_LAUNCH_FAILED: a kernel went wrong */
    KM_CU_LAUNCH_FAILED = 719,
    KM_CU_SYSTEM_NOT_READY = 802,
    KM_CU_DRIVER_MISMATCH = 803,
    KM_CU_CAPTURE_UNSUPPORTED = 900, /* up to KM_CU_CAPTURE_WRONG_THREAD: a capture is broken */
    KM_CU_CAPTURE_WRONG_THREAD = 908,
    KM_CU_UPDATE_FAILED = 910,
    KM_CU_UNKNOWN = 999
};

enum { /* device attributes */
       KM_CU_ATTR_CLOCK_KHZ = 13,
       KM_CU_ATTR_SMS = 16,
       KM_CU_ATTR_INTEGRATED = 18,
       KM_CU_ATTR_MEMORY_CLOCK_KHZ = 36,
       KM_CU_ATTR_BUS_BITS = 37,
       KM_CU_ATTR_L2_BYTES = 38,
       KM_CU_ATTR_THREADS_PER_SM = 39,
       KM_CU_ATTR_CC_MAJOR = 75,
       KM_CU_ATTR_CC_MINOR = 76,
       KM_CU_ATTR_SHARED_PER_SM = 81,
       KM_CU_ATTR_SHARED_PER_BLOCK = 97 /* the most a kernel may ask for */
};

enum { /* function attributes */
       KM_CU_FUNC_MAX_THREADS = 0,
       KM_CU_FUNC_STATIC_SHARED = 1,
       KM_CU_FUNC_LOCAL_BYTES = 3,
       KM_CU_FUNC_REGISTERS = 4,
       KM_CU_FUNC_MAX_DYNAMIC_SHARED = 8,
       KM_CU_FUNC_SHARED_CARVEOUT = 9, /* percent */
       KM_CU_FUNC_NON_PORTABLE_CLUSTER = 14
};

enum { KM_CU_STREAM_NON_BLOCKING = 1, KM_CU_EVENT_DEFAULT = 0, KM_CU_EVENT_NO_TIMING = 2 };
enum { KM_CU_HOST_PORTABLE = 1, KM_CU_HOST_MAPPED = 2 }; /* cuMemHostAlloc */
enum { KM_CU_CAPTURE_GLOBAL = 0, KM_CU_CAPTURE_RELAXED = 2 };

/* One property of a launch beyond its sizes. */
enum { KM_CU_LAUNCH_CLUSTER = 4, KM_CU_LAUNCH_PROGRAMMATIC = 6 };
typedef struct km_cu_launch_attr {
    int id, pad;
    union {
        char bytes[64];
        unsigned cluster[3]; /* blocks of a cluster along x, y, z */
        int flag;
    } value;
} km_cu_launch_attr;

typedef struct km_cu_launch_config {
    unsigned grid[3], block[3], shared;
    km_cu_stream stream;
    km_cu_launch_attr *attrs;
    unsigned n_attrs;
} km_cu_launch_config;

typedef struct km_cu_update_info {
    int result;
    km_cu_node node, from;
} km_cu_update_info;

struct km_tensor_map; /* kernels/tensor_map.h */

enum { /* element types of a tensor map */
       KM_CU_MAP_U8 = 0,
       KM_CU_MAP_U16 = 1,
       KM_CU_MAP_U32 = 2,
       KM_CU_MAP_F16 = 6,
       KM_CU_MAP_F32 = 7,
       KM_CU_MAP_BF16 = 9,
       KM_CU_MAP_TF32 = 11
};
enum { KM_CU_SWIZZLE_NONE, KM_CU_SWIZZLE_32, KM_CU_SWIZZLE_64, KM_CU_SWIZZLE_128 };
enum { KM_CU_PROMOTE_NONE, KM_CU_PROMOTE_64, KM_CU_PROMOTE_128, KM_CU_PROMOTE_256 };

/* X(our name, the driver's symbol, parameters). A driver without one of the first list is too old
 * for us; the second list may be absent and is then NULL. */
#define KM_CU_NEEDED(X)                                                                            \
    X(init, "cuInit", (unsigned flags))                                                            \
    X(driver_version, "cuDriverGetVersion", (int *version))                                        \
    X(error_name, "cuGetErrorName", (km_cu_result code, const char **name))                        \
    X(error_text, "cuGetErrorString", (km_cu_result code, const char **text))                      \
    X(device_count, "cuDeviceGetCount", (int *count))                                              \
    X(device_get, "cuDeviceGet", (km_cu_device * device, int index))                               \
    X(device_name, "cuDeviceGetName", (char *name, int size, km_cu_device device))                 \
    X(device_attr, "cuDeviceGetAttribute", (int *value, int attr, km_cu_device device))            \
    X(device_memory, "cuDeviceTotalMem_v2", (size_t * bytes, km_cu_device device))                 \
    X(context_retain, "cuDevicePrimaryCtxRetain", (km_cu_context * ctx, km_cu_device device))      \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", (km_cu_device device))                      \
    X(context_use, "cuCtxSetCurrent", (km_cu_context ctx))                                         \
    X(context_current, "cuCtxGetCurrent", (km_cu_context * ctx))                                   \
    X(module_load, "cuModuleLoadData", (km_cu_module * module, const void *image))                 \
    X(module_unload, "cuModuleUnload", (km_cu_module module))                                      \
    X(module_function, "cuModuleGetFunction",                                                      \
      (km_cu_function * function, km_cu_module module, const char *name))                          \
    X(func_get, "cuFuncGetAttribute", (int *value, int attr, km_cu_function function))             \
    X(func_set, "cuFuncSetAttribute", (km_cu_function function, int attr, int value))              \
    X(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor",                                    \
      (int *blocks, km_cu_function function, int threads, size_t shared))                          \
    X(launch, "cuLaunchKernel",                                                                    \
      (km_cu_function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,   \
       unsigned bz, unsigned shared, km_cu_stream stream, void **params, void **extra))            \
    X(stream_create, "cuStreamCreate", (km_cu_stream * stream, unsigned flags))                    \
    X(stream_destroy, "cuStreamDestroy_v2", (km_cu_stream stream))                                 \
    X(stream_sync, "cuStreamSynchronize", (km_cu_stream stream))                                   \
    X(stream_wait, "cuStreamWaitEvent", (km_cu_stream stream, km_cu_event event, unsigned flags))  \
    X(event_create, "cuEventCreate", (km_cu_event * event, unsigned flags))                        \
    X(event_destroy, "cuEventDestroy_v2", (km_cu_event event))                                     \
    X(event_record, "cuEventRecord", (km_cu_event event, km_cu_stream stream))                     \
    X(event_sync, "cuEventSynchronize", (km_cu_event event))                                       \
    X(event_ms, "cuEventElapsedTime", (float *ms, km_cu_event from, km_cu_event to))               \
    X(mem_alloc, "cuMemAlloc_v2", (km_cu_ptr * p, size_t bytes))                                   \
    X(mem_free, "cuMemFree_v2", (km_cu_ptr p))                                                     \
    X(mem_info, "cuMemGetInfo_v2", (size_t * free, size_t * total))                                \
    X(host_alloc, "cuMemHostAlloc", (void **p, size_t bytes, unsigned flags))                      \
    X(host_free, "cuMemFreeHost", (void *p))                                                       \
    X(copy_in, "cuMemcpyHtoDAsync_v2",                                                             \
      (km_cu_ptr dst, const void *src, size_t bytes, km_cu_stream stream))                         \
    X(copy_out, "cuMemcpyDtoHAsync_v2",                                                            \
      (void *dst, km_cu_ptr src, size_t bytes, km_cu_stream stream))                               \
    X(copy_within, "cuMemcpyDtoDAsync_v2",                                                         \
      (km_cu_ptr dst, km_cu_ptr src, size_t bytes, km_cu_stream stream))                           \
    X(set_bytes, "cuMemsetD8Async",                                                                \
      (km_cu_ptr dst, unsigned char value, size_t count, km_cu_stream stream))                     \
    X(capture_begin, "cuStreamBeginCapture_v2", (km_cu_stream stream, int mode))                   \
    X(capture_end, "cuStreamEndCapture", (km_cu_stream stream, km_cu_graph * graph))               \
    X(graph_nodes, "cuGraphGetNodes", (km_cu_graph graph, km_cu_node * nodes, size_t * count))     \
    X(graph_make, "cuGraphInstantiateWithFlags",                                                   \
      (km_cu_graph_exec * exec, km_cu_graph graph, unsigned long long flags))                      \
    X(graph_update, "cuGraphExecUpdate_v2",                                                        \
      (km_cu_graph_exec exec, km_cu_graph graph, km_cu_update_info * info))                        \
    X(graph_launch, "cuGraphLaunch", (km_cu_graph_exec exec, km_cu_stream stream))                 \
    X(graph_exec_destroy, "cuGraphExecDestroy", (km_cu_graph_exec exec))                           \
    X(graph_destroy, "cuGraphDestroy", (km_cu_graph graph))

#define KM_CU_OPTIONAL(X)                                                                          \
    X(launch_ex, "cuLaunchKernelEx",                                                               \
      (const km_cu_launch_config *config, km_cu_function function, void **params, void **extra))   \
    X(clusters, "cuOccupancyMaxActiveClusters",                                                    \
      (int *clusters, km_cu_function function, const km_cu_launch_config *config))                 \
    X(map_tiled, "cuTensorMapEncodeTiled",                                                         \
      (struct km_tensor_map * map, int type, uint32_t rank, void *address, const uint64_t *dims,   \
       const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,        \
       int swizzle, int promotion, int fill))

typedef struct km_cu_api {
#define KM_CU_FIELD(name, symbol, params) km_cu_result(*name) params;
    KM_CU_NEEDED(KM_CU_FIELD)
    KM_CU_OPTIONAL(KM_CU_FIELD)
#undef KM_CU_FIELD
} km_cu_api;

#endif
