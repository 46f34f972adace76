/* Products with rows that lie side by side, as columns: see cpu_columns.c. */

#ifndef MIDSTREAM_CPU_COLUMNS_H
#define MIDSTREAM_CPU_COLUMNS_H

#include "../attention/cpu_products.h"
#include "cpu_linear.h"

enum {
    COLUMNS = 48, /* rows of a block: as many as are summed at a time */
    OUTPUTS = 64  /* that are made at a time, at most: their sums stay in the nearest cache */
};

/* What words are: `pairs` of bfloat16, or floats; and elements, bfloat16 where they are `half`. */
struct elements {
    int half, pairs;
};

/* Write two rows of COLUMNS floats, of features that are neighbours, as words of (features, COLUMNS). */
HIDDEN void write_words(struct elements elements, uint32_t *to, count feature, float *first, float *second);

/* Multiply the weights of `n` outputs from `first` on with a block, (words of the inputs, COLUMNS), of which `columns`
   are somebody's. Makes sums, (OUTPUTS, COLUMNS), scaled and with their bias. */
HIDDEN void multiply_columns(struct elements elements, const struct matrix *by, const uint32_t *given, count first,
                             count n, count columns, float *sums);

#endif
