/* Word wrap for text that appears bit by bit on a terminal: a word is held back until it is known to
 * fit on its line. Lines of code (between ``` fences) are left as they are, so that they can be
 * copied. */
#ifndef KM_CLI_WORD_WRAP_H
#define KM_CLI_WORD_WRAP_H
#include <stdbool.h>
#include <stddef.h>

typedef struct km_word_wrap {
    int width;  /* columns; 0: no wrapping */
    int column; /* where the next character goes */
    char word[512];
    size_t held;    /* bytes of the word that is not shown yet */
    int held_width; /* its columns */
    int blanks;     /* columns of blanks before it */
    int ticks;      /* backticks at the beginning of this line; -1: it began otherwise */
    bool code;
    bool flows;                                  /* this word is shown as it comes */
    bool (*put)(const char *text, size_t bytes); /* where it goes; false: that failed */
} km_word_wrap;

/* Columns of the terminal at fd; 0: it is none, or does not say. */
int km_word_wrap_width(int fd);
bool km_word_wrap_put(km_word_wrap *w, const char *text,
                      size_t bytes);    /* whole characters of UTF-8 */
bool km_word_wrap_end(km_word_wrap *w); /* shows what was held back */

#endif
