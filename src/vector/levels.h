/* The levels that round a standard normal number with the least squared error (Lloyd 1957, Max
 * 1960): 2^bits of them, sorted, each the mean of what is rounded to it. */
#ifndef KM_VECTOR_LEVELS_H
#define KM_VECTOR_LEVELS_H

#define KM_LEVEL_BITS 8

/* levels (2^bits), bits from 0 to KM_LEVEL_BITS. Returns the error E (x - level)^2. */
double km_levels(int bits, float *levels);

/* The level nearest to x: its index. */
int km_level_of(int bits, const float *levels, float x);

/* What is known from the `lead` highest bits of a level's index: mean (2^lead) of the numbers that are
 * rounded to levels that begin so. Returns the error of that. */
double km_level_lead(int bits, int lead, const float *levels, float *mean);

#endif
