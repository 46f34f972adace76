/* What a step of few rows computes between its matrix products, for CPUs: in torch each of these is many operations,
   and every one of them takes longer to begin than to do.

   Elements are bfloat16 (`half`) or float32; all sums are of float32. Pointers are to contiguous rows; offsets, strides
   and sizes count elements. Nothing here allocates, and a value that is not a number stays with its own row.

   Attention is one pass over the positions with a running maximum (Milakov and Gimelshein 2018; FlashAttention, Dao et
   al. 2022); rotation is RoFormer's (Su et al. 2021); the norm is RMSNorm (Zhang and Sennrich 2019). */

#include "cpu_softmax.h"

/* To be raised with every change of a signature, here and in cpu_kernels.py. */
const int midstream_version = 2;

enum { WORTH_SHARING = 1 << 15 /* operations, about, below which waking other threads takes longer */ };

/* ---- attention of one query for each row ------------------------------------------------------------------------- */

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
            struct softmax softmax[sharing];
            attend_nothing(given, softmax, sharing, size);
            attend_piece(given, softmax, asked, keys, values, (slots[row] * kv_heads + head) * tokens * size, size,
                         positions[row] + 1, sharing, size, scale, half);
            attend_end(given, softmax, sharing, size);
            write(mixed, (row * heads + head * sharing) * size, given, sharing * size, half);
        }
    }
}

/* ---- what happens to rows ---------------------------------------------------------------------------------------- */

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
