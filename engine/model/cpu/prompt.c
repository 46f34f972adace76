/* Attention of the queries of a step's spans, for CPUs, over the pages of each span's table. A span is a reply's next
   token, or a chunk of a prompt.

   The queries that share a head are cut into blocks. Positions are cut into blocks of KEYS, at multiples of KEYS, so the
   result of a query does not depend on how its prompt was chunked. In a block each query is a column and each position
   a row. So keys are multiplied as they are stored, each lane of a vector is a different query's, and the softmax between
   both products (with a running maximum: FlashAttention, Dao et al. 2022) sums nothing within a vector.

   Products are of words: float32, or pairs of bfloat16 if the processor multiplies those. All sums are float32; weights
   are rounded to bfloat16 if they are multiplied in pairs. NaN in a request's own values also reaches queries of the
   same block that do not see it, as in torch, since 0 times NaN is NaN. */

#include "prompt.h"

enum {
    QUERIES = 96, /* the most queries of a block, for which keys and values are gathered once */
    FEWEST = 48,  /* halved to this, if threads would have no work otherwise */
    KEYS = 64     /* positions of a block */
};

static const float LOWEST = -1e30f; /* below every score; hidden scores are -inf, which is below this */

/* The span of a task. queries, mixed: of its first row; table: (columns). */
struct prompt {
    const struct attention *of;
    const char *queries;
    char *mixed;
    const int32_t *table;
    count start, sharing;
};

/* For each query: the positions that it sees, and the state of its softmax. */
struct columns {
    int32_t low[QUERIES], stop[QUERIES];
    float highest[QUERIES], total[QUERIES], fade[QUERIES];
};

/* ---- words ---------------------------------------------------------------------------------------------------------- */

/* Write two rows of bfloat16 as one row of pairs. */
VECTORS SHARED void pair(uint32_t *restrict to, const uint16_t *restrict first, const uint16_t *restrict second,
                         count n) {
    for (count i = 0; i < n; i++) to[i] = (uint32_t)first[i] | (uint32_t)second[i] << 16;
}

/* Gather the keys, (KEYS, size), and values, (KEYS, value size), of `some` positions from `t` on. As pairs, every two rows
   of values become one. Rows of values are padded to a multiple of ROWS_OF_ALL. */
static void bring(const struct prompt *prompt, count head, count t, count some, uint32_t *keys, uint32_t *value_rows) {
    const struct store *store = &prompt->of->store;
    count page = store->page, size = store->size, value_size = store->value_size, rows[KEYS], part;
    count key_words = words_of(size, prompt->of->pairs), value_words = up_to(value_size, ROWS_OF_ALL);
    for (count i = 0; i < some; i += part) {
        count row = (prompt->table[(t + i) / page] * store->kv_heads + head) * page + (t + i) % page;
        count left = page - (t + i) % page;
        part = some - i < left ? some - i : left;
        as_words(keys + i * key_words, store->keys, row * size, part * size, store->half, prompt->of->pairs);
        for (count j = 0; j < part; j++) rows[i + j] = row + j;
    }
    if (!prompt->of->pairs) {
        for (count i = 0; i < some; i++)
            as_words(value_rows + i * value_words, store->values, rows[i] * value_size, value_size, store->half, 0);
        return;
    }
    const uint16_t *values = store->values;
    for (count i = 0; i + 1 < some; i += 2)
        pair(value_rows + i / 2 * value_words, values + rows[i] * value_size, values + rows[i + 1] * value_size,
             value_size);
    if (some % 2) {
        uint32_t *to = value_rows + some / 2 * value_words;
        for (count j = 0; j < value_size; j++) to[j] = values[rows[some - 1] * value_size + j];
    }
}

/* ---- the softmax ---------------------------------------------------------------------------------------------------- */

/* Scale scores, (rows, QUERIES), and cap them softly. */
VECTORS SHARED void cap_rows(float *restrict scores, float scale, float softcap, count rows, count columns) {
    for (count k = 0; k < rows; k++) {
        for (count q = 0; q < columns; q++) scores[k * QUERIES + q] *= scale;
        cap(scores + k * QUERIES, softcap, columns);
    }
}

/* Scale scores; keep the highest of each column, and the factor that its earlier sums shrink by. */
VECTORS SHARED void measure(float *restrict scores, struct columns *restrict of, float scale, count rows,
                            count columns) {
    float *restrict highest = of->highest, *restrict fade = of->fade;
    for (count q = 0; q < columns; q++) fade[q] = highest[q];
    for (count k = 0; k < rows; k++) {
        float *row = scores + k * QUERIES;
        for (count q = 0; q < columns; q++) row[q] *= scale;
        for (count q = 0; q < columns; q++) highest[q] = row[q] > highest[q] ? row[q] : highest[q];
    }
    for (count q = 0; q < columns; q++) fade[q] = exponential(fade[q] - highest[q]);
    for (count q = 0; q < columns; q++) of->total[q] *= fade[q];
}

/* Set scores of positions from `t` on to -inf if their query does not see them. */
VECTORS SHARED void hide(float *restrict scores, const struct columns *restrict of, int32_t t, count rows,
                         count columns) {
    for (count k = 0; k < rows; k++) {
        int32_t position = t + (int32_t)k;
        for (count q = 0; q < columns; q++) {
            int is_seen = (position >= of->low[q]) & (position < of->stop[q]);
            scores[k * QUERIES + q] = is_seen ? scores[k * QUERIES + q] : -INFINITY;
        }
    }
}

/* Turn scores into weights, relative to the highest of their column, and sum them up. */
VECTORS SHARED void weigh_columns(float *restrict scores, struct columns *restrict of, count rows, count columns) {
    float *restrict highest = of->highest, *restrict total = of->total;
    for (count k = 0; k < rows; k++) {
        float *restrict row = scores + k * QUERIES;
        for (count q = 0; q < columns; q++) {
            float weight = exponential(row[q] - highest[q]);
            row[q] = weight = row[q] < LOWEST ? 0.0f : weight;
            total[q] += weight;
        }
    }
}

VECTORS SHARED void fade_rows(float *restrict mixed, const float *restrict fade, count rows, count columns) {
    for (count i = 0; i < rows; i++)
        for (count q = 0; q < columns; q++) mixed[i * QUERIES + q] *= fade[q];
}

/* ---- one block ------------------------------------------------------------------------------------------------------ */

/* Write the queries of a block as columns of words, and which positions each sees. Unused columns are zero. */
static void take_queries(const struct prompt *prompt, struct task task, uint32_t *asked, struct columns *of) {
    count size = prompt->of->store.size, depth = words_of(size, prompt->of->pairs), sharing = prompt->sharing;
    uint32_t words[size];
    memset(asked, 0, (size_t)(depth * QUERIES) * sizeof *asked);
    for (count q = 0; q < QUERIES; q++) {
        count row = (task.first + q) / sharing, head = task.head * sharing + (task.first + q) % sharing;
        count stop = prompt->start + row + 1;
        of->low[q] = (int32_t)first_seen(stop, &prompt->of->terms), of->stop[q] = (int32_t)stop;
        of->highest[q] = LOWEST, of->total[q] = 0;
        if (q >= task.number) continue;
        as_words(words, prompt->queries, row * prompt->of->row_stride + head * prompt->of->head_stride, size,
                 prompt->of->store.half, prompt->of->pairs);
        for (count j = 0; j < depth; j++) asked[j * QUERIES + q] = words[j];
    }
}

/* Write the result of each query to its row. */
static void give(const struct prompt *prompt, struct task task, const float *mixed, const float *total) {
    count size = prompt->of->store.value_size;
    float row[size];
    for (count q = 0; q < task.number; q++) {
        count head = task.head * prompt->sharing + (task.first + q) % prompt->sharing;
        for (count i = 0; i < size; i++) row[i] = mixed[i * QUERIES + q] / total[q];
        write(prompt->mixed, ((task.first + q) / prompt->sharing * prompt->of->heads + head) * size, row, size,
              prompt->of->store.half);
    }
}

static void attend_block(const struct prompt *prompt, struct task task) {
    products *add_products = products_for(prompt->of->pairs);
    count depth = words_of(prompt->of->store.size, prompt->of->pairs);
    count value_rows = up_to(prompt->of->store.value_size, ROWS_OF_ALL), columns = up_to(task.number, LANES_OF_ALL);
    count first = prompt->start + task.first / prompt->sharing;
    count last = prompt->start + (task.first + task.number - 1) / prompt->sharing;
    float scale = prompt->of->terms.scale, softcap = prompt->of->terms.softcap;
    uint32_t asked[depth * QUERIES], keys[KEYS * depth], values[KEYS * value_rows], paired[KEYS / 2 * QUERIES];
    float scores[KEYS * QUERIES], mixed[value_rows * QUERIES];
    struct columns of;
    take_queries(prompt, task, asked, &of);
    memset(mixed, 0, sizeof mixed);
    memset(values, 0, sizeof values);
    memset(keys, 0, sizeof keys);
    for (count t = of.low[0] / KEYS * KEYS; t <= last; t += KEYS) {
        count some = last + 1 - t < KEYS ? last + 1 - t : KEYS, rows = up_to(some, ROWS_OF_ALL);
        bring(prompt, task.head, t, some, keys, values);
        memset(scores, 0, (size_t)(rows * QUERIES) * sizeof *scores);
        add_products(scores, QUERIES, (struct left){keys, depth, 1}, asked, rows, columns, depth);
        if (softcap > 0) cap_rows(scores, scale, softcap, some, columns);
        if (t + some > first + 1 || of.low[task.number - 1] > t) hide(scores, &of, (int32_t)t, some, columns);
        measure(scores, &of, softcap > 0 ? 1.0f : scale, some, columns);
        weigh_columns(scores, &of, some, columns);
        fade_rows(mixed, of.fade, value_rows, columns);
        const uint32_t *weights = (const uint32_t *)scores;
        count positions = some;
        if (prompt->of->pairs) {
            if (some % 2) memset(scores + some * QUERIES, 0, QUERIES * sizeof *scores);
            for (count k = 0; k < some; k += 2)
                pair_rows(paired + k / 2 * QUERIES, scores + k * QUERIES, scores + (k + 1) * QUERIES,
                          columns);
            weights = paired, positions = (some + 1) / 2;
        }
        add_products(mixed, QUERIES, (struct left){values, 1, value_rows}, weights, value_rows, columns,
                     positions);
    }
    give(prompt, task, mixed, of.total);
}

/* ---- tasks ---------------------------------------------------------------------------------------------------------- */

count cut_attention(const struct attention *attention, count threads, struct task *tasks) {
    const struct span *last = attention->spans + attention->span_count - 1;
    count kv_heads = attention->store.kv_heads, sharing = attention->heads / kv_heads, number = 0, most = QUERIES;
    count queries = (last->row + last->number) * sharing;
    while (most > FEWEST && (queries + most - 1) / most * kv_heads < 2 * threads) most /= 2;
    for (count i = 0; i < attention->span_count; i++) {
        count all = attention->spans[i].number * sharing, blocks = (all + most - 1) / most;
        if (attention->spans[i].number == 1) blocks = 1;
        for (count block = blocks - 1; block >= 0; block--)
            for (count head = 0; head < kv_heads; head++, number++) {
                count first = block * most, some = all - first < most ? all - first : most;
                if (tasks) tasks[number] = (struct task){i, head, first, some};
            }
    }
    return number;
}

void attend_task(const struct attention *attention, struct task task) {
    const struct store *store = &attention->store;
    const struct span *span = attention->spans + task.span;
    count heads = attention->heads, sharing = heads / store->kv_heads, size = store->size, bytes = store->half ? 2 : 4;
    const struct prompt prompt = {
        attention, (const char *)attention->queries + span->row * attention->row_stride * bytes,
        (char *)attention->mixed + span->row * heads * store->value_size * bytes,
        attention->table + task.span * attention->columns, span->start, sharing,
    };
    if (span->number > 1) {
        attend_block(&prompt, task);
        return;
    }
    count stop = span->start + 1, first = task.head * sharing;
    float asked[sharing * size], given[sharing * store->value_size];
    for (count q = 0; q < sharing; q++) {
        float *room = asked + q * size;
        const float *query = read(room, prompt.queries, (first + q) * attention->head_stride, size, store->half);
        if (!store->half) memcpy(room, query, (size_t)size * sizeof *query);
    }
    attend_head(given, asked, store, prompt.table, task.head, first_seen(stop, &attention->terms), stop, sharing,
                &attention->terms);
    write(prompt.mixed, first * store->value_size, given, sharing * store->value_size, store->half);
}
