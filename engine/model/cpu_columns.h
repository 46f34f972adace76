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

/* Of a product: so many outputs, at most OUTPUTS, from `first` on, for a block of which `columns` are somebody's. The
   weights that come soon are so many outputs further on. */
struct piece {
    count first, outputs, columns, ahead;
};

/* Multiply weights, of the elements that rows have, with a block, (words of the inputs, COLUMNS). Makes sums, (outputs,
   COLUMNS), with their bias; there is room for OUTPUTS of them. */
HIDDEN void multiply_columns(struct elements elements, const struct matrix *by, const uint32_t *given,
                             struct piece piece, float *sums);

#endif
