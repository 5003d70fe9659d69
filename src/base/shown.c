/* Names for error messages: one line, valid UTF-8, of bounded length, whatever the file holds. */
#include "base/shown.h"
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The length of the valid UTF-8 character at s, or 0. */
static size_t character(const uint8_t *s, size_t n) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (s[0] < 0x80) return 1;
    size_t want = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || n < want) return 0;
    uint32_t c = s[0] & (0x7fu >> want);
    for (size_t i = 1; i < want; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (s[i] & 0x3fu);
    }
    bool surrogate = c >= 0xd800 && c < 0xe000;
    return c >= least[want] && c <= 0x10ffff && !surrogate ? want : 0;
}

/* C0, DEL and C1 controls would move the cursor or break the line. */
static bool is_control(const uint8_t *s, size_t length) {
    return s[0] < 0x20 || s[0] == 0x7f || (length == 2 && s[0] == 0xc2 && s[1] < 0xa0);
}

const char *km_shown_bytes(char out[KM_SHOWN], const char *s, size_t n) {
    const uint8_t *p = (const uint8_t *)s;
    size_t to = 0;
    for (size_t i = 0; i < n;) {
        size_t length = character(p + i, n - i);
        bool plain = length > 0 && !is_control(p + i, length);
        if (to + 4 > KM_SHOWN - 4) {
            memcpy(out + to, "...", 3);
            to += 3;
            break;
        }
        if (plain) {
            memcpy(out + to, p + i, length);
            to += length;
        } else {
            out[to++] = '?';
        }
        i += length ? length : 1;
    }
    out[to] = 0;
    return out;
}

const char *km_shown(char out[KM_SHOWN], const char *s) {
    return km_shown_bytes(out, s, strlen(s));
}
