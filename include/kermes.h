/* Kermes: a local AI engine. This is the whole public interface, and the manual for it.
 *
 *     km_ctx *ctx = km_ctx_new("cpu", 0);
 *     km_tensor *a = km_normal(ctx, KM_F32, KM_SHAPE(64, 32), 0, 1);
 *     km_tensor *b = km_normal(ctx, KM_F32, KM_SHAPE(32, 16), 0, 1);
 *     km_tensor *c = km_matmul(ctx, a, b);                     // (64, 16)
 *     if (km_ctx_status(ctx) != KM_OK) puts(km_ctx_error(ctx));
 *     km_step_end(ctx);                                        // a, b and c are gone
 *     km_ctx_free(ctx);
 *
 * Errors are told in one way: a call that fails returns a km_status other than KM_OK, or NULL, or -1,
 * and km_last_status() and km_last_error() tell of it, in the thread that made the call. Nothing else
 * changes; the library never prints, exits or aborts. A context in addition remembers its first error.
 *
 * Options are structs that begin with `size` and may grow in later versions: take one from its _defaults()
 * call, which sets size, and change what you like. A NULL in its place means the defaults. What an older
 * program does not know of has its default; a size of 0, or one beyond this library's, is KM_ERR_RANGE.
 * Results that may grow begin with `size` too, which the caller sets to the sizeof, where it says so. Of
 * either no call writes more than a program knew of when it was compiled. Structs without a size stay as
 * they are; what the library gives out by pointer, one at a time, may grow at its end.
 *
 * Whoever makes an object frees it, by the call beside the one that made it; a text that was given out
 * goes by km_string_free. What a call is given is copied or only read, unless it says otherwise. Objects
 * are known by their address: one that was freed, or never was what the call takes, is KM_ERR_STATE and is
 * not looked into. Tensors, graphs and lists of parameters are not looked up: a tensor lives as rule 2
 * says, and none of them is of use once its context is freed.
 *
 * Threads: models, indexes, tokenizers and files of tensors serve any number at once; one that is closed
 * meanwhile goes when the last call on it ends. A batch serves any number too, of which one steps it.
 * Everything else serves one thread at a time, whichever it is: contexts with all that lives in them,
 * sessions, answer parsers, files of vectors, searchers. Where a call overlaps another thread's on such an
 * object it is KM_ERR_STATE for the one that came second, and the first notices nothing. Freeing one, or a
 * batch, while another thread is inside is refused in the same way: it stays, to be freed later. Nobody
 * waits for anybody.
 *
 * Callbacks run in the thread that made the call. They may use the library, also other sessions of the
 * same model and the context that the call works in, but not the session or parser that called them
 * (KM_ERR_STATE); what they free goes when the call ends. A context that is freed so, or whose step is ended
 * by an op or function of the user's own, makes the call fail with KM_ERR_STATE. Leaving a callback by
 * longjmp or an exception is undefined.
 *
 * Three rules carry most of what is done with tensors:
 * 1. Work happens in a context. The first error sticks to it; from then on every call does
 *    nothing and returns NULL (a NULL argument is then harmless), so a chain of calls needs one
 *    check at its end. km_ctx_clear_error makes the context usable again.
 * 2. A tensor made by any call below is a temporary of the current step and vanishes at
 *    km_step_end. km_keep makes one stay until km_release.
 * 3. An op runs on the device where its operands are and returns a new tensor; operands are
 *    never changed, except by the calls that say so. A context serves one thread at a time.
 *
 * In this order: errors, dtypes, contexts; tensors, their files, devices; ops, gradients, optimisers;
 * training; models, tokens, chats, answers, generation, batches, perplexity; vectors; files of every kind.
 */
#ifndef KERMES_H
#define KERMES_H

/* Files are mapped. One that becomes shorter while it is in use, or that the disk cannot read, would
 * end the process with SIGBUS; with its first mapping Kermes therefore installs a handler for that
 * signal, once, which stays. A fault inside one of its own mappings makes the call under way fail with
 * KM_ERR_FILE and a text that names the file. Every other SIGBUS goes to the handler that was there
 * before, or does what it did before. A program that installs a handler of its own later should pass on
 * what it does not know, as Kermes does. KERMES_SIGBUS=0 in the environment: no handler is installed. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KM_API __attribute__((visibility("default")))
#else
#define KM_API
#endif
#define KM_API_INLINE static inline /* a call that gives out a struct: see the end of this file */

#define KM_VERSION_MAJOR 0
#define KM_VERSION_MINOR 1
#define KM_VERSION_PATCH 0
#define KM_VERSION "0.1.0"
KM_API const char *km_version(void); /* of the library at run time */

/* ---- Errors ---- */

#define KM_STATUS_LIST(X)                                                                          \
    X(OK, "no error")                                                                              \
    X(ERR_SHAPE, "shapes do not fit")                                                              \
    X(ERR_DTYPE, "dtype does not fit")                                                             \
    X(ERR_DEVICE, "device missing or wrong")                                                       \
    X(ERR_RANGE, "value or index out of range")                                                    \
    X(ERR_NULL, "missing argument")                                                                \
    X(ERR_MEMORY, "out of memory")                                                                 \
    X(ERR_FILE, "file cannot be read or written")                                                  \
    X(ERR_FORMAT, "file is not in the expected format")                                            \
    X(ERR_STATE, "call not possible in this state")                                                \
    X(ERR_UNSUPPORTED, "not supported")                                                            \
    X(ERR_GPU, "GPU error")                                                                        \
    X(ERR_PEER, "another rank failed, and tells why")

typedef enum km_status {
#define KM_STATUS_ENUM(name, text) KM_##name,
    KM_STATUS_LIST(KM_STATUS_ENUM)
#undef KM_STATUS_ENUM
} km_status;

KM_API const char *km_status_name(km_status s); /* "ERR_SHAPE" */
KM_API const char *km_status_text(km_status s); /* "shapes do not fit" */
/* The last call of this thread that failed, whatever it was: its status and one line of text. A call
 * that works leaves both as they are. */
KM_API km_status km_last_status(void);
KM_API const char *km_last_error(void);

typedef enum km_log_level { KM_LOG_INFO, KM_LOG_WARN } km_log_level;
typedef void (*km_log_fn)(void *user, km_log_level level, const char *line);
KM_API void km_string_free(char *text);           /* a text that a call gave out; NULL is fine */
KM_API void km_set_log(km_log_fn fn, void *user); /* NULL: silence, which is the default */

/* ---- Dtypes ---- */

/* X(name, text, bytes, is a float) */
#define KM_DTYPE_LIST(X)                                                                           \
    X(F32, "f32", 4, 1)                                                                            \
    X(F16, "f16", 2, 1)                                                                            \
    X(BF16, "bf16", 2, 1)                                                                          \
    X(F64, "f64", 8, 1) /* computed on the reference device only */                                \
    X(I32, "i32", 4, 0)                                                                            \
    X(I64, "i64", 8, 0)                                                                            \
    X(U8, "u8", 1, 0)                                                                              \
    X(I8, "i8", 1, 0)                                                                              \
    X(BOOL, "bool", 1, 0)

/* Weights of a few bits, in blocks along the last axis, laid out as GGUF files store them. They can
 * be the weights of km_linear and the table of km_embedding. km_cast makes them from floats and back.
 * X(name, text, bytes of a block, elements in a block) */
#define KM_BLOCK_LIST(X)                                                                           \
    X(Q4_0, "q4_0", 18, 32)                                                                        \
    X(Q4_1, "q4_1", 20, 32)                                                                        \
    X(Q5_0, "q5_0", 22, 32)                                                                        \
    X(Q5_1, "q5_1", 24, 32)                                                                        \
    X(Q8_0, "q8_0", 34, 32)                                                                        \
    X(Q2_K, "q2_k", 84, 256)                                                                       \
    X(Q3_K, "q3_k", 110, 256)                                                                      \
    X(Q4_K, "q4_k", 144, 256)                                                                      \
    X(Q5_K, "q5_k", 176, 256)                                                                      \
    X(Q6_K, "q6_k", 210, 256)                                                                      \
    X(IQ4_NL, "iq4_nl", 18, 32)                                                                    \
    X(IQ4_XS, "iq4_xs", 136, 256)                                                                  \
    X(MXFP4, "mxfp4", 17, 32)

typedef enum km_dtype {
#define KM_DTYPE_ENUM(name, text, bytes, last) KM_##name,
    KM_DTYPE_LIST(KM_DTYPE_ENUM) KM_BLOCK_LIST(KM_DTYPE_ENUM)
#undef KM_DTYPE_ENUM
        KM_DTYPE_COUNT
} km_dtype;

KM_API const char *km_dtype_name(km_dtype d); /* "f32", "q4_k"; "?" for none */
KM_API size_t km_dtype_size(km_dtype d);      /* bytes of an element, or of a block of them */
KM_API int64_t km_dtype_block(km_dtype d);    /* elements in a block; 1 for plain types */

/* ---- Contexts ---- */

typedef struct km_ctx km_ctx;
typedef struct km_tensor km_tensor;

/* A context on a device: "cpu", "ref" (slow, obvious, exact), "cuda", "cuda:N", "vulkan", "vulkan:N",
 * "gpu" or "metal" (both are the best accelerator here, and a note says which) or "auto" (never fails
 * for want of a device). threads: 0 for one per core. NULL on failure; km_last_error then says why. */
KM_API km_ctx *km_ctx_new(const char *device, int threads);
KM_API void km_ctx_free(km_ctx *ctx); /* kept tensors must be released before */

KM_API km_status km_ctx_status(const km_ctx *ctx);  /* the sticky error */
KM_API const char *km_ctx_error(const km_ctx *ctx); /* its text, "" when there is none */
KM_API void km_ctx_clear_error(km_ctx *ctx);
/* Reports an error of the caller's own (from inside a custom op, say). Returns `code`. */
KM_API km_status km_ctx_fail(km_ctx *ctx, km_status code, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;
KM_API const char *km_ctx_device(const km_ctx *ctx); /* "cpu", "cuda:0" */
KM_API int km_ctx_threads(const km_ctx *ctx);
KM_API void km_seed(km_ctx *ctx, uint64_t seed); /* restarts the random sequence */
KM_API void km_sync(km_ctx *ctx);                /* waits for the device to finish */
/* Lets f32 products on a GPU round their operands to TF32 (10 bits of mantissa), which is several
 * times faster. Off by default; KERMES_TF32=1 in the environment allows it to every context. */
KM_API void km_ctx_allow_tf32(km_ctx *ctx, bool on);
/* How many bits activations keep where they meet weights in blocks (q4_0, q4_k, ...): 16, the default,
 * stays close to exact products; 8 rounds as llama.cpp does, reads prompts faster and costs answers.
 * KERMES_ACTIVATIONS=8 in the environment is the default of every context. KM_ERR_RANGE for others. */
KM_API km_status km_ctx_set_activations(km_ctx *ctx, int bits);
KM_API int km_ctx_activations(const km_ctx *ctx);

/* The fallback rule, one for all ops: an op that its device has no kernel for, or whose kernel fails to
 * start or finds no memory for itself, runs on the next device (cuda, then cpu, then ref); operands
 * are copied there and results back. A tensor that a GPU has no room for, given or made by an op, lies
 * in the host's memory, where the GPU works on it over the bus: the same results, later. Each is counted
 * in km_stats and said once (km_set_log). Off, it is an error that sticks. On by default;
 * KERMES_FALLBACK=0 in the environment when a context is made turns it off. What has no other way:
 * changes in place that were half done, weights and caches of a model that were placed where there is no
 * room after all, and a GPU that is lost to the process, whose operands nobody can read. */
KM_API void km_ctx_set_fallback(km_ctx *ctx, bool on);
/* Whether the context's GPU is lost to the process, after a fault or a reset: nothing on it can be read any
 * more, and every call fails. What can be done again from the beginning may be, with another context. */
KM_API bool km_ctx_lost(const km_ctx *ctx);

/* Ends a step: every temporary, the tape included, is gone; their memory is reused. */
KM_API void km_step_end(km_ctx *ctx);

/* A scope frees memory earlier than the step's end. At km_scope_end the data of all tensors
 * made since the matching begin is freed, except `result` (may be NULL), what was kept, and what
 * the tape still needs. Scopes nest. Returns result. */
KM_API void km_scope_begin(km_ctx *ctx);
KM_API km_tensor *km_scope_end(km_ctx *ctx, km_tensor *result);

/* A step that repeats. fn is run as it is the first time, captured the second time, and from then on
 * replayed in one call without running fn at all (on the CPU only if it records no tape and reads
 * nothing back); a new `key` (any number that changes with the shapes) starts over. A run ends the
 * step. fn must work on kept tensors, written before with km_write, must leave its results in kept
 * tensors (km_assign), and may not read anything back. *graph is NULL before the first call. */
typedef struct km_graph km_graph;
typedef void (*km_step_fn)(km_ctx *ctx, void *user);
KM_API km_status km_graph_run(km_ctx *ctx, km_graph **graph, uint64_t key, km_step_fn fn,
                              void *user);
KM_API bool km_graph_captured(const km_graph *graph); /* the next run with the same key replays */
KM_API void km_graph_free(km_graph *graph);           /* before its context; NULL is fine */

typedef struct km_stats {
    size_t size;             /* 0: it failed */
    uint64_t steps;          /* km_step_end calls */
    uint64_t kernels;        /* kernels run */
    uint64_t fallbacks;      /* of these, on another device: km_ctx_set_fallback */
    uint64_t failed_kernels; /* kernels or graphs that failed and were made up for */
    uint64_t heap_allocs;    /* heap allocations by this process so far */
    uint64_t pool_hits;      /* tensor buffers reused */
    uint64_t pool_misses;    /* tensor buffers newly taken from the system or driver */
    size_t live_bytes;       /* in tensors now, on the context's device */
    size_t peak_bytes;       /* the most so far; km_stats_reset_peak restarts it */
    size_t held_bytes;       /* live plus cached for reuse */
    uint64_t spills;         /* tensors that the device had no room for: km_ctx_set_fallback */
    size_t spilled_bytes;    /* of the host's memory that they hold, cached ones included */
} km_stats;

KM_API_INLINE km_stats km_ctx_stats(const km_ctx *ctx); /* since the context began */
KM_API void km_stats_reset_peak(km_ctx *ctx);           /* peak_bytes from now on */
KM_API void km_trim(km_ctx *ctx);                       /* gives cached memory back */

/* A memory profile: between begin and end every buffer taken or given back on the context's device
 * is written down, in the order it happens. bytes add up to live; what was live at the begin is the
 * first event. */
typedef struct km_memory_event {
    uint64_t index;      /* the op, counted from 1, that ran or had run; 0: none yet */
    const char *op;      /* what made the buffer, told of its release too; "before": made
                                  before the begin */
    const char *grad_of; /* the op whose gradient it was made for; NULL: not in km_backward */
    int64_t bytes;       /* taken, or, negative, given back */
    size_t live;         /* in use after it */
} km_memory_event;

KM_API km_status km_profile_begin(km_ctx *ctx); /* KM_ERR_STATE: one is on */
/* The events, the context's until the next begin; *n receives how many. NULL with the error set
 * when nothing was being recorded or there was no memory for the list. */
KM_API const km_memory_event *km_profile_end(km_ctx *ctx, size_t *n);

/* ---- Shapes and tensors ---- */

#define KM_MAX_DIMS 5

typedef struct km_shape {
    int ndim; /* 0 for a scalar */
    int64_t dim[KM_MAX_DIMS];
} km_shape;

/* KM_SHAPE(2, 3): two rows of three. KM_SCALAR: no dimensions. */
#ifdef __cplusplus
#define KM_SHAPE(...) (km_make_shape({__VA_ARGS__}))
#define KM_SCALAR (km_shape{})
#else
#define KM_SHAPE(...)                                                                              \
    ((km_shape){(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})
#define KM_SCALAR ((km_shape){0, {0}})
#endif

KM_API km_shape km_tensor_shape(const km_tensor *t);        /* all dimensions */
KM_API int km_tensor_ndim(const km_tensor *t);              /* how many; 0: a scalar */
KM_API int64_t km_tensor_dim(const km_tensor *t, int axis); /* negative counts from the end */
KM_API int64_t km_tensor_count(const km_tensor *t);         /* elements */
KM_API km_dtype km_tensor_dtype(const km_tensor *t);
KM_API const char *km_tensor_device(const km_tensor *t);
KM_API bool km_tensor_is_contiguous(const km_tensor *t);

/* A copy of host memory as a tensor on the context's device, row-major. */
KM_API km_tensor *km_from_data(km_ctx *ctx, km_dtype dtype, km_shape shape, const void *data);
/* Copies the elements, row-major and in the tensor's dtype, to host memory of exactly `bytes`. */
KM_API km_status km_read(km_ctx *ctx, const km_tensor *t, void *dst, size_t bytes);
/* Overwrites the elements from host memory, row-major. t must not be an intermediate of the tape. */
KM_API km_status km_write(km_ctx *ctx, km_tensor *t, const void *src, size_t bytes);
/* The one element of a one-element tensor, as a double; 0 with the error set otherwise. */
KM_API double km_item(km_ctx *ctx, const km_tensor *t);
/* The elements in place, for a contiguous tensor in host memory; NULL otherwise (no error). */
KM_API void *km_tensor_data(km_tensor *t);

/* For kernels of one's own (km_custom, examples/custom_gpu.c). The elements where they are, of a
 * contiguous tensor on any device: on a GPU a CUdeviceptr, valid as long as the tensor. NULL where they
 * cannot be reached so (strided, freed, weights that stay in the host's memory). Only tensors that the
 * caller has just made may be written to. */
KM_API void *km_tensor_device_data(km_tensor *t);
/* The CUstream that the context's work is put on, with the GPU's CUcontext current in this thread; NULL
 * on the host. Everything asked for so far is on it, and what is launched on it comes before all that
 * is asked for later, so nothing needs to wait. Ask right before launching: some ops are held back
 * until somebody does. Inside km_graph_run launches are captured with the rest. */
KM_API void *km_ctx_stream(km_ctx *ctx);

/* A lasting handle on t's data, off the tape; the caller owns it. t itself stays a temporary. */
KM_API km_tensor *km_keep(km_ctx *ctx, km_tensor *t);
KM_API void km_release(km_tensor *kept); /* NULL is fine; its gradient goes too */
/* The tensor on another device ("cpu", "cuda:0"); t itself when it is there already. Gradients
 * find their way back. */
KM_API km_tensor *km_to(km_ctx *ctx, km_tensor *t, const char *device);
/* dst = src, converted and broadcast as needed. dst must not be an intermediate of the tape. */
KM_API km_status km_assign(km_ctx *ctx, km_tensor *dst, const km_tensor *src);

/* No copies from and to other libraries: DLPack, as NumPy, PyTorch, JAX and others speak it, in both
 * forms of its ABI. Memory of the host and of CUDA devices; strides of any sign; whatever dtypes Kermes
 * has but weights in blocks.
 * from: a kept tensor over the other's memory, on a context of the same device; what changes it in
 *   place changes that memory, unless it is marked as read-only. The context takes it over and calls its
 *   deleter when the last tensor over it is gone; on failure it stays the caller's. Work of the other
 *   library on it must be done by then.
 * to: t's own memory, lent out until the deleter is called, which any thread may do, after
 *   km_ctx_free too. Everything the context has been asked for so far is done when it returns. Mapped
 *   weights, which nobody may change, go out in the versioned form alone. */
struct DLManagedTensor;
struct DLManagedTensorVersioned;
KM_API km_tensor *km_from_dlpack(km_ctx *ctx, struct DLManagedTensor *managed);
KM_API km_tensor *km_from_dlpack_versioned(km_ctx *ctx, struct DLManagedTensorVersioned *managed);
KM_API struct DLManagedTensor *km_to_dlpack(km_ctx *ctx, km_tensor *t);
KM_API struct DLManagedTensorVersioned *km_to_dlpack_versioned(km_ctx *ctx, km_tensor *t);

/* ---- Files of tensors: safetensors, GGUF and npy ---- */

/* A file, or a folder or index of several, mapped and checked to its last byte. Any threads may read it
 * at once. npy holds one tensor, of the name "". */
typedef struct km_file km_file;
typedef struct km_file_tensor {
    const char *name;
    const char *type; /* as the file says it: "BF16", "Q4_K", "<f4" */
    km_dtype dtype;   /* KM_DTYPE_COUNT: Kermes cannot load it */
    km_shape shape;
    const void *data; /* as in the file, perhaps unaligned; NULL when bytes is 0 */
    size_t bytes;
} km_file_tensor;

KM_API km_file *km_file_open(const char *path); /* NULL on failure */
KM_API void km_file_close(km_file *file);       /* names and data go with it; NULL is fine */
KM_API int km_file_count(const km_file *file);
KM_API const km_file_tensor *km_file_at(const km_file *file, int i); /* NULL: no such */
KM_API const km_file_tensor *km_file_find(const km_file *file, const char *name); /* likewise */
/* A text of the file's metadata; NULL: none under that key, or no text. */
KM_API const char *km_file_meta(const km_file *file, const char *key);
/* A whole number of it; false: none under that key, or none that fits, and *value stays. */
KM_API bool km_file_meta_int(const km_file *file, const char *key, int64_t *value);
/* A copy on the context's device. name NULL: of a file that holds one tensor, that one. */
KM_API km_tensor *km_file_load(km_ctx *ctx, const km_file *file, const char *name);
KM_API km_tensor *km_load(km_ctx *ctx, const char *path, const char *name); /* open, load, close */

typedef struct km_named_tensor {
    const char *name;
    km_tensor *tensor;
} km_named_tensor;
/* Writes the tensors as the name's ending says: .safetensors, .gguf, or .npy, which holds one and no
 * name. meta: a JSON object of texts (in GGUF of numbers and booleans too), or NULL. The file changes
 * only when all of the new one is on disk. */
KM_API km_status km_save(km_ctx *ctx, const char *path, const km_named_tensor *tensors, int n,
                         const char *meta);

/* ---- Devices ---- */

typedef struct km_device_info {
    const char *name;   /* as km_ctx_new takes it: "cpu", "ref", "cuda:0" */
    const char *title;  /* "NVIDIA H200" */
    const char *kind;   /* "cpu", "reference", "gpu" */
    const char *driver; /* "580.159.04, CUDA 13.0"; "" where there is none */
    uint64_t memory;    /* bytes; 0: unknown */
    uint64_t memory_free;
    bool usable;
    const char *note; /* why it is not usable, "" if it is */
} km_device_info;
KM_API int km_device_count(void); /* all that this machine shows, usable or not */
/* Valid until this thread's next call. NULL: no such device. */
KM_API const km_device_info *km_device_describe(int i);
/* All there is to know of machine, drivers and libraries, and which device `asked` ("auto") is, as
 * `kermes devices --json` prints it; km_string_free. NULL on failure, as when it cannot be used. */
KM_API char *km_devices_json(const char *asked);

/* ---- Creation ---- */

/* Filled with 0, 1 or a value; start + i step; uniform in [lo, hi); normal with this mean and
 * standard deviation. Random numbers follow the seed of the context. */
KM_API km_tensor *km_zeros(km_ctx *ctx, km_dtype dtype, km_shape shape);
KM_API km_tensor *km_ones(km_ctx *ctx, km_dtype dtype, km_shape shape);
KM_API km_tensor *km_full(km_ctx *ctx, km_dtype dtype, km_shape shape, double value);
KM_API km_tensor *km_arange(km_ctx *ctx, km_dtype dtype, int64_t count, double start, double step);
KM_API km_tensor *km_uniform(km_ctx *ctx, km_dtype dtype, km_shape shape, double lo, double hi);
KM_API km_tensor *km_normal(km_ctx *ctx, km_dtype dtype, km_shape shape, double mean, double sd);
KM_API km_tensor *km_copy(km_ctx *ctx, km_tensor *t);       /* contiguous, own memory */
KM_API km_tensor *km_contiguous(km_ctx *ctx, km_tensor *t); /* t itself when it is already */
KM_API km_tensor *km_cast(km_ctx *ctx, km_tensor *t, km_dtype dtype);

/* ---- Views: no data is copied. Negative axes count from the end. ---- */

/* Elements start, start+step, ... up to stop, which is left out, along axis. Negative bounds count
 * from the end; stop KM_END takes all that is left in the direction of step. A negative step goes
 * backwards: (-1, KM_END, -1) reverses. The view then has a negative stride; ops other than the
 * elementwise ones copy it first. step is not 0. */
#define KM_END INT64_MIN
KM_API km_tensor *km_slice(km_ctx *ctx, km_tensor *t, int axis, int64_t start, int64_t stop,
                           int64_t step);
KM_API km_tensor *km_narrow(km_ctx *ctx, km_tensor *t, int axis, int64_t start, int64_t count);
KM_API km_tensor *km_select(km_ctx *ctx, km_tensor *t, int axis,
                            int64_t index); /* drops the axis */
KM_API km_tensor *km_transpose(km_ctx *ctx, km_tensor *t, int axis0, int axis1);
KM_API km_tensor *km_permute(km_ctx *ctx, km_tensor *t, const int *axes); /* ndim axes */
/* One dimension may be -1. Copies only when the strides leave no other way. */
KM_API km_tensor *km_reshape(km_ctx *ctx, km_tensor *t, km_shape shape);
KM_API km_tensor *km_broadcast(km_ctx *ctx, km_tensor *t, km_shape shape); /* NumPy's rule */
KM_API km_tensor *km_unsqueeze(km_ctx *ctx, km_tensor *t, int axis);
KM_API km_tensor *km_squeeze(km_ctx *ctx, km_tensor *t, int axis);
/* Cuts axis into n equal parts; fills parts[0..n-1]. */
KM_API km_status km_split(km_ctx *ctx, km_tensor *t, int axis, int n, km_tensor **parts);

/* ---- Elementwise. Two operands broadcast as in NumPy and must share a dtype. ---- */

/* a + b, a - b, a b, a / b, a^b; whole numbers wrap, and divide towards zero */
KM_API km_tensor *km_add(km_ctx *ctx, km_tensor *a, km_tensor *b);
KM_API km_tensor *km_sub(km_ctx *ctx, km_tensor *a, km_tensor *b);
KM_API km_tensor *km_mul(km_ctx *ctx, km_tensor *a, km_tensor *b);
KM_API km_tensor *km_div(km_ctx *ctx, km_tensor *a, km_tensor *b);
KM_API km_tensor *km_pow(km_ctx *ctx, km_tensor *a, km_tensor *b);
KM_API km_tensor *km_maximum(km_ctx *ctx, km_tensor *a, km_tensor *b); /* NaN wins */
KM_API km_tensor *km_minimum(km_ctx *ctx, km_tensor *a, km_tensor *b);
KM_API km_tensor *km_add_scalar(km_ctx *ctx, km_tensor *a, double s);
KM_API km_tensor *km_mul_scalar(km_ctx *ctx, km_tensor *a, double s);
KM_API km_tensor *km_pow_scalar(km_ctx *ctx, km_tensor *a, double s); /* a^s; floats */

/* -x, |x|, sqrt(x), e^x, ln(x) and so on, element by element */
KM_API km_tensor *km_neg(km_ctx *ctx, km_tensor *x);
KM_API km_tensor *km_abs(km_ctx *ctx, km_tensor *x);
KM_API km_tensor *km_sqrt(km_ctx *ctx, km_tensor *x);
KM_API km_tensor *km_rsqrt(km_ctx *ctx, km_tensor *x); /* 1 / sqrt(x) */
KM_API km_tensor *km_exp(km_ctx *ctx, km_tensor *x);
KM_API km_tensor *km_log(km_ctx *ctx, km_tensor *x);
KM_API km_tensor *km_sin(km_ctx *ctx, km_tensor *x);
KM_API km_tensor *km_cos(km_ctx *ctx, km_tensor *x);
KM_API km_tensor *km_tanh(km_ctx *ctx, km_tensor *x);
KM_API km_tensor *km_sigmoid(km_ctx *ctx, km_tensor *x); /* 1 / (1 + exp(-x)) */
KM_API km_tensor *km_relu(km_ctx *ctx, km_tensor *x);    /* max(x, 0) */
KM_API km_tensor *km_gelu(km_ctx *ctx,
                          km_tensor *x); /* x/2 (1 + tanh(sqrt(2/pi)(x + 0.044715x^3))) */
KM_API km_tensor *km_gelu_erf(km_ctx *ctx, km_tensor *x); /* x/2 (1 + erf(x / sqrt 2)) */
KM_API km_tensor *km_silu(km_ctx *ctx, km_tensor *x);     /* x / (1 + exp(-x)) */
KM_API km_tensor *km_clamp(km_ctx *ctx, km_tensor *x, double lo, double hi);

KM_API km_tensor *km_eq(km_ctx *ctx, km_tensor *a, km_tensor *b); /* comparisons give bool */
KM_API km_tensor *km_ne(km_ctx *ctx, km_tensor *a, km_tensor *b);
KM_API km_tensor *km_lt(km_ctx *ctx, km_tensor *a, km_tensor *b);
KM_API km_tensor *km_le(km_ctx *ctx, km_tensor *a, km_tensor *b);
KM_API km_tensor *km_gt(km_ctx *ctx, km_tensor *a, km_tensor *b);
KM_API km_tensor *km_ge(km_ctx *ctx, km_tensor *a, km_tensor *b);
KM_API km_tensor *km_where(km_ctx *ctx, km_tensor *cond, km_tensor *a, km_tensor *b);
KM_API km_tensor *km_masked_fill(km_ctx *ctx, km_tensor *x, km_tensor *mask, double value);
KM_API km_tensor *km_triu(km_ctx *ctx, km_tensor *x, int diagonal); /* keeps j - i >= diagonal */
KM_API km_tensor *km_tril(km_ctx *ctx, km_tensor *x, int diagonal); /* keeps j - i <= diagonal */
/* Zeroes each element with probability p and scales the rest by 1/(1-p). */
KM_API km_tensor *km_dropout(km_ctx *ctx, km_tensor *x, double p);

/* ---- Reductions over a list of axes (n_axes 0: over all) ---- */

/* Over these axes, which keepdim leaves in the shape with 1 element. Of max, NaN wins. */
KM_API km_tensor *km_sum(km_ctx *ctx, km_tensor *x, const int *axes, int n_axes, bool keepdim);
KM_API km_tensor *km_mean(km_ctx *ctx, km_tensor *x, const int *axes, int n_axes, bool keepdim);
KM_API km_tensor *km_max(km_ctx *ctx, km_tensor *x, const int *axes, int n_axes, bool keepdim);
/* sum((x - mean)^2) / (n - correction) */
KM_API km_tensor *km_var(km_ctx *ctx, km_tensor *x, const int *axes, int n_axes, bool keepdim,
                         int correction);
KM_API km_tensor *km_logsumexp(km_ctx *ctx, km_tensor *x, const int *axes, int n_axes,
                               bool keepdim);
KM_API km_tensor *km_argmax(km_ctx *ctx, km_tensor *x, int axis,
                            bool keepdim); /* i64, first wins */

/* ---- Products ---- */

/* (..., m, k) x (..., k, n) -> (..., m, n), leading axes broadcast. A vector operand (k) counts as
 * one row or one column, and that axis is dropped. Transposed views cost nothing. */
KM_API km_tensor *km_matmul(km_ctx *ctx, km_tensor *a, km_tensor *b);

typedef enum km_act { KM_ACT_NONE, KM_ACT_RELU, KM_ACT_GELU, KM_ACT_GELU_ERF, KM_ACT_SILU } km_act;
/* act(x W^T + b): x (..., in), w (out, in), b (out) or NULL -> (..., out) */
KM_API km_tensor *km_linear(km_ctx *ctx, km_tensor *x, km_tensor *w, km_tensor *b, km_act act);

/* act(x w1^T + b1) w2^T + b2, the middle of a transformer block: x (..., in), w1 (hidden, in), w2
 * (out, hidden); b1, b2 may be NULL. Two linear layers whose gradients share what they can. */
KM_API km_tensor *km_mlp(km_ctx *ctx, km_tensor *x, km_tensor *w1, km_tensor *b1, km_act act,
                         km_tensor *w2, km_tensor *b2);

/* ---- Rows ---- */

/* exp(x - max) / sum(exp(x - max)) along the axis, and its logarithm */
KM_API km_tensor *km_softmax(km_ctx *ctx, km_tensor *x, int axis);
KM_API km_tensor *km_log_softmax(km_ctx *ctx, km_tensor *x, int axis);
/* Over the last axis (n): (x - mean) / sqrt(var + eps) * w + b; w, b (n), b may be NULL. */
KM_API km_tensor *km_layer_norm(km_ctx *ctx, km_tensor *x, km_tensor *w, km_tensor *b, double eps);
/* x / sqrt(mean(x^2) + eps) * w; w (n). */
KM_API km_tensor *km_rms_norm(km_ctx *ctx, km_tensor *x, km_tensor *w, double eps);
/* The same of x + residual, in one pass; *sum (may be NULL) receives x + residual. */
KM_API km_tensor *km_add_layer_norm(km_ctx *ctx, km_tensor *x, km_tensor *residual, km_tensor *w,
                                    km_tensor *b, double eps, km_tensor **sum);
KM_API km_tensor *km_add_rms_norm(km_ctx *ctx, km_tensor *x, km_tensor *residual, km_tensor *w,
                                  double eps, km_tensor **sum);

/* ---- Indexing. Indices are i32 or i64 and are checked. ---- */

KM_API km_tensor *km_embedding(km_ctx *ctx, km_tensor *table,
                               km_tensor *ids); /* (v, c), (...) -> (..., c) */
/* out[i][j] = x[i][index[i][j]] for axis 1, likewise for others; index has x's rank. */
KM_API km_tensor *km_gather(km_ctx *ctx, km_tensor *x, int axis, km_tensor *index);
/* A copy of x with src[i][j] added at x[i][index[i][j]]. */
KM_API km_tensor *km_scatter_add(km_ctx *ctx, km_tensor *x, int axis, km_tensor *index,
                                 km_tensor *src);
/* A copy of x with src[i][j] put at x[i][index[i][j]]; of equal indices the last one counts. */
KM_API km_tensor *km_scatter(km_ctx *ctx, km_tensor *x, int axis, km_tensor *index, km_tensor *src);
KM_API km_tensor *km_index_select(km_ctx *ctx, km_tensor *x, int axis,
                                  km_tensor *index); /* index (n) */
/* What a mask (bool) picks, in row-major order. How much that is decides a shape, so the mask is
 * read before the call returns: on a GPU it waits, and a step with such a call is never replayed as
 * a graph. All three give a new tensor and none changes its inputs.
 * masked_select: those x[i] whose mask[i] is true, as a list; x and mask broadcast.
 * masked_scatter: a copy of x with the ith place that mask picks replaced by src[i]; mask broadcasts
 *   to x's shape, and src has as many elements as it picks.
 * nonzero: i64 (count, rank of x), the index of each element that is not 0; NaN is not 0. */
KM_API km_tensor *km_masked_select(km_ctx *ctx, km_tensor *x, km_tensor *mask);
KM_API km_tensor *km_masked_scatter(km_ctx *ctx, km_tensor *x, km_tensor *mask, km_tensor *src);
KM_API km_tensor *km_nonzero(km_ctx *ctx, km_tensor *x);
KM_API km_tensor *km_concat(km_ctx *ctx, km_tensor *const *parts, int n, int axis);
KM_API km_tensor *km_stack(km_ctx *ctx, km_tensor *const *parts, int n, int axis); /* a new axis */
/* x n times, one after another, along axis; repeat_each: each element n times in a row. */
KM_API km_tensor *km_repeat(km_ctx *ctx, km_tensor *x, int axis, int64_t n);
KM_API km_tensor *km_repeat_each(km_ctx *ctx, km_tensor *x, int axis, int64_t n);
KM_API km_tensor *km_one_hot(km_ctx *ctx, km_tensor *ids, int64_t classes,
                             km_dtype dtype); /* (...) -> (..., classes): y[i][j] = ids[i] == j */

/* ---- Order. Equals stay in the order they were in; NaN is larger than all numbers. ---- */

/* x in rising or falling order along axis; *index (i64, may be NULL) receives where each was. */
KM_API km_tensor *km_sort(km_ctx *ctx, km_tensor *x, int axis, bool descending, km_tensor **index);
/* The k largest (smallest), in falling (rising) order: the axis has k elements then. */
KM_API km_tensor *km_topk(km_ctx *ctx, km_tensor *x, int64_t k, int axis, bool largest,
                          km_tensor **index);
KM_API km_tensor *km_cumsum(km_ctx *ctx, km_tensor *x, int axis); /* y[i] = x[0] + ... + x[i] */

/* ---- Transformers ---- */

typedef enum km_rope_pairs {
    KM_ROPE_HALVES,  /* pairs (i, i + d/2): GPT-NeoX, Llama in Hugging Face form */
    KM_ROPE_ADJACENT /* pairs (2i, 2i + 1): the paper, Llama in GGUF form */
} km_rope_pairs;
/* Rotates pair i of the first n_dims (0: all) of the last axis by position * base^(-2i/n_dims).
 * x (..., T, d), positions (T) i32 or i64, or NULL for 0, 1, 2, ... */
KM_API km_tensor *km_rope(km_ctx *ctx, km_tensor *x, km_tensor *positions, km_rope_pairs pairs,
                          double base, int n_dims);
/* softmax(q k^T * scale) v: q (B, H, Tq, D), k, v (B, Hkv, Tk, D), H a multiple of Hkv
 * -> (B, H, Tq, D). scale 0 means 1/sqrt(D). Causal: query i sees keys 0 .. Tk - Tq + i. */
KM_API km_tensor *km_attention(km_ctx *ctx, km_tensor *q, km_tensor *k, km_tensor *v, bool causal,
                               double scale);

/* The same over q, k and v side by side, as one linear layer makes them: qkv (B, T, (H + 2 Hkv) D)
 * -> (B, T, H D). Nothing is copied, forward or back. */
KM_API km_tensor *km_attention_qkv(km_ctx *ctx, km_tensor *qkv, int heads, int kv_heads,
                                   bool causal, double scale);

/* ---- Losses: a scalar f32 (f64 for f64 input) ---- */

typedef enum km_reduction { KM_MEAN, KM_SUM } km_reduction;
/* -log softmax(logits)[target]: logits (..., v), targets (...) i32 or i64; rows whose target is
 * ignore_index count for nothing, in the mean's divisor too. */
KM_API km_tensor *km_cross_entropy(km_ctx *ctx, km_tensor *logits, km_tensor *targets,
                                   int64_t ignore_index, km_reduction reduction);
#define KM_NO_IGNORE INT64_MIN /* an ignore_index that no target has */
/* cross_entropy(x w^T): x (..., C), w (V, C), of whose rows the first `classes` count (0: all; the
 * rest is padding). Works through the rows in pieces, with the gradients made on the way, so that
 * the logits of all rows are never held at once. */
KM_API km_tensor *km_linear_cross_entropy(km_ctx *ctx, km_tensor *x, km_tensor *w,
                                          km_tensor *targets, int64_t classes, int64_t ignore_index,
                                          km_reduction reduction);
KM_API km_tensor *km_mse(km_ctx *ctx, km_tensor *x, km_tensor *target, km_reduction reduction);
KM_API km_tensor *km_bce_with_logits(km_ctx *ctx, km_tensor *x, km_tensor *target,
                                     km_reduction reduction);

/* ---- Gradients ---- */

/* Marks a kept tensor as a parameter: ops on it are recorded, and km_backward gives it a gradient. */
KM_API km_status km_require_grad(km_ctx *ctx, km_tensor *kept, bool on);
KM_API bool km_requires_grad(const km_tensor *t);
/* Back-propagates from a one-element tensor; adds to the gradients of all parameters it used. */
KM_API km_status km_backward(km_ctx *ctx, km_tensor *loss);
KM_API km_tensor *km_grad(km_tensor *parameter); /* NULL before the first backward; not owned */
KM_API void km_zero_grad(km_ctx *ctx, km_tensor *const *parameters, int n);
KM_API void km_no_grad_begin(km_ctx *ctx); /* nothing is recorded until the end; nests */
KM_API void km_no_grad_end(km_ctx *ctx);
KM_API km_tensor *km_detach(km_ctx *ctx, km_tensor *t); /* the same data, off the tape */
/* Scales the gradients so that their global 2-norm is at most max_norm; returns the norm before. */
KM_API double km_clip_grad_norm(km_ctx *ctx, km_tensor *const *parameters, int n, double max_norm);

/* ---- Optimisers: parameters updated in place from their gradients, all in one go ---- */

typedef struct km_sgd {
    size_t size;
    double lr, momentum, weight_decay;
    bool nesterov;
    km_tensor *const *master; /* may be NULL: see below */
} km_sgd;
KM_API_INLINE km_sgd km_sgd_defaults(void); /* lr 0.01, and nothing else */
typedef struct km_adamw {
    size_t size;
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step; /* counted from 1 */
    bool coupled; /* decay through the gradient, as in Adam, instead of AdamW's own term */
    km_tensor *const *master; /* may be NULL: see below */
} km_adamw;
/* lr 1e-3, beta 0.9 and 0.999, eps 1e-8, decay 0.01 */
KM_API_INLINE km_adamw km_adamw_defaults(void);
/* Kept contiguous parameters; those without a gradient stay as they are. The state (m, v) is kept
 * f32 (f64 for f64) tensors of the parameters' shapes, zero at the start; m may be NULL for sgd
 * without momentum. A 16-bit parameter loses small updates to rounding; master[i], a kept f32 tensor
 * that begins as its copy (NULL: none), takes them in its place and is rounded to it each step. */
KM_API km_status km_sgd_step(km_ctx *ctx, km_tensor *const *parameters, km_tensor *const *m, int n,
                             const km_sgd *how);
KM_API km_status km_adamw_step(km_ctx *ctx, km_tensor *const *parameters, km_tensor *const *m,
                               km_tensor *const *v, int n, const km_adamw *how);

/* An op of the user's own. `forward` makes the output from other km_ calls, from host data, or on a GPU
 * with a kernel of its own (km_tensor_device_data, km_ctx_stream), which may be run into a tensor that
 * km_zeros made; `backward` gets the output's gradient and fills grads[i] (NULL: none) for the inputs. Both work
 * with recording off. `name` and `user` must outlive the step. */
typedef struct km_custom_op {
    const char *name;
    km_tensor *(*forward)(km_ctx *ctx, km_tensor *const *inputs, int n, void *user);
    void (*backward)(km_ctx *ctx, km_tensor *const *inputs, int n, km_tensor *output,
                     km_tensor *grad_output, km_tensor **grads, void *user);
    void *user;
} km_custom_op;
KM_API km_tensor *km_custom(km_ctx *ctx, const km_custom_op *op, km_tensor *const *inputs, int n);

/* Compares gradients by back-propagation with central differences. fn maps the inputs to a tensor
 * of any shape; inputs must be kept f64 tensors on the ref device that require a gradient. */
typedef km_tensor *(*km_grad_fn)(km_ctx *ctx, km_tensor *const *inputs, int n, void *user);
typedef struct km_grad_report {
    double max_error; /* largest |analytic - numeric| / max(1, |analytic|, |numeric|) */
    int input;        /* where: which input, */
    int64_t element;  /* which element, */
    double analytic, numeric;
    bool passed; /* max_error <= tolerance */
} km_grad_report;
KM_API km_status km_check_grad(km_ctx *ctx, km_grad_fn fn, void *user, km_tensor *const *inputs,
                               int n, double tolerance, km_grad_report *report);

/* ---- Training: a language model from texts ---- */

/*     km_train_settings s = km_train_defaults();
 *     s.data.at[s.data.n++] = "book.txt";
 *     s.out = "run";
 *     if (km_train(&s, NULL, NULL) != KM_OK) puts(km_last_error());
 *
 * The folder `out` then holds model/ (a Hugging Face folder, which km_model_open takes), best/, step-N/
 * (checkpoints), run.json (the settings), log.jsonl and report.html. With `resume`, what is in `out`
 * goes on to the same bits as a run that was never stopped. Under mpirun all ranks call. */
#define KM_TRAIN_MAX_DATA 32
typedef struct km_train_list {
    const char *at[KM_TRAIN_MAX_DATA];
    int n;
} km_train_list;

typedef struct km_train_settings {
    size_t size;
    /* The text and how it is read */
    km_train_list data;    /* "FILE", "FOLDER" or either with ":WEIGHT" */
    const char *out;       /* the run's folder */
    const char *cache;     /* for token files; NULL: OUT/cache */
    const char *tokenizer; /* "char", "bytes", "bpe:N" or a file; NULL: init's, or "char" */
    bool special;          /* "<|endoftext|>" in a text is that token */
    double val;            /* share of the text kept for validation */

    /* The model */
    const char *model; /* a preset: "tiny", "small", ... */
    const char *init;  /* a folder to start from; NULL: random weights */
    int64_t layers, heads, kv_heads, dim, hidden, context, vocab_pad; /* 0: the preset's */
    double dropout;                                                   /* below 0: the preset's */
    int64_t lora_rank;        /* 0: all weights are trained */
    double lora_alpha;        /* 0: twice the rank */
    const char *lora_targets; /* patterns with commas between them; NULL: attention and MLP */
    const char *freeze;       /* likewise: weights that stay as they are */
    bool recompute;           /* activations are made again in the backward pass: less memory */

    /* The steps */
    int64_t batch, accumulate, steps, warmup, decay_steps;
    double lr;                                /* below 0: by the model's width */
    double min_lr;                            /* below 0: a tenth of lr */
    const char *schedule, *optimizer, *dtype; /* "cosine", "adamw", "f32" */
    double weight_decay, beta1, beta2, eps, momentum, grad_clip, loss_scale;
    bool nesterov;
    int64_t seed;

    /* What happens along the way; every N steps, 0: never */
    int64_t eval_every, eval_batches, save_every, keep, log_every, patience;
    int64_t sample_every, sample_tokens;
    const char *sample_prompt;
    double sample_temperature;
    bool overfit_batch, no_best, no_graph, resume;
    const char *device; /* as for km_ctx_new */
    int64_t threads;
    const char *comm; /* "auto", "none", "mpi" or "nccl": how ranks talk */
    void *held;       /* texts that km_train_read_json brought; km_train_settings_free */
} km_train_settings;
KM_API_INLINE km_train_settings km_train_defaults(void);
/* Overlays a JSON object of settings, {"steps": 500, "data": ["a.txt"]}, or a run.json. What belongs to
 * a call and not to a run (out, resume, threads, ...: km_train_setting) is not among them. `shown` names
 * it in errors; NULL: "the settings". Nothing is changed on failure. */
KM_API km_status km_train_read_json(km_train_settings *s, const char *json, size_t bytes,
                                    const char *shown);
KM_API km_status km_train_read_file(km_train_settings *s,
                                    const char *path); /* the same in a file */
/* Overlays the settings that the run in the folder `out` was made with, to go on with it. */
KM_API km_status km_train_read_run(km_train_settings *s, const char *out);
KM_API void km_train_settings_free(km_train_settings *s); /* what read_json and read_run brought */
/* What can be checked before anything is made: fails where km_train would fail at once. */
KM_API km_status km_train_check(const km_train_settings *s);

/* The settings as a table, to make a form, flags or documentation from. */
typedef enum km_setting_kind {
    KM_SETTING_FLAG,   /* bool */
    KM_SETTING_INT,    /* int64_t */
    KM_SETTING_NUMBER, /* double */
    KM_SETTING_TEXT,   /* const char * */
    KM_SETTING_LIST    /* km_train_list */
} km_setting_kind;
typedef enum km_setting_rule {
    KM_SETTING_FIXED, /* belongs to the run: resuming may not change it */
    KM_SETTING_FREE,  /* may change from one part of the run to the next */
    KM_SETTING_CALL   /* of this call alone; not stored */
} km_setting_rule;
typedef struct km_setting {
    const char *name; /* "eval-every"; in JSON with underscores, too */
    km_setting_kind kind;
    km_setting_rule rule;
    const char *value; /* how help names it: "N" */
    size_t offset;     /* in km_train_settings */
    double lo, hi;     /* of numbers, inclusive; both 0: any */
    const char *help;
} km_setting;
KM_API const km_setting *km_train_setting(int i); /* NULL after the last */

/* Where a run stands; a figure that is not known is NaN. */
typedef struct km_train_status {
    int64_t step, steps;
    double train_loss; /* mean since the line before */
    double val_loss;   /* the last one */
    double best_val;   /* the lowest */
    int64_t best_step;
    double lr, norm;     /* of the last step; the norm is before clipping */
    double loss_scale;   /* 1 without one */
    int64_t skipped;     /* steps so far whose gradients were not finite */
    double tokens_per_s; /* of late */
    double mfu;          /* share of the device's rate in large products */
    double left;         /* seconds, estimated; at the start a guess from the device's rate */
    double seconds;      /* of training so far, earlier parts of the run included */
} km_train_status;

typedef enum km_train_event {
    KM_TRAIN_PREPARE, /* text: what is being done ("tokenising"); step of steps */
    KM_TRAIN_START,   /* text: one line on model, data and device */
    KM_TRAIN_STEP,    /* a step was queued: step alone is up to date */
    KM_TRAIN_LOG,     /* figures are up to date */
    KM_TRAIN_EVAL,    /* val_loss is new */
    KM_TRAIN_SAVE,    /* text: the checkpoint's folder */
    KM_TRAIN_SAMPLE,  /* text: what the model wrote */
    KM_TRAIN_NOTE     /* text: something to know, such as skipped steps */
} km_train_event;

/* Either may be NULL. They may use the library, but not start this run again. */
typedef struct km_train_hooks {
    size_t size; /* sizeof(km_train_hooks) */
    void (*event)(void *user, km_train_event e, const km_train_status *s, const char *text);
    bool (*stop)(void *user); /* asked after each step; true: save a checkpoint and stop */
    void *user;
} km_train_hooks;

typedef enum km_train_end {
    KM_TRAIN_DONE,   /* all steps */
    KM_TRAIN_EARLY,  /* patience ran out */
    KM_TRAIN_STOPPED /* the stop hook said so */
} km_train_end;

typedef struct km_train_result {
    size_t size;     /* sizeof(km_train_result), set by the caller */
    double last_val; /* validation loss of the last step; status.val_loss is that of OUT/model */
    km_train_end end;
    double tokens_per_s; /* over this part of the run; evaluation and saving not counted */
    double wall;         /* seconds of this call, all included */
    int64_t parameters, trained;
    int rank;   /* of this process; only rank 0 should print */
    bool tells; /* an error: rank 0 tells it, or the rank on which alone it happened */
    char device[24];
    km_train_status status;
} km_train_result;

/* Trains until the end, or until `stop`. hooks and result may be NULL; *result is filled as far as the
 * run got, also on failure. */
KM_API km_status km_train(const km_train_settings *s, const km_train_hooks *hooks,
                          km_train_result *result);
/* The same with all settings, those of the call too, as one JSON object; with "resume" it need only tell
 * those that change. */
KM_API km_status km_train_json(const char *settings, const km_train_hooks *hooks,
                               km_train_result *result);
/* A text to try it with: small stories that a grammar writes. Folders on the way are made. */
KM_API km_status km_train_demo_text(const char *path, uint64_t seed, size_t bytes);
KM_API int km_rank(void); /* of this process under mpirun; 0 otherwise */

/* ---- Training: a model of one's own ---- */

/* Named parameters: what an optimiser updates, a checkpoint stores and a pattern freezes.
 *
 *     km_param_list *params = km_param_list_new();
 *     km_tensor *w = km_param_add(ctx, params, KM_F32, KM_SHAPE(16, 2), true, "layer.%d.weight", 0);
 *     km_assign(ctx, w, km_normal(ctx, KM_F32, KM_SHAPE(16, 2), 0, 0.1));
 *     km_optimizer *o = km_optimizer_new(ctx, params, NULL);
 *     for (int step = 0; step < 500; step++) {
 *         km_optimizer_set(ctx, o, km_schedule_lr(&schedule, step), 1);
 *         km_backward(ctx, km_optimizer_scale_loss(ctx, o, loss_of(ctx, w)));
 *         km_optimizer_step(ctx, o);
 *         km_optimizer_zero_grad(ctx, o);
 *         km_step_end(ctx);
 *     }
 */
typedef struct km_param_list km_param_list;
KM_API km_param_list *km_param_list_new(void);         /* NULL: out of memory */
KM_API void km_param_list_free(km_param_list *params); /* releases them all; NULL is fine */
/* A kept tensor of zeros that requires a gradient, under a name made as by printf, which is new in the
 * list; the list owns it. decay: weight decay applies, as to matrices and not to norms and biases. */
KM_API km_tensor *km_param_add(km_ctx *ctx, km_param_list *params, km_dtype dtype, km_shape shape,
                               bool decay, const char *name, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 6, 7)))
#endif
    ;
KM_API int km_param_count(const km_param_list *params);
KM_API km_tensor *km_param_at(const km_param_list *params, int i); /* NULL: no such */
KM_API const char *km_param_name(const km_param_list *params, int i);
KM_API km_tensor *km_param_named(const km_param_list *params, const char *name);
/* Freezes (or frees again) all whose whole name fits the pattern: '*' stands for any characters, '?'
 * for one, commas part several patterns. A frozen one has no gradient. How many did; -1 on failure. */
KM_API int km_param_freeze(km_ctx *ctx, km_param_list *params, const char *pattern, bool frozen);

typedef enum km_optim_kind {
    KM_OPTIM_ADAMW, /* decay apart from the gradient */
    KM_OPTIM_ADAM,  /* decay through the gradient */
    KM_OPTIM_SGD
} km_optim_kind;
typedef struct km_optim_settings {
    size_t size;
    km_optim_kind kind;
    double beta1, beta2, eps; /* adam */
    double momentum;          /* sgd */
    bool nesterov;
    double weight_decay;  /* of parameters that are marked for it */
    double max_norm;      /* gradients are scaled down to this global 2-norm; 0: never */
    bool no_master;       /* update 16-bit parameters without f32 weights behind them */
    double loss_scale;    /* the first one, for f16; 0: none. 65536 is usual. */
    int64_t growth_every; /* good steps after which the loss scale doubles; 0: 2000 */
} km_optim_settings;
/* AdamW with beta 0.9 and 0.95, eps 1e-8, decay 0.1, clipping at 1, momentum 0.9 for sgd. */
KM_API_INLINE km_optim_settings km_optim_defaults(void);

/* Over the parameters that are not frozen; the list must outlive it and gets no more of them. The state
 * (moments, and f32 weights behind 16-bit parameters) is on the device, and a step reads nothing back:
 * it can be captured (km_graph_run), all but km_optimizer_set. A step whose gradient norm is not finite
 * changes nothing but a count, and halves the loss scale. */
typedef struct km_optimizer km_optimizer;
KM_API km_optimizer *km_optimizer_new(km_ctx *ctx, const km_param_list *params,
                                      const km_optim_settings *settings);
KM_API void km_optimizer_free(km_optimizer *o); /* before the list and the context; NULL is fine */
/* For the steps from now on. accumulate: backward passes to a step; gradients are divided by it. */
KM_API km_status km_optimizer_set(km_ctx *ctx, km_optimizer *o, double lr, int accumulate);
/* The loss times the loss scale; the loss itself where there is none. */
KM_API km_tensor *km_optimizer_scale_loss(km_ctx *ctx, km_optimizer *o, km_tensor *loss);
KM_API km_status km_optimizer_step(km_ctx *ctx, km_optimizer *o);
KM_API void km_optimizer_zero_grad(km_ctx *ctx, km_optimizer *o);
typedef struct km_optim_report {
    size_t size; /* sizeof(km_optim_report), set by the caller */
    double lr;
    double norm;       /* of the gradients, before clipping */
    bool skipped;      /* the norm was not finite: nothing was changed */
    int64_t steps;     /* done, those skipped not counted */
    int64_t skips;     /* in all */
    double loss_scale; /* for the next step; 1 when there is none */
} km_optim_report;
KM_API km_status km_optimizer_report(km_ctx *ctx, km_optimizer *o,
                                     km_optim_report *report); /* of the last step; waits */

/* The learning rate as a function of the step, from 0. All rise linearly over the first `warmup` steps,
 * lr (step + 1) / warmup; then constant: lr; linear: down to min_lr at the last step; cosine: min_lr +
 * (lr - min_lr) (1 + cos(pi x)) / 2, x from 0 to 1 over the rest; wsd: lr, and over the last `decay`
 * steps linearly down to min_lr. After the last step it stays where it ended. */
typedef enum km_schedule_kind {
    KM_SCHEDULE_CONSTANT,
    KM_SCHEDULE_LINEAR,
    KM_SCHEDULE_COSINE,
    KM_SCHEDULE_WSD
} km_schedule_kind;
typedef struct km_schedule {
    km_schedule_kind kind;
    double lr, min_lr;
    int64_t warmup, decay, steps; /* steps: in all, the warm-up and decay included */
} km_schedule;
KM_API double km_schedule_lr(const km_schedule *schedule, int64_t step); /* NaN: no schedule */

/* A checkpoint: all parameters by name, the optimiser's state (NULL: without) and the count of steps in
 * one safetensors file, which changes only when all of the new one is on disk. Loading fills the tensors
 * that are there: names, shapes and dtypes must be the same, and so must the optimiser's kind; what a
 * file lacks is an error before anything is changed. *step may be NULL. */
KM_API km_status km_param_list_save(km_ctx *ctx, const char *path, const km_param_list *params,
                                    km_optimizer *o, int64_t step);
KM_API km_status km_param_list_load(km_ctx *ctx, const char *path, km_param_list *params,
                                    km_optimizer *o, int64_t *step);

/* ---- Models ---- */

/* A model opened and ready for use: weights placed on devices, tokenizer, chat template, draft and
 * adapters. Any number of threads may use one at once: each with a session of its own, or through a
 * batch; steps over the weights take turns, everything else runs beside them.
 *
 *     km_model *m = km_model_open("SmolLM2-135M-Instruct.Q4_1.gguf", NULL);
 *     char *text = km_generate_text(m, "The sea is", NULL);
 *     puts(text ? text : km_last_error());
 *     km_string_free(text);
 *     km_model_close(m);
 */
typedef struct km_model km_model;

/* A LoRA: layers have the weights W + scale alpha/rank B A. The model's own stay as they are, of any
 * dtype, and the product with B A is made beside them: so every generation, and every sequence of a
 * batch, can have other adapters, several at once, or none. */
typedef struct km_adapter {
    const char
        *path; /* PEFT's folder (adapter_config.json and adapter_model.safetensors), or a GGUF file
                       * as llama.cpp's convert_lora_to_gguf.py writes it. Where one is chosen of those
                       * that the model has, its path or its name */
    double scale; /* 0: 1; where one is chosen, the scale that it was opened with */
    const char
        *name; /* what it is called; NULL: the last part of its path, without .gguf. Where one is
                       * chosen, NULL: path tells which */
    bool off;  /* opened, and used only where it is chosen */
} km_adapter;

typedef struct km_model_options {
    size_t size;
    const char *device;  /* as for km_ctx_new; NULL: "auto" */
    const char *devices; /* several, "cuda:0,cuda:1": layers are spread over them; NULL: device */
    int gpu_layers;      /* how many layers the GPU takes, the others are the CPU's; -1: as many as
                                * fit with this context; -2, the default: all if weights fit, else those
                                * that do */
    int threads;         /* 0: one per core */
    int activations;     /* 8 or 16 bits: km_ctx_set_activations; 0: the default */
    size_t memory;       /* bytes of a GPU that may be used at most; 0: what is free */
    int64_t context;     /* tokens of a sequence; 0: the model's, or on a GPU what fits */
    int64_t sequences;   /* that sessions hold at once, forks included; 0: 16, or as many as fit */
    km_dtype cache;      /* of keys and values: KM_F16; also f32, bf16, q8_0, q4_0 */
    km_dtype dtype;      /* of a folder's weights: KM_F32, KM_BF16, KM_F16; KM_DTYPE_COUNT, the
                                * default: as stored */
    const char *tokenizer; /* a tokenizer.json, a folder with one, a .gguf; NULL: the model's own */
    const char
        *chat_template; /* a built-in's name, a .jinja file, or Jinja itself; NULL: its own */
    const char *draft;  /* "lookup", or a smaller model of the same vocabulary: several tokens are
                                * guessed and checked at once, and the text stays the same; NULL: none */
    const km_adapter
        *adapters; /* n_adapters, up to 32; those that are not `off` are used together, unless
                                 * km_generation.adapters chooses others */
    size_t n_adapters;
    bool no_rescue;      /* a GPU that fails is an error; else the CPU goes on with everything */
    bool tokenizer_only; /* no weights: for tokens, templates and descriptions */
    bool tensor; /* the ranks of mpirun hold the model together (GGUF only): km_model_follows */
    const char *comm; /* how they talk: "auto" (NULL), "mpi", "nccl" */
    bool (*progress)(void *user, uint64_t done, uint64_t total); /* bytes loaded; false stops */
    void *user;
} km_model_options;
KM_API_INLINE km_model_options km_model_defaults(void);

/* path: a GGUF file (of a split one, its first part), a Hugging Face folder, a training run's folder,
 * which stands for its model, its best or its newest checkpoint, or a name in the model folder
 * (KERMES_MODELS, else ~/.local/share/kermes/models); NULL: the newest there. NULL on failure. */
KM_API km_model *km_model_open(const char *path, const km_model_options *options);
/* Where that is: a path, without opening it; km_string_free. NULL: there is none, or several names begin
 * so. */
KM_API char *km_model_find(const char *path);
/* Whether a word stands for a model: a GGUF file, a folder with a model, or a name in the model folder,
 * and unless `whole` the beginning of one. */
KM_API bool km_model_known(const char *word, bool whole);
/* The model folder, whether it is there or not; km_string_free. NULL: it cannot be told, without HOME. */
KM_API char *km_model_folder(void);
/* A GGUF file by its descriptor, which stays the caller's and may be closed after the call. */
KM_API km_model *km_model_open_fd(int fd, const km_model_options *options);
/* One that lies in memory, which must outlive the model and not change. */
KM_API km_model *km_model_open_memory(const void *gguf, size_t bytes,
                                      const km_model_options *options);
typedef struct km_reader { /* a file in a place that has none */
    uint64_t bytes;
    /* n bytes from offset on; anything but KM_OK fails the opening. Not called after it. */
    km_status (*read)(void *user, uint64_t offset, void *to, size_t n);
    void *user;
} km_reader;
KM_API km_model *km_model_open_reader(const km_reader *reader, const km_model_options *options);
/* Sessions and batches keep it alive until they are freed; NULL is fine. */
KM_API void km_model_close(km_model *m);

/* Adapters of an open model, by any thread. One that is added is as if the model had been opened with it.
 * One that is removed cannot be chosen from then on; whoever uses it goes on with it, and its memory is
 * given back when nobody does. Not where ranks share the model (KM_ERR_UNSUPPORTED). */
KM_API km_status km_model_add_adapter(km_model *m, const km_adapter *adapter);
KM_API km_status km_model_remove_adapter(km_model *m, const char *name);
/* A JSON array of {"name": ..., "path": ..., "scale": ..., "off": ...}; km_string_free. */
KM_API char *km_model_adapters_json(km_model *m);

typedef struct km_model_info {
    size_t size;
    const char *path;         /* where it was found; "" if not in a file */
    const char *name;         /* as the file calls it, or the last part of the path */
    const char *architecture; /* "llama" */
    const char *devices;      /* "cpu", "cpu 20 + cuda:0 16" */
    const char *file_type;    /* of most weights: "q4_1" */
    int64_t parameters;
    int64_t bytes;   /* of weights */
    int64_t context; /* of a sequence here, and what it was trained for */
    int64_t trained_context;
    int64_t vocab, dim, layers, heads, kv_heads;
    bool has_template;
    bool can_embed; /* km_embed_tokens */
    const char
        *sampling_from; /* whose km_model_sampling is: "the smollm2 family"; "": nobody said */
    bool can_rank;      /* km_relevance */
} km_model_info;
/* Texts live as long as the model. size 0: km_last_error says why. */
KM_API_INLINE km_model_info km_model_describe(km_model *m);
/* The same and all metadata of its file, as JSON; km_string_free. */
KM_API char *km_model_describe_json(km_model *m);

/* With `tensor`, ranks other than 0 follow: km_model_follow returns when rank 0 closes the model, and
 * is all that such a rank may do with it. */
KM_API bool km_model_follows(const km_model *m);
KM_API km_status km_model_follow(km_model *m);
KM_API int km_ranks(void); /* that mpirun started; 1 without it */

/* ---- Tokens ---- */

enum {
    KM_TOKENS_PLAIN = 0,
    KM_TOKENS_ADD_SPECIAL = 1,   /* what the tokenizer wants before and after a text */
    KM_TOKENS_PARSE_SPECIAL = 2, /* "<|im_end|>" in the text is that token, not its letters */
    KM_TOKENS_SKIP_SPECIAL = 4   /* detokenize: special tokens are no text */
};
/* The text's ids: how many there are, of which at most cap are written (ids may be NULL with cap 0);
 * -1 on failure. */
KM_API int64_t km_tokenize(km_model *m, const char *text, size_t bytes, unsigned flags,
                           int32_t *ids, size_t cap);
/* The text of ids, in bytes; likewise. Nothing is written after it. */
KM_API int64_t km_detokenize(km_model *m, const int32_t *ids, size_t n, unsigned flags, char *text,
                             size_t cap);
/* What a token stands for: bytes, part of a character perhaps. It lives as long as m. NULL: no such
 * token, which is no error. */
KM_API const char *km_token_piece(km_model *m, int32_t id, size_t *bytes);
KM_API int32_t km_model_bos(km_model *m);              /* the token before a text; -1: none */
KM_API int32_t km_model_eos(km_model *m);              /* after it */
KM_API bool km_token_ends(km_model *m, int32_t id);    /* a generation ends there */
KM_API bool km_token_special(km_model *m, int32_t id); /* it is no text */

/* ---- Tokenizers ---- */

/* A tokenizer by itself, without a model. It never changes, and any threads may use it at once.
 * path: a tokenizer.json, a folder that holds one, a GGUF file, or "bytes": 256 tokens, each a byte.
 * NULL on failure. */
typedef struct km_tokenizer km_tokenizer;
KM_API km_tokenizer *km_tokenizer_open(const char *path);
KM_API void km_tokenizer_close(km_tokenizer *t); /* NULL is fine */
/* Writes a tokenizer.json that Hugging Face's library loads, and that gives the same ids. */
KM_API km_status km_tokenizer_save(const km_tokenizer *t, const char *path);

typedef struct km_tokenizer_info {
    size_t size;
    const char *kind;           /* "bytes", "chars", "bpe", "spm", "wordpiece" or "words" */
    int64_t vocab;              /* the largest id + 1 */
    int32_t bos, eos, unk, pad; /* -1: none */
} km_tokenizer_info;
/* Its size is 0: it failed. */
KM_API_INLINE km_tokenizer_info km_tokenizer_describe(const km_tokenizer *t);
/* As km_tokenize, km_detokenize and km_token_piece, with the same flags. */
KM_API int64_t km_tokenizer_encode(const km_tokenizer *t, const char *text, size_t bytes,
                                   unsigned flags, int32_t *ids, size_t cap);
KM_API int64_t km_tokenizer_decode(const km_tokenizer *t, const int32_t *ids, size_t n,
                                   unsigned flags, char *text, size_t cap);
KM_API const char *km_tokenizer_piece(const km_tokenizer *t, int32_t id, size_t *bytes);
/* The same ids for a large text, by several threads (0: one per core) and without holding them all:
 * they come in order, some at a time, in the thread that made the call. A callback that returns false
 * stops with KM_ERR_STATE. */
typedef bool (*km_ids_fn)(void *user, const int32_t *ids, size_t n);
KM_API km_status km_tokenizer_encode_large(const km_tokenizer *t, const char *text, size_t bytes,
                                           unsigned flags, int threads, km_ids_fn fn, void *user);

/* A tokenizer from texts, in files or in memory, as a tokenizer.json at `out` that Hugging Face's library
 * loads: how many tokens it has; -1 on failure. */
typedef struct km_text_input {
    const char *path; /* NULL: data */
    const char *data;
    size_t bytes;
} km_text_input;
typedef struct km_tokenizer_options {
    size_t size;
    const char *kind;    /* "bpe:4096" (byte-level, so many tokens in all), "chars", "bytes" */
    const char *special; /* the text of its special token, "<|endoftext|>"; "": none */
    int threads;         /* 0: one per core; the result does not depend on it */
    bool (*progress)(void *user, const char *stage, int64_t done, int64_t total); /* false stops */
    void *user;
} km_tokenizer_options;
KM_API_INLINE km_tokenizer_options km_tokenizer_defaults(void); /* bpe:4096 */
KM_API int64_t km_tokenizer_train(const char *out, const km_text_input *texts, int n,
                                  const km_tokenizer_options *options);

/* ---- Chats ---- */

typedef struct km_render_options {
    size_t size;
    const char *chat_template; /* in place of the model's, as in km_model_options */
    const char *tools;         /* a JSON array; NULL: none */
    const char *variables;     /* a JSON object: more for the template to see; NULL: none */
    bool no_answer;            /* the text ends with the last message, not where an answer begins */
    int thinking;              /* 1: on, -1: off, 0: as the template has it */
    int64_t now; /* seconds since 1970, for templates that tell the date; 0: the clock */
} km_render_options;
KM_API_INLINE km_render_options km_render_defaults(void);
/* Messages, a JSON array of {"role": ..., "content": ...} and what else a template reads, as the text
 * to go on with, which holds special tokens as written: km_tokenize it with KM_TOKENS_PARSE_SPECIAL
 * alone, or generate with `rendered`. km_string_free. */
KM_API char *km_render_chat(km_model *m, const char *messages, const km_render_options *options);

/* Hidden states after the last norm, with the model's adapters: out (n, dim). n is at most the context. */
KM_API km_status km_embed_tokens(km_model *m, const int32_t *ids, size_t n, float *out);

typedef enum km_pooling {
    KM_POOLING_AUTO,  /* as the model's file says (pooling_type), else the mean */
    KM_POOLING_MEAN,  /* of all tokens' hidden states */
    KM_POOLING_FIRST, /* the first token's */
    KM_POOLING_LAST,  /* the last token's */
    KM_POOLING_RANK   /* a model that ranks texts (km_relevance): it gives no embeddings */
} km_pooling;
KM_API km_pooling km_model_pooling(km_model *m); /* never AUTO, unless m is no model */

typedef struct km_embed_options {
    size_t size;
    km_pooling pooling;
    int64_t dimensions; /* only the first so many; 0: all, km_model_info.dim */
    bool raw;           /* as pooled; else scaled to length 1 */
    bool (*progress)(void *user, size_t done, size_t total); /* texts; false: KM_ERR_STATE */
    void *user;
    const km_adapter *adapters; /* n_adapters, as in km_generation; -1, the default: the model's */
    int64_t n_adapters;
} km_embed_options;
KM_API_INLINE km_embed_options km_embed_defaults(void);
/* Embeddings of n texts given as tokens, ids[i] (lengths[i]), each at most the context: out (n,
 * dimensions). Several go through the model together. Causal models only, as all that run here. */
KM_API km_status km_embed(km_model *m, const int32_t *const *ids, const size_t *lengths, size_t n,
                          const km_embed_options *options, float *out);

/* ---- Ranking ---- */

/* A model that ranks (a reranker; km_model_info.can_rank) tells how well a document answers a query. Its GGUF
 * file has pooling_type 4 and either a classification head, cls.output.weight, of one row or of the two
 * for "yes" and "no", or these two words in its vocabulary, as Qwen3-Reranker has.
 *
 * A query and a document as the tokens that such a model reads, by the template of its file: how many
 * there are, of which at most cap are written; -1 on failure. Nothing in the two texts becomes a special
 * token. A document too long for the context is cut at its end if `cut`, else KM_ERR_RANGE. */
KM_API int64_t km_relevance_tokens(km_model *m, const char *query, size_t query_bytes,
                                   const char *document, size_t document_bytes, bool cut,
                                   int32_t *ids, size_t cap);
/* How well each of n such pairs fits, from 0 to 1: out (n). Several go through the model together. Of the
 * options, adapters, progress and its user count. KM_ERR_UNSUPPORTED: the model does not rank. */
KM_API km_status km_relevance(km_model *m, const int32_t *const *ids, const size_t *lengths,
                              size_t n, const km_embed_options *options, float *out);

/* ---- Answers: text, reasoning and tool calls ---- */

/* What a model's answer is made of, in the forms that families of models write it: <think>, <tool_call>,
 * [TOOL_CALLS], harmony's channels and others. A parser is fed with text as it is generated and gives out
 * each part as soon as it is sure of it; how the text was cut into pieces makes no difference. */
typedef enum km_answer_kind {
    KM_ANSWER_TEXT,
    KM_ANSWER_REASONING,
    KM_ANSWER_CALL,      /* a tool call begins: text is the function's name */
    KM_ANSWER_ARGUMENTS, /* a piece of the call's arguments, which are JSON */
    KM_ANSWER_CALL_END
} km_answer_kind;

typedef struct km_answer_part {
    km_answer_kind kind;
    const char *text; /* of the call's end: none */
    size_t bytes;
    int call; /* 0, 1, ...: which one */
} km_answer_part;
typedef void (*km_answer_sink)(void *user, const km_answer_part *part);

enum {
    KM_ANSWER_KEEP_REASONING = 1, /* as text, tags included */
    KM_ANSWER_THINKING = 2        /* the prompt has opened the reasoning already */
};

typedef struct km_answer_parser km_answer_parser;
/* tools: n_tools names of functions, which must outlive the parser; without any, no text is taken for a
 * call. flags: KM_ANSWER_..., or 0. NULL: out of memory, or there is no sink. */
KM_API km_answer_parser *km_answer_parser_new(const char *const *tools, size_t n_tools,
                                              unsigned flags, km_answer_sink sink, void *user);
KM_API void km_answer_parser_free(km_answer_parser *p); /* NULL is fine */
/* The sink may be called, in this thread. */
KM_API km_status km_answer_parser_put(km_answer_parser *p, const char *text, size_t bytes);
/* The text of a special token, which is no text of the answer: taken where it marks something. */
KM_API km_status km_answer_parser_special(km_answer_parser *p, const char *text, size_t bytes);
KM_API km_status km_answer_parser_end(km_answer_parser *p); /* what is held back comes out */
KM_API int km_answer_parser_calls(
    const km_answer_parser *p); /* how many there are so far; -1: no parser */

/* ---- Generation ---- */

typedef struct km_logit_bias {
    int32_t id;
    float add; /* -INFINITY: never */
} km_logit_bias;

/* How the next token is chosen. In this order, each on what the ones before it left, x being logits
 * and p their softmax:
 *
 *     bias              x += bias
 *     repeat penalty    x = x > 0 ? x / r : x r      for tokens among the last ones
 *     frequency         x -= f n                     n: how often among the last ones
 *     presence          x -= q                       where n > 0
 *     DRY               x -= m b^(l - a)             l: length of the repetition, where l >= a
 *     grammar           x = -inf                     where the token may not come
 *     temperature       x = x / T                    0: the likeliest is taken, and no more
 *     mirostat 2        only -log2 p <= mu; then mu -= eta (surprise - tau); in place of these:
 *     top-k             only the k likeliest
 *     typical           those nearest to |-ln p - H| = 0 that together reach the share
 *     top-p (nucleus)   the likeliest that together reach the share
 *     min-p             only p >= share * the likeliest's
 *
 * Draws are made by a counter: the same seed, settings and logits give the same tokens. */
typedef struct km_sampling {
    size_t size;
    double temperature;    /* 0: always the likeliest token */
    int64_t top_k;         /* 0: all */
    double typical;        /* 0 or 1: all */
    double top_p;          /* 1: all */
    double min_p;          /* 0: all */
    double repeat_penalty; /* 0 or 1: none */
    double frequency_penalty, presence_penalty;
    int64_t repeat_last;   /* how many tokens the three look back; -1: all, the prompt included */
    double dry_multiplier; /* 0: off */
    double dry_base;
    int64_t dry_allowed_length;
    int mirostat; /* 0 or 2 */
    double mirostat_tau, mirostat_eta;
    const km_logit_bias *bias; /* n_bias of them */
    size_t n_bias;
    uint64_t seed;
    int64_t reserved[8]; /* 0 */
} km_sampling;
/* Temperature 1, nothing left out, no penalty, seed 1; for what is off: the last 64 tokens, DRY's base
 * 1.75 and length 2, tau 5, eta 0.1. */
KM_API_INLINE km_sampling km_sampling_defaults(void);
KM_API km_status km_sampling_check(const km_sampling *s); /* whether the settings make sense */
/* What the model's file recommends (GGUF's general.sampling.*, generation_config.json), and for the
 * rest what the command does: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05. */
KM_API_INLINE km_sampling km_model_sampling(km_model *m);

typedef enum km_end_reason {
    KM_ENDED_NOT,
    KM_ENDED_TOKENS,   /* max_tokens are there */
    KM_ENDED_TEXT,     /* an end-of-text token, which is not counted */
    KM_ENDED_STOP,     /* one of the texts to stop at */
    KM_ENDED_GRAMMAR,  /* the grammar is at its end */
    KM_ENDED_CONTEXT,  /* the context is full, and is not to be shifted */
    KM_ENDED_CANCELLED /* a callback, km_session_cancel or km_batch_stop */
} km_end_reason;
KM_API const char *km_end_name(km_end_reason end); /* "tokens", "end", "stop", "grammar", "context",
                                                    * "stopped"; "" for KM_ENDED_NOT */

typedef struct km_logprob {
    int32_t id;
    float logprob; /* natural logarithm of the softmax of the model's logits */
} km_logprob;

typedef struct km_piece_event { /* a token, and the text that became whole with it */
    int sequence;               /* in a batch; 0 in a session */
    int32_t id;                 /* -1: no token, only what was held back, or the end */
    const char *text; /* whole UTF-8 characters, maybe none; until the next step or callback */
    size_t bytes;
    float logprob;         /* with logprobs asked for: of the token, */
    const km_logprob *top; /* and of the n_top likeliest, from the first */
    int n_top;
    km_end_reason end; /* other than KM_ENDED_NOT: this is the last event */
    km_status status;  /* of a sequence of a batch that failed; text says why */
} km_piece_event;

typedef struct km_generation {
    size_t size;
    int64_t max_tokens; /* 0: until the context is full; -1: the prompt is read, and no more */
    const char *const *stops; /* n_stops texts at which it ends; they are not given out */
    size_t n_stops;
    const char *grammar; /* GBNF; NULL: any text */
    const char *schema;  /* a JSON schema, "{}": any JSON; NULL: any text */
    bool strict_schema;  /* refuse one with formats that cannot be held to */
    bool past_end;       /* goes on after an end-of-text token */
    bool shift;          /* a full context goes on from its second half */
    bool exact;    /* the text is, bit for bit, that of a session which holds nothing yet: what
                          * was chosen one by one before is read again */
    bool rendered; /* the prompt is a chat template's: special tokens in it are such, nothing is put
                          * before it, and those in the answer are no text */
    int logprobs;  /* -1: none; n: of the chosen token and the n likeliest, up to 1000 */
    const km_adapter
        *adapters; /* n_adapters, up to 8, of those that the model has, by name or path: these
                                 * and no others. What the session or sequence has read with others is
                                 * read again. n_adapters -1, the default: as the session was told, else
                                 * those that are not `off` */
    int64_t n_adapters;
    bool (*on_token)(void *user, const km_piece_event *event);  /* false stops */
    bool (*on_prompt)(void *user, int64_t done, int64_t total); /* tokens read; false stops */
    void *user;
    km_sampling sampling;
} km_generation;
/* With km_model_sampling; m may be NULL. */
KM_API_INLINE km_generation km_generation_defaults(km_model *m);

/* Whether a grammar (GBNF) or a schema (JSON) can be generated by; one of them is NULL. */
KM_API km_status km_grammar_check(const char *grammar, const char *schema, bool strict_schema);

typedef struct km_generated {
    size_t size;                   /* set by the caller: sizeof(km_generated) */
    int64_t prompt_tokens, reused; /* reused: of these, what the session held already */
    int64_t tokens;
    double prompt_seconds, seconds; /* reading the prompt; making the tokens */
    double first_seconds;           /* until the first token was chosen */
    int64_t guessed, accepted;      /* with a draft: tokens guessed, and those that were chosen */
    km_end_reason end;
} km_generated;

/* A session: what a model has read, to go on from. One thread at a time, but for km_session_cancel. */
typedef struct km_session km_session;
KM_API km_session *km_session_new(km_model *m);
KM_API void km_session_free(km_session *s); /* NULL is fine */
/* Another that holds what this one does; pages of the KV cache are shared until one of them goes on. */
KM_API km_session *km_session_fork(km_session *s);
/* The adapters of what the session reads and generates from now on, as in km_generation, which may
 * choose others for itself; n -1: the model's. What was read with others is forgotten. */
KM_API km_status km_session_set_adapters(km_session *s, const km_adapter *adapters, int64_t n);
KM_API km_status km_session_read(km_session *s, const int32_t *ids,
                                 size_t n); /* after those there */
/* Of the token after the last: (vocab), until the session goes on; NULL where there are none. */
KM_API const float *km_session_logits(km_session *s);
KM_API int64_t km_session_length(const km_session *s); /* tokens that it holds; -1: s is NULL */
KM_API const int32_t *km_session_tokens(const km_session *s); /* these, until it goes on */
/* Forgets what comes after the first `length` tokens. */
KM_API km_status km_session_rewind(km_session *s, int64_t length);
KM_API km_status km_session_save(km_session *s, const char *path); /* docs/formats/session.md */
KM_API km_status km_session_restore(km_session *s, const char *path);
/* Ends the generation under way with KM_ENDED_CANCELLED, or km_session_read with KM_ERR_STATE, from any
 * thread: also in the middle of a long prompt, as soon as the layer that is being computed is done.
 * Nothing, if there is none. */
KM_API void km_session_cancel(km_session *s);

/* Reads the prompt, of which the session's beginning is not read again, and goes on with it; what the
 * session held beyond is forgotten. An empty prompt stands for the tokenizer's beginning of text.
 * on_token gets every token; its last call has an end. out may be NULL. */
KM_API km_status km_generate(km_session *s, const char *prompt, size_t bytes,
                             const km_generation *how, km_generated *out);
/* The same for messages, rendered as by km_render_chat; how->rendered is taken as set. */
KM_API km_status km_generate_chat(km_session *s, const char *messages,
                                  const km_render_options *render, const km_generation *how,
                                  km_generated *out);
/* The whole text of a prompt, in a session of its own; km_string_free. NULL on failure. */
KM_API char *km_generate_text(km_model *m, const char *prompt, const km_generation *how);

/* Step by step: begin reads the prompt; each next gives an event until it returns 0. Texts that `how`
 * points to are copied. A session that goes on otherwise drops the generation under way. */
KM_API km_status km_generate_begin(km_session *s, const char *prompt, size_t bytes,
                                   const km_generation *how);
KM_API km_status km_generate_begin_ids(km_session *s, const int32_t *ids, size_t n,
                                       const km_generation *how);
/* 1: an event, the last one with an end; 0: ended before; -1: failed. */
KM_API int km_generate_next(km_session *s, km_piece_event *event);
/* Of the last generation, so far. */
KM_API_INLINE km_generated km_generate_state(const km_session *s);

/* ---- Batches ---- */

/* Many sequences that go on together, a step at a time, with a KV cache of their own: each step is a
 * token of every sequence that runs and a chunk of the prompts that are being read. Sequences join and
 * leave between steps. One thread steps; every other call may come from any thread at any time.
 *
 *     int s = km_batch_join(b);
 *     km_batch_start(b, s, ids, n, &how);
 *     km_piece_event e[8];
 *     for (int n; (n = km_batch_step(b, e, 8)) > 0;)
 *         for (int i = 0; i < n; i++) fwrite(e[i].text, 1, e[i].bytes, stdout); */
typedef struct km_batch km_batch;
typedef struct km_batch_options {
    size_t size;
    int64_t sequences; /* at most so many; 0: 16 */
    int64_t context;   /* of one; 0: the model's */
    size_t memory;     /* of the KV cache, bytes, at most; 0: no limit */
    int64_t chunk;     /* prompt tokens in a step beside tokens that are made; 0: chosen */
} km_batch_options;
KM_API_INLINE km_batch_options km_batch_defaults(void);
KM_API km_batch *km_batch_new(km_model *m, const km_batch_options *options);
KM_API void km_batch_free(km_batch *b); /* NULL is fine */
KM_API int km_batch_join(km_batch *b);  /* an empty sequence; -1: KM_ERR_MEMORY, none is free */
/* A new sequence with the first `length` tokens that another holds (-1: all): pages are shared. */
KM_API int km_batch_fork(km_batch *b, int sequence, int64_t length);
KM_API km_status km_batch_leave(km_batch *b, int sequence); /* what it holds is gone */
/* ids: the whole prompt, of which the beginning that the sequence holds is not read again. how is
 * copied; its callbacks are not called, since events tell. */
KM_API km_status km_batch_start(km_batch *b, int sequence, const int32_t *ids, size_t n,
                                const km_generation *how);
/* It ends, with an event that says KM_ENDED_CANCELLED; what it holds stays for a start or a fork. */
KM_API km_status km_batch_stop(km_batch *b, int sequence);
/* A sequence that runs gives its pages back and waits, for when there are too few of them. Resumed, it
 * reads again what it held and goes on: its text is the one that it would have been. */
KM_API km_status km_batch_pause(km_batch *b, int sequence);
KM_API km_status km_batch_resume(km_batch *b, int sequence);
/* Of a sequence that does not run, the first `length` tokens stay (where a window has left them behind:
 * none); pages that nobody else has are free at once. KM_ERR_STATE while another thread steps. */
KM_API km_status km_batch_rewind(km_batch *b, int sequence, int64_t length);
/* Does what was asked for since the last step, as the next one would, and tells how many pages that one takes
 * at most (without what other threads start meanwhile): so that those who share a cache can make room in
 * time. -1: the call was wrong; KM_ERR_STATE while another thread steps. */
KM_API int64_t km_batch_pages_ahead(km_batch *b);
/* What a sequence that does not run holds, to a file and back (docs/formats/session.md); KM_ERR_STATE
 * while another thread steps. Restoring replaces what it held. */
KM_API km_status km_batch_save(km_batch *b, int sequence, const char *path);
KM_API km_status km_batch_restore(km_batch *b, int sequence, const char *path);
/* The adapters that a sequence that does not run is for, as in km_generation; what it held with others is
 * gone. For km_batch_restore, which refuses what was read with other ones; a start chooses anew. */
KM_API km_status km_batch_set_adapters(km_batch *b, int sequence, const km_adapter *adapters,
                                       int64_t n);
/* One step: how many events were written, at most `most`; the rest comes with the next call. 0: nothing
 * runs; -1: the call was wrong. A sequence that fails has an event with a status, and has ended; the
 * others go on. Texts live until the next step. A step that only reads prompts has one event, of
 * sequence -1, so that 0 means the end. */
KM_API int km_batch_step(km_batch *b, km_piece_event *events, int most);

typedef struct km_batch_state {
    size_t size;
    int64_t sequences, joined, running, reading; /* running: those that read included */
    int64_t page_tokens, pages, pages_free;
    int64_t paused;     /* not among those that run */
    int64_t page_bytes; /* keys and values of a page, in all layers together */
} km_batch_state;
KM_API_INLINE km_batch_state km_batch_describe(km_batch *b);
KM_API int64_t km_batch_length(km_batch *b, int sequence); /* tokens that it holds; -1: none such */
/* Copies at most cap of them; how many there are, or -1. */
KM_API int64_t km_batch_tokens(km_batch *b, int sequence, int32_t *ids, size_t cap);
/* The generation of a sequence, so far. */
KM_API_INLINE km_generated km_batch_generated(km_batch *b, int sequence);

/* ---- How well a model predicts a text ---- */

/* The text, as tokens, is read in windows. Each token of a window is predicted from those before it in
 * the window, and the loss is the mean of -ln p(token) over all predictions; perplexity is exp(loss).
 * Where the tokenizer puts a token before every text, each window begins with it; otherwise a window's
 * first token is not predicted. With a stride shorter than a window, windows overlap and each predicts
 * only what the one before it did not reach, from more that comes before: slower, and nearer to what
 * the model can do. */
typedef struct km_perplexity_options {
    size_t size;
    int64_t context; /* tokens of a window; 0: 512, or the model's context where that is less */
    int64_t stride;  /* tokens from one window's begin to the next's; 0: a window's */
    int64_t windows; /* at most so many; 0: all of the text */
    bool decode;     /* one token at a time through a KV cache, as text is made; else a window at
                      * once, as prompts are read. Other kernels, other roundings. */
    const char *save_logits; /* a file for the predictions (docs/formats/logits.md); or NULL */
    const char *against;     /* such a file: how far the predictions are from it; or NULL */
    const char *imatrix;     /* a file for an importance matrix, which km_convert takes; not with
                              * decode. Nothing else uses the model meanwhile. Or NULL */
    const char *dataset;     /* the text's name, for that file; or NULL */
    /* Told after each window: tokens read, and those to read; false stops with KM_ERR_STATE. */
    bool (*progress)(void *user, int64_t done, int64_t total);
    void *user;
} km_perplexity_options;
KM_API_INLINE km_perplexity_options km_perplexity_defaults(void);

typedef struct km_divergence { /* of these predictions q from those saved p, in nats */
    int64_t tokens;
    double mean, error; /* of KL(p || q) = sum p ln(p / q), and the standard error of the mean */
    double least, median, most;
    double p90, p95, p99, p999; /* percentiles */
    double same_top;            /* share of tokens with the same likeliest token */
    double loss, saved_loss;    /* of this model and of the saved one */
    double rms_p;               /* root mean square difference of the probability of what came */
} km_divergence;

typedef struct km_perplexity_result {
    size_t size;              /* sizeof(km_perplexity_result), set by the caller */
    int64_t tokens;           /* predicted */
    int64_t bytes;            /* of text in these; loss tokens / bytes / ln 2: bits per byte */
    int64_t windows, context; /* read, and the tokens of one */
    double loss;              /* nats per token */
    int imatrix_layers;       /* that the importance matrix knows */
    km_divergence divergence; /* with `against` */
} km_perplexity_result;
/* Files appear only when all went well. A model that ranks share is KM_ERR_UNSUPPORTED. */
KM_API km_status km_perplexity(km_model *m, const char *text, size_t bytes,
                               const km_perplexity_options *options, km_perplexity_result *out);

/* ---- Vectors: compression and search ---- */

typedef enum km_metric {
    KM_METRIC_L2,    /* squared distance: the smaller, the nearer */
    KM_METRIC_IP,    /* inner product: the larger, the nearer; told as its negative */
    KM_METRIC_COSINE /* 1 - cosine of the angle */
} km_metric;

/* An index: every vector as its nearest anchor and a short code of the rest. Any threads may search,
 * add, delete, merge and save at once, each adding one with a context of its own; a search is of one
 * moment and waits for no change, nor a change for searches. Calls return KM_OK, or an error whose text is
 * km_last_error() of the same thread. Vectors are rows of f32; ids are the caller's, or counted. */
typedef struct km_index km_index;

typedef enum km_index_mode {
    KM_INDEX_FAST,        /* the quickest search */
    KM_INDEX_DENSE,       /* the best recall for the bytes; slower to build and to search */
    KM_INDEX_ANCHORS_ONLY /* no codes: all vectors of a cell look the same */
} km_index_mode;

typedef enum km_index_vectors { KM_VECTORS_NONE, KM_VECTORS_F16, KM_VECTORS_INT8 } km_index_vectors;

typedef enum km_robust {
    KM_ROBUST_HUBER,   /* far vectors pull with a bounded force while it is warm */
    KM_ROBUST_TRIMMED, /* they do not pull at all */
    KM_ROBUST_MEAN     /* they pull in full */
} km_robust;

typedef struct km_anchor_round { /* what a round of training did */
    int round;                   /* from 1 */
    double temperature;          /* 0: full steps to plain means */
    double energy, change;       /* change: of the energy since the round before, as a part of it */
    int64_t reassigned;          /* vectors that went to another anchor */
    int64_t merged, split;       /* by maintenance after the round */
    int64_t anchors;             /* after it */
    bool converged; /* the last one, because nothing changes any more, or less than `tolerance` */
} km_anchor_round;

/* How anchors are learnt: k-means whose steps to robust means grow as a temperature falls, with anchors
 * merged and cells split now and then. All zero but the size is a good choice. */
typedef struct km_anchor_training {
    size_t size;
    int rounds; /* at most; 0: 25 */
    km_robust robust;
    double temperature; /* the first, up to 1; 0: 0.5. It is 0 in the second half of the rounds */
    double cooling;     /* what is left of it after each round, below 1; 0: a straight line */
    double momentum;    /* of the last move added to the next while it is warm, below 1 */
    int maintain_every; /* rounds between merging and splitting; 0: chosen, -1: never */
    double merge;       /* anchors whose merging costs less than this part of a mean cell's energy
                                 are merged, up to 1; 0: 1e-9, those that are of no use */
    double split;       /* a cell is split where that gains so many times what the merge that
                                 makes room for it costs, 1 or more; 0: 1.1 */
    double tolerance;   /* stop when a round improves the energy by less than this part; 0: 1e-4,
                                 -1: only when no vector changes its anchor */
    /* Told after each round and its maintenance. NULL: no callback. */
    void (*report)(void *user, const km_anchor_round *round);
    void *user;
} km_anchor_training;
KM_API_INLINE km_anchor_training km_anchor_training_defaults(void);

/* All zero but the size is a good choice: L2, half a byte for each dimension. */
typedef struct km_index_options {
    size_t size;
    km_metric metric;
    km_index_mode mode;
    int64_t anchors; /* 0: chosen from the number of vectors */
    /* How small; at most one of the three is set. */
    double bytes;            /* of a vector's code */
    double ratio;            /* bytes of the vectors over those of the whole index */
    double recall;           /* the smallest code that finds so much of the ten nearest, below 1 */
    const char *queries;     /* a file to measure recall with; NULL: vectors of the set, held out */
    km_index_vectors rerank; /* keeps vectors beside the codes, for exact re-ranking */
    uint64_t seed;
    size_t memory; /* what building from a file may take, in bytes; 0: 2 GiB */
    bool skip_bad; /* leave vectors with NaN or infinity out, instead of refusing them */
    bool lloyd;    /* anchors by plain Lloyd, instead of annealed and maintained ones */
    const km_anchor_training *training; /* NULL: the defaults */
    /* Told from time to time; false stops. NULL: no callback. */
    bool (*progress)(void *user, const char *stage, int64_t done, int64_t total);
    void *user;
    const char
        *comm; /* km_index_compress_from under mpirun: "auto", "mpi" or "nccl" makes the ranks
                       * share the work; NULL: this process alone */
} km_index_options;
KM_API_INLINE km_index_options km_index_defaults(void);

typedef struct km_search_options {
    size_t size;
    int64_t probe;         /* cells looked at; 0: all */
    int64_t rerank;        /* so many candidates are compared again by the kept vectors; 0: none */
    const uint64_t *allow; /* only these ids, ascending; NULL: all */
    size_t n_allow;
    const uint64_t *deny; /* none of these, ascending */
    size_t n_deny;
} km_search_options;
KM_API_INLINE km_search_options km_search_defaults(void);

typedef struct km_index_info {
    size_t size;            /* 0: it failed */
    int64_t count, deleted; /* vectors that can be found, and deleted ones that still take room */
    int64_t dim, anchors;
    km_metric metric;
    km_index_mode mode;
    km_index_vectors rerank;
    km_dtype dtype; /* that the vectors came in */
    uint64_t next_id, seed;
    size_t code_bytes;  /* of a vector */
    double total_bytes; /* of the file, as it would be saved: everything counts */
    double energy;      /* mean squared distance of a vector to its anchor */
    int segments;       /* 1 of a file that was just opened; more of a manifest */
} km_index_info;

#define KM_NO_ID UINT64_MAX /* no vector has it */

/* Vectors in a file, read in blocks as f32, so that a file may be larger than memory: npy, fvecs, bvecs,
 * ivecs, safetensors (one tensor), IDX, and raw numbers. One thread at a time. */
typedef struct km_vectors km_vectors;
typedef struct km_vectors_options {
    size_t size;
    const char *tensor; /* of a safetensors file; NULL: the only one with two axes */
    int64_t dim;        /* of a file without a head; 0: raw numbers are refused */
    km_dtype dtype;     /* of raw numbers */
} km_vectors_options;
KM_API_INLINE km_vectors_options km_vectors_defaults(void);
KM_API km_vectors *km_vectors_open(const char *path, const km_vectors_options *options);
/* An npy file that lies in memory, which must outlive it; name stands for it in errors. */
KM_API km_vectors *km_vectors_open_memory(const void *npy, size_t bytes, const char *name);
KM_API void km_vectors_close(km_vectors *v); /* NULL is fine */
KM_API int64_t km_vectors_count(const km_vectors *v);
KM_API int64_t km_vectors_dim(const km_vectors *v);
KM_API const char *km_vectors_type(const km_vectors *v); /* as stored: "f32", "u8" */
/* Vectors first to first + n - 1: x (n, dim). */
KM_API km_status km_vectors_read(km_vectors *v, int64_t first, int64_t n, float *x);
/* Of a file with one column or one row of whole numbers all n of them, exactly: ids (n). */
KM_API km_status km_vectors_read_ids(km_vectors *v, uint64_t *ids, int64_t n);
/* Writes x (n, dim), or with dim 0 (n), as npy. type: what x holds, "f32", "f16", "i32" or "u64". */
KM_API km_status km_vectors_save(const char *path, const char *type, const void *x, int64_t n,
                                 int64_t dim);
/* Sorts candidates (n, m), numbers of vectors in the file, by their true distance to queries (n, dim) and
 * keeps the k best, k <= m: ids (n, k), distances (n, k). KM_NO_ID ends a list. */
KM_API km_status km_vectors_rerank(km_vectors *v, km_metric metric, const float *queries, int64_t n,
                                   const uint64_t *candidates, int64_t m, int64_t k, uint64_t *ids,
                                   float *distances);

/* Builds an index of x (n, dim) in memory. ids (n) may be NULL: 0, 1, 2, ... NULL on failure. */
KM_API km_index *km_index_build(km_ctx *ctx, const float *x, int64_t n, int64_t dim,
                                const uint64_t *ids, const km_index_options *options);
/* From a file of vectors (npy, fvecs, bvecs, ivecs, idx, safetensors) to an index file, in blocks: the
 * vectors may be more than fit into memory. */
KM_API km_status km_index_compress(km_ctx *ctx, const char *vectors, const char *path,
                                   const km_index_options *options);
typedef struct km_compressed { /* what came out, over all ranks */
    size_t size;               /* sizeof(km_compressed), set by the caller */
    int64_t count, dim, anchors;
    int64_t skipped, first_skipped; /* with skip_bad: how many, and the first one's number; -1 */
    size_t code_bytes;              /* of a vector */
    double bytes;                   /* of all index files */
    double input_bytes;             /* of these vectors as they came */
    double energy, mse; /* mean squared distance to anchors, and to what the codes give back */
    double recall;      /* @10 against all vectors; NaN: not measured */
    double recall_low, recall_high; /* its 95% interval, */
    int64_t recall_queries;         /* of so many queries */
    int rounds;                     /* of training anchors */
    int parts;                      /* index files; 1 without ranks */
    int rank;                       /* of this process */
    bool tells; /* an error: of several ranks, this one should tell it; also set on failure */
} km_compressed;
/* The same of vectors that are open already (raw numbers, one tensor of several), with ids (their number)
 * or NULL: 0, 1, 2, ... With options->comm all ranks of mpirun call: each takes a part of the vectors, path
 * becomes a manifest and the parts stand beside it. done may be NULL. */
KM_API km_status km_index_compress_from(km_ctx *ctx, km_vectors *vectors, const uint64_t *ids,
                                        const char *path, const km_index_options *options,
                                        km_compressed *done);

typedef struct km_anchors_learnt {
    size_t size; /* sizeof(km_anchors_learnt), set by the caller */
    int64_t anchors;
    double energy; /* mean squared distance of a vector to its anchor */
    int rounds;
} km_anchors_learnt;
/* Anchors alone of x (n, dim): `how` tells their number (0: chosen), metric, seed, lloyd, training and
 * progress, and its other settings are not read. anchors: room for that number of rows of dim, of which as
 * many are written as were learnt, perhaps fewer; NULL: only *out is wanted. out may be NULL. */
KM_API km_status km_anchors_learn(km_ctx *ctx, const float *x, int64_t n, int64_t dim,
                                  const km_index_options *how, float *anchors,
                                  km_anchors_learnt *out);

KM_API km_index *km_index_open(
    const char *path);                       /* an index or a manifest, mapped; NULL on failure */
KM_API void km_index_close(km_index *index); /* NULL is fine */
KM_API_INLINE km_index_info km_index_describe(km_index *index);

/* The k nearest of each query (n, dim), best first: ids (n, k) and distances (n, k), as km_metric says
 * them. Where there are fewer than k, KM_NO_ID and infinity. threads: 0 for one per core. */
KM_API km_status km_index_search(km_index *index, const float *queries, int64_t n, int64_t k,
                                 const km_search_options *options, int threads, uint64_t *ids,
                                 float *distances);
/* The same on a context's device. Where that is a GPU, the codes of all vectors are brought there once,
 * in parts where they do not fit, and again after a change; whole batches of queries meet them at the
 * speed of its memory. What a GPU does not do (anchors alone, probes, filters, re-ranking, k beyond 1024)
 * and a context on the CPU are searched by the context's threads: the answers are the same within
 * rounding. One thread at a time, as the context. */
typedef struct km_searcher km_searcher;
KM_API km_searcher *km_searcher_new(km_ctx *ctx, km_index *index); /* both must outlive it */
KM_API void km_searcher_free(km_searcher *s);                      /* NULL is fine */
KM_API km_status km_searcher_search(km_searcher *s, const float *queries, int64_t n, int64_t k,
                                    const km_search_options *options, uint64_t *ids,
                                    float *distances);
KM_API bool km_searcher_on_gpu(const km_searcher *s); /* whether the last search was done there */
KM_API km_status km_index_add(km_ctx *ctx, km_index *index, const float *x, int64_t n,
                              const uint64_t *ids); /* ids as for build, but counted on */
/* All vectors of a file, in blocks. skip_bad: as in km_index_options. *added (may be NULL) tells how many;
 * on failure those of the blocks before it stay added. */
KM_API km_status km_index_add_from(km_ctx *ctx, km_index *index, km_vectors *vectors,
                                   const uint64_t *ids, bool skip_bad, int64_t *added);
/* All of them, or with an id that is not there none. */
KM_API km_status km_index_delete(km_index *index, const uint64_t *ids, int64_t n);
/* Those that are there; *deleted (may be NULL) tells how many. */
KM_API km_status km_index_delete_some(km_index *index, const uint64_t *ids, int64_t n,
                                      int64_t *deleted);
/* All ids, ascending: how many there are, of which at most cap are written (ids may be NULL with cap 0);
 * -1 on failure. */
KM_API int64_t km_index_ids(km_index *index, uint64_t *ids, int64_t cap);
/* The vectors of these ids as the index knows them: x (n, dim). Cosine: scaled to length 1. */
KM_API km_status km_index_decode(km_index *index, const uint64_t *ids, int64_t n, float *x);
typedef struct km_decompress_options {
    size_t size;
    const uint64_t *ids; /* n_ids, whose vectors are written in this order; NULL: all, ascending */
    int64_t n_ids;
    km_dtype dtype;                                            /* KM_F32 or KM_F16 */
    int threads;                                               /* 0: one per core */
    bool (*progress)(void *user, int64_t done, int64_t total); /* false stops; NULL: no callback */
    void *user;
} km_decompress_options;
KM_API_INLINE km_decompress_options km_decompress_defaults(void); /* all, as f32 */
/* The same to an npy file, in blocks: how many vectors were written; -1 on failure. */
KM_API int64_t km_index_decompress(km_index *index, const char *path,
                                   const km_decompress_options *options);
/* The anchors themselves: x (anchors, dim), as km_index_describe tells; and of these ids the anchor that
 * each vector is kept with, a row of x: anchors (n). */
KM_API km_status km_index_anchors(km_index *index, float *x);
KM_API km_status km_index_assignments(km_index *index, const uint64_t *ids, int64_t n,
                                      int32_t *anchors);
/* Adds all of `other`; of other anchors or codes, it is coded anew. shift NULL: its ids must be others.
 * Otherwise they are moved behind all of index, and *shift receives what was added to each. */
KM_API km_status km_index_merge(km_ctx *ctx, km_index *index, km_index *other, uint64_t *shift);
/* Writes beside, flushes, renames. Deleted vectors are dropped with `compact`, or when they are many. */
KM_API km_status km_index_save(km_index *index, const char *path, bool compact);

typedef struct km_measured {
    size_t size; /* sizeof(km_measured), set by the caller */
    int64_t queries, k;
    double recall[3];       /* @1, @10, @100; NaN where there are fewer vectors or k is lower */
    double recall_k;        /* @k */
    double low[4], high[4]; /* 95% intervals of recall[] and, last, recall_k */
    double mse;             /* mean squared distance of a vector to what the index gives back */
    double p50, p95, p99;   /* seconds of one query alone, on one thread */
    double qps;             /* queries a second, all at once on all threads, or on the GPU */
    double exact_qps;       /* of the exact search, reading the vectors included */
} km_measured;
/* How good and how fast an index is: recall@k is the part of the k true neighbours that are among the k
 * found. The truth comes from an exact search, on the context's device, of those of `base` that are in the
 * index, whose numbers are its ids. queries (n, dim). */
KM_API km_status km_index_measure(km_ctx *ctx, km_index *index, km_vectors *base,
                                  const float *queries, int64_t n, int64_t k,
                                  const km_search_options *options, km_measured *out);
typedef struct km_report_options {
    size_t size;
    const char *path;   /* the page to write */
    const char *beside; /* results of bench/peers/vectors.py, whose other engines on data of the
                         * base's name are shown too; NULL: none */
    bool (*progress)(void *user, int done, int total); /* sizes; false stops; NULL: no callback */
    void *user;
} km_report_options;
KM_API_INLINE km_report_options km_report_defaults(void);
/* The same as an HTML page, with recall against size for both kinds of codes on the same vectors, and
 * against speed as more cells are looked at. measured: what km_index_measure said. */
KM_API km_status km_index_report(km_ctx *ctx, km_index *index, km_vectors *base,
                                 const float *queries, int64_t n, const km_measured *measured,
                                 const km_report_options *options);

/* ---- Files of every kind: conversion and description ---- */

typedef struct km_convert_options {
    size_t size;
    const char
        *type; /* f32, f16, bf16; into GGUF also q8_0, q4_k_m, ... (km_convert_type); NULL: as
                            * stored. GGUF keeps norms, biases and positions in f32. */
    const char
        *imatrix; /* with types of a few bits: a file that says which weights matter; or NULL */
    const char *tokenizer; /* a tokenizer.json or GGUF; NULL: the model's own */
    bool no_tokenizer;     /* leave it out */
    bool replace;          /* what is at `out` already; else that is KM_ERR_STATE */
    int threads;           /* 0: one per core; the result does not depend on it */
    void (*progress)(void *user, uint64_t done, uint64_t total); /* bytes; NULL: no callback */
    void *user;
} km_convert_options;
KM_API_INLINE km_convert_options km_convert_defaults(void);
KM_API const char *km_convert_type(int i); /* the names of types, one by one; NULL after the last */
/* The type that a name means, in any case, "q4_k" being "q4_k_m"; NULL: none. */
KM_API const char *km_convert_type_named(const char *name);

typedef struct km_converted {
    size_t size; /* sizeof(km_converted), set by the caller */
    bool from_gguf, to_gguf;
    const char *architecture; /* "llama" */
    const char *in; /* the folder or file that was read; until this thread's next conversion */
    int tensors;
    uint64_t parameters, bytes; /* of tensors written */
    int64_t tokens;             /* of the tokenizer that was written; 0: none */
    int unweighed;              /* matrices that the importance matrix does not know */
} km_converted;
/* A model from one format into another, little memory needed. in: a Hugging Face folder, a checkpoint or
 * run of km_train, or a GGUF file; out: a GGUF file when its name ends in .gguf, a Hugging Face folder
 * otherwise. out changes only when all of the new one is on disk. done may be NULL. */
KM_API km_status km_convert(const char *in, const char *out, const km_convert_options *options,
                            km_converted *done);

typedef struct km_describe_options {
    size_t size;
    bool tensors;    /* list them all */
    bool verify;     /* check every block of an index */
    int64_t context; /* tokens, for the memory that a model's cache takes; 0: its own */
    km_dtype cache;  /* of its keys and values */
} km_describe_options;
KM_API_INLINE km_describe_options km_describe_defaults(void); /* a cache of f16, and nothing else */
/* What any file or folder that Kermes knows is and holds, as a JSON object, after checking its structure:
 * GGUF, safetensors, tokenizer.json, config.json, Hugging Face folders, checkpoints and runs, vectors and
 * indexes. km_string_free; NULL on failure. */
KM_API char *km_describe_file(const char *path, const km_describe_options *options);

/* ---- Structs by value, safe to grow ---- */

/* The calls marked KM_API_INLINE are made of these: NAME_sized(..., &out, sizeof out). The library writes at
 * most `size` bytes and sets out->size to that, so that a program compiled when the struct was smaller
 * gets what it knows of. A size below sizeof(size_t) is KM_ERR_RANGE; so is one beyond this library's, which is
 * older than the program then: *out is zero, and its size of 0 makes the call that gets it fail. Languages
 * without C's inline functions call these.
 * X(struct, call): the defaults of options. */
#define KM_SIZED_LIST(X)                                                                           \
    X(km_sgd, km_sgd_defaults)                                                                     \
    X(km_adamw, km_adamw_defaults)                                                                 \
    X(km_train_settings, km_train_defaults)                                                        \
    X(km_optim_settings, km_optim_defaults)                                                        \
    X(km_model_options, km_model_defaults)                                                         \
    X(km_tokenizer_options, km_tokenizer_defaults)                                                 \
    X(km_render_options, km_render_defaults)                                                       \
    X(km_embed_options, km_embed_defaults)                                                         \
    X(km_sampling, km_sampling_defaults)                                                           \
    X(km_batch_options, km_batch_defaults)                                                         \
    X(km_perplexity_options, km_perplexity_defaults)                                               \
    X(km_anchor_training, km_anchor_training_defaults)                                             \
    X(km_index_options, km_index_defaults)                                                         \
    X(km_search_options, km_search_defaults)                                                       \
    X(km_vectors_options, km_vectors_defaults)                                                     \
    X(km_decompress_options, km_decompress_defaults)                                               \
    X(km_report_options, km_report_defaults)                                                       \
    X(km_convert_options, km_convert_defaults)                                                     \
    X(km_describe_options, km_describe_defaults)
/* X(struct, call, object): what is told of an object. */
#define KM_SIZED_OF_LIST(X)                                                                        \
    X(km_stats, km_ctx_stats, const km_ctx *)                                                      \
    X(km_model_info, km_model_describe, km_model *)                                                \
    X(km_tokenizer_info, km_tokenizer_describe, const km_tokenizer *)                              \
    X(km_sampling, km_model_sampling, km_model *)                                                  \
    X(km_generation, km_generation_defaults, km_model *)                                           \
    X(km_generated, km_generate_state, const km_session *)                                         \
    X(km_batch_state, km_batch_describe, km_batch *)                                               \
    X(km_index_info, km_index_describe, km_index *)

#define KM_SIZED_CALL(type, name)                                                                  \
    KM_API km_status name##_sized(type *out, size_t size);                                         \
    KM_API_INLINE type name(void) {                                                                \
        type out;                                                                                  \
        name##_sized(&out, sizeof out);                                                            \
        return out;                                                                                \
    }
#define KM_SIZED_OF_CALL(type, name, object)                                                       \
    KM_API km_status name##_sized(object of, type *out, size_t size);                              \
    KM_API_INLINE type name(object of) {                                                           \
        type out;                                                                                  \
        name##_sized(of, &out, sizeof out);                                                        \
        return out;                                                                                \
    }
KM_SIZED_LIST(KM_SIZED_CALL)
KM_SIZED_OF_LIST(KM_SIZED_OF_CALL) /* and of one sequence of a batch: */
KM_API km_status km_batch_generated_sized(km_batch *b, int sequence, km_generated *out,
                                          size_t size);
KM_API_INLINE km_generated km_batch_generated(km_batch *b, int sequence) {
    km_generated out;
    km_batch_generated_sized(b, sequence, &out, sizeof out);
    return out;
}

#ifdef __cplusplus
}
#include <initializer_list>
inline km_shape km_make_shape(std::initializer_list<int64_t> dims) {
    km_shape s = {};
    for (int64_t d : dims) {
        if (s.ndim < KM_MAX_DIMS) s.dim[s.ndim] = d;
        s.ndim++;
    }
    return s;
}
#endif

#endif
