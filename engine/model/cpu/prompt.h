/* Attention of the queries of a step's spans, in tasks that threads share out: see prompt.c. */

#ifndef MIDSTREAM_CPU_PROMPT_H
#define MIDSTREAM_CPU_PROMPT_H

#include "softmax.h"

/* queries: (rows, heads, size), with strides; table: (span_count, columns); mixed: (rows, heads, value size). `pairs`: words
   are pairs of bfloat16. */
struct attention {
    struct store store;
    struct terms terms;
    const void *queries;
    void *mixed;
    const int32_t *table;
    const struct span *spans;
    count span_count, columns, row_stride, head_stride, heads;
    int pairs;
};

/* Neighbouring queries of a span that share a head: `number` of them from the one at `first` on. */
struct task {
    count span, head, first, number;
};

/* Cut the queries of all spans into tasks, or only count them if `tasks` is NULL. Those that see most come first within a
   span. Returns how many tasks there are. */
HIDDEN count cut_attention(const struct attention *attention, count threads, struct task *tasks);
HIDDEN void attend_task(const struct attention *attention, struct task task);

#endif
