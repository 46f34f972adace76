/* Attention of many queries of one request, a block of them at a time: see prompt.c. */

#ifndef MIDSTREAM_CPU_PROMPT_H
#define MIDSTREAM_CPU_PROMPT_H

#include "softmax.h"

/* A prompt's chunk: queries of each head from position `start` on, and where their results go, `mixed`: (rows, heads,
   value size). `pairs`: words are pairs of bfloat16. */
struct prompt {
    struct store store;
    struct terms terms;
    const void *queries;
    const int32_t *table;
    count row_stride, head_stride, start, heads, sharing;
    int pairs;
    void *mixed;
};

/* Neighbouring queries that share a head: `number` of them from the one at `first` on. */
struct block {
    count head, first, number;
};

/* How many queries a block has, if all chunks of a step have `queries` for each KV head. */
HIDDEN count queries_of_block(count queries, count kv_heads, count threads);
HIDDEN void attend_block(const struct prompt *prompt, struct block block);

#endif
