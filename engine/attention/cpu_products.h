/* Products of rows of words with columns of words, added to sums of float32.

   A word is a float32, or a pair of bfloat16 where the processor multiplies those. */

#ifndef MIDSTREAM_CPU_PRODUCTS_H
#define MIDSTREAM_CPU_PRODUCTS_H

#include "cpu_elements.h"
#include "cpu_vectors.h"

enum {
    LANES_OF_ALL = 16, /* columns are a multiple of it: a vector of any width */
    ROWS_OF_ALL = 8    /* and rows of this one */
};

/* Rows of words: the next row and the next word of a row are so many words further on. */
struct left {
    const uint32_t *words;
    count down, along;
};

/* Add to sums, (rows, stride), the products of `rows` rows with the first `columns` columns of right, (depth, stride). */
typedef void products(float *sums, count stride, struct left left, const uint32_t *right, count rows, count columns,
                      count depth);

#define HIDDEN __attribute__((visibility("hidden")))

/* Whether the processor multiplies pairs. */
int midstream_has_pairs(void);
/* Whether it has vectors that are worth rows of their own: AVX2 or wider ones. */
int midstream_has_wide_vectors(void);
HIDDEN products *products_for(int pairs);

/* Write two rows of floats as one of pairs of bfloat16; `columns` is a multiple of LANES_OF_ALL. */
HIDDEN void pair_rows(uint32_t *to, const float *first, const float *second, count columns);

/* As many words as a row of elements is. */
SHARED count words_of(count elements, int pairs) { return pairs ? elements / 2 : elements; }

/* Write elements as words: pairs as they lie, or floats. */
SHARED void as_words(uint32_t *to, const void *from, count offset, count n, int half, int pairs) {
    if (half && !pairs) widen((float *)to, (const uint16_t *)from + offset, n);
    else copy(to, 0, from, offset, n, half);
}

SHARED count up_to(count n, count multiple) { return (n + multiple - 1) / multiple * multiple; }

#endif
