/* UTF-8 by the letter of the standard: no overlong forms, no surrogates, nothing above U+10FFFF.
 * Text comes from anywhere, so it is cut into runs that are valid and runs that are not before
 * anything else looks at it. */
#ifndef KM_BASE_UTF8_H
#define KM_BASE_UTF8_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The length of the valid character at s (n > 0 bytes are there), its code point in *cp; 0 when
 * there is none. */
static inline int km_utf8_read(const char *text, size_t n, uint32_t *cp) {
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) {
        *cp = s[0];
        return 1;
    }
    if (s[0] < 0xC2 || s[0] > 0xF4) return 0;
    if (n < 2 || (s[1] & 0xC0) != 0x80) return 0;
    if (s[0] < 0xE0) {
        *cp = (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3F);
        return 2;
    }
    if (n < 3 || (s[2] & 0xC0) != 0x80) return 0;
    if (s[0] < 0xF0) {
        *cp = (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (s[2] & 0x3F);
        return *cp < 0x800 || (*cp >= 0xD800 && *cp < 0xE000) ? 0 : 3;
    }
    if (n < 4 || (s[3] & 0xC0) != 0x80) return 0;
    *cp = (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 |
          (uint32_t)(s[2] & 0x3F) << 6 | (s[3] & 0x3F);
    return *cp < 0x10000 || *cp > 0x10FFFF ? 0 : 4;
}

/* The length of a character by its first byte, in text known to be valid. */
static inline int km_utf8_length(char first) {
    unsigned char c = (unsigned char)first;
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

/* Whether the byte continues a character: no border between characters is in front of it. */
static inline bool km_utf8_continues(char c) { return ((unsigned char)c & 0xC0) == 0x80; }

int km_utf8_write(char out[4], uint32_t cp); /* its length; cp must be a valid code point */

/* How many bytes from the start of s are valid UTF-8, up to n. */
size_t km_utf8_valid(const char *s, size_t n);
/* How many bytes from the start belong to no valid character, up to n; at least 1 when n > 0 and
 * s does not start with one. */
size_t km_utf8_invalid(const char *s, size_t n);

/* Of a text that may be cut anywhere: how many of its last bytes are the beginning of a character
 * that could still become valid, 0 to 3. */
size_t km_utf8_tail(const char *s, size_t n);

#endif
