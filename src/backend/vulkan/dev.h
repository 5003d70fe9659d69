/* One Vulkan device inside the backend: its handles, what it can do, the pipelines made on it; and a
 * lane's queue: memory, the command buffer being recorded, and those on their way. */
#ifndef KM_BACKEND_VULKAN_DEV_H
#define KM_BACKEND_VULKAN_DEV_H
#include "backend/vulkan/device.h"
#include "backend/vulkan/driver.h"
#include <pthread.h>
#include <stdatomic.h>

#define KM_VULKAN_PUSH 128    /* bytes of push constants that every device has */
#define KM_VULKAN_SPECS 12    /* specialisation constants of a shader, at most */
#define KM_VULKAN_THREADS 128 /* of a workgroup: no device has a lower limit */

typedef struct km_vulkan_pipeline km_vulkan_pipeline;

typedef struct km_vulkan_dev {
    km_device base;
    int index;
    VkPhysicalDevice physical;
    VkDevice handle;
    VkQueue queue;
    uint32_t family;
    pthread_mutex_t queue_lock; /* one thread at a time hands work to a queue */
    char model[128];
    uint32_t most_groups[3], most_threads;
    uint32_t subgroup, shared_bytes; /* of a workgroup: lanes that go together, memory */
    bool matrices; /* VK_KHR_cooperative_matrix, of f16 with sums of f32, 16 x 16 x 16 */
    bool dots;     /* integer dot products, and sums and exchange within a subgroup */
    double tick;   /* nanoseconds of a timestamp; 0: it has none */
    bool in_place; /* its memory is the host's: blocks are mapped, and nothing is staged */
    /* Memory types: of blocks, of what the host writes and reads, of words that shaders read beside tensors:
     * the device's own, where the host can write to it. */
    uint32_t own, shared, near;
    bool statistics;      /* drivers tell what they made of shaders (KERMES_VULKAN_STATISTICS) */
    size_t largest;       /* bytes of one allocation, at most */
    size_t memory, limit; /* bytes: of the heap, and what all contexts together may hold */
    atomic_size_t held;
    atomic_bool lost;
    char lost_why[256]; /* written once, before `lost` */

    pthread_mutex_t lock; /* for pipelines */
    VkPipelineLayout layout;
    VkPipelineCache cache;
    uint8_t cache_id[VK_UUID_SIZE];
    uint32_t vendor, product, driver_version;
    int made;                       /* pipelines since the cache was last written */
    km_vulkan_pipeline **pipelines; /* a list for each module of this build */
} km_vulkan_dev;

static inline km_vulkan_dev *km_vulkan_dev_of(const km_lane *lane) { return lane->device->impl; }

/* Marks the device lost if the error is of that kind. */
void km_vulkan_note_error(km_vulkan_dev *dev, VkResult code, const char *doing);
km_status km_vulkan_lost(km_vulkan_dev *dev, km_error *err);

/* pipeline.c */
bool km_vulkan_pipelines_open(km_vulkan_dev *dev, km_error *err);
void km_vulkan_pipelines_close(km_vulkan_dev *dev);
/* The shader `module` with these constants; VK_NULL_HANDLE with the lane's error set. */
VkPipeline km_vulkan_pipeline_get(km_lane *lane, const char *module, const uint32_t *spec,
                                  int n_spec);
/* SPIR-V with matrices of SPV_NV_cooperative_matrix as SPIR-V with those of SPV_KHR_cooperative_matrix, to be
 * freed (matrix_code.c); NULL: out of memory, or no such code. */
uint32_t *km_vulkan_matrix_code(const uint32_t *code, size_t words, size_t *made);
bool km_vulkan_has_matrices(const uint32_t *code, size_t words);
/* Writes what was compiled to the cache on disk, if there is anything new. */
void km_vulkan_cache_save(km_vulkan_dev *dev);

/* ---- A lane's queue (lane.c) ---- */

#define KM_VULKAN_FRAMES 4
#define KM_VULKAN_STAGE ((size_t)4 << 20)
#define KM_VULKAN_WORDS ((size_t)256 << 10)

typedef struct km_vulkan_block { /* one allocation of the driver */
    VkDeviceAddress at;          /* of its first byte in use, aligned */
    size_t bytes;                /* in use */
    VkBuffer buffer;
    VkDeviceMemory memory;
    size_t skip; /* bytes of the buffer before `at` */
    char *map;   /* `at` as the host sees it; NULL: it does not */
} km_vulkan_block;

typedef struct km_vulkan_frame {
    VkCommandBuffer cmd;
    uint64_t value; /* of the timeline, when it is done; 0: never submitted */
    km_vulkan_block stage, words;
    size_t staged, worded;
    double work; /* of its dispatches, and whether times were noted */
    bool timed;
} km_vulkan_frame;

typedef struct km_vulkan_queue {
    VkCommandPool commands;
    VkQueryPool times;
    VkSemaphore timeline;
    uint64_t submitted; /* the timeline's last value */
    km_vulkan_frame frame[KM_VULKAN_FRAMES];
    int at;         /* the frame being recorded */
    bool recording; /* something is in it */
    bool launching; /* a dispatch is being handed in, in several parts perhaps */
    bool beside;    /* the next dispatch needs nothing that the one before it writes */
    double rate;    /* work in a millisecond, as measured; 0: not yet */
    uint64_t submissions;
    double longest;          /* milliseconds, of a submission */
    km_vulkan_block *blocks; /* by address */
    int n_blocks, cap_blocks;
    struct km_vulkan_graph *capturing, *graphs; /* being recorded; all there are (graph.h) */
    km_mempool_watch watch;
} km_vulkan_queue;

static inline km_vulkan_queue *km_vulkan_queue_of(const km_lane *lane) { return lane->queue; }

extern const km_device_ops km_vulkan_device_ops;

km_status km_vulkan_fail(km_lane *lane, VkResult code, const char *doing);
/* Memory of one of the device's types; all but its own is mapped. */
VkResult km_vulkan_block_make(km_vulkan_dev *dev, size_t bytes, uint32_t type, km_vulkan_block *b);
void km_vulkan_block_free(km_vulkan_dev *dev, km_vulkan_block *b);
/* The command buffer to record the next command into, behind a barrier (km_vulkan_beside: none); NULL with the error set. */
VkCommandBuffer km_vulkan_record(km_lane *lane);
/* Bytes of the frame's staging memory, with a copy of `data`; 0 with the error set. At most
 * KM_VULKAN_STAGE. Valid for commands recorded before the next call of this. */
VkDeviceAddress km_vulkan_words(km_lane *lane, const void *data, size_t bytes);
/* Hands in what was recorded. */
km_status km_vulkan_flush(km_lane *lane);
/* Hands in command buffers, each as a submission of its own; nothing else is being recorded. */
km_status km_vulkan_submit(km_lane *lane, const VkCommandBuffer *cmd, int n);
/* Waits for a value of the timeline, unless the device is lost. */
void km_vulkan_wait(km_lane *lane, uint64_t value);
/* The last command of a submission: what was written can be read by the host. */
void km_vulkan_show_host(VkCommandBuffer cmd);
km_status km_vulkan_sync(km_lane *lane);

#endif
