/* Hand-written scanners, found by the text of the pattern they stand for. */
#include "token/scan.h"

km_scan_fn km_scan_for(const char *pattern, size_t n) {
    (void)pattern, (void)n;
    return 0;
}
