/* A whole step with chunks of prompts of a Llama-like model in one call, for CPUs.

   The rows of a step are side by side, in blocks of COLUMNS: a block's states are (features, COLUMNS). So weights are
   multiplied as they are stored, norms and gates have a row in each lane of a vector, and the result of one product is
   the input of the next. Keys, values and attention have rows one after the other: position p of a request is at offset
   p % page_size of page table[p / page_size].

   Inputs are always summed in the same order, so a row's numbers do not depend on how its prompt was chunked. Only a
   chunk of a single row differs, since it attends as a reply's token does. Between stages, values are rounded to
   bfloat16 only where torch's operations round them, too. Threads wake once a step and share out the parts of each stage.
   All numbers that addresses depend on are checked before the first address is used. */

#include "prompt.h"
#include "linear.h"
#include "model.h"
#include "stages.h"

enum {
    FEWEST_OUTPUTS = 16, /* the fewest outputs of a part */
    PARTS_A_THREAD = 4,  /* several parts a thread, so that a late thread holds up less */
    TURNED = 16,         /* rows that are rotated in one part */
    STAGES_A_LAYER = 9,
    OTHER_STAGES = 3
};

/* ---- products ------------------------------------------------------------------------------------------------------

   They are bound by arithmetic, so the factors are kept in the L1 cache. Rows are side by side, in blocks of COLUMNS, and
   are read as vectors. Weights are read as they are stored, a word at a time. */

enum {
    COLUMNS = 48, /* rows of a block, as many as are summed at a time */
    OUTPUTS = 64, /* the most outputs that are made at a time, so that their sums stay in the L1 cache */
    DEPTH = 128   /* words of the inputs that are multiplied at a time */
};

/* `half`: elements are bfloat16, else float32. `pairs`: words are pairs of bfloat16, else floats. */
struct elements {
    int half, pairs;
};

/* A piece of a product: `outputs` outputs, at most OUTPUTS, from `first` on, for a block with `columns` used columns. The
   weights that are needed next begin `ahead` outputs further on. */
struct piece {
    count first, outputs, columns, ahead;
};

/* Write two rows of COLUMNS floats, of neighbouring features, as words of (features, COLUMNS). */
static void write_words(struct elements elements, uint32_t *to, count feature, float *first, float *second) {
    if (elements.pairs) {
        pair_rows(to + feature / 2 * COLUMNS, first, second, COLUMNS);
        return;
    }
    float *rows[] = {first, second};
    for (count i = 0; i < 2; i++) {
        uint16_t room[COLUMNS];
        if (elements.half) narrow(room, rows[i], COLUMNS);
        as_words(to + (feature + i) * COLUMNS, elements.half ? (void *)room : rows[i], 0, COLUMNS, elements.half, 0);
    }
}

/* Gather the weights of `n` outputs, `some` words of each from `k` on: (n, DEPTH). */
static void bring_weights(struct elements elements, const struct matrix *by, count first, count n, count k, count some,
                          uint32_t *to) {
    count each = elements.pairs ? 2 : 1;
    for (count row = 0; row < n; row++, to += DEPTH) {
        count from = (first + row) * by->inputs + k * each;
        as_words(to, by->weight, from, some * each, elements.half, elements.pairs);
    }
}

/* Prefetch `some` words of the weights of `n` outputs, which are needed soon, while others are multiplied. */
static void fetch(struct left left, count n, count some) {
    enum { LINE = 64 / sizeof(uint32_t) };
    for (count row = 0; row < n; row++)
        for (count i = 0; i < some; i += LINE) __builtin_prefetch(left.words + row * left.down + i, 0, 2);
}

static void add_bias(struct elements elements, const struct matrix *by, count first, count n, float *sums) {
    float room[OUTPUTS];
    const float *bias = read(room, by->bias, first, n, elements.half);
    for (count i = 0; i < n; i++)
        for (count c = 0; c < COLUMNS; c++) sums[i * COLUMNS + c] += bias[i];
}

/* Multiply weights, with elements like the rows', by a block, (words of the inputs, COLUMNS). Writes sums, (outputs,
   COLUMNS), with their bias; `sums` has room for OUTPUTS rows. */
static void multiply_columns(struct elements elements, const struct matrix *by, const uint32_t *given,
                             struct piece piece, float *sums) {
    products *add_products = products_for(elements.pairs);
    count first = piece.first, n = piece.outputs, behind = by->outputs - first - piece.ahead;
    count depth = words_of(by->inputs, elements.pairs), rows = up_to(n, ROWS_OF_ALL);
    int as_they_lie = elements.half == elements.pairs && rows == n;
    uint32_t room[OUTPUTS * DEPTH];
    memset(sums, 0, (size_t)(rows * COLUMNS) * sizeof *sums);
    if (rows > n) memset(room + n * DEPTH, 0, (size_t)((rows - n) * DEPTH) * sizeof *room);
    for (count k = 0; k < depth; k += DEPTH) {
        count some = depth - k < DEPTH ? depth - k : DEPTH;
        struct left left = {room, DEPTH, 1};
        if (as_they_lie) {
            const uint32_t *words = (const uint32_t *)by->weight + k;
            left = (struct left){words + first * depth, depth, 1};
            if (behind > 0) fetch((struct left){words + (first + piece.ahead) * depth, depth, 1}, n < behind ? n : behind, some);
        } else {
            bring_weights(elements, by, first, n, k, some, room);
        }
        add_products(sums, COLUMNS, left, given + k * COLUMNS, rows, up_to(piece.columns, LANES_OF_ALL), some);
    }
    if (by->bias) add_bias(elements, by, first, n, sums);
}

/* ---- a step of spans --------------------------------------------------------------------------------------------- */

/* What all threads share. states: (hidden, COLUMNS) of elements for each block; words: (words of the inputs, COLUMNS);
   projected, mixed: (rows, features) of elements; last: (kept, hidden). `outputs`: how many a part of a product has. */
struct run {
    const struct model *model;
    const struct step *step;
    struct elements elements;
    struct stage *stages;
    struct task *tasks;
    char *states, *projected, *mixed, *last;
    uint32_t *words, *gated;
    count blocks, task_count, outputs;
};

/* ---- where things are --------------------------------------------------------------------------------------------- */

static count columns_of(const struct run *run, count block) {
    count left = run->step->rows - block * COLUMNS;
    return left < COLUMNS ? left : COLUMNS;
}

static count projected_features(const struct model *model) {
    return (model->heads + 2 * model->kv_heads) * model->size;
}

static char *states_of(const struct run *run, count block) {
    return run->states + bytes_of(run->model, block * run->model->hidden * COLUMNS);
}

static uint32_t *words_in(const struct run *run, uint32_t *words, count block, count features) {
    return words + block * words_of(features, run->elements.pairs) * COLUMNS;
}

static const struct span *span_of(const struct run *run, count row) {
    const struct span *span = run->step->spans;
    while (row >= span->row + span->number) span++;
    return span;
}

/* ---- stages: each function does one part of a stage --------------------------------------------------------------- */

static void embed(const struct run *run, void *nothing, count block) {
    (void)nothing;
    const struct model *model = run->model;
    count columns = columns_of(run, block), hidden = model->hidden;
    char *states = states_of(run, block);
    memset(states, 0, (size_t)bytes_of(model, hidden * COLUMNS));
    for (count c = 0; c < columns; c++) {
        count from = run->step->tokens[block * COLUMNS + c] * hidden;
        if (model->half)
            for (count i = 0; i < hidden; i++)
                ((uint16_t *)states)[i * COLUMNS + c] = ((const uint16_t *)model->embedding)[from + i];
        else
            for (count i = 0; i < hidden; i++)
                ((float *)states)[i * COLUMNS + c] = ((const float *)model->embedding)[from + i];
    }
}

VECTORS SHARED void add_squares(float *restrict sums, const float *restrict row) {
    for (count c = 0; c < COLUMNS; c++) sums[c] += row[c] * row[c];
}

VECTORS SHARED void scale_columns(float *restrict to, const float *restrict row, const float *restrict factors,
                                  float weight) {
    for (count c = 0; c < COLUMNS; c++) to[c] = row[c] * factors[c] * weight;
}

/* Normalize a block's states, and write them as words. */
static void normalize_columns(const struct run *run, void *norm, count block) {
    const struct model *model = run->model;
    const char *states = states_of(run, block);
    int half = (int)model->half;
    count hidden = model->hidden;
    float room[COLUMNS], weight_room[hidden], factors[COLUMNS] = {0}, made[2][COLUMNS];
    const float *weights = read(weight_room, norm, 0, hidden, half);
    uint32_t *to = words_in(run, run->words, block, hidden);
    for (count i = 0; i < hidden; i++) add_squares(factors, read(room, states, i * COLUMNS, COLUMNS, half));
    for (count c = 0; c < COLUMNS; c++) factors[c] = 1.0f / sqrtf(factors[c] / (float)hidden + model->epsilon);
    for (count i = 0; i < hidden; i += 2) {
        for (count j = 0; j < 2; j++)
            scale_columns(made[j], read(room, states, (i + j) * COLUMNS, COLUMNS, half), factors, weights[i + j]);
        write_words(run->elements, to, i, made[0], made[1]);
    }
}

/* Put the results of attention for a block's rows side by side, as words. */
static void gather_mixed(const struct run *run, void *nothing, count block) {
    (void)nothing;
    count features = run->model->heads * run->model->size, depth = words_of(features, run->elements.pairs);
    count columns = columns_of(run, block);
    uint32_t row[depth], *to = words_in(run, run->words, block, features);
    for (count c = 0; c < columns; c++) {
        as_words(row, run->mixed, (block * COLUMNS + c) * features, features, run->elements.half,
                 run->elements.pairs);
        for (count k = 0; k < depth; k++) to[k * COLUMNS + c] = row[k];
    }
    for (count c = columns; c < COLUMNS; c++)
        for (count k = 0; k < depth; k++) to[k * COLUMNS + c] = 0;
}

/* Rotate the queries and keys of some rows by their positions, and store keys and values. */
static void turn_rows(const struct run *run, void *given, count part) {
    const struct model *model = run->model;
    const struct layer *layer = given;
    int half = (int)model->half;
    count size = model->size, heads = model->heads, kv_heads = model->kv_heads;
    count first = part * TURNED, end = first + TURNED < run->step->rows ? first + TURNED : run->step->rows;
    for (count row = first; row < end; row++) {
        const struct span *span = span_of(run, row);
        const int32_t *pages = run->step->table + (span - run->step->spans) * run->step->columns;
        count position = span->start + row - span->row, from = row * projected_features(model);
        float cosine_room[size], sine_room[size], turned[size];
        const float *cosine = read(cosine_room, model->cosine, position * size, size, half);
        const float *sine = read(sine_room, model->sine, position * size, size, half);
        for (count head = 0; head < heads; head++) {
            turn(model, run->projected, from + head * size, layer->query_norm, cosine, sine, turned);
            write(run->projected, from + head * size, turned, size, half);
        }
        for (count head = 0; head < kv_heads; head++) {
            count place = place_of(model, pages, position, head);
            turn(model, run->projected, from + (heads + head) * size, layer->key_norm, cosine, sine, turned);
            write(layer->keys, place, turned, size, half);
            copy(layer->values, place, run->projected, from + (heads + kv_heads + head) * size, size, half);
        }
    }
}

static struct attention attention_of(const struct run *run, const struct layer *layer) {
    const struct model *model = run->model;
    const struct step *step = run->step;
    count size = model->size;
    return (struct attention){
        {layer->keys, layer->values, model->kv_heads, model->page_size, size, size, (int)model->half},
        {.scale = model->scale}, run->projected, run->mixed, step->table, step->spans, step->span_count, step->columns,
        projected_features(model), size, model->heads, run->elements.pairs,
    };
}

static void attend(const struct run *run, void *layer, count part) {
    const struct attention attention = attention_of(run, layer);
    attend_task(&attention, run->tasks[part]);
}

/* Where a product's sums go: to projected rows, to the states, or through the gate to the MLP's second product. */
enum end { TO_ROWS, TO_STATES, TO_GATED };

struct multiplied {
    const struct matrix *by;
    uint32_t *given;
    enum end end;
};

static count made_outputs(const struct multiplied *product) {
    return product->by->outputs / (product->end == TO_GATED ? 2 : 1);
}

static void to_rows(const struct run *run, count block, count first, count n, float *sums) {
    struct elements elements = run->elements;
    count features = projected_features(run->model), depth = words_of(n, elements.pairs);
    count columns = columns_of(run, block);
    uint32_t words[OUTPUTS * COLUMNS], row[OUTPUTS];
    for (count i = 0; i < n; i += 2)
        write_words(elements, words, i, sums + i * COLUMNS, sums + (i + 1) * COLUMNS);
    for (count c = 0; c < columns; c++) {
        count to = (block * COLUMNS + c) * features + first;
        for (count k = 0; k < depth; k++) row[k] = words[k * COLUMNS + c];
        if (elements.pairs) copy(run->projected, to, row, 0, n, elements.half);
        else write(run->projected, to, (const float *)row, n, elements.half);
    }
}

static void to_states(const struct run *run, count block, count first, count n, float *sums) {
    char *states = states_of(run, block);
    float room[COLUMNS];
    for (count i = 0; i < n; i++) {
        const float *before = read(room, states, (first + i) * COLUMNS, COLUMNS, run->elements.half);
        for (count c = 0; c < COLUMNS; c++) sums[i * COLUMNS + c] += before[c];
        write(states, (first + i) * COLUMNS, sums + i * COLUMNS, COLUMNS, run->elements.half);
    }
}

static void to_gated(const struct run *run, count block, count first, count n, const float *gates, const float *ups,
                     count middle) {
    uint32_t *to = words_in(run, run->gated, block, middle);
    float made[2][COLUMNS];
    for (count i = 0; i < n; i += 2) {
        for (count j = 0; j < 2; j++) gate(made[j], gates + (i + j) * COLUMNS, ups + (i + j) * COLUMNS, COLUMNS);
        write_words(run->elements, to, first + i, made[0], made[1]);
    }
}

/* Neighbouring parts have the same weights, which are thus read from memory only once. */
static void multiply_part(const struct run *run, void *given, count part) {
    const struct multiplied *product = given;
    const struct matrix *by = product->by;
    count block = part % run->blocks, first = part / run->blocks * run->outputs;
    count all = made_outputs(product), n = all - first < run->outputs ? all - first : run->outputs;
    count rounds = (run->step->threads + run->blocks - 1) / run->blocks; /* pieces of weights that threads read at once */
    struct piece piece = {first, n, columns_of(run, block), rounds * run->outputs};
    const uint32_t *words = words_in(run, product->given, block, by->inputs);
    float sums[OUTPUTS * COLUMNS], ups[OUTPUTS * COLUMNS];
    multiply_columns(run->elements, by, words, piece, sums);
    if (product->end == TO_ROWS) to_rows(run, block, first, n, sums);
    if (product->end == TO_STATES) to_states(run, block, first, n, sums);
    if (product->end != TO_GATED) return;
    piece.first += all;
    multiply_columns(run->elements, by, words, piece, ups);
    to_gated(run, block, first, n, sums, ups, all);
}

/* Normalize the states of a row whose logits are wanted. */
static void normalize_kept(const struct run *run, void *nothing, count number) {
    (void)nothing;
    const struct model *model = run->model;
    count row = run->step->kept[number], hidden = model->hidden, bytes = bytes_of(model, 1);
    const char *states = states_of(run, row / COLUMNS);
    char *to = run->last + bytes_of(model, number * hidden);
    for (count i = 0; i < hidden; i++)
        memcpy(to + i * bytes, states + (i * COLUMNS + row % COLUMNS) * bytes, (size_t)bytes);
    normalize(model, to, model->norm, 1, hidden, to);
}

static void multiply_kept(const struct run *run, void *product, count part) {
    compute_part(product, cut_product(product, run->step->threads), part);
}

/* ---- a step ------------------------------------------------------------------------------------------------------- */

static void share_product(const struct run *run, struct stage **stage, const struct matrix *by, uint32_t *given,
                          enum end end) {
    struct multiplied product = {by, given, end};
    count parts = (made_outputs(&product) + run->outputs - 1) / run->outputs * run->blocks;
    share(stage, parts, multiply_part, run, &product);
}

static void share_step(const struct run *run) {
    const struct model *model = run->model;
    const struct step *step = run->step;
    struct stage *stage = run->stages;
    share(&stage, run->blocks, embed, run, NULL);
    for (const struct layer *layer = model->layers; layer < model->layers + model->layer_count; layer++) {
        share(&stage, run->blocks, normalize_columns, run, (void *)layer->attention_norm);
        share_product(run, &stage, &layer->qkv, run->words, TO_ROWS);
        share(&stage, (step->rows + TURNED - 1) / TURNED, turn_rows, run, (void *)layer);
        share(&stage, run->task_count, attend, run, (void *)layer);
        share(&stage, run->blocks, gather_mixed, run, NULL);
        share_product(run, &stage, &layer->output, run->words, TO_STATES);
        share(&stage, run->blocks, normalize_columns, run, (void *)layer->mlp_norm);
        share_product(run, &stage, &layer->gate_up, run->words, TO_GATED);
        share_product(run, &stage, &layer->down, run->gated, TO_STATES);
    }
    if (!step->kept_count) return;
    struct product product = {&model->head, run->last, NULL, step->logits, step->kept_count, run->elements.half, 0};
    share(&stage, step->kept_count, normalize_kept, run, NULL);
    share(&stage, cut_product(&product, step->threads).parts, multiply_kept, run, &product);
}

static void lay_out(struct run *run, struct room *room) {
    const struct model *model = run->model;
    count hidden = model->hidden, mixed = model->heads * model->size, all = run->blocks * COLUMNS;
    count widest = hidden > mixed ? hidden : mixed;
    int pairs = run->elements.pairs;
    run->stages = take_stages(room, model->layer_count * STAGES_A_LAYER + OTHER_STAGES);
    run->tasks = take(room, run->task_count * (count)sizeof *run->tasks);
    run->states = take(room, bytes_of(model, all * hidden));
    run->words = take(room, words_of(all * widest, pairs) * (count)sizeof *run->words);
    run->gated = take(room, words_of(all * widest_middle(model), pairs) * (count)sizeof *run->gated);
    run->projected = take(room, bytes_of(model, run->step->rows * projected_features(model)));
    run->mixed = take(room, bytes_of(model, run->step->rows * mixed));
    run->last = take(room, bytes_of(model, run->step->kept_count * hidden));
}

/* Products of many rows take features in twos, and only weights whose elements are like the rows'. */
static enum refusal check_layers(const struct model *model) {
    if (model->hidden % 2) return BAD_SIZES;
    for (const struct layer *layer = model->layers; layer < model->layers + model->layer_count; layer++) {
        if (layer->down.inputs % 2) return BAD_SIZES;
        if (layer->qkv.scale || layer->output.scale || layer->gate_up.scale || layer->down.scale) return BAD_WEIGHTS;
    }
    return FINE;
}

/* Compute a step. Returns 0, or an `enum refusal` without computing anything. */
int midstream_prefill(const struct model *model, const struct step *step) {
    enum refusal refusal = check_step(model, step);
    if (!refusal) refusal = check_layers(model);
    if (refusal) return refusal;
    struct run run = {
        .model = model, .step = step, .elements = {(int)model->half, model->half && midstream_has_pairs()},
        .blocks = (step->rows + COLUMNS - 1) / COLUMNS, .outputs = OUTPUTS,
    };
    while (run.outputs > FEWEST_OUTPUTS && model->hidden / run.outputs * run.blocks < step->threads * PARTS_A_THREAD)
        run.outputs /= 2;
    struct attention attention = attention_of(&run, model->layers);
    run.task_count = cut_attention(&attention, step->threads, NULL);
    struct room room = {0};
    lay_out(&run, &room);
    room = (struct room){aligned_alloc(ALIGNED, (size_t)room.used), 0};
    if (!room.start) return NO_MEMORY;
    lay_out(&run, &room);
    cut_attention(&attention, step->threads, run.tasks);
#pragma omp parallel num_threads((int)step->threads)
    share_step(&run);
    free(room.start);
    return FINE;
}
