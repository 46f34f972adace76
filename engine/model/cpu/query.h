/* Scores and weighted sums of one query in pairs of bfloat16, for processors that multiply those: see query.c. */

#ifndef MIDSTREAM_CPU_QUERY_H
#define MIDSTREAM_CPU_QUERY_H

#include "products.h"

enum { PAIRED = 32 /* elements of a vector; sizes are multiples of it, and it is the most positions of a call */ };

/* scores: (positions); query: (size); keys: (positions, size). */
HIDDEN void score_pairs(float *scores, const uint16_t *query, const uint16_t *keys, float scale, count positions,
                        count size);

/* Add the values, (positions, size), times their weights, which are rounded, to the sums in `mixed`, (size). The sums are
   in an order that `in_order` undoes. `weights` has room for PAIRED of them. */
HIDDEN void mix_pairs(float *mixed, float *weights, const uint16_t *values, count positions, count size);

/* Bring the sums into the order of the values. */
HIDDEN void in_order(float *mixed, count size);

#endif
