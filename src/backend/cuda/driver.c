/* Opening the driver: find the library, resolve every function, start it, look at its version.
 * Whatever goes wrong becomes one line that says what to do about it. */
#include "backend/cuda/driver.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static km_cu_api api;
static bool is_open;
static int version;
static void *library;
static void *(*symbols)(const char *symbol); /* a test's, in place of the library */

const km_cu_api *km_cuda_api(void) { return &api; }
int km_cuda_driver_version(void) { return version; }

/* ---- Errors ---- */

const char *km_cuda_error_text(km_cu_result code, char *buf, size_t size) {
    const char *name = NULL, *text = NULL;
    if (api.error_name) api.error_name(code, &name);
    if (api.error_text) api.error_text(code, &text);
    if (text && name)
        snprintf(buf, size, "%s (%s)", text, name);
    else
        snprintf(buf, size, "error %d", code);
    return buf;
}

bool km_cuda_is_fatal(km_cu_result code) {
    switch (code) {
    case KM_CU_DEVICE_UNAVAILABLE:
    case KM_CU_ECC_UNCORRECTABLE:
    case KM_CU_NVLINK_UNCORRECTABLE:
    case KM_CU_CONTAINED:
    case KM_CU_ILLEGAL_ADDRESS:
    case KM_CU_LAUNCH_TIMEOUT:
    case KM_CU_CONTEXT_DESTROYED:
    case KM_CU_ASSERT:
    case KM_CU_UNKNOWN: return true;
    default: return code >= KM_CU_HARDWARE_STACK && code <= KM_CU_LAUNCH_FAILED;
    }
}

/* ---- Fault injection ---- */

bool km_cuda_fault_armed;
km_cu_result km_cuda_fault_code;
static char fault_call[32];
static int64_t fault_in;

void km_cuda_fault(const char *call, int64_t nth, km_cu_result code) {
    snprintf(fault_call, sizeof fault_call, "%s", call ? call : "*");
    fault_in = nth;
    km_cuda_fault_code = code;
    km_cuda_fault_armed = nth >= 0;
}

bool km_cuda_fault_now(const char *call) {
    if (strcmp(fault_call, "*") != 0 && strncmp(fault_call, call, strlen(fault_call)) != 0)
        return false;
    if (fault_in-- > 0) return false;
    km_cuda_fault_armed = false;
    return true;
}

static void fault_from_environment(void) {
    const char *s = getenv("KERMES_FAULT_GPU");
    char call[32];
    long long nth = 0;
    int code = KM_CU_LAUNCH_FAILED;
    if (s && sscanf(s, "%31[^:]:%lld:%d", call, &nth, &code) >= 2) km_cuda_fault(call, nth, code);
}

/* ---- Opening ---- */

static bool open_library(km_error *err) {
    static const char *const places[] = {"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1",
                                         "/usr/local/nvidia/lib64/libcuda.so.1",
                                         "/run/opengl-driver/lib/libcuda.so.1"};
    const char *mine = getenv("KERMES_LIBCUDA");
    if (symbols) return true;
    if (mine && *mine) {
        library = dlopen(mine, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            const char *why = dlerror();
            km_error_set(err, KM_ERR_DEVICE, "no NVIDIA driver: KERMES_LIBCUDA names %s: %s", mine,
                         why ? why : "cannot be opened");
        }
        return library != NULL;
    }
    for (size_t i = 0; i < sizeof places / sizeof *places && !library; i++)
        library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        km_error_set(err, KM_ERR_DEVICE,
                     "no NVIDIA driver here: libcuda.so.1 was not found (install the driver, or "
                     "name the library in KERMES_LIBCUDA)");
    return library != NULL;
}

static void *find(const char *symbol) { return symbols ? symbols(symbol) : dlsym(library, symbol); }

/* Stores through memcpy: ISO C has no cast between object and function pointers. */
static bool resolve(km_error *err) {
    const char *missing = NULL;
    void *p;
#define NEED(name, symbol, params)                                                                 \
    p = find(symbol);                                                                              \
    if (!p && !missing) missing = symbol;                                                          \
    memcpy(&api.name, &p, sizeof p);
#define MAY(name, symbol, params)                                                                  \
    p = find(symbol);                                                                              \
    memcpy(&api.name, &p, sizeof p);
    KM_CU_NEEDED(NEED)
    KM_CU_OPTIONAL(MAY)
#undef NEED
#undef MAY
    if (!missing) return true;
    int have = 0;
    if (api.driver_version && api.driver_version(&have) == KM_CU_OK)
        km_error_set(err, KM_ERR_DEVICE,
                     "the NVIDIA driver is too old: it offers CUDA %d.%d and lacks %s; CUDA %d.%d "
                     "or newer is needed",
                     have / 1000, have % 1000 / 10, missing, KM_CUDA_OLDEST_DRIVER / 1000,
                     KM_CUDA_OLDEST_DRIVER % 1000 / 10);
    else
        km_error_set(err, KM_ERR_DEVICE, "the NVIDIA driver library lacks %s; is it the driver's?",
                     missing);
    return false;
}

static bool start(km_error *err) {
    char text[200];
    int have = 0;
    km_cu_result r = api.driver_version(&have);
    if (r == KM_CU_OK && have < KM_CUDA_OLDEST_DRIVER) {
        km_error_set(err, KM_ERR_DEVICE,
                     "the NVIDIA driver is too old: it offers CUDA %d.%d, and CUDA %d.%d or newer "
                     "is needed; update the driver",
                     have / 1000, have % 1000 / 10, KM_CUDA_OLDEST_DRIVER / 1000,
                     KM_CUDA_OLDEST_DRIVER % 1000 / 10);
        return false;
    }
    if (r == KM_CU_OK)
        r = km_cuda_fault_armed && km_cuda_fault_now("init") ? km_cuda_fault_code : api.init(0);
    version = have;
    if (r == KM_CU_OK) return true;
    const char *hint = "";
    if (r == KM_CU_NO_DEVICE)
        hint = ": the driver is there, but no NVIDIA GPU";
    else if (r == KM_CU_STUB_LIBRARY)
        hint = ": this libcuda is the toolkit's stub, not a driver";
    else if (r == KM_CU_DRIVER_MISMATCH)
        hint = ": the library and the kernel module differ; reboot";
    else if (r == KM_CU_UNKNOWN)
        hint = ": is the nvidia kernel module loaded, /dev/nvidia* there?";
    km_error_set(err, KM_ERR_DEVICE, "the NVIDIA driver does not start%s: %s", hint,
                 km_cuda_error_text(r, text, sizeof text));
    return false;
}

static void close_driver(void) {
    api = (km_cu_api){0};
    version = 0;
    is_open = false;
    if (library) dlclose(library);
    library = NULL;
}

const km_cu_api *km_cuda_driver(km_error *err) {
    pthread_mutex_lock(&lock);
    if (!is_open) {
        fault_from_environment();
        is_open = open_library(err) && resolve(err) && start(err);
        if (!is_open) close_driver();
    }
    bool ok = is_open;
    pthread_mutex_unlock(&lock);
    return ok ? &api : NULL;
}

void km_cuda_use_symbols(void *(*lookup)(const char *symbol)) {
    pthread_mutex_lock(&lock);
    close_driver();
    symbols = lookup;
    pthread_mutex_unlock(&lock);
}
