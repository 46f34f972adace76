/* Products with rows that are side by side, as columns: see columns.c. */

#ifndef MIDSTREAM_CPU_COLUMNS_H
#define MIDSTREAM_CPU_COLUMNS_H

#include "products.h"
#include "linear.h"

enum {
    COLUMNS = 48, /* rows of a block, as many as are summed at a time */
    OUTPUTS = 64  /* the most outputs that are made at a time, so that their sums stay in the L1 cache */
};

/* `half`: elements are bfloat16, else float32. `pairs`: words are pairs of bfloat16, else floats. */
struct elements {
    int half, pairs;
};

/* Write two rows of COLUMNS floats, of neighbouring features, as words of (features, COLUMNS). */
HIDDEN void write_words(struct elements elements, uint32_t *to, count feature, float *first, float *second);

/* A piece of a product: `outputs` of them, at most OUTPUTS, from `first` on, for a block that uses `columns` columns. The
   weights that are needed next begin `ahead` outputs further on. */
struct piece {
    count first, outputs, columns, ahead;
};

/* Multiply weights, of the same elements as the rows, with a block, (words of the inputs, COLUMNS). Writes sums, (outputs,
   COLUMNS), with their bias; `sums` has room for OUTPUTS rows. */
HIDDEN void multiply_columns(struct elements elements, const struct matrix *by, const uint32_t *given,
                             struct piece piece, float *sums);

#endif
