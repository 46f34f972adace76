/* The encoder of an encoder-decoder in one call, for CPUs: sources of any lengths, and what the decoder reads of them.

   A row is a token. Rows lie one after the other, those of a source side by side: each of them sees all others of its own.
   Keys and values of cross-attention go to the pages of their source: position p is place p % page_size of page
   table[p / page_size]. Everything that decides on an address is checked before the first one is used. Nothing here
   allocates. */

#include "halves.h"

enum {
    ASKING = 8, /* queries of a source that share a head, which read its keys and values together */
    STAGES_A_LAYER = 7,
    STAGES_A_TARGET = 2,
    OTHER_STAGES = 2
};

/* What is to be encoded, as `_Sources` in encoder_decoder.py has it. tokens: (rows); starts: (sources + 1), where each source
   begins, and the end; table: (sources, columns); room: `midstream_encode_room` bytes. */
struct step {
    const int64_t *tokens, *starts;
    const int32_t *table;
    void *room;
    count rows, sources, columns, threads, room_bytes;
};

static void embed_source(const struct run *run, const void *nothing, count source) {
    (void)nothing;
    const struct step *step = run->step;
    for (count row = step->starts[source]; row < step->starts[source + 1]; row++)
        embed(run, row, step->tokens[row], row - step->starts[source]);
}

/* Attend with all queries of a source and head. Its keys and values are brought together first. */
static void attend_source(const struct run *run, const void *nothing, count part) {
    (void)nothing;
    const struct model *model = run->model;
    const struct step *step = run->step;
    count heads = run->stack->heads, size = run->stack->size, head = part % heads, hidden = model->hidden;
    count first = step->starts[part / heads], rows = step->starts[part / heads + 1] - first;
    int half = (int)model->half;
    char *keys = run->pairs + bytes_of(model, first * hidden + head * rows * size);
    char *values = keys + bytes_of(model, run->rows * hidden);
    for (count i = 0; i < rows; i++) {
        count from = (first + i) * 3 * hidden + head * size;
        copy(keys, i * size, run->projected, from + hidden, size, half);
        copy(values, i * size, run->projected, from + 2 * hidden, size, half);
    }
    const struct store store = {keys, values, 1, rows, size, size, half};
    const struct terms terms = {.scale = run->stack->scale};
    const int32_t whole = 0;
    for (count i = 0, some; i < rows; i += some) {
        float room[size], asked[ASKING * size], mixed[ASKING * size];
        some = rows - i < ASKING ? rows - i : ASKING;
        for (count q = 0; q < some; q++) {
            const float *query = read(room, run->projected, (first + i + q) * 3 * hidden + head * size, size, half);
            memcpy(asked + q * size, query, (size_t)size * sizeof *query);
        }
        attend_head(mixed, asked, &store, &whole, 0, 0, rows, some, &terms);
        for (count q = 0; q < some; q++)
            write(run->mixed, (first + i + q) * hidden + head * size, mixed + q * size, size, half);
    }
}

/* Store the keys and values of a source that a layer of the decoder reads. */
static void store_source(const struct run *run, const void *given, count source) {
    const struct model *model = run->model;
    const struct step *step = run->step;
    const struct layer *layer = given;
    const int32_t *pages = step->table + source * step->columns;
    count heads = model->target.heads, size = model->target.size, hidden = model->hidden, page_size = model->page_size;
    for (count row = step->starts[source]; row < step->starts[source + 1]; row++) {
        count place = row - step->starts[source], from = row * 2 * hidden;
        for (count head = 0; head < heads; head++) {
            count to = ((pages[place / page_size] * heads + head) * page_size + place % page_size) * size;
            copy(layer->keys, to, run->projected, from + head * size, size, (int)model->half);
            copy(layer->values, to, run->projected, from + hidden + head * size, size, (int)model->half);
        }
    }
}

static void share_step(const struct run *run) {
    const struct step *step = run->step;
    const struct stack *source = &run->model->source, *target = &run->model->target;
    count stage = 0;
    share(run, &stage, step->sources, embed_source, NULL);
    for (const struct layer *layer = source->layers; layer < source->layers + source->layer_count; layer++) {
        begin_block(run, &stage, &layer->norm);
        share_product(run, &stage,
                      (struct product){.by = &layer->qkv, .given = run->normed, .made = run->projected});
        share(run, &stage, step->sources * source->heads, attend_source, NULL);
        end_block(run, &stage, &layer->output, run->mixed, &layer->norm);
        share_mlp(run, &stage, layer);
    }
    begin_block(run, &stage, &source->last);
    for (const struct layer *layer = target->layers; layer < target->layers + target->layer_count; layer++) {
        share_product(run, &stage,
                      (struct product){.by = &layer->cross_pairs, .given = run->normed, .made = run->projected});
        share(run, &stage, step->sources, store_source, layer);
    }
}

/* ---- what it is asked --------------------------------------------------------------------------------------------- */

/* Whether a source, which was checked as all before it, has a page that one of those has. */
static int shares_a_page(const struct model *model, const struct step *step, count source) {
    for (count other = 0; other < source; other++)
        for (count i = 0; i * model->page_size < step->starts[source + 1] - step->starts[source]; i++)
            for (count j = 0; j * model->page_size < step->starts[other + 1] - step->starts[other]; j++)
                if (step->table[source * step->columns + i] == step->table[other * step->columns + j]) return 1;
    return 0;
}

static enum refusal check(const struct model *model, const struct step *step) {
    if (step->rows < 1 || step->sources < 1 || step->columns < 1 || step->threads < 1) return BAD_SIZES;
    if (step->starts[0] != 0 || step->starts[step->sources] != step->rows) return BAD_SIZES;
    enum refusal refusal = check_model(model);
    for (count source = 0; !refusal && source < step->sources; source++) {
        int64_t start = step->starts[source], end = step->starts[source + 1];
        if (end <= start || end > step->rows) return BAD_SIZES;
        if (end - start > model->source.position_count) return BAD_POSITION;
        refusal = check_pages(model, step->table + source * step->columns, step->columns, 0, end - start - 1);
        if (!refusal && shares_a_page(model, step, source)) refusal = SHARED_PAGE;
    }
    if (refusal) return refusal;
    for (count row = 0; row < step->rows; row++)
        if (step->tokens[row] < 0 || step->tokens[row] >= model->source.vocabulary) return BAD_TOKEN;
    return FINE;
}

static count stages_of(const struct model *model) {
    return model->source.layer_count * STAGES_A_LAYER + model->target.layer_count * STAGES_A_TARGET + OTHER_STAGES;
}

/* Return the bytes that `room` of so many rows needs. */
count midstream_encode_room(const struct model *model, count rows) {
    struct run run = {.model = model, .stack = &model->source, .rows = rows};
    return room_of(&run, stages_of(model));
}

/* Encode sources. Returns 0, or what is wrong with them, and nothing was computed. */
int midstream_encode(const struct model *model, const struct step *step) {
    enum refusal refusal = check(model, step);
    if (refusal) return refusal;
    struct run run = {.model = model, .stack = &model->source, .step = step, .rows = step->rows};
    refusal = begin_run(&run, step->room, step->room_bytes, step->threads, stages_of(model));
    if (refusal) return refusal;
#pragma omp parallel num_threads((int)run.threads)
    share_step(&run);
    return FINE;
}
