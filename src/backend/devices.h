/* The memory of the machine itself, beside the devices of kermes.h. */
#ifndef KM_BACKEND_DEVICES_H
#define KM_BACKEND_DEVICES_H

typedef struct km_host_memory {
    double total, available; /* bytes; NaN where unknown */
} km_host_memory;
km_host_memory km_host_memory_get(void);

#endif
