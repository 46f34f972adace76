/* A whole decode step of a Llama-like model in one call, for CPUs: one new token for each of a few requests.

   Threads wake once a step and share out the parts of each stage. Between stages, values are rounded to bfloat16 only
   where torch's operations round them, too.

   Keys and values are in pages: position p of a request is at offset p % page_size of page table[p / page_size]. Each row
   is another request's, so no two rows may write to the same page. All numbers that addresses depend on are checked
   before the first address is used. */

#include "model.h"
#include "stages.h"

enum {
    FEW = 4, /* up to this many rows, each thread normalizes all of them, which is faster than sharing them out */
    STAGES_A_LAYER = 7,
    OTHER_STAGES = 2
};

/* What all threads share, with the rows that stages pass on. */
struct run {
    const struct model *model;
    const struct step *step;
    struct stage *stages;
    char *states, *normed, *projected, *mixed, *gated;
};

/* A product, of normalized states if `norm` is given. `normed`: the thread's own rows, if there are few. */
struct multiplied {
    struct product product;
    struct cut cut;
    const void *norm;
    char *normed;
};

/* ---- stages: each function does one part of a stage --------------------------------------------------------------- */

static void normalize_row(const struct run *run, void *norm, count row) {
    count at = bytes_of(run->model, row * run->model->hidden);
    normalize(run->model, run->states + at, norm, 1, run->model->hidden, run->normed + at);
}

static void multiply_part(const struct run *run, void *given, count part) {
    struct multiplied *todo = given;
    struct product *product = &todo->product;
    if (todo->norm && !product->given) {
        /* Only a thread with a part may read the states, since they don't change before the part is done. */
        product->given = product->rows <= FEW ? todo->normed : run->normed;
        if (product->rows <= FEW)
            normalize(run->model, run->states, todo->norm, product->rows, run->model->hidden, todo->normed);
    }
    compute_part(product, todo->cut, part);
}

/* Store the keys and values of a row's KV head, and attend with the queries that share it. */
static void attend_one(const struct run *run, void *given, count part) {
    const struct model *model = run->model;
    const struct layer *layer = given;
    count row = part / model->kv_heads, head = part % model->kv_heads;
    const int32_t *pages = run->step->table + row * run->step->columns;
    count size = model->size, sharing = model->heads / model->kv_heads, position = run->step->spans[row].start;
    count all = model->heads + 2 * model->kv_heads, from = row * all * size;
    int half = (int)model->half;
    float cosine_room[size], sine_room[size], key[size], queries[sharing * size], mixed[sharing * size];
    const float *cosine = read(cosine_room, model->cosine, position * size, size, half);
    const float *sine = read(sine_room, model->sine, position * size, size, half);
    count place = place_of(model, pages, position, head);
    turn(model, run->projected, from + (model->heads + head) * size, layer->key_norm, cosine, sine, key);
    write(layer->keys, place, key, size, half);
    copy(layer->values, place, run->projected, from + (model->heads + model->kv_heads + head) * size, size, half);
    for (count q = 0; q < sharing; q++)
        turn(model, run->projected, from + (head * sharing + q) * size, layer->query_norm, cosine, sine,
             queries + q * size);
    const struct store store = {layer->keys, layer->values, model->kv_heads, model->page_size, size, size, half};
    const struct terms terms = {.scale = model->scale};
    attend_head(mixed, queries, &store, pages, head, 0, position + 1, sharing, &terms);
    write(run->mixed, (row * model->heads + head * sharing) * size, mixed, sharing * size, half);
}

/* ---- a step ------------------------------------------------------------------------------------------------------- */

/* Share out a product of the rows `given`, plus `added`; with `norm`, of the normalized states instead. */
static void share_product(const struct run *run, struct stage **stage, const struct matrix *by, const void *norm,
                          const void *given, const void *added, void *made, int gated) {
    const struct model *model = run->model;
    count rows = run->step->rows;
    char normed[bytes_of(model, norm && rows <= FEW ? rows * model->hidden : 1)];
    struct multiplied todo = {{by, given, added, made, rows, (int)model->half, gated}, {0}, norm, normed};
    todo.cut = cut_product(&todo.product, run->step->threads);
    if (norm && rows > FEW) share(stage, rows, normalize_row, run, (void *)norm);
    share(stage, todo.cut.parts, multiply_part, run, &todo);
}

static void share_step(const struct run *run) {
    const struct model *model = run->model;
    struct stage *stage = run->stages;
    char *states = run->states;
    for (const struct layer *layer = model->layers; layer < model->layers + model->layer_count; layer++) {
        share_product(run, &stage, &layer->qkv, layer->attention_norm, NULL, NULL, run->projected, 0);
        share(&stage, run->step->rows * model->kv_heads, attend_one, run, (void *)layer);
        share_product(run, &stage, &layer->output, NULL, run->mixed, states, states, 0);
        share_product(run, &stage, &layer->gate_up, layer->mlp_norm, NULL, NULL, run->gated, 1);
        share_product(run, &stage, &layer->down, NULL, run->gated, states, states, 0);
    }
    share_product(run, &stage, &model->head, model->norm, NULL, NULL, run->step->logits, 0);
}

static void lay_out(struct run *run, struct room *room) {
    const struct model *model = run->model;
    count rows = run->step->rows, mixed = model->heads * model->size;
    run->stages = take_stages(room, model->layer_count * STAGES_A_LAYER + OTHER_STAGES);
    run->states = take(room, bytes_of(model, rows * model->hidden));
    run->normed = take(room, bytes_of(model, rows * model->hidden));
    run->projected = take(room, bytes_of(model, rows * (mixed + 2 * model->kv_heads * model->size)));
    run->mixed = take(room, bytes_of(model, rows * mixed));
    run->gated = take(room, bytes_of(model, rows * widest_middle(model)));
}

/* Compute a step of single tokens, all kept, in order. Returns 0, or an `enum refusal` without computing anything. */
int midstream_decode(const struct model *model, const struct step *step) {
    enum refusal refusal = check_step(model, step);
    if (refusal) return refusal;
    if (step->span_count != step->rows || step->kept_count != step->rows) return BAD_SIZES;
    struct run run = {.model = model, .step = step};
    struct room room = {0};
    lay_out(&run, &room);
    room = (struct room){aligned_alloc(ALIGNED, (size_t)room.used), 0};
    if (!room.start) return NO_MEMORY;
    lay_out(&run, &room);
    for (count row = 0; row < step->rows; row++)
        copy(run.states, row * model->hidden, model->embedding, step->tokens[row] * model->hidden, model->hidden,
             (int)model->half);
#pragma omp parallel num_threads((int)step->threads)
    share_step(&run);
    free(room.start);
    return FINE;
}
