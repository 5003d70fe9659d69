/* Ctrl-C in a conversation: at the prompt it drops the line that is typed, later it stops the
 * answer. */
#ifndef KM_CLI_INTERRUPT_H
#define KM_CLI_INTERRUPT_H
#include <stdbool.h>
#include <sys/types.h>

/* From now on it drops the line (reading), which also forgets an earlier one; or else it stops the
 * answer, and one more, before that has happened, ends the program. */
void km_interrupts_catch(bool reading);
void km_interrupts_leave(void); /* it ends the program again */

bool km_interrupted(void);

/* As read(2) on the terminal at standard input; -1 with errno EINTR when Ctrl-C came first or
 * before. */
ssize_t km_read_typed(void *out, size_t bytes);

#endif
