/* The sanitizers' checks of 32 and 64 bytes read or written at once, which vector kernels do at every step.
 * libasan and libtsan walk through all of these bytes in a general way: that took more than half of the
 * time of all sanitized tests that calculate. These are local to our library, where they are found first.
 * Compiled without a sanitizer, for x86-64 Linux. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LOCAL __attribute__((visibility("hidden")))

#ifdef KERMES_ADDRESSES
/* The shadow of up to 64 bytes is one word, zero if all of them may be used (one shadow byte stands for
 * eight, from a fixed place on). What is not plainly good is left to libasan. */
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

LOCAL void __asan_loadN(uintptr_t address, uintptr_t size) {
    if (!good(address, size)) __asan_report_load_n(address, size);
}

LOCAL void __asan_storeN(uintptr_t address, uintptr_t size) {
    if (!good(address, size)) __asan_report_store_n(address, size);
}

#else
/* Of a vector, the first and the last eight bytes that are aligned: threads that share an array by mistake
 * share whole vectors or the ends of their parts. Of fewer bytes, such as a number that is not aligned, each. */
void __tsan_read1(const void *address);
void __tsan_read8(const void *address);
void __tsan_write1(void *address);
void __tsan_write8(void *address);

enum { WORD = 8 };
static inline char *first_word(char *address) {
    return address + (WORD - (uintptr_t)address % WORD) % WORD;
}
static inline char *last_word(char *end) { return end - (uintptr_t)end % WORD - WORD; }

LOCAL void __tsan_read_range(char *address, size_t size) {
    if (size < 2 * WORD) {
        for (size_t i = 0; i < size; i++) __tsan_read1(address + i);
        return;
    }
    __tsan_read8(first_word(address));
    __tsan_read8(last_word(address + size));
}

LOCAL void __tsan_write_range(char *address, size_t size) {
    if (size < 2 * WORD) {
        for (size_t i = 0; i < size; i++) __tsan_write1(address + i);
        return;
    }
    __tsan_write8(first_word(address));
    __tsan_write8(last_word(address + size));
}
#endif
