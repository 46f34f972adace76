/* A whole decode step of a Llama-like model in one call, for CPUs: one new token for each of a few requests.

   Threads wake once a step and share out the parts of each stage. Between stages, values are rounded to bfloat16 only
   where torch's operations round them, too.

   Keys and values are in pages: position p of a request is at offset p % page_size of page table[p / page_size]. Each row
   is another request's, so no two rows may write to the same page. All numbers that addresses depend on are checked
   before the first address is used. Nothing here allocates. */

#include "softmax.h"
#include "model.h"
#include "stages.h"

#include <omp.h>

enum {
    FEW = 4, /* with up to so many rows, each thread normalizes all of them, which is faster than sharing them out */
    STAGES_A_LAYER = 7
};

/* A step, as `_DecodeStep` in decoder.py has it. tokens, positions: (rows); table: (rows, columns); logits: (rows,
   vocabulary of the head); room: `midstream_decode_room` bytes for `threads` threads. */
struct step {
    const int64_t *tokens, *positions;
    const int32_t *table;
    void *logits, *room;
    count rows, columns, threads, room_bytes;
};

/* What all threads share, with the rows that stages pass on. */
struct run {
    const struct model *model;
    const struct step *step;
    struct stage *stages;
    char *states, *normed, *projected, *mixed, *gated;
    count threads;
};

/* What each thread has for itself: normalized rows, and the stage that they belong to. */
struct own {
    char *normed;
    count stage;
};

/* ---- stages ------------------------------------------------------------------------------------------------------- */

/* Share out the rows whose states are to be normalized, if there are more than FEW. */
static void share_norm(struct run *run, count number, const void *weight) {
    const struct model *model = run->model;
    struct stage *stage = run->stages + number;
    count rows = run->step->rows, row, done = 0;
    if (rows <= FEW) return;
    for (; claimed(stage, rows, &row); done++) {
        count at = bytes_of(model, row * model->hidden);
        normalize(model, run->states + at, weight, 1, model->hidden, run->normed + at);
    }
    finish_stage(stage, rows, done);
}

/* Share out a product. With `norm`, the states are normalized and multiplied instead of `given`. */
static void share_product(struct run *run, struct own *own, count number, struct product product, const void *norm) {
    const struct model *model = run->model;
    struct stage *stage = run->stages + number;
    struct cut cut = cut_product(&product, run->threads);
    count part, done = 0;
    for (; claimed(stage, cut.parts, &part); done++) {
        /* Only a thread with a part may read the states, since they don't change before the part is done. */
        if (norm && product.rows <= FEW && own->stage != number) {
            normalize(model, run->states, norm, product.rows, model->hidden, own->normed);
            own->stage = number;
        }
        if (norm) product.given = product.rows <= FEW ? own->normed : run->normed;
        compute_part(&product, cut, part);
    }
    finish_stage(stage, cut.parts, done);
}

/* Store the keys and values of a row's KV head, and attend with the queries that share it. */
static void attend_one(const struct run *run, const struct layer *layer, count row, count head) {
    const struct model *model = run->model;
    const int32_t *pages = run->step->table + row * run->step->columns;
    count size = model->size, sharing = model->heads / model->kv_heads, position = run->step->positions[row];
    count all = model->heads + 2 * model->kv_heads, from = row * all * size;
    int half = (int)model->half;
    float cosine_room[size], sine_room[size], key[size], queries[sharing * size], mixed[sharing * size];
    const float *cosine = read(cosine_room, model->cosine, position * size, size, half);
    const float *sine = read(sine_room, model->sine, position * size, size, half);
    count page = pages[position / layer->page_size];
    count place = ((page * model->kv_heads + head) * layer->page_size + position % layer->page_size) * size;
    turn(model, run->projected, from + (model->heads + head) * size, layer->key_norm, cosine, sine, key);
    write(layer->keys, place, key, size, half);
    copy(layer->values, place, run->projected, from + (model->heads + model->kv_heads + head) * size, size, half);
    for (count q = 0; q < sharing; q++)
        turn(model, run->projected, from + (head * sharing + q) * size, layer->query_norm, cosine, sine,
             queries + q * size);
    const struct store store = {layer->keys, layer->values, model->kv_heads, layer->page_size, size, size, half};
    const struct terms terms = {.scale = model->scale};
    attend_head(mixed, queries, &store, pages, head, 0, position + 1, sharing, &terms);
    write(run->mixed, (row * model->heads + head * sharing) * size, mixed, sharing * size, half);
}

static void share_attention(struct run *run, const struct layer *layer, count number) {
    count kv_heads = run->model->kv_heads, parts = run->step->rows * kv_heads, part, done = 0;
    struct stage *stage = run->stages + number;
    for (; claimed(stage, parts, &part); done++) attend_one(run, layer, part / kv_heads, part % kv_heads);
    finish_stage(stage, parts, done);
}

static struct product product_of(const struct run *run, const struct matrix *by, const void *given, const void *added,
                                 void *made, int gated) {
    return (struct product){by, given, added, made, run->step->rows, (int)run->model->half, gated};
}

static void share_layer(struct run *run, struct own *own, count number) {
    const struct layer *layer = run->model->layers + number;
    count stage = number * STAGES_A_LAYER;
    char *states = run->states;
    share_norm(run, stage, layer->attention_norm);
    share_product(run, own, stage + 1, product_of(run, &layer->qkv, NULL, NULL, run->projected, 0),
                  layer->attention_norm);
    share_attention(run, layer, stage + 2);
    share_product(run, own, stage + 3, product_of(run, &layer->output, run->mixed, states, states, 0), NULL);
    share_norm(run, stage + 4, layer->mlp_norm);
    share_product(run, own, stage + 5, product_of(run, &layer->gate_up, NULL, NULL, run->gated, 1), layer->mlp_norm);
    share_product(run, own, stage + 6, product_of(run, &layer->down, run->gated, states, states, 0), NULL);
}

static void share_step(struct run *run, char *normed) {
    const struct model *model = run->model;
    struct own own = {normed, -1};
    for (count number = 0; number < model->layer_count; number++) share_layer(run, &own, number);
    count stage = model->layer_count * STAGES_A_LAYER;
    share_norm(run, stage, model->norm);
    share_product(run, &own, stage + 1, product_of(run, &model->head, NULL, NULL, run->step->logits, 0), model->norm);
}

/* ---- checks ------------------------------------------------------------------------------------------------------- */

static enum refusal check_row(const struct model *model, const struct step *step, count row) {
    const int32_t *pages = step->table + row * step->columns;
    int64_t token = step->tokens[row], position = step->positions[row];
    if (token < 0 || token >= model->vocabulary) return BAD_TOKEN;
    enum refusal refusal = check_pages(model, pages, step->columns, position);
    for (count number = 0; !refusal && number < model->layer_count; number++) {
        count page_size = model->layers[number].page_size;
        if (number && page_size == model->layers[number - 1].page_size) continue;
        for (count other = 0; other < row; other++) {
            count written = step->positions[other] / page_size;
            if (step->table[other * step->columns + written] == pages[position / page_size]) return SHARED_PAGE;
        }
    }
    return refusal;
}

static enum refusal check(const struct model *model, const struct step *step) {
    if (step->rows < 1 || step->columns < 1 || step->threads < 1) return BAD_SIZES;
    enum refusal refusal = check_model(model);
    for (count row = 0; !refusal && row < step->rows; row++) refusal = check_row(model, step, row);
    return refusal;
}

/* Return the bytes that `room` of a step needs. */
count midstream_decode_room(const struct model *model, count rows, count threads) {
    count heads = model->heads + 2 * model->kv_heads, stages = model->layer_count * STAGES_A_LAYER + 2;
    count few = rows < FEW ? rows : FEW;
    return ALIGNED + stages * (count)sizeof(struct stage) + 2 * rounded_up(bytes_of(model, rows * model->hidden)) +
           rounded_up(bytes_of(model, rows * heads * model->size)) +
           rounded_up(bytes_of(model, rows * model->heads * model->size)) +
           rounded_up(bytes_of(model, rows * widest_middle(model))) +
           threads * rounded_up(bytes_of(model, few * model->hidden));
}

/* Compute a step. Returns 0, or an `enum refusal`; nothing was computed then. */
int midstream_decode(const struct model *model, const struct step *step) {
    enum refusal refusal = check(model, step);
    if (refusal) return refusal;
    count rows = step->rows, threads = omp_get_max_threads();
    threads = threads < step->threads ? threads : step->threads;
    if (!step->room || step->room_bytes < midstream_decode_room(model, rows, threads)) return BAD_ROOM;
    char *room = aligned(step->room);
    count heads = model->heads + 2 * model->kv_heads, stages = model->layer_count * STAGES_A_LAYER + 2;
    struct run run = {.model = model, .step = step, .threads = threads};
    run.stages = (struct stage *)take(&room, stages * (count)sizeof(struct stage));
    run.states = take(&room, bytes_of(model, rows * model->hidden));
    run.normed = take(&room, bytes_of(model, rows * model->hidden));
    run.projected = take(&room, bytes_of(model, rows * heads * model->size));
    run.mixed = take(&room, bytes_of(model, rows * model->heads * model->size));
    run.gated = take(&room, bytes_of(model, rows * widest_middle(model)));
    count own_bytes = rounded_up(bytes_of(model, (rows < FEW ? rows : FEW) * model->hidden));
    begin_stages(run.stages, stages);
    for (count row = 0; row < rows; row++)
        copy(run.states, row * model->hidden, model->embedding, step->tokens[row] * model->hidden, model->hidden,
             (int)model->half);
#pragma omp parallel num_threads((int)threads)
    share_step(&run, room + omp_get_thread_num() * own_bytes);
    return FINE;
}
