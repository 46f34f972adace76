/* Attention of one query for each row, on CPUs.

   Elements are bfloat16 (`half`) or float32; all sums are float32. Pointers are to contiguous rows; offsets, strides
   and sizes count elements. Nothing here allocates, and NaN in one row does not reach the others.

   It is one pass over the positions with a running maximum (Milakov and Gimelshein 2018; FlashAttention, Dao et al.
   2022). */

#include "softmax.h"

/* Raise it with every change of a signature, here and in kernels.py. */
const int midstream_version = 9;

enum { WORTH_SHARING = 1 << 15 /* with fewer operations than about this, waking other threads takes longer */ };

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
