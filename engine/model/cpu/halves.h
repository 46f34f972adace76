/* An encoder-decoder as the kernels for whole steps see it, and what both of its halves do with rows.

   Norms stand before the blocks of a layer, or behind the sums. Threads wake once a step and share out the parts of each
   stage. Only what torch's operations round is rounded to bfloat16 between the stages. */

#ifndef MIDSTREAM_CPU_HALVES_H
#define MIDSTREAM_CPU_HALVES_H

#include "softmax.h"
#include "linear.h"
#include "stages.h"

#include <omp.h>

enum {
    WIDEST = 1 << 14, /* elements of a row of states: some of them lie on the stack */
    ROWS_A_PART = 8
};

/* Layer normalization (Ba et al. 2016): (hidden), or NULL where there is none. */
struct norm {
    const void *weight, *bias;
};

/* One layer of either half, as `_Layer` in encoder_decoder.py has it. What is called cross, and the pages, is the decoder's.
   qkv: queries, keys and values, in this order; cross_pairs: keys and values. keys, values: (pages, heads, page_size,
   size). */
struct layer {
    struct norm norm, cross_norm, mlp_norm;
    struct matrix qkv, output, widen, narrow, cross_queries, cross_pairs, cross_output;
    void *keys, *values;
};

/* One half. embedding: (vocabulary, hidden); positions: (position_count, hidden), what is added at each; first: the norm
   of what is embedded; last: that of what comes out, where norms stand before blocks. */
struct stack {
    const void *embedding, *positions;
    struct norm first, last;
    const struct layer *layers;
    count layer_count, heads, size, vocabulary, position_count;
    float embedding_scale, scale;
    int64_t activation;
};

struct model {
    struct stack source, target;
    struct matrix head;
    count hidden, pages, page_size;
    float epsilon;
    int64_t before, half;
};

/* What all threads share, and the rows between the stages: (rows, hidden), but for projected, (rows, 3 * hidden), and
   widened. pairs: keys and values of the encoder, twice as much. */
struct run {
    const struct model *model;
    const struct stack *stack;
    const void *step;
    struct stage *stages;
    char *states, *normed, *projected, *mixed, *widened, *pairs;
    count rows, threads;
};

SHARED count bytes_of(const struct model *model, count elements) { return elements * (model->half ? 2 : 4); }

/* ---- room --------------------------------------------------------------------------------------------------------- */

SHARED char *piece(char *room, count *bytes, count some) {
    char *taken = room ? room + *bytes : NULL;
    *bytes += rounded_up(some);
    return taken;
}

SHARED count widest_middle(const struct stack *stack) {
    count widest = 0;
    for (const struct layer *layer = stack->layers; layer < stack->layers + stack->layer_count; layer++)
        widest = layer->narrow.inputs > widest ? layer->narrow.inputs : widest;
    return widest;
}

/* Part out room, of which there may be none yet. Returns how many bytes it has. */
SHARED count part_out(struct run *run, char *room, count stages) {
    count bytes = 0, states = bytes_of(run->model, run->rows * run->model->hidden);
    run->stages = (struct stage *)piece(room, &bytes, stages * (count)sizeof(struct stage));
    run->states = piece(room, &bytes, states);
    run->normed = piece(room, &bytes, states);
    run->mixed = piece(room, &bytes, states);
    run->pairs = piece(room, &bytes, run->stack == &run->model->source ? 2 * states : 0);
    run->projected = piece(room, &bytes, 3 * states);
    run->widened = piece(room, &bytes, bytes_of(run->model, run->rows * widest_middle(run->stack)));
    return bytes;
}

SHARED count room_of(struct run *run, count stages) { return ALIGNED + part_out(run, NULL, stages); }

/* Make ready what all threads of a step share: `threads` of them, or fewer if there are fewer. */
SHARED enum refusal begin_run(struct run *run, void *room, count room_bytes, count threads, count stages) {
    count most = omp_get_max_threads();
    if (!room || room_bytes < room_of(run, stages)) return BAD_ROOM;
    run->threads = most < threads ? most : threads;
    part_out(run, aligned(room), stages);
    begin_stages(run->stages, stages);
    return FINE;
}

/* ---- stages: each does a part of what it is given ----------------------------------------------------------------- */

typedef void work(const struct run *run, const void *given, count part);

/* Do the parts of the next stage, as far as they are not done by others. */
SHARED void share(const struct run *run, count *stage, count parts, work *todo, const void *given) {
    struct stage *now = run->stages + (*stage)++;
    count part, done = 0;
    for (; claimed(now, parts, &part); done++) todo(run, given, part);
    finish_stage(now, parts, done);
}

/* Of rows: a part has a few. */
SHARED count parts_of(count rows) { return (rows + ROWS_A_PART - 1) / ROWS_A_PART; }

SHARED count end_of(const struct run *run, count part) {
    count end = (part + 1) * ROWS_A_PART;
    return end < run->rows ? end : run->rows;
}

SHARED void normalize(const struct model *model, const void *from, count row, const struct norm *norm, void *to) {
    count size = model->hidden;
    int half = (int)model->half;
    float given_room[size], weight_room[size], bias_room[size], made[size];
    const float *given = read(given_room, from, row * size, size, half);
    float mean = sum_of(given, size) / (float)size;
    float factor = 1.0f / sqrtf(sum_of_squares_around(given, mean, size) / (float)size + model->epsilon);
    center(made, given, read(weight_room, norm->weight, 0, size, half), read(bias_room, norm->bias, 0, size, half), mean,
           factor, size);
    write(to, row * size, made, size, half);
}

SHARED void normalize_some(const struct run *run, const void *norm, count part) {
    for (count row = part * ROWS_A_PART; row < end_of(run, part); row++)
        normalize(run->model, run->states, row, norm, run->normed);
}

SHARED void round_off(float *some, count n, int half) {
    uint16_t rounded[n];
    if (!half) return;
    narrow(rounded, some, n);
    widen(some, rounded, n);
}

/* Write what a token at a position begins with. */
SHARED void embed(const struct run *run, count row, int64_t token, int64_t position) {
    const struct model *model = run->model;
    const struct stack *stack = run->stack;
    count hidden = model->hidden;
    int half = (int)model->half;
    char *to = model->before ? run->states : run->normed;
    float room[hidden], position_room[hidden], made[hidden];
    const float *word = read(room, stack->embedding, token * hidden, hidden, half);
    const float *added = read(position_room, stack->positions, position * hidden, hidden, half);
    for (count i = 0; i < hidden; i++) made[i] = word[i] * stack->embedding_scale;
    round_off(made, hidden, half);
    for (count i = 0; i < hidden; i++) made[i] += added[i];
    write(to, row * hidden, made, hidden, half);
    if (stack->first.weight) normalize(model, to, row, &stack->first, to);
}

SHARED void multiply_part(const struct run *run, const void *product, count part) {
    compute_part(product, cut_product(product, run->threads), part);
}

SHARED void share_product(const struct run *run, count *stage, struct product product) {
    product.rows = run->rows, product.half = (int)run->model->half;
    share(run, stage, cut_product(&product, run->threads).parts, multiply_part, &product);
}

/* ---- blocks: what is between a norm and a sum --------------------------------------------------------------------- */

/* See that what a block is given is normalized: `normed`. */
SHARED void begin_block(const struct run *run, count *stage, const struct norm *norm) {
    if (run->model->before) share(run, stage, parts_of(run->rows), normalize_some, norm);
}

/* Multiply what a block made, and add what it was given. */
SHARED void end_block(const struct run *run, count *stage, const struct matrix *by, const void *given,
                      const struct norm *norm) {
    const void *added = run->model->before ? run->states : run->normed;
    share_product(run, stage, (struct product){.by = by, .given = given, .added = added, .made = run->states});
    if (!run->model->before) share(run, stage, parts_of(run->rows), normalize_some, norm);
}

SHARED void share_mlp(const struct run *run, count *stage, const struct layer *layer) {
    enum activation activation = (enum activation)run->stack->activation;
    begin_block(run, stage, &layer->mlp_norm);
    share_product(run, stage, (struct product){.by = &layer->widen, .given = run->normed, .made = run->widened,
                                               .activation = activation});
    end_block(run, stage, &layer->narrow, run->widened, &layer->mlp_norm);
}

/* ---- what is asked ------------------------------------------------------------------------------------------------ */

SHARED int is_there(const struct norm *norm) { return norm->weight && norm->bias; }

SHARED int layer_fits(const struct model *model, const struct layer *layer, int looks) {
    count hidden = model->hidden, middle = layer->narrow.inputs;
    int64_t half = model->half;
    int own = is_there(&layer->norm) && is_there(&layer->mlp_norm) && fits(&layer->qkv, 3 * hidden, hidden, half) &&
              fits(&layer->output, hidden, hidden, half) && fits(&layer->widen, middle, hidden, half) &&
              fits(&layer->narrow, hidden, middle, half);
    if (!looks || !own) return own;
    return is_there(&layer->cross_norm) && fits(&layer->cross_queries, hidden, hidden, half) &&
           fits(&layer->cross_pairs, 2 * hidden, hidden, half) && fits(&layer->cross_output, hidden, hidden, half) &&
           layer->keys && layer->values;
}

SHARED enum refusal check_stack(const struct model *model, const struct stack *stack, int looks) {
    if (stack->layer_count < 1 || stack->heads < 1 || stack->size < 1 || stack->size > LONGEST_HEAD ||
        stack->heads * stack->size != model->hidden || stack->vocabulary < 1 || stack->position_count < 1 ||
        stack->activation < NONE || stack->activation > GELU)
        return BAD_SIZES;
    if (!stack->embedding || !stack->positions || (stack->first.weight && !stack->first.bias) ||
        is_there(&stack->last) != !!model->before)
        return BAD_WEIGHTS;
    for (const struct layer *layer = stack->layers; layer < stack->layers + stack->layer_count; layer++) {
        if (layer->narrow.inputs < 1) return BAD_SIZES;
        if (!layer_fits(model, layer, looks)) return BAD_WEIGHTS;
    }
    return FINE;
}

SHARED enum refusal check_model(const struct model *model) {
    if (model->hidden < 1 || model->hidden > WIDEST || model->pages < 1 || model->page_size < 1) return BAD_SIZES;
    enum refusal refusal = check_stack(model, &model->source, 0);
    if (!refusal) refusal = check_stack(model, &model->target, 1);
    int head_fits = model->head.outputs > 0 && fits(&model->head, model->head.outputs, model->hidden, model->half);
    return refusal || head_fits ? refusal : BAD_WEIGHTS;
}

/* Check that the pages of positions up to `last`, the first of them at `begin` of a table, (columns), are there. */
SHARED enum refusal check_pages(const struct model *model, const int32_t *table, count columns, int64_t begin,
                                int64_t last) {
    if (begin < 0 || begin > columns || last < 0 || last / model->page_size >= columns - begin) return BAD_POSITION;
    for (count page = begin; page <= begin + last / model->page_size; page++)
        if (table[page] < 0 || table[page] >= model->pages) return BAD_PAGE;
    return FINE;
}

#endif
