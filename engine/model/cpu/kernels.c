/* Attention of any layer's queries over pages, on CPUs.

   Elements are bfloat16 (`half`) or float32; all sums are float32. Pointers are to contiguous rows; offsets, strides and
   sizes count elements. NaN in one span does not reach the others.

   Attention is one pass over the positions with a running maximum (Milakov and Gimelshein 2018; FlashAttention, Dao et al.
   2022). */

#include "prompt.h"

#include <omp.h>
#include <stdlib.h>

/* Raise the version with every change of a signature, here and in kernels.py. */
const int midstream_version = 10;

/* With fewer operations than WORTH_SHARING, waking other threads takes longer. Heads and queries lie on the stack. */
enum { WORTH_SHARING = 1 << 15, WIDEST_HEAD = 1 << 10, WIDEST_QUERIES = 1 << 17 };

/* Attend with the queries of spans, each to all positions of its span's table up to its own.

   queries: (rows, heads, size), with strides; keys, values: (pages, kv_heads, page, size); table: (span_count, columns);
   mixed: (rows, heads, value_size). Returns 0; 1 if spans are not one after the other, heads are too wide, or a table
   points outside the pages; 2 if there is no memory. Unless 0, nothing was read. */
int midstream_attend(const void *queries, count row_stride, count head_stride, const void *keys, const void *values,
                     const int32_t *table, const struct span *spans, count pages, count columns, count span_count,
                     count heads, count kv_heads, count page, count size, count value_size, float scale, float softcap,
                     count window, int half, void *mixed) {
    const struct attention attention = {
        {keys, values, kv_heads, page, size, value_size, half}, {scale, softcap, window}, queries, mixed, table,
        spans, span_count, columns, row_stride, head_stride, heads, half && midstream_has_pairs() && size % 2 == 0,
    };
    count row = 0, read_positions = 0, widest = size > value_size ? size : value_size;
    if (size < 1 || value_size < 1 || widest > WIDEST_HEAD || heads / kv_heads * widest > WIDEST_QUERIES) return 1;
    for (count i = 0; i < span_count; row += spans[i++].number) {
        if (spans[i].row != row || spans[i].number < 1 || spans[i].start < 0) return 1;
        if (!is_within(table + i * columns, columns, page, spans[i].start + spans[i].number, pages)) return 1;
        read_positions += spans[i].number * (spans[i].start + spans[i].number);
    }
    if (!span_count) return 0;
    count number = cut_attention(&attention, omp_get_max_threads(), NULL);
    struct task *tasks = malloc((size_t)number * sizeof *tasks);
    if (!tasks) return 2;
    cut_attention(&attention, omp_get_max_threads(), tasks);
#pragma omp parallel for schedule(dynamic) if (read_positions * heads * size > WORTH_SHARING)
    for (count i = 0; i < number; i++) attend_task(&attention, tasks[i]);
    free(tasks);
    return 0;
}
