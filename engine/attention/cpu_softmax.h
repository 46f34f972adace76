/* Attention of the queries that share one head's keys and values, over any number of pieces of positions.

   One pass with a running maximum (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022). A piece is whatever
   lies in a row in memory: a slot, a page. */

#ifndef MIDSTREAM_CPU_SOFTMAX_H
#define MIDSTREAM_CPU_SOFTMAX_H

#include "cpu_elements.h"

enum {
    POSITIONS = 32, /* keys and values that are read at a time: they stay in the nearest cache */
    PART = 64       /* elements of a head that are summed at a time: they stay in registers */
};

VECTORS SHARED void score(float *restrict scores, const float *restrict query, const float *restrict keys,
                          float scale, count positions, count size) {
    for (count t = 0; t < positions; t++) {
        float sum = 0;
        for (count i = 0; i < size; i++) sum += query[i] * keys[t * size + i];
        scores[t] = sum * scale;
    }
}

/* What the softmax of a query has come to: its highest score, and the sum of all weights relative to it. */
struct softmax {
    float highest, total;
};

/* Turn scores to weights. What was mixed before fades where a higher score has come. */
VECTORS SHARED void weigh(float *restrict scores, struct softmax *softmax, float *restrict mixed,
                          count positions, count size) {
    float highest = softmax->highest, total = 0;
    for (count t = 0; t < positions; t++) highest = scores[t] > highest ? scores[t] : highest;
    for (count t = 0; t < positions; t++) {
        scores[t] = exponential(scores[t] - highest);
        total += scores[t];
    }
    if (highest != softmax->highest) {
        float fade = exponential(softmax->highest - highest);
        for (count i = 0; i < size; i++) mixed[i] *= fade;
        softmax->total *= fade;
    }
    softmax->highest = highest;
    softmax->total += total;
}

static inline __attribute__((always_inline)) void mix_part(float *restrict mixed, const float *restrict weights,
                                                           const float *restrict values, count positions, count size,
                                                           count part) {
    float sums[part];
    for (count i = 0; i < part; i++) sums[i] = mixed[i];
    for (count t = 0; t < positions; t++)
        for (count i = 0; i < part; i++) sums[i] += weights[t] * values[t * size + i];
    for (count i = 0; i < part; i++) mixed[i] = sums[i];
}

VECTORS SHARED void mix(float *restrict mixed, const float *restrict weights, const float *restrict values,
                        count positions, count size) {
    count i = 0;
    for (; i + PART <= size; i += PART) mix_part(mixed + i, weights, values + i, positions, size, PART);
    for (; i + 8 <= size; i += 8) mix_part(mixed + i, weights, values + i, positions, size, 8);
    for (; i < size; i++) mix_part(mixed + i, weights, values + i, positions, size, 1);
}

/* Begin with queries that have seen nothing. */
SHARED void attend_nothing(float *mixed, struct softmax *softmax, count sharing, count size) {
    for (count q = 0; q < sharing; q++) softmax[q] = (struct softmax){-INFINITY, 0};
    memset(mixed, 0, (size_t)(sharing * size) * sizeof *mixed);
}

/* Return keys or values of positions that are `stride` apart as floats, one after the other: where they lie, or in `room`. */
SHARED const float *read_positions(float *room, const void *from, count offset, count stride, count positions,
                                   count size, int half) {
    if (stride == size) return read(room, from, offset, positions * size, half);
    for (count t = 0; t < positions; t++) {
        const float *one = read(room + t * size, from, offset + t * stride, size, half);
        if (!half) memcpy(room + t * size, one, (size_t)size * sizeof *one);
    }
    return room;
}

/* Go on with a piece: keys and values, (positions, size), begin at `offset`, and positions are `stride` apart. queries,
   mixed: (sharing, size). */
SHARED void attend_piece(float *restrict mixed, struct softmax *softmax, const float *restrict queries,
                         const void *keys, const void *values, count offset, count stride, count positions,
                         count sharing, count size, float scale, int half) {
    float key_room[POSITIONS * size], value_room[POSITIONS * size], scores[POSITIONS];
    for (count t = 0; t < positions; t += POSITIONS) {
        count some = positions - t < POSITIONS ? positions - t : POSITIONS;
        const float *some_keys =
            read_positions(key_room, keys, offset + t * stride, stride, some, size, half);
        const float *some_values =
            read_positions(value_room, values, offset + t * stride, stride, some, size, half);
        for (count q = 0; q < sharing; q++) {
            score(scores, queries + q * size, some_keys, scale, some, size);
            weigh(scores, softmax + q, mixed + q * size, some, size);
            mix(mixed + q * size, scores, some_values, some, size);
        }
    }
}

/* End: divide what was mixed by the weights' sum. */
SHARED void attend_end(float *mixed, const struct softmax *softmax, count sharing, count size) {
    for (count q = 0; q < sharing; q++)
        for (count i = 0; i < size; i++) mixed[q * size + i] /= softmax[q].total;
}

#endif
