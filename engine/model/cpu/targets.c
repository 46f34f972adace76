/* A step of an encoder-decoder's decoder in one call, for CPUs: tokens of targets, each over its source and its target.

   A row is a token. Several may be of one target, as those of a forced prefix are: keys and values of all rows are stored
   before the first one attends. A row's table has the pages of its source, then, from `begins` on, those of its target.
   Everything that decides on an address is checked before the first one is used. Nothing here allocates. */

#include "halves.h"

enum {
    STAGES_A_LAYER = 12,
    OTHER_STAGES = 4
};

/* A step, as `_Targets` in encoder_decoder.py has it. tokens, positions, lengths (of sources), begins: (rows); table: (rows,
   columns); kept: (kept_count), rows; logits: (kept_count, vocabulary of the head); room: `midstream_translate_room`
   bytes. */
struct step {
    const int64_t *tokens, *positions, *lengths, *begins;
    const int32_t *table;
    const int64_t *kept;
    void *logits, *room;
    count rows, columns, kept_count, threads, room_bytes;
};

static const int32_t *pages_of(const struct step *step, count row) {
    return step->table + row * step->columns + step->begins[row];
}

static void embed_some(const struct run *run, const void *nothing, count part) {
    (void)nothing;
    const struct step *step = run->step;
    for (count row = part * ROWS_A_PART; row < end_of(run, part); row++)
        embed(run, row, step->tokens[row], step->positions[row]);
}

/* Store the keys and values of some rows. */
static void store_some(const struct run *run, const void *given, count part) {
    const struct model *model = run->model;
    const struct step *step = run->step;
    const struct layer *layer = given;
    count heads = run->stack->heads, size = run->stack->size, hidden = model->hidden, page_size = model->page_size;
    for (count row = part * ROWS_A_PART; row < end_of(run, part); row++) {
        count place = step->positions[row], page = pages_of(step, row)[place / page_size], from = row * 3 * hidden;
        for (count head = 0; head < heads; head++) {
            count to = ((page * heads + head) * page_size + place % page_size) * size;
            copy(layer->keys, to, run->projected, from + hidden + head * size, size, (int)model->half);
            copy(layer->values, to, run->projected, from + 2 * hidden + head * size, size, (int)model->half);
        }
    }
}

/* Attend with one head of a row's query: of `width` elements to `stop` positions of pages. */
static void attend_one(const struct run *run, const struct layer *layer, count part, count width, count stop,
                       const int32_t *pages) {
    const struct model *model = run->model;
    count heads = run->stack->heads, size = run->stack->size, row = part / heads, head = part % heads;
    int half = (int)model->half;
    float room[size], mixed[size];
    const struct store store = {layer->keys, layer->values, heads, model->page_size, size, size, half};
    const struct terms terms = {.scale = run->stack->scale};
    const float *query = read(room, run->projected, row * width + head * size, size, half);
    attend_head(mixed, query, &store, pages, head, 0, stop, 1, &terms);
    write(run->mixed, row * model->hidden + head * size, mixed, size, half);
}

static void attend_target(const struct run *run, const void *layer, count part) {
    const struct step *step = run->step;
    count row = part / run->stack->heads;
    attend_one(run, layer, part, 3 * run->model->hidden, step->positions[row] + 1, pages_of(step, row));
}

static void attend_source(const struct run *run, const void *layer, count part) {
    const struct step *step = run->step;
    count row = part / run->stack->heads;
    attend_one(run, layer, part, run->model->hidden, step->lengths[row], step->table + row * step->columns);
}

/* Bring what came out of a row whose logits are wanted to where those lie side by side. */
static void keep(const struct run *run, const void *nothing, count number) {
    (void)nothing;
    const struct model *model = run->model;
    count row = ((const struct step *)run->step)->kept[number];
    copy(run->mixed, number * model->hidden, run->normed, row * model->hidden, model->hidden, (int)model->half);
}

static void share_step(const struct run *run) {
    const struct step *step = run->step;
    const struct stack *stack = run->stack;
    count stage = 0, parts = parts_of(run->rows);
    share(run, &stage, parts, embed_some, NULL);
    for (const struct layer *layer = stack->layers; layer < stack->layers + stack->layer_count; layer++) {
        begin_block(run, &stage, &layer->norm);
        share_product(run, &stage,
                      (struct product){.by = &layer->qkv, .given = run->normed, .made = run->projected});
        share(run, &stage, parts, store_some, layer);
        share(run, &stage, run->rows * stack->heads, attend_target, layer);
        end_block(run, &stage, &layer->output, run->mixed, &layer->norm);
        begin_block(run, &stage, &layer->cross_norm);
        share_product(run, &stage,
                      (struct product){.by = &layer->cross_queries, .given = run->normed, .made = run->projected});
        share(run, &stage, run->rows * stack->heads, attend_source, layer);
        end_block(run, &stage, &layer->cross_output, run->mixed, &layer->cross_norm);
        share_mlp(run, &stage, layer);
    }
    if (!step->kept_count) return;
    begin_block(run, &stage, &stack->last);
    share(run, &stage, step->kept_count, keep, NULL);
    const struct product product = {.by = &run->model->head, .given = run->mixed, .made = step->logits,
                                    .rows = step->kept_count, .half = (int)run->model->half};
    share(run, &stage, cut_product(&product, run->threads).parts, multiply_part, &product);
}

/* ---- what it is asked --------------------------------------------------------------------------------------------- */

static enum refusal check_row(const struct model *model, const struct step *step, count row) {
    const int32_t *table = step->table + row * step->columns;
    int64_t token = step->tokens[row], position = step->positions[row], length = step->lengths[row];
    if (token < 0 || token >= model->target.vocabulary) return BAD_TOKEN;
    if (position < 0 || position >= model->target.position_count) return BAD_POSITION;
    enum refusal refusal = check_pages(model, table, step->columns, step->begins[row], position);
    if (!refusal) refusal = check_pages(model, table, step->columns, 0, length - 1);
    for (count other = 0; !refusal && other < row; other++) {
        int64_t where = step->positions[other];
        int one_place = where % model->page_size == position % model->page_size &&
                        pages_of(step, other)[where / model->page_size] ==
                            pages_of(step, row)[position / model->page_size];
        if (one_place) refusal = SHARED_PAGE;
    }
    return refusal;
}

static enum refusal check(const struct model *model, const struct step *step) {
    if (step->rows < 1 || step->columns < 1 || step->threads < 1 || step->kept_count < 0 || step->kept_count > step->rows)
        return BAD_SIZES;
    enum refusal refusal = check_model(model);
    for (count row = 0; !refusal && row < step->rows; row++) refusal = check_row(model, step, row);
    for (count i = 0; !refusal && i < step->kept_count; i++)
        if (step->kept[i] < 0 || step->kept[i] >= step->rows) refusal = BAD_SIZES;
    return refusal;
}

static count stages_of(const struct model *model) {
    return model->target.layer_count * STAGES_A_LAYER + OTHER_STAGES;
}

/* Return the bytes that `room` of so many rows needs. */
count midstream_translate_room(const struct model *model, count rows) {
    struct run run = {.model = model, .stack = &model->target, .rows = rows};
    return room_of(&run, stages_of(model));
}

/* Compute a step. Returns 0, or what is wrong with it, and nothing was computed. */
int midstream_translate(const struct model *model, const struct step *step) {
    enum refusal refusal = check(model, step);
    if (refusal) return refusal;
    struct run run = {.model = model, .stack = &model->target, .step = step, .rows = step->rows};
    refusal = begin_run(&run, step->room, step->room_bytes, step->threads, stages_of(model));
    if (refusal) return refusal;
#pragma omp parallel num_threads((int)run.threads)
    share_step(&run);
    return FINE;
}
