/* Lanes: memory for the pool, command buffers, copies. Commands are recorded into one of a few frames,
 * each behind a barrier, and handed in when the host waits, when the frame's staging memory is used up,
 * or when its work would take longer than a submission may: drivers reset a GPU that seems to hang, and
 * a desktop stands still meanwhile. How long work takes is measured by timestamps. A timeline semaphore
 * counts submissions. */
#include "backend/vulkan/dev.h"
#include "backend/vulkan/graph.h"
#include "backend/vulkan/launch.h"
#include "base/alloc.h"
#include "base/array.h"
#include <string.h>

#define ALIGN ((size_t)512)
#define CHUNK_BYTES ((size_t)64 << 20)
#define SUBMISSION_MS 40.0 /* aimed at; what is measured varies, and 100 is the limit */
#define FIRST_WORK 2e7     /* operations in a submission before any was measured */
/* Until a device counts as lost. A driver tells a hanging GPU much sooner; one in software compiles shaders
 * while a submission waits, which takes minutes on a machine that is busy. */
#define WAIT_NS UINT64_C(600000000000)

km_status km_vulkan_fail(km_lane *lane, VkResult code, const char *doing) {
    km_vulkan_note_error(km_vulkan_dev_of(lane), code, doing);
    bool memory = code == VK_ERROR_OUT_OF_DEVICE_MEMORY || code == VK_ERROR_OUT_OF_HOST_MEMORY;
    return km_fail(lane->ctx, memory ? KM_ERR_MEMORY : KM_ERR_GPU, "%s: %s: %s", lane->device->name,
                   doing, km_vulkan_error_text(code));
}

static km_status ready(km_lane *lane) {
    km_vulkan_dev *dev = km_vulkan_dev_of(lane);
    if (atomic_load_explicit(&dev->lost, memory_order_relaxed))
        return km_vulkan_lost(dev, &lane->ctx->error);
    return KM_OK;
}

/* ---- Blocks ---- */

VkResult km_vulkan_block_make(km_vulkan_dev *dev, size_t bytes, uint32_t type, km_vulkan_block *b) {
    VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .size = bytes + ALIGN,
        .usage = VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT | VK_BUFFER_USAGE_STORAGE_BUFFER_BIT |
                 VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                       .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    VkMemoryAllocateInfo want = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &flags, .memoryTypeIndex = type};
    VkMemoryRequirements needs;
    void *map = NULL;
    *b = (km_vulkan_block){.bytes = bytes};
    if (bytes + ALIGN > dev->largest) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    VkResult r = KM_VK(CreateBuffer, dev->handle, &info, NULL, &b->buffer);
    if (r != VK_SUCCESS) {
        b->buffer = VK_NULL_HANDLE;
        return r;
    }
    km_vulkan_api()->GetBufferMemoryRequirements(dev->handle, b->buffer, &needs);
    want.allocationSize = needs.size;
    if (!(needs.memoryTypeBits >> want.memoryTypeIndex & 1)) r = VK_ERROR_FEATURE_NOT_PRESENT;
    if (r == VK_SUCCESS) r = KM_VK(AllocateMemory, dev->handle, &want, NULL, &b->memory);
    if (r != VK_SUCCESS) b->memory = VK_NULL_HANDLE;
    if (r == VK_SUCCESS) r = KM_VK(BindBufferMemory, dev->handle, b->buffer, b->memory, 0);
    if (r == VK_SUCCESS && (type != dev->own || dev->in_place))
        r = KM_VK(MapMemory, dev->handle, b->memory, 0, VK_WHOLE_SIZE, 0, &map);
    if (r != VK_SUCCESS) {
        km_vulkan_block_free(dev, b);
        return r;
    }
    VkBufferDeviceAddressInfo address = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                         .buffer = b->buffer};
    VkDeviceAddress at = km_vulkan_api()->GetBufferDeviceAddress(dev->handle, &address);
    b->at = (at + ALIGN - 1) / ALIGN * ALIGN;
    b->skip = (size_t)(b->at - at);
    b->map = map ? (char *)map + b->skip : NULL;
    return VK_SUCCESS;
}

void km_vulkan_block_free(km_vulkan_dev *dev, km_vulkan_block *b) {
    if (b->buffer) km_vulkan_api()->DestroyBuffer(dev->handle, b->buffer, NULL);
    if (b->memory) km_vulkan_api()->FreeMemory(dev->handle, b->memory, NULL);
    *b = (km_vulkan_block){0};
}

/* The first block that ends behind `at`. */
static int block_behind(const km_vulkan_queue *q, VkDeviceAddress at) {
    int low = 0, high = q->n_blocks;
    while (low < high) {
        int mid = (low + high) / 2;
        if (q->blocks[mid].at + q->blocks[mid].bytes > at)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

static const km_vulkan_block *block_of(km_lane *lane, const void *p, size_t bytes) {
    const km_vulkan_queue *q = km_vulkan_queue_of(lane);
    VkDeviceAddress at = (VkDeviceAddress)(uintptr_t)p;
    int i = block_behind(q, at);
    if (i < q->n_blocks && q->blocks[i].at <= at &&
        at + bytes <= q->blocks[i].at + q->blocks[i].bytes)
        return &q->blocks[i];
    km_fail(lane->ctx, KM_ERR_GPU, "%s: a copy outside of its memory", lane->device->name);
    return NULL;
}

static void *make_block(km_lane *lane, size_t bytes, bool mapped) {
    km_vulkan_queue *q = lane->queue;
    km_vulkan_block b;
    if (ready(lane) != KM_OK || !km_array_reserve(&q->blocks, &q->cap_blocks, q->n_blocks + 1))
        return NULL;
    km_vulkan_dev *dev = km_vulkan_dev_of(lane);
    VkResult r = km_vulkan_block_make(dev, bytes, mapped ? dev->shared : dev->own, &b);
    if (r != VK_SUCCESS) {
        if (r != VK_ERROR_OUT_OF_DEVICE_MEMORY && r != VK_ERROR_OUT_OF_HOST_MEMORY)
            km_vulkan_fail(lane, r, "allocating memory");
        return NULL;
    }
    int i = block_behind(q, b.at);
    memmove(q->blocks + i + 1, q->blocks + i, (size_t)(q->n_blocks - i) * sizeof b);
    q->blocks[i] = b;
    q->n_blocks++;
    return (void *)(uintptr_t)b.at;
}

/* NULL sends the pool to its cached blocks and then to an out-of-memory error. */
static void *raw_alloc(void *owner, size_t bytes) {
    km_lane *lane = owner;
    km_vulkan_dev *dev = km_vulkan_dev_of(lane);
    void *p = NULL;
    if (atomic_fetch_add(&dev->held, bytes) + bytes <= dev->limit)
        p = make_block(lane, bytes, false);
    if (!p) atomic_fetch_sub(&dev->held, bytes);
    return p;
}

/* Memory of the host that the device reaches. Some of what the host has is left for others. */
static void *spill_alloc(void *owner, size_t bytes) {
    km_lane *lane = owner;
    if ((double)bytes > 0.8 * km_host_memory_get().available || km_failed(lane->ctx)) return NULL;
    return make_block(lane, bytes, true);
}

static bool wait_for(km_lane *lane, uint64_t value, const char *doing) {
    km_vulkan_queue *q = km_vulkan_queue_of(lane);
    if (value == 0) return true;
    VkSemaphoreWaitInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                .semaphoreCount = 1,
                                .pSemaphores = &q->timeline,
                                .pValues = &value};
    VkResult r = KM_VK(WaitSemaphores, km_vulkan_dev_of(lane)->handle, &info, WAIT_NS);
    if (r == VK_TIMEOUT) r = VK_ERROR_DEVICE_LOST;
    if (r == VK_SUCCESS) return true;
    km_vulkan_fail(lane, r, doing);
    return false;
}

/* Work that may still read the block is waited for. The pool caches, so that this is rare. */
/* Before memory goes: what was handed in may still be at work on it. A device that is lost answers at once. */
static void wait_for_last(km_lane *lane) {
    km_vulkan_queue *q = km_vulkan_queue_of(lane);
    VkSemaphoreWaitInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                .semaphoreCount = 1,
                                .pSemaphores = &q->timeline,
                                .pValues = &q->submitted};
    if (!atomic_load(&km_vulkan_dev_of(lane)->lost))
        wait_for(lane, q->submitted, "waiting to free memory");
    else if (q->submitted)
        km_vulkan_api()->WaitSemaphores(km_vulkan_dev_of(lane)->handle, &info, WAIT_NS);
}

static void spill_free(void *owner, void *p, size_t bytes) {
    km_lane *lane = owner;
    (void)bytes;
    km_vulkan_dev *dev = km_vulkan_dev_of(lane);
    km_vulkan_queue *q = lane->queue;
    VkDeviceAddress at = (VkDeviceAddress)(uintptr_t)p;
    int i = block_behind(q, at);
    if (i >= q->n_blocks || q->blocks[i].at != at) return;
    if (!atomic_load(&dev->lost)) km_vulkan_flush(lane);
    wait_for_last(lane);
    km_vulkan_block_free(dev, &q->blocks[i]);
    q->n_blocks--;
    memmove(q->blocks + i, q->blocks + i + 1, (size_t)(q->n_blocks - i) * sizeof *q->blocks);
}

static void raw_free(void *owner, void *p, size_t bytes) {
    spill_free(owner, p, bytes);
    atomic_fetch_sub(&km_vulkan_dev_of(owner)->held, bytes);
}

/* ---- Frames ---- */

/* How long the frame took, now that it is done: the rate at which work goes. */
static void learn_rate(km_lane *lane, km_vulkan_frame *f) {
    km_vulkan_dev *dev = km_vulkan_dev_of(lane);
    km_vulkan_queue *q = km_vulkan_queue_of(lane);
    uint64_t t[2];
    int i = (int)(f - q->frame);
    if (!f->timed) return;
    f->timed = false;
    if (km_vulkan_api()->GetQueryPoolResults(dev->handle, q->times, 2 * (uint32_t)i, 2, sizeof t, t,
                                             sizeof *t, VK_QUERY_RESULT_64_BIT) != VK_SUCCESS ||
        t[1] <= t[0])
        return;
    double ms = (double)(t[1] - t[0]) * dev->tick * 1e-6;
    if (ms > q->longest) q->longest = ms;
    if (f->work <= 0 || ms < 0.05) return;
    double rate = f->work / ms;
    /* Slower counts at once, faster by and by. */
    q->rate = q->rate == 0 || rate < q->rate ? rate : 0.75 * q->rate + 0.25 * rate;
}

static bool frame_begin(km_lane *lane) {
    km_vulkan_queue *q = km_vulkan_queue_of(lane);
    km_vulkan_frame *f = &q->frame[q->at];
    if (q->recording) return true;
    if (!wait_for(lane, f->value, "waiting for the device")) return false;
    learn_rate(lane, f);
    if (!q->launching)
        f->staged = f->worded = 0; /* parts of a dispatch share what was staged for the first */
    f->work = 0;
    VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                     .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    VkResult r = KM_VK(BeginCommandBuffer, f->cmd, &info);
    if (r != VK_SUCCESS) {
        km_vulkan_fail(lane, r, "recording commands");
        return false;
    }
    if (q->times) {
        km_vulkan_api()->CmdResetQueryPool(f->cmd, q->times, 2 * (uint32_t)q->at, 2);
        km_vulkan_api()->CmdWriteTimestamp(f->cmd, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, q->times,
                                           2 * (uint32_t)q->at);
    }
    q->recording = true;
    return true;
}

VkCommandBuffer km_vulkan_record(km_lane *lane) {
    km_vulkan_queue *q = km_vulkan_queue_of(lane);
    /* The first command of a submission has the one before it to wait for. */
    bool beside = q->beside && (q->capturing ? km_vulkan_graph_open(lane) : q->recording);
    q->beside = false;
    if (ready(lane) != KM_OK || (!q->capturing && !frame_begin(lane))) return NULL;
    VkCommandBuffer cmd = q->capturing ? km_vulkan_graph_commands(lane) : q->frame[q->at].cmd;
    if (!cmd || beside) return cmd;
    VkMemoryBarrier all = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
        .dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT |
                         VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT};
    const VkPipelineStageFlags stages =
        VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
    km_vulkan_api()->CmdPipelineBarrier(cmd, stages, stages, 0, 1, &all, 0, NULL, 0, NULL);
    return cmd;
}

void km_vulkan_show_host(VkCommandBuffer cmd) {
    VkMemoryBarrier host = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                            .srcAccessMask =
                                VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
                            .dstAccessMask = VK_ACCESS_HOST_READ_BIT};
    km_vulkan_api()->CmdPipelineBarrier(
        cmd, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
        VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &host, 0, NULL, 0, NULL);
}

/* Submissions are ordered, so that the last one's value tells of all. */
km_status km_vulkan_submit(km_lane *lane, const VkCommandBuffer *cmd, int n) {
    enum { AT_ONCE = 16 };
    km_vulkan_dev *dev = km_vulkan_dev_of(lane);
    km_vulkan_queue *q = km_vulkan_queue_of(lane);
    VkResult r = VK_SUCCESS;
    if (ready(lane) != KM_OK) return lane->ctx->error.code;
    for (int begin = 0; begin < n && r == VK_SUCCESS; begin += AT_ONCE) {
        VkSubmitInfo submit[AT_ONCE];
        int some = n - begin < AT_ONCE ? n - begin : AT_ONCE;
        uint64_t value = q->submitted + 1;
        VkTimelineSemaphoreSubmitInfo timeline = {
            .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
            .signalSemaphoreValueCount = 1,
            .pSignalSemaphoreValues = &value};
        for (int i = 0; i < some; i++)
            submit[i] = (VkSubmitInfo){.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                       .commandBufferCount = 1,
                                       .pCommandBuffers = &cmd[begin + i]};
        submit[some - 1].pNext = &timeline;
        submit[some - 1].signalSemaphoreCount = 1;
        submit[some - 1].pSignalSemaphores = &q->timeline;
        pthread_mutex_lock(&dev->queue_lock);
        r = KM_VK(QueueSubmit, dev->queue, (uint32_t)some, submit, VK_NULL_HANDLE);
        pthread_mutex_unlock(&dev->queue_lock);
        if (r != VK_SUCCESS) break;
        q->submitted = value;
        q->submissions += (uint64_t)some;
    }
    return r == VK_SUCCESS ? KM_OK : km_vulkan_fail(lane, r, "handing in work");
}

km_status km_vulkan_flush(km_lane *lane) {
    km_vulkan_queue *q = km_vulkan_queue_of(lane);
    if (!q->recording) return KM_OK;
    km_vulkan_frame *f = &q->frame[q->at];
    q->recording = false;
    km_vulkan_show_host(f->cmd);
    if (q->times)
        km_vulkan_api()->CmdWriteTimestamp(f->cmd, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, q->times,
                                           2 * (uint32_t)q->at + 1);
    VkResult r = KM_VK(EndCommandBuffer, f->cmd);
    if (r != VK_SUCCESS) return km_vulkan_fail(lane, r, "handing in work");
    if (km_vulkan_submit(lane, &f->cmd, 1) != KM_OK) return lane->ctx->error.code;
    f->value = q->submitted;
    f->timed = q->times != VK_NULL_HANDLE;
    q->at = (q->at + 1) % KM_VULKAN_FRAMES;
    return KM_OK;
}

void km_vulkan_wait(km_lane *lane, uint64_t value) {
    if (!atomic_load(&km_vulkan_dev_of(lane)->lost))
        wait_for(lane, value, "waiting for the device");
}

/* Copies and waits have no place in a captured step: their data would be frozen into it. */
static km_status not_captured(km_lane *lane, const char *doing) {
    if (!km_vulkan_queue_of(lane)->capturing) return ready(lane);
    return km_fail(lane->ctx, KM_ERR_STATE,
                   "%s: %s while a graph is captured: host data would be frozen into it",
                   lane->device->name, doing);
}

km_status km_vulkan_sync(km_lane *lane) {
    km_vulkan_queue *q = km_vulkan_queue_of(lane);
    if (not_captured(lane, "waiting") != KM_OK || km_vulkan_flush(lane) != KM_OK)
        return lane->ctx->error.code;
    return wait_for(lane, q->submitted, "waiting for the device") ? KM_OK : lane->ctx->error.code;
}

/* ---- Staging memory ---- */

/* Room in the frame's staging memory; NULL with the error set. A frame that is full is handed in. */
static char *stage_room(km_lane *lane, size_t bytes, size_t *at) {
    km_vulkan_dev *dev = km_vulkan_dev_of(lane);
    km_vulkan_queue *q = km_vulkan_queue_of(lane);
    if (q->recording && q->frame[q->at].staged + bytes > KM_VULKAN_STAGE &&
        km_vulkan_flush(lane) != KM_OK)
        return NULL;
    if (ready(lane) != KM_OK || !frame_begin(lane)) return NULL;
    km_vulkan_frame *f = &q->frame[q->at];
    if (!f->stage.buffer) {
        VkResult r = km_vulkan_block_make(dev, KM_VULKAN_STAGE, dev->shared, &f->stage);
        if (r != VK_SUCCESS) {
            km_vulkan_fail(lane, r, "allocating staging memory");
            return NULL;
        }
    }
    *at = f->staged;
    f->staged += (bytes + 63) / 64 * 64;
    return f->stage.map + *at;
}

VkDeviceAddress km_vulkan_words(km_lane *lane, const void *data, size_t bytes) {
    size_t at;
    if (km_vulkan_queue_of(lane)->capturing) return km_vulkan_graph_words(lane, data, bytes);
    km_vulkan_queue *q = km_vulkan_queue_of(lane);
    if (ready(lane) != KM_OK || !frame_begin(lane)) return 0;
    km_vulkan_frame *f = &q->frame[q->at];
    if (f->worded + bytes <= KM_VULKAN_WORDS &&
        (f->words.buffer ||
         km_vulkan_block_make(km_vulkan_dev_of(lane), KM_VULKAN_WORDS, km_vulkan_dev_of(lane)->near,
                              &f->words) == VK_SUCCESS)) {
        memcpy(f->words.map + f->worded, data, bytes);
        at = f->worded;
        f->worded += (bytes + 63) / 64 * 64;
        return f->words.at + at;
    }
    char *p = stage_room(lane, bytes, &at);
    if (!p) return 0;
    memcpy(p, data, bytes);
    return q->frame[q->at].stage.at + at;
}

/* ---- Dispatches ---- */

static double work_in_a_submission(const km_vulkan_queue *q) {
    return q->rate > 0 ? q->rate * SUBMISSION_MS : FIRST_WORK;
}

/* Groups begin to begin + n along z, or y where there is but one z. */
static km_status dispatch(km_lane *lane, VkPipeline pipeline, const void *push, size_t push_bytes,
                          km_groups groups, uint32_t begin, uint32_t n) {
    const km_vk_api *api = km_vulkan_api();
    VkCommandBuffer cmd = km_vulkan_record(lane);
    if (!cmd) return lane->ctx->error.code;
    api->CmdBindPipeline(cmd, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    api->CmdPushConstants(cmd, km_vulkan_dev_of(lane)->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                          (uint32_t)push_bytes, push);
    if (groups.z > 1)
        api->CmdDispatchBase(cmd, 0, 0, begin, groups.x, groups.y, n);
    else
        api->CmdDispatchBase(cmd, 0, begin, 0, groups.x, n, 1);
    return KM_OK;
}

km_status km_vulkan_launch(km_lane *lane, const char *module, const uint32_t *spec, int n_spec,
                           const void *push, size_t push_bytes, km_groups groups, double work) {
    km_vulkan_dev *dev = km_vulkan_dev_of(lane);
    km_vulkan_queue *q = km_vulkan_queue_of(lane);
    if (groups.x == 0 || groups.y == 0 || groups.z == 0) return KM_OK;
    if (groups.x > dev->most_groups[0] || groups.y > dev->most_groups[1] ||
        groups.z > dev->most_groups[2] || push_bytes > KM_VULKAN_PUSH)
        return KM_ERR_UNSUPPORTED;
    VkPipeline pipeline = km_vulkan_pipeline_get(lane, module, spec, n_spec);
    if (!pipeline) return lane->ctx->error.code;
    /* Cut along z, else y, so that each part fits into a submission. */
    uint32_t along = groups.z > 1 ? groups.z : groups.y, part = along;
    double most = work_in_a_submission(q);
    if (work > most) part = (uint32_t)km_max64(1, (int64_t)((double)along * (most / work)));
    km_vulkan_frame *first = &q->frame[q->at];
    km_status s = KM_OK;
    q->launching = true;
    for (uint32_t begin = 0; begin < along && s == KM_OK; begin += part) {
        uint32_t n = along - begin < part ? along - begin : part;
        if (begin > 0) q->beside = true; /* parts of one dispatch */
        s = dispatch(lane, pipeline, push, push_bytes, groups, begin, n);
        double *sum = q->capturing ? km_vulkan_graph_work(lane) : &q->frame[q->at].work;
        *sum += work * n / along;
        if (s == KM_OK && *sum >= 0.9 * most)
            s = q->capturing ? km_vulkan_graph_cut(lane) : km_vulkan_flush(lane);
    }
    q->launching = false;
    if (first->value) first->value = q->submitted; /* its staging memory is read until then */
    lane->launches++;
    return s;
}

void *km_vulkan_scratch(km_lane *lane, size_t bytes, size_t *cap) {
    bool elsewhere;
    void *p = lane->ctx->no_fallback ? km_mempool_get(&lane->pool, bytes, cap)
                                     : km_mempool_get_anywhere(&lane->pool, bytes, cap, &elsewhere);
    if (!p && !km_failed(lane->ctx))
        km_fail(lane->ctx, KM_ERR_MEMORY, "%s: out of memory", lane->device->name);
    return p;
}

void km_vulkan_scratch_free(km_lane *lane, void *p, size_t cap) {
    if (p) km_mempool_put(&lane->pool, p, cap);
}

bool km_vulkan_walk_make(km_vulkan_walk *w, km_iter *it) {
    *w = (km_vulkan_walk){.ndim = (uint32_t)it->ndim};
    int64_t n = 1;
    for (int a = 0; a < it->ndim; a++) {
        n *= it->dim[a];
        if (n >= KM_VULKAN_MOST) return false;
        w->dim[a] = (uint32_t)it->dim[a];
        for (int k = 0; k < it->n; k++) {
            int64_t far = it->stride[k][a] * (it->dim[a] - 1);
            if (far >= KM_VULKAN_MOST / 4 || far <= -KM_VULKAN_MOST / 4) return false;
            w->stride[k][a] = (int32_t)it->stride[k][a];
            if (far < 0) w->start[k] += (uint32_t)-far;
        }
    }
    for (int k = 0; k < it->n; k++) it->base[k] -= (size_t)w->start[k] * it->size[k];
    w->n = (uint32_t)n;
    return true;
}

bool km_vulkan_flat(const km_iter *it) {
    if (it->ndim != 1 || it->dim[0] >= KM_VULKAN_MOST) return false;
    for (int k = 0; k < it->n; k++)
        if (it->stride[k][0] != 1 && it->dim[0] != 1) return false;
    return true;
}

/* ---- Copies ---- */

static bool idle(km_lane *lane) {
    km_vulkan_queue *q = km_vulkan_queue_of(lane);
    uint64_t done = 0;
    if (q->recording) return false;
    if (q->submitted == 0) return true;
    return km_vulkan_api()->GetSemaphoreCounterValue(km_vulkan_dev_of(lane)->handle, q->timeline,
                                                     &done) == VK_SUCCESS &&
           done >= q->submitted;
}

static km_status lane_upload(km_lane *lane, void *dst, const void *src, size_t bytes) {
    if (bytes == 0) return KM_OK;
    if (not_captured(lane, "an upload") != KM_OK) return lane->ctx->error.code;
    const km_vulkan_block *b = block_of(lane, dst, bytes);
    if (!b) return lane->ctx->error.code;
    size_t to = (size_t)((VkDeviceAddress)(uintptr_t)dst - b->at);
    if (b->map && (bytes > KM_VULKAN_STAGE / 4 || idle(lane))) {
        if (km_vulkan_sync(lane) != KM_OK) return lane->ctx->error.code;
        memcpy(b->map + to, src, bytes);
        return KM_OK;
    }
    while (bytes > 0) {
        size_t part = bytes < KM_VULKAN_STAGE / 4 ? bytes : KM_VULKAN_STAGE / 4, at;
        char *p = stage_room(lane, part, &at);
        if (!p) return lane->ctx->error.code;
        memcpy(p, src, part);
        VkCommandBuffer cmd = km_vulkan_record(lane);
        if (!cmd) return lane->ctx->error.code;
        km_vulkan_queue *q = km_vulkan_queue_of(lane);
        const km_vulkan_block *stage = &q->frame[q->at].stage;
        VkBufferCopy copy = {stage->skip + at, b->skip + to, part};
        km_vulkan_api()->CmdCopyBuffer(cmd, stage->buffer, b->buffer, 1, &copy);
        src = (const char *)src + part;
        to += part;
        bytes -= part;
    }
    return KM_OK;
}

static km_status lane_download(km_lane *lane, void *dst, const void *src, size_t bytes) {
    if (bytes == 0) return KM_OK;
    if (not_captured(lane, "a download") != KM_OK) return lane->ctx->error.code;
    const km_vulkan_block *b = block_of(lane, src, bytes);
    if (!b) return lane->ctx->error.code;
    size_t from = (size_t)((VkDeviceAddress)(uintptr_t)src - b->at);
    if (b->map) {
        if (km_vulkan_sync(lane) != KM_OK) return lane->ctx->error.code;
        memcpy(dst, b->map + from, bytes);
        return KM_OK;
    }
    while (bytes > 0) {
        size_t part = bytes < KM_VULKAN_STAGE ? bytes : KM_VULKAN_STAGE, at;
        const char *p = stage_room(lane, part, &at);
        VkCommandBuffer cmd = p ? km_vulkan_record(lane) : NULL;
        if (!cmd) return lane->ctx->error.code;
        km_vulkan_queue *q = km_vulkan_queue_of(lane);
        const km_vulkan_block *stage = &q->frame[q->at].stage;
        VkBufferCopy copy = {b->skip + from, stage->skip + at, part};
        km_vulkan_api()->CmdCopyBuffer(cmd, b->buffer, stage->buffer, 1, &copy);
        if (km_vulkan_sync(lane) != KM_OK) return lane->ctx->error.code;
        memcpy(dst, p, part);
        dst = (char *)dst + part;
        from += part;
        bytes -= part;
    }
    return KM_OK;
}

/* ---- Opening and closing ---- */

static void lane_close(km_lane *lane) {
    km_vulkan_dev *dev = km_vulkan_dev_of(lane);
    km_vulkan_queue *q = lane->queue;
    const km_vk_api *api = km_vulkan_api();
    if (!q) return;
    wait_for_last(lane);
    km_vulkan_graphs_close(lane);
    km_mempool_close_spilled(&lane->pool);
    km_chunks_close(&lane->pool.chunks);
    for (int i = 0; i < KM_VULKAN_FRAMES; i++) {
        km_vulkan_block_free(dev, &q->frame[i].stage);
        km_vulkan_block_free(dev, &q->frame[i].words);
    }
    while (q->n_blocks > 0) {
        km_vulkan_block *b = &q->blocks[--q->n_blocks];
        atomic_fetch_sub(&dev->held, b->bytes);
        km_vulkan_block_free(dev, b);
    }
    if (q->commands) api->DestroyCommandPool(dev->handle, q->commands, NULL);
    if (q->times) api->DestroyQueryPool(dev->handle, q->times, NULL);
    if (q->timeline) api->DestroySemaphore(dev->handle, q->timeline, NULL);
    km_free(q->blocks);
    km_free(q);
    lane->queue = NULL;
    km_vulkan_cache_save(dev);
}

static VkResult open_queue(km_vulkan_dev *dev, km_vulkan_queue *q) {
    VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                    .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                    .queueFamilyIndex = dev->family};
    VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                      .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    VkSemaphoreCreateInfo semaphore = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO,
                                       .pNext = &type};
    VkQueryPoolCreateInfo times = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                   .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                   .queryCount = 2 * KM_VULKAN_FRAMES};
    VkCommandBuffer cmd[KM_VULKAN_FRAMES];
    VkResult r = KM_VK(CreateCommandPool, dev->handle, &pool, NULL, &q->commands);
    if (r == VK_SUCCESS) r = KM_VK(CreateSemaphore, dev->handle, &semaphore, NULL, &q->timeline);
    if (r == VK_SUCCESS && dev->tick > 0)
        r = KM_VK(CreateQueryPool, dev->handle, &times, NULL, &q->times);
    if (r != VK_SUCCESS) return r;
    VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                        .commandPool = q->commands,
                                        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                        .commandBufferCount = KM_VULKAN_FRAMES};
    r = KM_VK(AllocateCommandBuffers, dev->handle, &info, cmd);
    for (int i = 0; i < KM_VULKAN_FRAMES && r == VK_SUCCESS; i++) q->frame[i].cmd = cmd[i];
    return r;
}

static km_status lane_open(km_lane *lane, km_error *err) {
    km_vulkan_dev *dev = km_vulkan_dev_of(lane);
    if (atomic_load(&dev->lost)) return km_vulkan_lost(dev, err);
    km_vulkan_queue *q = km_calloc(1, sizeof *q);
    if (!q) return km_error_set(err, KM_ERR_MEMORY, "%s: out of memory", lane->device->name);
    lane->queue = q;
    VkResult r = open_queue(dev, q);
    if (r != VK_SUCCESS) {
        km_vulkan_note_error(dev, r, "opening a queue");
        km_error_set(err, KM_ERR_GPU, "%s: opening a queue: %s", lane->device->name,
                     km_vulkan_error_text(r));
        lane_close(lane);
        return KM_ERR_GPU;
    }
    lane->pool.raw_alloc = raw_alloc;
    lane->pool.raw_free = raw_free;
    lane->pool.spill_alloc = spill_alloc;
    lane->pool.spill_free = spill_free;
    lane->pool.owner = lane;
    lane->pool.limit = dev->limit;
    km_mempool_in_chunks(&lane->pool, (size_t)1 << 20, CHUNK_BYTES);
    return KM_OK;
}

static bool lost(const km_device *device) {
    return atomic_load(&((const km_vulkan_dev *)device->impl)->lost);
}

static size_t room(km_device *device) {
    km_vulkan_dev *dev = device->impl;
    size_t held = atomic_load(&dev->held);
    return atomic_load(&dev->lost) || held >= dev->limit ? 0 : dev->limit - held;
}

static void *graph_end(km_lane *lane, void *old) { return km_vulkan_graph_end(lane, old); }
static km_status graph_launch(void *graph) { return km_vulkan_graph_launch(graph); }
static void graph_free(void *graph) { km_vulkan_graph_free(graph); }

const km_device_ops km_vulkan_device_ops = {.open = lane_open,
                                            .close = lane_close,
                                            .upload = lane_upload,
                                            .download = lane_download,
                                            .sync = km_vulkan_sync,
                                            .lost = lost,
                                            .room = room,
                                            .graph_begin = km_vulkan_graph_begin,
                                            .graph_end = graph_end,
                                            .graph_launch = graph_launch,
                                            .graph_free = graph_free};
