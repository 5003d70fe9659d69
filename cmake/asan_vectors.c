/* AddressSanitizer's checks of 32 and 64 bytes read or written at once, which vector kernels do at every
 * step. libasan walks through all of their shadow in a general way, which took half of the time of all
 * sanitized tests that calculate. These, local to our library, look at the shadow of up to 64 bytes as one
 * word, and leave what is not plainly good to libasan. One shadow byte stands for eight bytes: 0 says that
 * all may be used. Compiled without the sanitizer, for x86-64 Linux, where shadows begin at a fixed place. */
#include <stdint.h>
#include <string.h>

enum { SHIFT = 3 };
#define SHADOW UINT64_C(0x7fff8000)

void *__asan_region_is_poisoned(void *begin, uintptr_t size);
void __asan_report_load_n(uintptr_t address, uintptr_t size);
void __asan_report_store_n(uintptr_t address, uintptr_t size);

static inline int good(uintptr_t address, uintptr_t size) {
    uint64_t
        first; /* of 64 bytes from `address` rounded down; the last byte may have one shadow more */
    memcpy(&first, (const void *)((address >> SHIFT) + SHADOW), sizeof first);
    uint8_t last = *(const uint8_t *)(((address + size - 1) >> SHIFT) + SHADOW);
    return (size <= 64 && !first && !last) || !__asan_region_is_poisoned((void *)address, size);
}

__attribute__((visibility("hidden"))) void __asan_loadN(uintptr_t address, uintptr_t size) {
    if (!good(address, size)) __asan_report_load_n(address, size);
}

__attribute__((visibility("hidden"))) void __asan_storeN(uintptr_t address, uintptr_t size) {
    if (!good(address, size)) __asan_report_store_n(address, size);
}
