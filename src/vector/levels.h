/* The levels that round a standard normal number with the least squared error (Lloyd 1957, Max
 * 1960): 2^bits of them, sorted, each the mean of what is rounded to it. */
#ifndef KM_VECTOR_LEVELS_H
#define KM_VECTOR_LEVELS_H

#define KM_LEVEL_BITS 8

/* levels (2^bits), bits from 0 to KM_LEVEL_BITS. Returns the error E (x - level)^2. */
double km_levels(int bits, float *levels);

/* The level nearest to x: its index. */
int km_level_of(int bits, const float *levels, float x);

/* A level told by the `lead` highest bits of its index alone: weight (lead) is what each of them adds
 * to or, when it is 0, takes from the best such estimate e of x. *along = E x e, *square = E e^2. */
void km_level_planes(int bits, const float *levels, int lead, float *weight, double *along,
                     double *square);
/* The same two of the estimate that adds and takes given weights. */
void km_level_estimate(int bits, const float *levels, int lead, const float *weight, double *along,
                       double *square);

#endif
