/* Products of rows of words with columns of words, added to sums of float32.

   A word is a float32, or a pair of bfloat16 if the processor multiplies those. */

#ifndef MIDSTREAM_CPU_PRODUCTS_H
#define MIDSTREAM_CPU_PRODUCTS_H

#include "elements.h"
#include "vectors.h"

enum {
    LANES_OF_ALL = 16, /* numbers of columns are multiples of it, so that vectors of any width fit */
    ROWS_OF_ALL = 8    /* numbers of rows are multiples of it */
};

/* Rows of words. `down`: words from a row to the next; `along`: from a word of a row to the next. */
struct left {
    const uint32_t *words;
    count down, along;
};

/* Add to sums, (rows, stride), the products of `rows` rows with the first `columns` columns of right, (depth, stride). */
typedef void products(float *sums, count stride, struct left left, const uint32_t *right, count rows, count columns,
                      count depth);

#define HIDDEN __attribute__((visibility("hidden")))

/* Whether the processor multiplies pairs of bfloat16. */
int midstream_has_pairs(void);
/* Whether its vectors are wide enough to be worth the kernels for rows: AVX2 or wider. */
int midstream_has_wide_vectors(void);
HIDDEN products *products_for(int pairs);

/* Write two rows of floats as one row of pairs of bfloat16; `columns` is a multiple of LANES_OF_ALL. */
HIDDEN void pair_rows(uint32_t *to, const float *first, const float *second, count columns);

/* How many words a row of elements has. */
SHARED count words_of(count elements, int pairs) { return pairs ? elements / 2 : elements; }

/* Write elements as words: pairs are copied, single elements become floats. */
SHARED void as_words(uint32_t *to, const void *from, count offset, count n, int half, int pairs) {
    if (half && !pairs) widen((float *)to, (const uint16_t *)from + offset, n);
    else copy(to, 0, from, offset, n, half);
}

SHARED count up_to(count n, count multiple) { return (n + multiple - 1) / multiple * multiple; }

#endif
