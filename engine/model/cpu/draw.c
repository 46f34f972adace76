/* Draws a token of each row of scores from its nucleus, without a sort: a token drawn outside the nucleus is dropped with
   all that are no likelier, and the row is drawn again. */

#include "elements.h"

enum {
    PART = 4096, /* tokens that are weighed at a time, in the L1 cache: their sum is float32, and sums of those are double */
    LANES = 64
};

SHARED count at_most(count n, count most) { return n < most ? n : most; }

/* Return the highest score. In lanes, since NaN keeps compilers from vectorizing a single maximum. */
VECTORS SHARED float highest_of(const float *scores, count n) {
    float lanes[LANES], highest = -INFINITY;
    count i = 0;
    for (count lane = 0; lane < LANES; lane++) lanes[lane] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (count lane = 0; lane < LANES; lane++)
            lanes[lane] = scores[i + lane] > lanes[lane] ? scores[i + lane] : lanes[lane];
    for (; i < n; i++) highest = scores[i] > highest ? scores[i] : highest;
    for (count lane = 0; lane < LANES; lane++) highest = lanes[lane] > highest ? lanes[lane] : highest;
    return highest;
}

/* Turn scores into weights relative to the highest one, and return their sum: NaN if any is NaN or inf, or all are -inf. */
VECTORS SHARED float weigh(float *scores, float highest, count n) {
    float total = 0;
    for (count i = 0; i < n; i++) {
        float x = scores[i] - highest, weight = exponential(x);
        scores[i] = x < -87.0f ? 0.0f : weight;
        total += scores[i];
    }
    return total;
}

/* Drop the weights up to a floor, and return the sum of the others. */
VECTORS SHARED float drop(float *weights, float floor, count n) {
    float total = 0;
    for (count i = 0; i < n; i++) {
        weights[i] = weights[i] > floor ? weights[i] : 0.0f;
        total += weights[i];
    }
    return total;
}

/* Return the place where the cumulated weights pass a level, never one without weight. */
SHARED count passing(const float *weights, const double *sums, double level, count size) {
    count part = 0;
    for (; (part + 1) * PART < size && level >= sums[part]; part++) level -= sums[part];
    count end = at_most((part + 1) * PART, size);
    for (count i = part * PART; i < end; i++) {
        level -= weights[i];
        if (level < 0) return i;
    }
    for (count i = end - 1; i > 0; i--) /* rounding left the level above all sums */
        if (weights[i] > 0) return i;
    return 0;
}

/* A number in [0, 1) from a counter: SplitMix64 (Steele, Lea and Flood 2014). */
SHARED double next_number(uint64_t *state) {
    uint64_t bits = *state += 0x9e3779b97f4a7c15u;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
    return (double)((bits ^ bits >> 31) >> 11) * 0x1p-53;
}

/* scores: (rows, size), which are overwritten; shares: of the nuclei, infinite for none, and seeds: (rows).
   tokens: (rows), -1 in a row with NaN. */
void midstream_draw(float *scores, const float *shares, const uint64_t *seeds, count rows, count size, int64_t *tokens) {
    count parts = (size + PART - 1) / PART;
#pragma omp parallel for schedule(dynamic) if (rows * size > PART)
    for (count row = 0; row < rows; row++) {
        float *own = scores + row * size, highest = highest_of(own, size);
        double sums[parts], total = 0, left;
        uint64_t state = seeds[row];
        for (count at = 0; at < size; at += PART)
            total += sums[at / PART] = weigh(own + at, highest, at_most(size - at, PART));
        tokens[row] = -1;
        if (!(total > 0)) continue;
        left = total;
        do {
            tokens[row] = passing(own, sums, next_number(&state) * left, size);
            if (isinf(shares[row])) break;
            float floor = own[tokens[row]];
            left = 0;
            for (count at = 0; at < size; at += PART)
                left += sums[at / PART] = drop(own + at, floor, at_most(size - at, PART));
        } while (left >= shares[row] * total);
    }
}
