/* Scores and mixtures of one query in pairs of bfloat16, for processors that multiply those: see cpu_query.c. */

#ifndef MIDSTREAM_CPU_QUERY_H
#define MIDSTREAM_CPU_QUERY_H

#include "cpu_products.h"

enum { PAIRED = 32 /* elements of a vector: sizes are multiples of it, and of positions there are at most so many */ };

/* scores: (positions); query: (size); keys: (positions, size). */
HIDDEN void score_pairs(float *scores, const uint16_t *query, const uint16_t *keys, float scale, count positions,
                        count size);

/* Add the values, (positions, size), times their weights, which are rounded, to what was mixed, (size), in an order of
   its own. There is room for PAIRED weights. */
HIDDEN void mix_pairs(float *mixed, float *weights, const uint16_t *values, count positions, count size);

/* Bring what was mixed to the order of the values. */
HIDDEN void in_order(float *mixed, count size);

#endif
