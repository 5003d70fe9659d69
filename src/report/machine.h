/* What this machine has to compute with, as JSON: for the devices command, and for reports. */
#ifndef KM_REPORT_MACHINE_H
#define KM_REPORT_MACHINE_H
#include "backend/devices.h"
#include <jansson.h>

json_t *km_machine_json(void); /* CPU, cores, kernel set, BLAS, memory */

#endif
