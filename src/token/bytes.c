/* GPT-2's alphabet of 256 characters, one for each byte: the printable characters of Latin-1 stand
 * for themselves, the others, in order, for U+0100 and up. Tokenizer files are written in it. */
#include "token/internal.h"
#include "base/utf8.h"
#include <string.h>

/* Ranges that stand for themselves: 0x21-0x7E, 0xA1-0xAC, 0xAE-0xFF. The others: 0x00-0x20 ->
 * U+0100..., 0x7F-0xA0 -> U+0121..., 0xAD -> U+0143. */
#define SELF4(b) (b), (b) + 1, (b) + 2, (b) + 3
#define SELF16(b) SELF4(b), SELF4((b) + 4), SELF4((b) + 8), SELF4((b) + 12)

const uint16_t km_byte_char[256] = {
    SELF16(0x100), SELF16(0x110), 0x120,         0x21,          0x22,         0x23,
    SELF4(0x24),   SELF4(0x28),   SELF4(0x2C),   SELF16(0x30),  SELF16(0x40), SELF16(0x50),
    SELF16(0x60),  SELF4(0x70),   SELF4(0x74),   SELF4(0x78),   0x7C,         0x7D,
    0x7E,          0x121,         SELF16(0x122), SELF16(0x132), 0x142,        0xA1,
    0xA2,          0xA3,          SELF4(0xA4),   SELF4(0xA8),   0xAC,         0x143,
    0xAE,          0xAF,          SELF16(0xB0),  SELF16(0xC0),  SELF16(0xD0), SELF16(0xE0),
    SELF16(0xF0)};

const uint8_t km_byte_order[256] = {
    0x21,         0x22,         0x23,         SELF4(0x24),  SELF4(0x28),  SELF4(0x2C),
    SELF16(0x30), SELF16(0x40), SELF16(0x50), SELF16(0x60), SELF4(0x70),  SELF4(0x74),
    SELF4(0x78),  0x7C,         0x7D,         0x7E,         0xA1,         0xA2,
    0xA3,         SELF4(0xA4),  SELF4(0xA8),  0xAC,         0xAE,         0xAF,
    SELF16(0xB0), SELF16(0xC0), SELF16(0xD0), SELF16(0xE0), SELF16(0xF0), SELF16(0x00),
    SELF16(0x10), 0x20,         0x7F,         SELF16(0x80), SELF16(0x90), 0xA0,
    0xAD};

int km_char_byte(uint32_t cp) {
    if (cp >= 0x100) {
        if (cp <= 0x120) return (int)cp - 0x100;
        if (cp <= 0x142) return (int)cp - 0x121 + 0x7F;
        return cp == 0x143 ? 0xAD : -1;
    }
    return cp <= 0x20 || (cp >= 0x7F && cp <= 0xA0) || cp == 0xAD ? -1 : (int)cp;
}

size_t km_bytes_from_alphabet(const char *text, size_t n, char *out) {
    size_t made = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int length = km_utf8_read(text + i, n - i, &cp);
        int byte = length ? km_char_byte(cp) : -1;
        if (byte < 0) return SIZE_MAX;
        out[made++] = (char)byte;
        i += (size_t)length;
    }
    return made;
}

int km_byte_token(const char *text, size_t n) {
    unsigned value = 0;
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    for (int i = 3; i < 5; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return -1;
        value = value * 16 + (unsigned)digit;
    }
    return (int)value;
}
