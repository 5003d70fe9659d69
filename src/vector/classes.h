/* Classes of rows: data of many kinds is no Gaussian cloud but a union of them, each with principal
 * axes of its own. Rows are put into a few classes by k-means and then, in turns, each class gets its
 * axes and its shares of the bits, and each row goes to the class that codes it with the least error.
 * A code says its row's class. */
#ifndef KM_VECTOR_CLASSES_H
#define KM_VECTOR_CLASSES_H
#include "vector/coder_impl.h"

/* Fills c->axes of c->classes classes from u (n, dim), rows of squared norm dim; all other fields of c
 * that its codes depend on are set. */
km_status km_classes_learn(km_coder *c, km_threads *t, const float *u, int64_t n);

#endif
