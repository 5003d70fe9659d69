/* What the model writes while it learns. */
#include "train/trainer.h"

km_status km_trainer_sample(km_trainer *t) {
    (void)t;
    return KM_OK;
}
