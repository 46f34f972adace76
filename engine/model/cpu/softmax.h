/* Attention of the queries that share one head, over the pages of a table.

   One pass with a running maximum (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022). */

#ifndef MIDSTREAM_CPU_SOFTMAX_H
#define MIDSTREAM_CPU_SOFTMAX_H

#include "products.h"

enum {
    POSITIONS = 32, /* keys and values that are read at a time, so that they stay in the L1 cache */
    PART = 64       /* elements of a head that are summed at a time, so that they stay in registers */
};

_Static_assert((int)POSITIONS == (int)PAIRED, "mix_pairs needs room for PAIRED weights");

VECTORS SHARED void score(float *restrict scores, const float *restrict query, const float *restrict keys,
                          float scale, count positions, count size) {
    for (count t = 0; t < positions; t++) {
        float sum = 0;
        for (count i = 0; i < size; i++) sum += query[i] * keys[t * size + i];
        scores[t] = sum * scale;
    }
}

/* The state of a query's softmax: its highest score so far, and the sum of all weights relative to it. */
struct softmax {
    float highest, total;
};

/* Turn scores into weights. If a score is higher than all before it, the earlier sums are scaled down. */
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

/* Cap scores softly, between `softcap` and its negative: tanh, computed from e to the 2x. */
VECTORS SHARED void cap(float *restrict scores, float softcap, count positions) {
    for (count t = 0; t < positions; t++)
        scores[t] = softcap * (1.0f - 2.0f / (exponential(2.0f * scores[t] / softcap) + 1.0f));
}

/* The stored keys, (pages, kv_heads, page, size), and values, (pages, kv_heads, page, value_size). */
struct store {
    const void *keys, *values;
    count kv_heads, page, size, value_size;
    int half;
};

/* Whether the first `stop` positions of a table of `width` entries lie in pages that exist. */
SHARED int is_within(const int32_t *table, count width, count page, count stop, count pages) {
    if (stop < 1 || stop > width * page) return 0;
    for (count i = 0; i < (stop + page - 1) / page; i++)
        if (table[i] < 0 || table[i] >= pages) return 0;
    return 1;
}

/* Neighbouring tokens of a request: `number` rows from `row` on, at positions from `start` on. */
struct span {
    int64_t row, start, number;
};

/* How a layer attends. A query sees `window` positions up to its own; 0: all of them. `softcap`: 0 for none. */
struct terms {
    float scale, softcap;
    count window;
};

/* Attend with the queries, (sharing, size), that share one head, to the positions from `first` to `stop` of a table. */
SHARED void attend_head(float *restrict mixed, const float *restrict queries, const struct store *store,
                        const int32_t *table, count head, count first, count stop, count sharing,
                        const struct terms *terms) {
    count size = store->size, value_size = store->value_size, page = store->page, some;
    int pairs = store->half && size % PAIRED == 0 && value_size % PAIRED == 0 && midstream_has_pairs();
    float key_room[pairs ? 1 : POSITIONS * size], value_room[pairs ? 1 : POSITIONS * value_size], scores[POSITIONS];
    uint16_t asked[pairs ? sharing * size : 1];
    struct softmax softmax[sharing];
    for (count q = 0; q < sharing; q++) softmax[q] = (struct softmax){-INFINITY, 0};
    if (pairs) narrow(asked, queries, sharing * size);
    memset(mixed, 0, (size_t)(sharing * value_size) * sizeof *mixed);
    for (count t = first; t < stop; t += some) {
        count row = (table[t / page] * store->kv_heads + head) * page + t % page, left = page - t % page;
        some = stop - t < left ? stop - t : left;
        some = some < POSITIONS ? some : POSITIONS;
        const uint16_t *half_keys = (const uint16_t *)store->keys + row * size;
        const uint16_t *half_values = (const uint16_t *)store->values + row * value_size;
        const float *keys = pairs ? NULL : read(key_room, store->keys, row * size, some * size, store->half);
        const float *values =
            pairs ? NULL : read(value_room, store->values, row * value_size, some * value_size, store->half);
        for (count q = 0; q < sharing; q++) {
            float *own = mixed + q * value_size;
            if (pairs) score_pairs(scores, asked + q * size, half_keys, terms->scale, some, size);
            else score(scores, queries + q * size, keys, terms->scale, some, size);
            if (terms->softcap > 0) cap(scores, terms->softcap, some);
            weigh(scores, softmax + q, own, some, value_size);
            if (pairs) mix_pairs(own, scores, half_values, some, value_size);
            else mix(own, scores, values, some, value_size);
        }
    }
    for (count q = 0; q < sharing; q++) {
        if (pairs) in_order(mixed + q * value_size, value_size);
        for (count i = 0; i < value_size; i++) mixed[q * value_size + i] /= softmax[q].total;
    }
}

/* Return the first position that the query at `stop - 1` may see. */
SHARED count first_seen(count stop, const struct terms *terms) {
    return terms->window > 0 && stop > terms->window ? stop - terms->window : 0;
}

#endif
