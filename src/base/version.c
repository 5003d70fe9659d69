/* The version of the library that is running, which need not be that of the header a
 * program was compiled with. */
#include "kermes.h"

const char *km_version(void) { return KM_VERSION; }
