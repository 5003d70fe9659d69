/* Characters as Python sees them: what is space, and where a text begins and ends without it. */
#ifndef KM_TEXT_JINJA_CHARS_H
#define KM_TEXT_JINJA_CHARS_H
#include "base/utf8.h"

static inline bool km_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

/* The bytes of the space character at s (n > 0 bytes are there); 0 when it is none. */
static inline size_t km_space_length(const char *s, size_t n) {
    uint32_t c;
    int length = km_utf8_read(s, n, &c);
    return length && km_is_space(c) ? (size_t)length : 0;
}

/* How many bytes of valid text s are left when the space at its end goes. */
static inline size_t km_trim_end(const char *s, size_t n) {
    while (n > 0) {
        size_t first = n - 1;
        while (first > 0 && km_utf8_continues(s[first])) first--;
        if (!km_space_length(s + first, n - first)) break;
        n = first;
    }
    return n;
}

/* How many bytes at the beginning of s are space. */
static inline size_t km_leading_space(const char *s, size_t n) {
    size_t i = 0, length;
    while (i < n && (length = km_space_length(s + i, n - i)) > 0) i += length;
    return i;
}

#endif
