/* Draws tokens of rows of logits on CPUs: temperature, softmax, masks of grammars, and the nucleus, without a sort; or the
   likeliest ones.

   It is what `engine/execution/sampler.py` does with torch's operations, with each part of a row in the L1 cache while it
   is worked on. */

#include "elements.h"

enum {
    SOME = 4096, /* tokens that are weighed at a time: their sum is float32, and sums of those are double */
    WORD = 32    /* tokens in a word of a mask */
};

enum { UNUSABLE = -1, REJECTED = -2 };

/* The highest of the scores that a mask leaves, and whether any of all of them is not a number. */
struct seen {
    float highest;
    int is_bad;
};

/* In lanes, since compilers make no vectors of one maximum: a NaN would have to stay where it is. */
VECTORS SHARED float highest_of(const float *scores, float highest, count n) {
    enum { LANES = 64 };
    float lanes[LANES];
    count i = 0;
    for (count lane = 0; lane < LANES; lane++) lanes[lane] = highest;
    for (; i + LANES <= n; i += LANES)
        for (count lane = 0; lane < LANES; lane++)
            lanes[lane] = scores[i + lane] > lanes[lane] ? scores[i + lane] : lanes[lane];
    for (; i < n; i++) highest = scores[i] > highest ? scores[i] : highest;
    for (count lane = 0; lane < LANES; lane++) highest = lanes[lane] > highest ? lanes[lane] : highest;
    return highest;
}

VECTORS SHARED int any_bad(const float *scores, count n) {
    int bad = 0;
    for (count i = 0; i < n; i++) bad |= scores[i] != scores[i];
    return bad;
}

/* Turn scores into weights relative to the highest one, and return their sum. */
VECTORS SHARED float weigh(float *scores, float highest, float cooling, count n) {
    float total = 0;
    for (count i = 0; i < n; i++) {
        float x = (scores[i] - highest) * cooling;
        float weight = exponential(x);
        scores[i] = x < -87.0f ? 0.0f : weight;
        total += scores[i];
    }
    return total;
}

/* Set the scores that a mask leaves out to minus infinity. */
VECTORS SHARED void keep(float *restrict scores, const uint32_t *restrict mask, count n) {
    count words = n / WORD;
    for (count w = 0; w < words; w++)
        for (count bit = 0; bit < WORD; bit++)
            scores[w * WORD + bit] = mask[w] >> bit & 1u ? scores[w * WORD + bit] : -INFINITY;
    for (count i = words * WORD; i < n; i++)
        scores[i] = mask[words] >> (i - words * WORD) & 1u ? scores[i] : -INFINITY;
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

VECTORS SHARED float sum_above(const float *weights, float floor, count n) {
    float total = 0;
    for (count i = 0; i < n; i++) total += weights[i] > floor ? weights[i] : 0.0f;
    return total;
}

SHARED count at_most(count n, count most) { return n < most ? n : most; }

/* Read a row's scores into its weights, masked. */
SHARED struct seen look(float *weights, const void *scores, count offset, const uint32_t *mask, count size, int half) {
    struct seen seen = {-INFINITY, 0};
    for (count at = 0; at < size; at += SOME) {
        count some = at_most(size - at, SOME);
        if (half) widen(weights + at, (const uint16_t *)scores + offset + at, some);
        else memcpy(weights + at, (const float *)scores + offset + at, (size_t)some * sizeof *weights);
        seen.is_bad |= any_bad(weights + at, some);
        if (mask) keep(weights + at, mask + at / WORD, some);
        seen.highest = highest_of(weights + at, seen.highest, some);
    }
    return seen;
}

/* Return the place where the cumulated weights pass a level. One without weight is never returned, if any has some. */
SHARED count passing(const float *weights, const double *sums, double level, count size) {
    double before = 0;
    count at = 0, last = 0;
    for (count part = 0; at < size; part++, at += SOME) {
        if (before + sums[part] > level) break;
        before += sums[part];
    }
    if (at >= size) at = (size - 1) / SOME * SOME; /* rounding */
    for (count i = at; i < at_most(at + SOME, size); i++) {
        if (weights[i] > 0) last = i;
        before += weights[i];
        if (before > level) return i;
    }
    for (; weights[last] == 0 && at > 0; at--)
        if (weights[at - 1] > 0) last = at - 1;
    return last;
}

/* Draw a token of each row.

   scores: (…, size), of which `rows`, (some), names one for each draw; masks: addresses of (words) each, 0 for none;
   coolings: the inverse temperatures; shares: of the nuclei, infinite for none; numbers: random ones below 1, all (some).
   weights: (some, size) of room; totals: (some).

   `again`: `rows` names rows of `weights` instead, as an earlier call left them; those up to the row's floor are dropped.
   tokens, floors: (some). A token is UNUSABLE in a row with NaN, and REJECTED outside of the nucleus: its weight is then
   the floor. */
void midstream_draw(const void *scores, const int64_t *rows, const int64_t *masks, const float *coolings,
                    const float *shares, const double *numbers, count some, count size, int half, int again,
                    float *weights, double *totals, int64_t *tokens, float *floors) {
    count parts = (size + SOME - 1) / SOME;
#pragma omp parallel for schedule(dynamic) if (some * size > SOME)
    for (count draw = 0; draw < some; draw++) {
        count place = again ? rows[draw] : draw;
        float *own = weights + place * size;
        double sums[parts], total = 0, likelier = 0;
        struct seen seen = {0, 0};
        if (!again)
            seen = look(own, scores, rows[draw] * size, (const uint32_t *)(uintptr_t)masks[draw], size, half);
        for (count part = 0; part < parts; part++) {
            float *these = own + part * SOME;
            count n = at_most(size - part * SOME, SOME);
            sums[part] =
                again ? drop(these, floors[draw], n) : weigh(these, seen.highest, coolings[draw], n);
            total += sums[part];
        }
        if (!again) totals[place] = total;
        tokens[draw] = UNUSABLE;
        if (seen.is_bad || !(total > 0) || isinf(total)) continue;
        count token = passing(own, sums, numbers[draw] * total, size);
        tokens[draw] = token;
        floors[draw] = own[token];
        if (isinf(shares[draw])) continue;
        for (count part = 0; part < parts; part++)
            likelier += sum_above(own + part * SOME, own[token], at_most(size - part * SOME, SOME));
        if (likelier >= shares[draw] * totals[place]) tokens[draw] = REJECTED;
    }
}

/* Find the likeliest token of each row, the first of equal ones, or UNUSABLE. As above; weights: (some, size) of room. */
void midstream_likeliest(const void *scores, const int64_t *rows, const int64_t *masks, count some, count size, int half,
                         float *weights, int64_t *tokens) {
#pragma omp parallel for schedule(dynamic) if (some * size > SOME)
    for (count row = 0; row < some; row++) {
        float *own = weights + row * size;
        struct seen seen =
            look(own, scores, rows[row] * size, (const uint32_t *)(uintptr_t)masks[row], size, half);
        count at = 0;
        tokens[row] = UNUSABLE;
        if (seen.is_bad || isinf(seen.highest)) continue;
        while (at + SOME < size && highest_of(own + at, -INFINITY, SOME) < seen.highest) at += SOME;
        while (own[at] < seen.highest) at++;
        tokens[row] = at;
    }
}
