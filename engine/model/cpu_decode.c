/* A whole decode step of a Llama-like model in one call, for CPUs: one new token for each of a few requests.

   Threads wake once a step and share out each stage's parts by counting them; who finds none left goes on as soon as all
   are done, so a thread that the system keeps waiting holds up no more than the part that it has. What is rounded to
   bfloat16 between the stages is what torch's operations round.

   Keys and values lie in pages: position p of a request is place p % page_size of page table[p / page_size]. Every row is another request: rows must not write to one page. Everything that
   decides on an address is checked before the first one is used. Nothing here allocates. */

#include "../attention/cpu_softmax.h"
#include "cpu_linear.h"

#include <omp.h>
#include <sched.h>
#include <stdatomic.h>

enum {
    FEW = 4,           /* rows that each thread normalizes for itself: sooner done than shared */
    LONGEST_HEAD = 512,
    WIDEST_GROUP = 1 << 14, /* elements of the queries that share a head: they lie on the stack */
    PATIENCE = 4096,   /* looks at what others do before the processor is offered to them */
    STAGES_A_LAYER = 7,
    ALIGNED = 64
};

/* One layer, as `Layer` in cpu_decode.py has it. Norms: (hidden) or, of queries and keys, (size) or NULL. keys, values:
   (pages, kv_heads, page_size, size). */
struct layer {
    const void *attention_norm, *mlp_norm, *query_norm, *key_norm;
    struct matrix qkv, output, gate_up, down;
    void *keys, *values;
    count pages, page_size;
};

/* A model, as `Model` in cpu_decode.py has it. embedding: (vocabulary, hidden); cosine, sine: (positions, size), the first
   half of the sines negative. */
struct model {
    const void *embedding, *norm, *cosine, *sine;
    const struct layer *layers;
    struct matrix head;
    count layer_count, hidden, heads, kv_heads, size, vocabulary, positions;
    float epsilon, scale;
    int64_t half;
};

/* A step, as `Step` in cpu_decode.py has it. tokens, positions: (rows); table: (rows, columns); logits: (rows,
   vocabulary of the head); room: `midstream_decode_room` bytes, for so many threads. */
struct step {
    const int64_t *tokens, *positions;
    const int32_t *table;
    void *logits, *room;
    count rows, columns, threads, room_bytes;
};

/* What is wrong with a step, as `cpu_decode.py` tells it. */
enum refusal { FINE, BAD_SIZES, BAD_WEIGHTS, BAD_ROOM, BAD_TOKEN, BAD_POSITION, BAD_PAGE, SHARED_PAGE };

/* ---- sharing out -------------------------------------------------------------------------------------------------- */

struct stage {
    _Alignas(ALIGNED) atomic_long claimed;
    _Alignas(ALIGNED) atomic_long done;
};

/* What all threads share, and the rows between the stages. */
struct run {
    const struct model *model;
    const struct step *step;
    struct stage *stages;
    char *states, *normed, *projected, *mixed, *gated;
    count threads;
};

/* What a thread has for itself: normalized rows, and of which stage they are. */
struct own {
    char *normed;
    count stage;
};

static inline void rest_a_moment(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static int claimed(struct stage *stage, count parts, count *part) {
    *part = atomic_fetch_add_explicit(&stage->claimed, 1, memory_order_relaxed);
    return *part < parts;
}

static void finish_stage(struct stage *stage, count parts, count done) {
    if (done) atomic_fetch_add_explicit(&stage->done, done, memory_order_acq_rel);
    for (count looks = 0; atomic_load_explicit(&stage->done, memory_order_acquire) < parts; looks++) {
        if (looks < PATIENCE) rest_a_moment();
        else sched_yield();
    }
}

/* ---- stages ------------------------------------------------------------------------------------------------------- */

static count bytes_of(const struct model *model, count elements) { return elements * (model->half ? 2 : 4); }

static void normalize(const struct model *model, const void *from, const void *weight, count rows, count size,
                      void *to) {
    int half = (int)model->half;
    for (count row = 0; row < rows; row++) {
        float given_room[size], weight_room[size], result[size];
        const float *given = read(given_room, from, row * size, size, half);
        float factor = 1.0f / sqrtf(sum_of_squares(given, size) / (float)size + model->epsilon);
        scale_by(result, given, read(weight_room, weight, 0, size, half), factor, size);
        write(to, row * size, result, size, half);
    }
}

/* Normalize the states of all rows together, where they are many. */
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

/* Multiply; `norm`, or NULL, normalizes what is given, which is the states then. */
static void share_product(struct run *run, struct own *own, count number, struct product product, const void *norm) {
    const struct model *model = run->model;
    struct stage *stage = run->stages + number;
    struct cut cut = cut_product(&product, run->threads);
    count part, done = 0;
    for (; claimed(stage, cut.parts, &part); done++) {
        /* Only who has a part may look at the states: they stay until it is done. */
        if (norm && product.rows <= FEW && own->stage != number) {
            normalize(model, run->states, norm, product.rows, model->hidden, own->normed);
            own->stage = number;
        }
        if (norm) product.given = product.rows <= FEW ? own->normed : run->normed;
        compute_part(&product, cut, part);
    }
    finish_stage(stage, cut.parts, done);
}

/* Normalize a head, where it is normalized, and turn it to its position, as torch rounds it: to `to`, as floats. */
static void turn(const struct model *model, const void *from, count offset, const void *norm, const float *cosine,
                 const float *sine, float *to) {
    int half = (int)model->half;
    count size = model->size;
    float room[size], other[size];
    uint16_t rounded[size];
    const float *head = read(room, from, offset, size, half);
    if (norm) {
        normalize(model, (const char *)from + bytes_of(model, offset), norm, 1, size, half ? (void *)rounded : other);
        head = half ? read(room, rounded, 0, size, half) : other;
    }
    rotate(to, head, cosine, sine, size / 2);
    if (half) {
        narrow(rounded, to, size);
        widen(to, rounded, size);
    }
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

/* ---- what it is asked --------------------------------------------------------------------------------------------- */

static int fits(const struct matrix *by, count outputs, count inputs, int64_t half) {
    int kind_fits = by->kind == CODES ? by->scale != NULL : by->kind == (half ? HALVES : FLOATS) && !by->scale;
    return by->weight && kind_fits && by->outputs == outputs && by->inputs == inputs;
}

static enum refusal check_layer(const struct model *model, const struct layer *layer) {
    count size = model->size, hidden = model->hidden, heads = model->heads, middle = layer->down.inputs;
    if (middle < 1 || layer->page_size < 1 || layer->pages < 1) return BAD_SIZES;
    if (!layer->attention_norm || !layer->mlp_norm || !layer->keys || !layer->values) return BAD_WEIGHTS;
    int all_fit = fits(&layer->qkv, (heads + 2 * model->kv_heads) * size, hidden, model->half) &&
                  fits(&layer->output, hidden, heads * size, model->half) &&
                  fits(&layer->gate_up, 2 * middle, hidden, model->half) &&
                  fits(&layer->down, hidden, middle, model->half);
    return all_fit ? FINE : BAD_WEIGHTS;
}

static enum refusal check_row(const struct model *model, const struct step *step, count row) {
    const int32_t *pages = step->table + row * step->columns;
    int64_t token = step->tokens[row], position = step->positions[row];
    if (token < 0 || token >= model->vocabulary) return BAD_TOKEN;
    if (position < 0 || position >= model->positions) return BAD_POSITION;
    for (count number = 0; number < model->layer_count; number++) {
        const struct layer *layer = model->layers + number;
        count last = position / layer->page_size;
        if (number && layer->pages >= layer[-1].pages && layer->page_size == layer[-1].page_size) continue;
        if (last >= step->columns) return BAD_POSITION;
        for (count page = 0; page <= last; page++)
            if (pages[page] < 0 || pages[page] >= layer->pages) return BAD_PAGE;
        for (count other = 0; other < row; other++) {
            count written = step->positions[other] / layer->page_size;
            if (step->table[other * step->columns + written] == pages[last]) return SHARED_PAGE;
        }
    }
    return FINE;
}

static enum refusal check(const struct model *model, const struct step *step) {
    if (model->layer_count < 1 || model->hidden < 1 || model->kv_heads < 1 || model->heads % model->kv_heads ||
        model->heads < model->kv_heads || model->size < 2 || model->size % 2 || model->size > LONGEST_HEAD ||
        model->heads / model->kv_heads * model->size > WIDEST_GROUP || step->rows < 1 || step->columns < 1 ||
        step->threads < 1)
        return BAD_SIZES;
    if (!fits(&model->head, model->head.outputs, model->hidden, model->half) || model->head.outputs < 1)
        return BAD_WEIGHTS;
    enum refusal refusal = FINE;
    for (count number = 0; !refusal && number < model->layer_count; number++)
        refusal = check_layer(model, model->layers + number);
    for (count row = 0; !refusal && row < step->rows; row++) refusal = check_row(model, step, row);
    return refusal;
}

static count widest_middle(const struct model *model) {
    count widest = 0;
    for (count number = 0; number < model->layer_count; number++) {
        count middle = model->layers[number].down.inputs;
        widest = middle > widest ? middle : widest;
    }
    return widest;
}

static count rounded_up(count bytes) { return (bytes + ALIGNED - 1) / ALIGNED * ALIGNED; }

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

static char *take(char **room, count bytes) {
    char *taken = *room;
    *room += rounded_up(bytes);
    return taken;
}

/* Compute a step. Returns 0, or what is wrong with it, and nothing was computed. */
int midstream_decode(const struct model *model, const struct step *step) {
    enum refusal refusal = check(model, step);
    if (refusal) return refusal;
    count rows = step->rows, threads = omp_get_max_threads();
    threads = threads < step->threads ? threads : step->threads;
    if (!step->room || step->room_bytes < midstream_decode_room(model, rows, threads)) return BAD_ROOM;
    char *room = (char *)(((uintptr_t)step->room + ALIGNED - 1) / ALIGNED * ALIGNED);
    count heads = model->heads + 2 * model->kv_heads, stages = model->layer_count * STAGES_A_LAYER + 2;
    struct run run = {.model = model, .step = step, .threads = threads};
    run.stages = (struct stage *)take(&room, stages * (count)sizeof(struct stage));
    run.states = take(&room, bytes_of(model, rows * model->hidden));
    run.normed = take(&room, bytes_of(model, rows * model->hidden));
    run.projected = take(&room, bytes_of(model, rows * heads * model->size));
    run.mixed = take(&room, bytes_of(model, rows * model->heads * model->size));
    run.gated = take(&room, bytes_of(model, rows * widest_middle(model)));
    count own_bytes = rounded_up(bytes_of(model, (rows < FEW ? rows : FEW) * model->hidden));
    for (count number = 0; number < stages; number++) {
        atomic_init(&run.stages[number].claimed, 0);
        atomic_init(&run.stages[number].done, 0);
    }
    for (count row = 0; row < rows; row++)
        copy(run.states, row * model->hidden, model->embedding, step->tokens[row] * model->hidden, model->hidden,
             (int)model->half);
#pragma omp parallel num_threads((int)threads)
    share_step(&run, room + omp_get_thread_num() * own_bytes);
    return FINE;
}
