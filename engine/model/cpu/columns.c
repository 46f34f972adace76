/* Matrix products of many rows, for CPUs. They are bound by arithmetic, so the factors are kept in the L1 cache.

   Rows are side by side, in blocks of COLUMNS, and are read as vectors. Weights are read as they are stored, a word at a
   time. Inputs are always summed in the same order, whatever else a step computes. */

#include "columns.h"

enum { DEPTH = 128 /* words of the inputs that are multiplied at a time */ };

void write_words(struct elements elements, uint32_t *to, count feature, float *first, float *second) {
    if (elements.pairs) {
        pair_rows(to + feature / 2 * COLUMNS, first, second, COLUMNS);
        return;
    }
    float *rows[] = {first, second};
    for (count i = 0; i < 2; i++) {
        uint16_t room[COLUMNS];
        if (elements.half) narrow(room, rows[i], COLUMNS);
        as_words(to + (feature + i) * COLUMNS, elements.half ? (void *)room : rows[i], 0, COLUMNS, elements.half, 0);
    }
}

/* Gather the weights of `n` outputs, `some` words of each from `k` on: (n, DEPTH). */
static void bring_weights(struct elements elements, const struct matrix *by, count first, count n, count k, count some,
                          uint32_t *to) {
    count each = elements.pairs ? 2 : 1;
    for (count row = 0; row < n; row++, to += DEPTH) {
        count from = (first + row) * by->inputs + k * each;
        as_words(to, by->weight, from, some * each, elements.half, elements.pairs);
    }
}

/* Prefetch `some` words of the weights of `n` outputs, which are needed soon, while others are multiplied. */
static void fetch(struct left left, count n, count some) {
    enum { LINE = 64 / sizeof(uint32_t) };
    for (count row = 0; row < n; row++)
        for (count i = 0; i < some; i += LINE) __builtin_prefetch(left.words + row * left.down + i, 0, 2);
}

static void add_bias(struct elements elements, const struct matrix *by, count first, count n, float *sums) {
    float room[OUTPUTS];
    const float *bias = read(room, by->bias, first, n, elements.half);
    for (count i = 0; i < n; i++)
        for (count c = 0; c < COLUMNS; c++) sums[i * COLUMNS + c] += bias[i];
}

void multiply_columns(struct elements elements, const struct matrix *by, const uint32_t *given, struct piece piece,
                      float *sums) {
    products *add_products = products_for(elements.pairs);
    count first = piece.first, n = piece.outputs, behind = by->outputs - first - piece.ahead;
    count depth = words_of(by->inputs, elements.pairs), rows = up_to(n, ROWS_OF_ALL);
    int as_they_lie = elements.half == elements.pairs && rows == n;
    uint32_t room[OUTPUTS * DEPTH];
    memset(sums, 0, (size_t)(rows * COLUMNS) * sizeof *sums);
    if (rows > n) memset(room + n * DEPTH, 0, (size_t)((rows - n) * DEPTH) * sizeof *room);
    for (count k = 0; k < depth; k += DEPTH) {
        count some = depth - k < DEPTH ? depth - k : DEPTH;
        struct left left = {room, DEPTH, 1};
        if (as_they_lie) {
            const uint32_t *words = (const uint32_t *)by->weight + k;
            left = (struct left){words + first * depth, depth, 1};
            if (behind > 0) fetch((struct left){words + (first + piece.ahead) * depth, depth, 1}, n < behind ? n : behind, some);
        } else {
            bring_weights(elements, by, first, n, k, some, room);
        }
        add_products(sums, COLUMNS, left, given + k * COLUMNS, rows, up_to(piece.columns, LANES_OF_ALL), some);
    }
    if (by->bias) add_bias(elements, by, first, n, sums);
}
