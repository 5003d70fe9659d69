/* Where names that leave the choice open (auto, gpu, metal) look for a GPU: CUDA first, then Vulkan.
 * Tests put their own in place of it. */
#ifndef KM_BACKEND_FINDERS_H
#define KM_BACKEND_FINDERS_H
#include "backend/backend.h"

typedef struct km_device_finders {
    km_device *(*cuda)(km_error *err);   /* the best one; NULL with the error set */
    bool (*vulkan_likely)(void);         /* whether to ask Vulkan's loader at all */
    km_device *(*vulkan)(km_error *err); /* the first that is no software */
} km_device_finders;

void km_device_finders_set(const km_device_finders *f); /* NULL: the real ones */

#endif
