/* What a step of few rows computes between its matrix products, for CPUs: in torch each of these is many operations,
   and every one of them takes longer to begin than to do.

   Elements are bfloat16 (`half`) or float32; all sums are of float32. Pointers are to contiguous rows; offsets, strides
   and sizes count elements. Nothing here allocates, and a value that is not a number stays with its own row.

   Attention is one pass over the positions with a running maximum (Milakov and Gimelshein 2018; FlashAttention, Dao et
   al. 2022); rotation is RoFormer's (Su et al. 2021); the norm is RMSNorm (Zhang and Sennrich 2019). */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Compiled for each width of vectors; the loader chooses what the processor has. Older compilers know no levels. */
#if !defined(__x86_64__) || !defined(__gnu_linux__) || defined(__clang__)
#define VECTORS
#elif __GNUC__ >= 12
#define VECTORS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#endif

/* To be raised with every change of a signature, here and in cpu_kernels.py. */
const int midstream_version = 1;

typedef ptrdiff_t count;

enum {
    POSITIONS = 32, /* keys and values that are read at a time: they stay in the nearest cache */
    PART = 64,      /* elements of a head that are summed at a time: they stay in registers */
    WORTH_SHARING = 1 << 15 /* operations, about, below which waking other threads takes longer */
};

/* ---- elements ---------------------------------------------------------------------------------------------------- */

VECTORS static void widen(float *restrict to, const uint16_t *restrict from, count n) {
    for (count i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(to + i, &bits, sizeof bits);
    }
}

VECTORS static void narrow(uint16_t *restrict to, const float *restrict from, count n) {
    for (count i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, from + i, sizeof bits);
        uint32_t to_nearest_even = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
        int is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
        to[i] = (uint16_t)(is_nan ? 0x7fc0u : to_nearest_even);
    }
}

/* Return elements as floats: where they lie, or in `room`. */
static const float *read(float *room, const void *from, count offset, count n, int half) {
    if (!half) return (const float *)from + offset;
    widen(room, (const uint16_t *)from + offset, n);
    return room;
}

static void write(void *to, count offset, const float *from, count n, int half) {
    if (half) narrow((uint16_t *)to + offset, from, n);
    else memcpy((float *)to + offset, from, (size_t)n * sizeof *from);
}

static void copy(void *to, count to_offset, const void *from, count from_offset, count n, int half) {
    count size = half ? 2 : 4;
    memcpy((char *)to + to_offset * size, (const char *)from + from_offset * size, (size_t)(n * size));
}

/* e to the x, to a relative error of some 1e-6; the polynomial is that of the Cephes library. */
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float twos = rintf(x * 1.44269504f);
    float rest = x - twos * 0.693359375f + twos * 2.12194440e-4f;
    float sum = 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    int32_t bits = ((int32_t)twos + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return sum * power;
}

/* ---- attention of one query for each row ------------------------------------------------------------------------- */

VECTORS static void score(float *restrict scores, const float *restrict query, const float *restrict keys,
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
VECTORS static void weigh(float *restrict scores, struct softmax *softmax, float *restrict mixed,
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

VECTORS static void mix(float *restrict mixed, const float *restrict weights, const float *restrict values,
                        count positions, count size) {
    count i = 0;
    for (; i + PART <= size; i += PART) mix_part(mixed + i, weights, values + i, positions, size, PART);
    for (; i + 8 <= size; i += 8) mix_part(mixed + i, weights, values + i, positions, size, 8);
    for (; i < size; i++) mix_part(mixed + i, weights, values + i, positions, size, 1);
}

/* Attend with the queries, (sharing, size), that share the keys and values, (positions, size), of one head. */
static void attend_head(float *restrict mixed, const float *restrict queries, const void *keys, const void *values,
                        count offset, count positions, count sharing, count size, float scale, int half) {
    float key_room[POSITIONS * size], value_room[POSITIONS * size], scores[POSITIONS];
    struct softmax softmax[sharing];
    for (count q = 0; q < sharing; q++) softmax[q] = (struct softmax){-INFINITY, 0};
    memset(mixed, 0, (size_t)(sharing * size) * sizeof *mixed);
    for (count t = 0; t < positions; t += POSITIONS) {
        count some = positions - t < POSITIONS ? positions - t : POSITIONS;
        const float *some_keys = read(key_room, keys, offset + t * size, some * size, half);
        const float *some_values = read(value_room, values, offset + t * size, some * size, half);
        for (count q = 0; q < sharing; q++) {
            score(scores, queries + q * size, some_keys, scale, some, size);
            weigh(scores, softmax + q, mixed + q * size, some, size);
            mix(mixed + q * size, scores, some_values, some, size);
        }
    }
    for (count q = 0; q < sharing; q++)
        for (count i = 0; i < size; i++) mixed[q * size + i] /= softmax[q].total;
}

/* Attend with one query for each row and head, to the positions of the row's slot up to its own.

   queries: (rows, heads, size), with strides; keys, values: (slots, kv_heads, tokens, size); slots, positions: (rows);
   mixed: (rows, heads, size). */
void midstream_attend(const void *queries, count row_stride, count head_stride, const void *keys, const void *values,
                      const int64_t *slots, const int64_t *positions, count rows, count heads, count kv_heads,
                      count tokens, count size, float scale, int half, void *mixed) {
    count sharing = heads / kv_heads, read_positions = 0;
    for (count row = 0; row < rows; row++) read_positions += positions[row] + 1;
#pragma omp parallel for collapse(2) schedule(dynamic) if (read_positions * heads * size > WORTH_SHARING)
    for (count row = 0; row < rows; row++) {
        for (count head = 0; head < kv_heads; head++) {
            float asked[sharing * size], given[sharing * size];
            for (count q = 0; q < sharing; q++) {
                count from = row * row_stride + (head * sharing + q) * head_stride;
                const float *query = read(asked + q * size, queries, from, size, half);
                if (!half) memcpy(asked + q * size, query, (size_t)size * sizeof *query);
            }
            attend_head(given, asked, keys, values, (slots[row] * kv_heads + head) * tokens * size,
                        positions[row] + 1, sharing, size, scale, half);
            write(mixed, (row * heads + head * sharing) * size, given, sharing * size, half);
        }
    }
}

/* ---- what happens to rows ---------------------------------------------------------------------------------------- */

VECTORS static void rotate(float *restrict to, const float *restrict from, const float *restrict cosine,
                           const float *restrict sine, count half_size) {
    for (count i = 0; i < half_size; i++) {
        to[i] = from[i] * cosine[i] + from[i + half_size] * sine[i];
        to[i + half_size] = from[i + half_size] * cosine[i + half_size] + from[i] * sine[i + half_size];
    }
}

/* Turn queries and keys to their positions, and store keys and values there; rows of a slot below 0 store nothing.

   projected: (rows, heads + kv_heads, size), values: (rows, kv_heads, size), each with a row stride; cosine, sine:
   (rows, size), the first half of the sines negative; slots, positions: (rows); turned: (rows, heads, size);
   key_store, value_store: (slots, kv_heads, tokens, size). */
void midstream_rotate_and_store(const void *projected, count row_stride, const void *values, count value_stride,
                                const void *cosine, const void *sine, const int64_t *slots, const int64_t *positions,
                                count rows, count heads, count kv_heads, count tokens, count size, int half,
                                void *turned, void *key_store, void *value_store) {
    count all = heads + kv_heads;
#pragma omp parallel for if (rows * all * size > WORTH_SHARING)
    for (count row = 0; row < rows; row++) {
        float cosine_room[size], sine_room[size], room[size], result[size];
        const float *by = read(cosine_room, cosine, row * size, size, half);
        const float *across = read(sine_room, sine, row * size, size, half);
        count first = (slots[row] * kv_heads * tokens + positions[row]) * size;
        for (count head = 0; head < all; head++) {
            count place = first + (head - heads) * tokens * size;
            if (head >= heads && slots[row] < 0) break;
            rotate(result, read(room, projected, row * row_stride + head * size, size, half), by, across, size / 2);
            if (head < heads) write(turned, (row * heads + head) * size, result, size, half);
            else write(key_store, place, result, size, half);
            if (head >= heads)
                copy(value_store, place, values, row * value_stride + (head - heads) * size, size, half);
        }
    }
}

VECTORS static float sum_of_squares(const float *from, count size) {
    float sum = 0;
    for (count i = 0; i < size; i++) sum += from[i] * from[i];
    return sum;
}

VECTORS static void scale_by(float *restrict to, const float *restrict from, const float *restrict weight,
                             float factor, count size) {
    for (count i = 0; i < size; i++) to[i] = from[i] * factor * weight[i];
}

/* Normalize rows, (rows, size), by their root mean square, and multiply by `weight`, (size). */
void midstream_rms_norm(const void *from, const void *weight, count rows, count size, float epsilon, int half,
                        void *to) {
#pragma omp parallel for if (rows * size > WORTH_SHARING)
    for (count row = 0; row < rows; row++) {
        float room[size], weight_room[size], result[size];
        const float *given = read(room, from, row * size, size, half);
        float factor = 1.0f / sqrtf(sum_of_squares(given, size) / (float)size + epsilon);
        scale_by(result, given, read(weight_room, weight, 0, size, half), factor, size);
        write(to, row * size, result, size, half);
    }
}

VECTORS static void gate(float *restrict to, const float *restrict gates, const float *restrict ups, count size) {
    for (count i = 0; i < size; i++) to[i] = gates[i] / (1.0f + exponential(-gates[i])) * ups[i];
}

/* silu(gate) * up of rows, (rows, 2 * size), whose first half is the gate: (rows, size). */
void midstream_silu_product(const void *from, count rows, count size, int half, void *to) {
    enum { SOME = 256 };
    count parts = (size + SOME - 1) / SOME;
#pragma omp parallel for collapse(2) if (rows * size > WORTH_SHARING / 4)
    for (count row = 0; row < rows; row++) {
        for (count part = 0; part < parts; part++) {
            float gates[SOME], ups[SOME], result[SOME];
            count begin = part * SOME, some = size - begin < SOME ? size - begin : SOME, at = row * 2 * size + begin;
            gate(result, read(gates, from, at, some, half), read(ups, from, at + size, some, half), some);
            write(to, row * size + begin, result, some, half);
        }
    }
}
