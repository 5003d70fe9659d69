/* A model's weights as Hugging Face stores them, for checkpoints and exports. */
#ifndef KM_TRAIN_WEIGHTS_H
#define KM_TRAIN_WEIGHTS_H
#include "model/model.h"

/* Conv1D matrices transposed, rows of padding left out. merged: corrections (LoRA) are added to
 * the weights they correct; otherwise they stand beside them. */
km_status km_weights_save(const char *path, km_model *m, bool merged, km_error *err);
/* Fills every parameter, in the model's dtype; one that is missing or of another shape or dtype is
 * an error. */
km_status km_weights_load(const char *path, km_model *m, km_error *err);

#endif
