/* What a step of few rows computes between its matrix products, on CPUs. In torch each of these functions is many
   operations, and each operation takes longer to launch than to run.

   Elements are bfloat16 (`half`) or float32; all sums are float32. Pointers are to contiguous rows; offsets, strides
   and sizes count elements. Nothing here allocates, and NaN in one row does not reach the others.

   Attention is one pass over the positions with a running maximum (Milakov and Gimelshein 2018; FlashAttention, Dao et
   al. 2022); rotation is RoFormer's (Su et al. 2021); the norm is RMSNorm (Zhang and Sennrich 2019). */

#include "softmax.h"

/* Raise it with every change of a signature, here and in kernels.py. */
const int midstream_version = 7;

enum { WORTH_SHARING = 1 << 15 /* with fewer operations than about this, waking other threads takes longer */ };

/* ---- attention of one query for each row ------------------------------------------------------------------------- */

/* Attend with one query for each row and head, to all positions of the row's table.

   queries: (rows, heads, size), with strides; keys, values: (pages, kv_heads, page, size); tables: (rows, width);
   lengths: (rows); mixed: (rows, heads, value_size). Returns 0, or 1 if a table points outside the pages; nothing was
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

/* ---- rotation, norms and gates of rows --------------------------------------------------------------------------- */

/* Rotate queries and keys by their positions, and store keys and values. Rows with a page below 0 store nothing.

   projected: (rows, heads + kv_heads, size), values: (rows, kv_heads, size), each with a row stride; cosine, sine:
   (rows, size), the first half of the sines negative; at_pages, at_offsets: (rows); turned: (rows, heads, size);
   key_store, value_store: (pages, kv_heads, page, size). Returns 0, or 1 if a row points outside the pages; nothing
   was written then. */
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

/* Write silu(gate) * up, (rows, size), for rows of gates and ups side by side, (rows, 2 * size). */
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
