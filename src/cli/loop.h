/* Loops: small models sometimes say the same piece of text for ever. The detector follows a text as
 * it is made and tells when its end is one piece over and over, so often that no table and no
 * refrain is: 60 times for a short piece, fewer for longer ones, and at least 400 bytes in all. */
#ifndef KM_CLI_LOOP_H
#define KM_CLI_LOOP_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KM_LOOP_PERIOD = 1024 }; /* the longest piece, in bytes */

typedef struct km_loop { /* all-zero is the beginning of a text */
    char last[KM_LOOP_PERIOD];
    uint32_t run[KM_LOOP_PERIOD + 1]; /* for how many bytes s[i] == s[i - period] has held */
    uint64_t seen;
    size_t period; /* of the loop; 0: there is none so far */
} km_loop;

/* Takes in more of the text; whether it is a loop by now. */
bool km_loop_put(km_loop *l, const char *text, size_t bytes);
/* How much of a text of `bytes` to keep so that the piece stands there once. */
size_t km_loop_keep(const km_loop *l, size_t bytes);

#endif
