/* Sums of products of rows of words with panels of columns, for one width of vectors. Included once for each width.

   The including source defines LANES of 32 bits in a vector; ROWS and WIDE, how many rows and vectors of columns are
   summed at a time; TARGET (an attribute); NAME(of a function); and ADD(sums, left, right), which adds the products of
   words to LANES sums. A word is a float32, or a pair of bfloat16. Vectors are the compiler's vector extensions. */

typedef float NAME(floats) __attribute__((vector_size(LANES * 4)));
typedef uint32_t NAME(words) __attribute__((vector_size(LANES * 4)));

#define FOR_ALL(i, n) _Pragma("GCC unroll 8") for (count i = 0; i < (n); i++)

static inline __attribute__((always_inline)) TARGET void NAME(panel)(float *sums, count stride, struct left left,
                                                                     const uint32_t *right, count depth, count wide) {
    NAME(floats) all[ROWS][WIDE];
    FOR_ALL(m, ROWS) FOR_ALL(v, wide) memcpy(&all[m][v], sums + m * stride + v * LANES, sizeof all[m][v]);
    for (count k = 0; k < depth; k++) {
        NAME(words) now[WIDE];
        FOR_ALL(v, wide) memcpy(&now[v], right + k * stride + v * LANES, sizeof now[v]);
        FOR_ALL(m, ROWS) {
            NAME(words) word = (NAME(words)){0} + left.words[m * left.down + k * left.along];
            FOR_ALL(v, wide) all[m][v] = ADD(all[m][v], word, now[v]);
        }
    }
    FOR_ALL(m, ROWS) FOR_ALL(v, wide) memcpy(sums + m * stride + v * LANES, &all[m][v], sizeof all[m][v]);
}

TARGET static void NAME(add_products)(float *sums, count stride, struct left left, const uint32_t *right, count rows,
                                      count columns, count depth) {
    for (count row = 0; row < rows; row += ROWS, sums += ROWS * stride, left.words += ROWS * left.down) {
        count column = 0;
        for (; column + WIDE * LANES <= columns; column += WIDE * LANES)
            NAME(panel)(sums + column, stride, left, right + column, depth, WIDE);
        for (; column + 2 * LANES <= columns; column += 2 * LANES)
            NAME(panel)(sums + column, stride, left, right + column, depth, 2);
        for (; column < columns; column += LANES) NAME(panel)(sums + column, stride, left, right + column, depth, 1);
    }
}

#undef FOR_ALL
#undef LANES
#undef ROWS
#undef WIDE
#undef TARGET
#undef NAME
#undef ADD
