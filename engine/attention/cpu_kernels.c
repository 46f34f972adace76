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
const int midstream_version = 2;

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

/* Keep scores between a cap and its negative: tanh, by way of e to the 2x. */
VECTORS static void cap(float *restrict scores, float softcap, count positions) {
    for (count t = 0; t < positions; t++)
        scores[t] = softcap * (1.0f - 2.0f / (exponential(2.0f * scores[t] / softcap) + 1.0f));
}

/* Where keys and values lie: (pages, kv_heads, page, size), values with a size of their own. */
struct store {
    const void *keys, *values;
    count kv_heads, page, size, value_size;
    int half;
};

/* How a layer attends. A query sees `window` positions up to its own, and none before the last multiple of `chunk`; 0:
   all. `softcap`: 0 for none. */
struct terms {
    float scale, softcap;
    count window, chunk;
};

/* Attend with the queries, (sharing, size), that share one head, to the positions from `first` to `stop` of a table. */
static void attend_head(float *restrict mixed, const float *restrict queries, const struct store *store,
                        const int32_t *table, count head, count first, count stop, count sharing,
                        const struct terms *terms) {
    count size = store->size, value_size = store->value_size, page = store->page, some;
    float key_room[POSITIONS * size], value_room[POSITIONS * value_size], scores[POSITIONS];
    struct softmax softmax[sharing];
    for (count q = 0; q < sharing; q++) softmax[q] = (struct softmax){-INFINITY, 0};
    memset(mixed, 0, (size_t)(sharing * value_size) * sizeof *mixed);
    for (count t = first; t < stop; t += some) {
        count row = (table[t / page] * store->kv_heads + head) * page + t % page, left = page - t % page;
        some = stop - t < left ? stop - t : left;
        some = some < POSITIONS ? some : POSITIONS;
        const float *keys = read(key_room, store->keys, row * size, some * size, store->half);
        const float *values = read(value_room, store->values, row * value_size, some * value_size, store->half);
        for (count q = 0; q < sharing; q++) {
            score(scores, queries + q * size, keys, terms->scale, some, size);
            if (terms->softcap > 0) cap(scores, terms->softcap, some);
            weigh(scores, softmax + q, mixed + q * value_size, some, value_size);
            mix(mixed + q * value_size, scores, values, some, value_size);
        }
    }
    for (count q = 0; q < sharing; q++)
        for (count i = 0; i < value_size; i++) mixed[q * value_size + i] /= softmax[q].total;
}

/* Return the first position that the query behind `stop` positions may see. */
static count first_seen(count stop, const struct terms *terms) {
    count first = terms->window > 0 && stop > terms->window ? stop - terms->window : 0;
    count chunk = terms->chunk > 0 ? (stop - 1) / terms->chunk * terms->chunk : 0;
    return first > chunk ? first : chunk;
}

/* Whether so many positions of a table, which has `width` pages, are in pages that there are. */
static int is_within(const int32_t *table, count width, count page, count stop, count pages) {
    if (stop < 1 || stop > width * page) return 0;
    for (count i = 0; i < (stop + page - 1) / page; i++)
        if (table[i] < 0 || table[i] >= pages) return 0;
    return 1;
}

/* Attend with one query for each row and head, to all positions of the row's table.

   queries: (rows, heads, size), with strides; keys, values: (pages, kv_heads, page, size); tables: (rows, width);
   lengths: (rows); mixed: (rows, heads, value_size). Returns 0; 1 where a table leads out of the pages: nothing was
   read then. */
int midstream_attend(const void *queries, count row_stride, count head_stride, const void *keys, const void *values,
                     const int32_t *tables, const int32_t *lengths, count pages, count width, count rows, count heads,
                     count kv_heads, count page, count size, count value_size, float scale, float softcap,
                     count window, count chunk, int half, void *mixed) {
    count sharing = heads / kv_heads, read_positions = 0;
    const struct store store = {keys, values, kv_heads, page, size, value_size, half};
    const struct terms terms = {scale, softcap, window, chunk};
    for (count row = 0; row < rows; row++) {
        if (!is_within(tables + row * width, width, page, lengths[row], pages)) return 1;
        read_positions += lengths[row] - first_seen(lengths[row], &terms);
    }
#pragma omp parallel for collapse(2) schedule(dynamic) if (read_positions * heads * size > WORTH_SHARING)
    for (count row = 0; row < rows; row++) {
        for (count head = 0; head < kv_heads; head++) {
            float asked[sharing * size], given[sharing * value_size];
            for (count q = 0; q < sharing; q++) {
                count from = row * row_stride + (head * sharing + q) * head_stride;
                const float *query = read(asked + q * size, queries, from, size, half);
                if (!half) memcpy(asked + q * size, query, (size_t)size * sizeof *query);
            }
            count stop = lengths[row];
            attend_head(given, asked, &store, tables + row * width, head, first_seen(stop, &terms), stop, sharing,
                        &terms);
            write(mixed, (row * heads + head * sharing) * value_size, given, sharing * value_size, half);
        }
    }
    return 0;
}

/* Bring the first `length` positions of a table side by side: from (pages, heads, page, size) to (heads, room, size),
   with zeros behind. Returns 0; 1 where the table leads out of the pages. */
int midstream_gather(const void *store, const int32_t *table, count pages, count width, count heads, count page,
                     count size, count length, count room, int half, void *to) {
    if (length > room || !is_within(table, width, page, length, pages)) return 1;
    count used = (length + page - 1) / page, bytes = half ? 2 : 4;
#pragma omp parallel for collapse(2) if (length * heads * size > WORTH_SHARING)
    for (count head = 0; head < heads; head++) {
        for (count i = 0; i < used; i++) {
            count some = length - i * page < page ? length - i * page : page;
            copy(to, (head * room + i * page) * size, store, (table[i] * heads + head) * page * size, some * size,
                 half);
        }
    }
    for (count head = 0; head < heads; head++)
        memset((char *)to + (head * room + length) * size * bytes, 0, (size_t)((room - length) * size * bytes));
    return 0;
}

/* ---- what happens to rows ---------------------------------------------------------------------------------------- */

VECTORS static void rotate(float *restrict to, const float *restrict from, const float *restrict cosine,
                           const float *restrict sine, count half_size) {
    for (count i = 0; i < half_size; i++) {
        to[i] = from[i] * cosine[i] + from[i + half_size] * sine[i];
        to[i + half_size] = from[i + half_size] * cosine[i + half_size] + from[i] * sine[i + half_size];
    }
}

/* Turn queries and keys to their positions, and store keys and values; rows of a page below 0 store nothing.

   projected: (rows, heads + kv_heads, size), values: (rows, kv_heads, size), each with a row stride; cosine, sine:
   (rows, size), the first half of the sines negative; at_pages, at_offsets: (rows); turned: (rows, heads, size);
   key_store, value_store: (pages, kv_heads, page, size). Returns 0; 1 where a row leads out of the pages: nothing was
   written then. */
int midstream_rotate_and_store(const void *projected, count row_stride, const void *values, count value_stride,
                               const void *cosine, const void *sine, const int32_t *at_pages,
                               const int32_t *at_offsets, count pages, count page, count rows, count heads,
                               count kv_heads, count size, int half, void *turned, void *key_store,
                               void *value_store) {
    count all = heads + kv_heads;
    for (count row = 0; row < rows; row++)
        if (at_pages[row] >= pages || at_offsets[row] < 0 || at_offsets[row] >= page) return 1;
#pragma omp parallel for if (rows * all * size > WORTH_SHARING)
    for (count row = 0; row < rows; row++) {
        float cosine_room[size], sine_room[size], room[size], result[size];
        const float *by = read(cosine_room, cosine, row * size, size, half);
        const float *across = read(sine_room, sine, row * size, size, half);
        count first = (at_pages[row] * kv_heads * page + at_offsets[row]) * size;
        for (count head = 0; head < all; head++) {
            count place = first + (head - heads) * page * size;
            if (head >= heads && at_pages[row] < 0) break;
            rotate(result, read(room, projected, row * row_stride + head * size, size, half), by, across, size / 2);
            if (head < heads) write(turned, (row * heads + head) * size, result, size, half);
            else write(key_store, place, result, size, half);
            if (head >= heads)
                copy(value_store, place, values, row * value_stride + (head - heads) * size, size, half);
        }
    }
    return 0;
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
