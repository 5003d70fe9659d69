/* Checking and writing UTF-8. */
#include "base/utf8.h"
#include <string.h>

int km_utf8_write(char out[4], uint32_t cp) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

size_t km_utf8_valid(const char *s, size_t n) {
    size_t i = 0;
    while (i < n) {
        uint64_t eight;
        /* Most text is mostly ASCII: eight bytes at a time. */
        while (n - i >= 8 && (memcpy(&eight, s + i, 8), (eight & 0x8080808080808080u) == 0)) i += 8;
        if (i == n) break;
        uint32_t cp;
        int length = km_utf8_read(s + i, n - i, &cp);
        if (length == 0) break;
        i += (size_t)length;
    }
    return i;
}

size_t km_utf8_invalid(const char *s, size_t n) {
    size_t i = 0;
    uint32_t cp;
    while (i < n && km_utf8_read(s + i, n - i, &cp) == 0) i++;
    return i;
}

/* Whether a valid character starts with these n < 4 bytes and needs more. */
static bool is_beginning(const unsigned char *s, size_t n) {
    size_t length = s[0] < 0xC2 || s[0] > 0xF4 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    if (length <= n) return false;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xC0) != 0x80) return false;
    if (n == 1) return true;
    /* Second bytes that would make an overlong form, a surrogate or a number too large. */
    return !((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) ||
             (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F));
}

size_t km_utf8_tail(const char *s, size_t n) {
    for (size_t back = n < 3 ? n : 3; back > 0; back--)
        if (is_beginning((const unsigned char *)s + n - back, back)) return back;
    return 0;
}
