/* The same tests for the pool as it is built where there is no futex: the pool's source is
 * compiled here with its condition variable instead, and takes the library's place. */
#define KM_NO_FUTEX 1
#include "base/threads.c"
#include "test_threads.c"
