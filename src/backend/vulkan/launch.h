/* Starting shaders: what the host side of every op uses.
 *
 *     struct { uint64_t x, out; uint32_t n; } args = {...};       // the shader's push constants
 *     uint32_t spec[] = {op};                                     // its specialisation constants
 *     return km_vulkan_launch(lane, "map", spec, 1, &args, sizeof args, KM_GROUPS(n / 128), work);
 *
 * Addresses of tensors are the device's own (buffer device addresses), so a tensor's pointer is what
 * a shader gets. A dispatch that would take longer than a submission may is cut along y, then z. */
#ifndef KM_BACKEND_VULKAN_LAUNCH_H
#define KM_BACKEND_VULKAN_LAUNCH_H
#include "backend/iter.h"
#include "backend/vulkan/dev.h"
#include "base/util.h"

typedef struct km_groups {
    uint32_t x, y, z;
} km_groups;
#define KM_GROUPS_PICK(x, y, z, ...) ((km_groups){(uint32_t)(x), (uint32_t)(y), (uint32_t)(z)})
#define KM_GROUPS(...) KM_GROUPS_PICK(__VA_ARGS__, 1, 1, 1)
/* n workgroups in rows of at most KM_GROUP_ROW: group_index() in shaders, which may be past the end. */
#define KM_GROUP_ROW 512
static inline km_groups km_groups_for(int64_t n) {
    return n <= KM_GROUP_ROW ? KM_GROUPS(n) : KM_GROUPS(KM_GROUP_ROW, km_ceil_div(n, KM_GROUP_ROW));
}

#define KM_VULKAN_MOST (INT64_C(1) << 30) /* elements that a shader counts */

static inline km_lane *km_vulkan_lane(const km_call *c) { return c->out[0]->storage->lane; }
static inline uint64_t km_vulkan_at(const km_tensor *t) {
    return t ? (uint64_t)(uintptr_t)km_tensor_ptr(t) : 0;
}

/* KM_OK, or an error set on the lane's context. work: operations, about; with it the time of a
 * dispatch is foreseen. Groups of zero do nothing. */
km_status km_vulkan_launch(km_lane *lane, const char *module, const uint32_t *spec, int n_spec,
                           const void *push, size_t push_bytes, km_groups groups, double work);

/* The next launch neither reads nor writes what the one before it writes: they run side by side. */
static inline void km_vulkan_beside(km_lane *lane) { km_vulkan_queue_of(lane)->beside = true; }

/* Memory for a call, of the pool: what comes later is ordered behind it, so that it can be given back
 * as soon as the call was recorded. NULL with the error set. */
void *km_vulkan_scratch(km_lane *lane, size_t bytes, size_t *cap);
void km_vulkan_scratch_free(km_lane *lane, void *p, size_t cap); /* p may be NULL */

/* Elementwise ops of contiguous words of 16 bytes, or (raw) copies of them (elementwise.c). */
typedef struct km_vulkan_wide_push {
    uint64_t a, b, o;
    uint32_t n;
    float f0, f1, f0_low;
} km_vulkan_wide_push;
km_status km_vulkan_wide(km_lane *lane, const km_vulkan_wide_push *push, uint32_t op, km_dtype d,
                         bool two, bool raw);

/* Strided operands: what shaders/walk.glsl reads. False when there are too many elements. */
typedef struct km_vulkan_walk {
    uint32_t n, ndim;
    uint32_t dim[KM_MAX_DIMS];
    int32_t stride[KM_ITER_MAX][KM_MAX_DIMS]; /* in elements */
    uint32_t start[KM_ITER_MAX];              /* of the first element behind the lowest one */
} km_vulkan_walk;
/* Moves it->base to each operand's lowest element, so that no index is negative. */
bool km_vulkan_walk_make(km_vulkan_walk *w, km_iter *it);
/* An element of that value, as its bits; false where it would have to be saturated (copy.c). */
bool km_vulkan_bits(km_dtype d, double v, uint32_t bits[2]);
/* One run of contiguous elements in all operands. */
bool km_vulkan_flat(const km_iter *it);

#endif
