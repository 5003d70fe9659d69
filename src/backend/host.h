/* Memory operations shared by the devices that live in ordinary memory: ref and cpu. */
#ifndef KM_BACKEND_HOST_H
#define KM_BACKEND_HOST_H
#include "tensor/device.h"

extern const km_device_ops km_host_ops;

#endif
