/* A CUDA driver for machines that have none: what the host side asks of a driver, done in ordinary
 * memory and counted, so that every error path and every leak can be seen. Its kernels are the few
 * that fill and copy; all others do nothing but count. While a stream is captured, launches are
 * noted and run when the graph is. */
#ifndef KM_TESTS_BACKEND_FAKE_CUDA_H
#define KM_TESTS_BACKEND_FAKE_CUDA_H
#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/driver.h"
#include "backend/cuda/kernels/args.h"
#include "backend/cuda/kernels/map/chain_args.h"
#include "backend/cuda/modules.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The table of kernels that a build has; this one in place of the real one. */
const km_cuda_module km_cuda_modules[] = {{"fill", "fill", 4},
                                          {"copy", "copy", 4},
                                          {"unary", "unary", 5},
                                          {"binary", "binary", 6},
                                          {"chain", "chain", 5}};
const int km_cuda_module_count = 5;
const char *km_cuda_build_note(void) { return "sm_90a"; }

typedef struct fake_launch {
    char kernel[40];
    char args[512];
} fake_launch;

typedef struct fake_graph {
    fake_launch *work;
    int n;
} fake_graph;

static struct {
    /* What it is. */
    int version, init_result, load_result, devices, cc[2];
    size_t memory;
    const char *missing; /* a symbol that it lacks */
    /* What is out, and what was done. */
    long contexts, modules, streams, events, device_blocks, host_blocks, graphs, execs;
    size_t device_bytes;
    long launches, early, updates;       /* early: launched to overlap with the kernel before */
    void (*other)(const fake_launch *w); /* runs kernels that are not known here; NULL: nobody */
    fake_graph *capture;
    fake_launch last;
    const char *found_in; /* image of the module in which a kernel was looked up last */
    int current;          /* the context of the last call to cuCtxSetCurrent */
} fake;

static void fake_reset(void) {
    memset(&fake, 0, sizeof fake);
    fake.version = 13000;
    fake.devices = 2;
    fake.cc[0] = 90;
    fake.cc[1] = 89;
    fake.memory = (size_t)64 << 20;
}

/* ---- Driver, devices, contexts ---- */

static km_cu_result fake_init(unsigned flags) { return fake.init_result; }
static km_cu_result fake_version(int *v) { return *v = fake.version, KM_CU_OK; }
static km_cu_result fake_error_name(km_cu_result code, const char **name) {
    *name = code == KM_CU_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_SOME";
    return KM_CU_OK;
}
static km_cu_result fake_error_text(km_cu_result code, const char **text) {
    *text =
        code == KM_CU_ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "some error";
    return KM_CU_OK;
}
static km_cu_result fake_count(int *n) { return *n = fake.devices, KM_CU_OK; }
static km_cu_result fake_get(km_cu_device *d, int i) { return *d = i, KM_CU_OK; }
static km_cu_result fake_device_name(char *name, int size, km_cu_device d) {
    snprintf(name, (size_t)size, "Fake GPU %d", d);
    return KM_CU_OK;
}
static km_cu_result fake_attr(int *value, int attr, km_cu_device d) {
    *value = attr == KM_CU_ATTR_CC_MAJOR   ? fake.cc[d] / 10
             : attr == KM_CU_ATTR_CC_MINOR ? fake.cc[d] % 10
             : attr == KM_CU_ATTR_SMS      ? 4
                                           : 1 << 20;
    return KM_CU_OK;
}
static km_cu_result fake_memory(size_t *bytes, km_cu_device d) {
    return *bytes = fake.memory, KM_CU_OK;
}
static km_cu_result fake_retain(km_cu_context *ctx, km_cu_device d) {
    fake.contexts++;
    *ctx = (km_cu_context)(uintptr_t)(d + 1);
    return KM_CU_OK;
}
static km_cu_result fake_release(km_cu_device d) { return fake.contexts--, KM_CU_OK; }
static km_cu_result fake_use(km_cu_context ctx) {
    fake.current = (int)(uintptr_t)ctx;
    return KM_CU_OK;
}
static km_cu_result fake_current(km_cu_context *ctx) {
    return *ctx = (km_cu_context)(uintptr_t)fake.current, KM_CU_OK;
}

/* ---- Modules and launches ---- */

static km_cu_result fake_load(km_cu_module *m, const void *image) {
    if (fake.load_result) return fake.load_result;
    fake.modules++;
    *m = (km_cu_module)image;
    return KM_CU_OK;
}
static km_cu_result fake_unload(km_cu_module m) { return fake.modules--, KM_CU_OK; }
static km_cu_result fake_function(km_cu_function *f, km_cu_module m, const char *name) {
    *f = (km_cu_function)(uintptr_t)name; /* the names of kernels are static */
    fake.found_in = (const char *)m;
    return strcmp(name, "no_such_kernel") == 0 ? KM_CU_NOT_FOUND : KM_CU_OK;
}
static km_cu_result fake_func_get(int *value, int attr, km_cu_function f) {
    return *value = 0, KM_CU_OK;
}
static km_cu_result fake_func_set(km_cu_function f, int attr, int value) {
    return value > 200 << 10 ? KM_CU_INVALID_VALUE : KM_CU_OK;
}
static km_cu_result fake_occupancy(int *blocks, km_cu_function f, int threads, size_t shared) {
    return *blocks = 2, KM_CU_OK;
}

static void fake_run(const fake_launch *w) {
    fake.launches++;
    if (strcmp(w->kernel, "fill_bytes") == 0) {
        const km_fill_args *p = (const km_fill_args *)w->args;
        for (int64_t i = 0; i < p->bytes; i++)
            ((uint8_t *)p->out)[i] = ((const uint8_t *)p->pattern)[i % 16];
    } else if (strcmp(w->kernel, "copy_bytes") == 0) {
        const km_cast_args *p = (const km_cast_args *)w->args;
        memmove(p->out, p->x, (size_t)p->n);
    } else if (strcmp(w->kernel, "set_words") == 0) {
        uint64_t *word, value[2];
        memcpy(&word, w->args, 8);
        memcpy(value, w->args + 8, 16);
        word[0] = value[0];
        word[1] = value[1];
    } else if (strcmp(w->kernel, "uniform_f32") == 0) { /* which stream it drew from, as floats */
        const km_random_args *p = (const km_random_args *)w->args;
        float stream = (float)(p->stream + (p->draws ? p->draws[0] : 0));
        for (int64_t i = 0; i < p->n; i++) ((float *)p->out)[i] = stream;
    } else if (fake.other) {
        fake.other(w);
    }
}

static bool fake_named(const fake_launch *w, const char *with) {
    return strncmp(w->kernel, with, strlen(with)) == 0;
}

static km_cu_result fake_launch_kernel(km_cu_function f, unsigned gx, unsigned gy, unsigned gz,
                                       unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                       km_cu_stream stream, void **params, void **extra) {
    fake_launch w;
    memset(&w, 0, sizeof w);
    snprintf(w.kernel, sizeof w.kernel, "%s", (const char *)(uintptr_t)f);
    if (strcmp(w.kernel, "set_words") == 0)
        for (int i = 0; i < 3; i++) memcpy(w.args + 8 * i, params[i], 8);
    else
        memcpy(w.args, params[0],
               strcmp(w.kernel, "fill_bytes") == 0                     ? sizeof(km_fill_args)
               : strcmp(w.kernel, "copy_bytes") == 0                   ? sizeof(km_cast_args)
               : strcmp(w.kernel, "uniform_f32") == 0                  ? sizeof(km_random_args)
               : fake_named(&w, "chain_")                              ? sizeof(km_chain_args)
               : fake_named(&w, "transpose_")                          ? sizeof(km_transpose_args)
               : fake_named(&w, "unary_") || fake_named(&w, "binary_") ? sizeof(km_map_args)
                                                                       : 8);
    fake.last = w;
    if (!fake.capture) {
        fake_run(&w);
        return KM_CU_OK;
    }
    fake_graph *g = fake.capture;
    g->work = realloc(g->work, sizeof w * (size_t)(g->n + 1));
    g->work[g->n++] = w;
    return KM_CU_OK;
}

static km_cu_result fake_launch_ex(const km_cu_launch_config *c, km_cu_function f, void **params,
                                   void **extra) {
    for (unsigned i = 0; i < c->n_attrs; i++)
        fake.early += c->attrs[i].id == KM_CU_LAUNCH_PROGRAMMATIC && c->attrs[i].value.flag == 1;
    return fake_launch_kernel(f, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1],
                              c->block[2], c->shared, c->stream, params, extra);
}

/* Kernels that read by the copy engine only count here. */
static km_cu_result fake_no_map(struct km_tensor_map *map, int type, uint32_t rank, void *address,
                                const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                const uint32_t *steps, int interleave, int swizzle, int promotion,
                                int fill) {
    return (uintptr_t)address % 16 || box[0] > 256 ? KM_CU_INVALID_VALUE : KM_CU_OK;
}

/* ---- Streams and events ---- */

static km_cu_result fake_stream_create(km_cu_stream *s, unsigned flags) {
    fake.streams++;
    *s = (km_cu_stream)(uintptr_t)1;
    return KM_CU_OK;
}
static km_cu_result fake_stream_destroy(km_cu_stream s) { return fake.streams--, KM_CU_OK; }
static km_cu_result fake_stream_sync(km_cu_stream s) { return KM_CU_OK; }
static km_cu_result fake_stream_wait(km_cu_stream s, km_cu_event e, unsigned f) { return KM_CU_OK; }
static km_cu_result fake_event_create(km_cu_event *e, unsigned flags) {
    fake.events++;
    *e = (km_cu_event)(uintptr_t)1;
    return KM_CU_OK;
}
static km_cu_result fake_event_destroy(km_cu_event e) { return fake.events--, KM_CU_OK; }
static km_cu_result fake_event_record(km_cu_event e, km_cu_stream s) { return KM_CU_OK; }
static km_cu_result fake_event_sync(km_cu_event e) { return KM_CU_OK; }
static km_cu_result fake_event_ms(float *ms, km_cu_event a, km_cu_event b) {
    return *ms = 1, KM_CU_OK;
}

/* ---- Memory ---- */

typedef struct fake_block {
    size_t bytes;
    char pad[248]; /* blocks are 256-byte aligned, as the driver's are */
} fake_block;

static km_cu_result fake_alloc(km_cu_ptr *p, size_t bytes) {
    if (fake.device_bytes + bytes > fake.memory) return KM_CU_OUT_OF_MEMORY;
    size_t whole = (sizeof(fake_block) + bytes + 255) / 256 * 256;
    fake_block *b = aligned_alloc(256, whole);
    if (!b) return KM_CU_OUT_OF_MEMORY;
    b->bytes = bytes;
    memset(b + 1, 0xee, bytes);
    fake.device_blocks++;
    fake.device_bytes += bytes;
    *p = (km_cu_ptr)(uintptr_t)(b + 1);
    return KM_CU_OK;
}
static km_cu_result fake_free(km_cu_ptr p) {
    fake_block *b = (fake_block *)(uintptr_t)p - 1;
    fake.device_blocks--;
    fake.device_bytes -= b->bytes;
    free(b);
    return KM_CU_OK;
}
static km_cu_result fake_mem_info(size_t *left, size_t *total) {
    *total = fake.memory;
    *left = fake.memory - fake.device_bytes;
    return KM_CU_OK;
}
static km_cu_result fake_host_alloc(void **p, size_t bytes, unsigned flags) {
    *p = malloc(bytes);
    fake.host_blocks++;
    return *p ? KM_CU_OK : KM_CU_OUT_OF_MEMORY;
}
static km_cu_result fake_host_free(void *p) {
    free(p);
    return fake.host_blocks--, KM_CU_OK;
}
static km_cu_result fake_copy_in(km_cu_ptr dst, const void *src, size_t n, km_cu_stream s) {
    memcpy((void *)(uintptr_t)dst, src, n);
    return KM_CU_OK;
}
static km_cu_result fake_copy_out(void *dst, km_cu_ptr src, size_t n, km_cu_stream s) {
    memcpy(dst, (const void *)(uintptr_t)src, n);
    return KM_CU_OK;
}
static km_cu_result fake_copy_within(km_cu_ptr dst, km_cu_ptr src, size_t n, km_cu_stream s) {
    memmove((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, n);
    return KM_CU_OK;
}
static km_cu_result fake_set_bytes(km_cu_ptr dst, unsigned char v, size_t n, km_cu_stream s) {
    memset((void *)(uintptr_t)dst, v, n);
    return KM_CU_OK;
}

/* ---- Graphs ---- */

static km_cu_result fake_capture_begin(km_cu_stream s, int mode) {
    fake.capture = calloc(1, sizeof *fake.capture);
    fake.graphs++;
    return KM_CU_OK;
}
static km_cu_result fake_capture_end(km_cu_stream s, km_cu_graph *g) {
    *g = (km_cu_graph)fake.capture;
    fake.capture = NULL;
    return *g ? KM_CU_OK : KM_CU_CAPTURE_UNSUPPORTED;
}
static km_cu_result fake_graph_nodes(km_cu_graph g, km_cu_node *nodes, size_t *n) {
    return *n = (size_t)((fake_graph *)g)->n, KM_CU_OK;
}
static fake_graph *fake_graph_copy(const fake_graph *from) {
    fake_graph *g = calloc(1, sizeof *g);
    g->n = from->n;
    g->work = calloc((size_t)g->n + 1, sizeof *g->work);
    if (g->n) memcpy(g->work, from->work, sizeof *g->work * (size_t)g->n);
    return g;
}
static km_cu_result fake_graph_make(km_cu_graph_exec *x, km_cu_graph g, unsigned long long flags) {
    *x = (km_cu_graph_exec)fake_graph_copy((fake_graph *)g);
    return fake.execs++, KM_CU_OK;
}
static km_cu_result fake_graph_update(km_cu_graph_exec x, km_cu_graph g, km_cu_update_info *info) {
    fake_graph *old = (fake_graph *)x, *new = (fake_graph *)g;
    if (old->n != new->n) return KM_CU_UPDATE_FAILED;
    if (old->n) memcpy(old->work, new->work, sizeof *old->work * (size_t)old->n);
    return fake.updates++, KM_CU_OK;
}
static km_cu_result fake_graph_launch(km_cu_graph_exec x, km_cu_stream s) {
    for (int i = 0; i < ((fake_graph *)x)->n; i++) fake_run(&((fake_graph *)x)->work[i]);
    return KM_CU_OK;
}
static void fake_graph_free(fake_graph *g) {
    free(g->work);
    free(g);
}
static km_cu_result fake_exec_destroy(km_cu_graph_exec x) {
    fake_graph_free((fake_graph *)x);
    return fake.execs--, KM_CU_OK;
}
static km_cu_result fake_graph_destroy(km_cu_graph g) {
    fake_graph_free((fake_graph *)g);
    return fake.graphs--, KM_CU_OK;
}

/* ---- Finding them ---- */

static const struct {
    const char *symbol;
    void (*function)(void);
} fake_symbols[] = {
#define F(symbol, f)                                                                               \
    { symbol, (void (*)(void))f }
    F("cuInit", fake_init),
    F("cuDriverGetVersion", fake_version),
    F("cuGetErrorName", fake_error_name),
    F("cuGetErrorString", fake_error_text),
    F("cuDeviceGetCount", fake_count),
    F("cuDeviceGet", fake_get),
    F("cuDeviceGetName", fake_device_name),
    F("cuDeviceGetAttribute", fake_attr),
    F("cuDeviceTotalMem_v2", fake_memory),
    F("cuDevicePrimaryCtxRetain", fake_retain),
    F("cuDevicePrimaryCtxRelease_v2", fake_release),
    F("cuCtxSetCurrent", fake_use),
    F("cuCtxGetCurrent", fake_current),
    F("cuModuleLoadData", fake_load),
    F("cuModuleUnload", fake_unload),
    F("cuModuleGetFunction", fake_function),
    F("cuFuncGetAttribute", fake_func_get),
    F("cuFuncSetAttribute", fake_func_set),
    F("cuOccupancyMaxActiveBlocksPerMultiprocessor", fake_occupancy),
    F("cuLaunchKernel", fake_launch_kernel),
    F("cuLaunchKernelEx", fake_launch_ex),
    F("cuStreamCreate", fake_stream_create),
    F("cuStreamDestroy_v2", fake_stream_destroy),
    F("cuStreamSynchronize", fake_stream_sync),
    F("cuStreamWaitEvent", fake_stream_wait),
    F("cuEventCreate", fake_event_create),
    F("cuEventDestroy_v2", fake_event_destroy),
    F("cuEventRecord", fake_event_record),
    F("cuEventSynchronize", fake_event_sync),
    F("cuEventElapsedTime", fake_event_ms),
    F("cuMemAlloc_v2", fake_alloc),
    F("cuMemFree_v2", fake_free),
    F("cuMemGetInfo_v2", fake_mem_info),
    F("cuMemHostAlloc", fake_host_alloc),
    F("cuMemFreeHost", fake_host_free),
    F("cuMemcpyHtoDAsync_v2", fake_copy_in),
    F("cuMemcpyDtoHAsync_v2", fake_copy_out),
    F("cuMemcpyDtoDAsync_v2", fake_copy_within),
    F("cuMemsetD8Async", fake_set_bytes),
    F("cuStreamBeginCapture_v2", fake_capture_begin),
    F("cuStreamEndCapture", fake_capture_end),
    F("cuGraphGetNodes", fake_graph_nodes),
    F("cuGraphInstantiateWithFlags", fake_graph_make),
    F("cuGraphExecUpdate_v2", fake_graph_update),
    F("cuGraphLaunch", fake_graph_launch),
    F("cuGraphExecDestroy", fake_exec_destroy),
    F("cuGraphDestroy", fake_graph_destroy),
    F("cuTensorMapEncodeTiled", fake_no_map),
#undef F
};

static void *fake_symbol(const char *symbol) {
    void *p = NULL;
    if (fake.missing && strcmp(symbol, fake.missing) == 0) return NULL;
    for (size_t i = 0; i < sizeof fake_symbols / sizeof *fake_symbols; i++)
        if (strcmp(symbol, fake_symbols[i].symbol) == 0)
            memcpy(&p, &fake_symbols[i].function, sizeof p);
    return p;
}

/* ---- Kernels of elementwise ops ---- */

typedef float (*fake_value)(int op, float a, float b, double f0, double f1);

static inline int fake_op(const char *kernel) { /* unary_relu_f32 */
    char name[40];
    snprintf(name, sizeof name, "%s", strchr(kernel, '_') + 1);
    name[strlen(name) - 4] = 0;
    for (int op = 0; op < KM_OP_COUNT; op++)
        if (strcmp(km_op_name((km_op)op), name) == 0) return op;
    fail_msg("no op for kernel %s", kernel);
    return -1;
}

/* Chains and single ops over f32, of which `value` knows what they give; others do nothing. */
static inline void fake_run_ops(const fake_launch *w, fake_value value) {
    if (fake_named(w, "chain_")) {
        const km_chain_args *p = (const km_chain_args *)w->args;
        for (int64_t i = 0; i < p->n; i++) {
            float place[KM_CHAIN_INPUTS + KM_CHAIN_STEPS] = {0}, last = -1e30f;
            for (int k = 0; k < p->n_in; k++) place[k] = ((const float *)p->in[k])[i];
            for (int k = 0; k < p->n_steps; k++) {
                const km_chain_step *s = &p->step[k];
                bool two = s->op < KM_OP_NEG; /* by op_list.h; no gradients here */
                float a = s->a == KM_CHAIN_LAST ? last : place[s->a];
                float b = !two ? 0 : s->b == KM_CHAIN_LAST ? last : place[s->b];
                last = value(s->op, a, b, s->f0, s->f1);
                if (s->keep != KM_CHAIN_LAST) place[s->keep] = last;
                if (s->out) ((float *)s->out)[i] = last;
            }
        }
    } else if ((fake_named(w, "unary_") || fake_named(w, "binary_")) &&
               !strstr(w->kernel, "walk")) {
        const km_map_args *p = (const km_map_args *)w->args;
        int op = fake_op(w->kernel);
        for (int64_t i = 0; i < p->n; i++)
            ((float *)p->out)[i] = value(op, ((const float *)p->a)[i],
                                         p->b ? ((const float *)p->b)[i] : 0, p->f0, p->f1);
    }
}

/* ---- For each test ---- */

static inline int fake_open(void **state) {
    fake_reset();
    km_cuda_use_symbols(fake_symbol);
    return 0;
}

static inline int fake_open_with(void **state, void (*kernels)(const fake_launch *w)) {
    fake_open(state);
    fake.other = kernels;
    return 0;
}

/* Gives the devices back; then nothing of theirs may be left. */
static inline int fake_close(void **state) {
    km_cuda_fault(NULL, -1, 0);
    km_cuda_shutdown();
    long left = fake.contexts + fake.modules + fake.streams + fake.events + fake.device_blocks +
                fake.host_blocks + fake.graphs + fake.execs;
    if (left)
        print_error("left behind: contexts %ld, modules %ld, streams %ld, events %ld, device %ld, "
                    "host %ld, graphs %ld, execs %ld\n",
                    fake.contexts, fake.modules, fake.streams, fake.events, fake.device_blocks,
                    fake.host_blocks, fake.graphs, fake.execs);
    km_cuda_use_symbols(NULL);
    return left ? -1 : 0;
}

#define FAKE(test) cmocka_unit_test_setup_teardown(test, fake_open, fake_close)

#endif
