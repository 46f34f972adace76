/* A Llama-like model and a step of it as the kernels for whole steps see them, and the operations on single rows that they
   share. */

#ifndef MIDSTREAM_CPU_MODEL_H
#define MIDSTREAM_CPU_MODEL_H

#include "linear.h"
#include "softmax.h"

enum {
    WIDEST_GROUP = 1 << 14 /* elements of the queries that share a head: they lie on the stack */
};

/* One layer, with the fields of `_Layer` in decoder.py. Norms: (hidden); those of queries and keys: (size) or NULL. keys,
   values: (pages, kv_heads, page_size, size). */
struct layer {
    const void *attention_norm, *mlp_norm, *query_norm, *key_norm;
    struct matrix qkv, output, gate_up, down;
    void *keys, *values;
};

/* A model, with the fields of `_Model` in decoder.py. embedding: (vocabulary, hidden); cosine, sine: (positions, size),
   the first half of the sines negative. All layers have the same number of pages. */
struct model {
    const void *embedding, *norm, *cosine, *sine;
    const struct layer *layers;
    struct matrix head;
    count layer_count, hidden, heads, kv_heads, size, vocabulary, positions, pages, page_size;
    float epsilon, scale;
    int64_t half;
};

/* A step, with the fields of `_Step` in decoder.py. tokens: (rows); spans: (span_count), one after the other; table:
   (span_count, columns); kept: (kept_count), the rows whose logits are wanted, in order; logits: (kept_count, vocabulary
   of the head). */
struct step {
    const int64_t *tokens;
    const struct span *spans;
    const int32_t *table;
    const int64_t *kept;
    void *logits;
    count rows, span_count, columns, kept_count, threads;
};

SHARED count bytes_of(const struct model *model, count elements) { return elements * (model->half ? 2 : 4); }

SHARED void normalize(const struct model *model, const void *from, const void *weight, count rows, count size, void *to) {
    int half = (int)model->half;
    for (count row = 0; row < rows; row++) {
        float given_room[size], weight_room[size], result[size];
        const float *given = read(given_room, from, row * size, size, half);
        float factor = 1.0f / sqrtf(sum_of_squares(given, size) / (float)size + model->epsilon);
        scale_by(result, given, read(weight_room, weight, 0, size, half), factor, size);
        write(to, row * size, result, size, half);
    }
}

/* Normalize a head, if `norm` is given, and rotate it by its position. Writes floats to `to`, rounded as torch rounds. */
SHARED void turn(const struct model *model, const void *from, count offset, const void *norm, const float *cosine,
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

/* Where keys and values of a request's position are. */
SHARED count place_of(const struct model *model, const int32_t *pages, count position, count head) {
    count page = pages[position / model->page_size], at = position % model->page_size;
    return ((page * model->kv_heads + head) * model->page_size + at) * model->size;
}

SHARED count widest_middle(const struct model *model) {
    count widest = 0;
    for (count number = 0; number < model->layer_count; number++) {
        count middle = model->layers[number].down.inputs;
        widest = middle > widest ? middle : widest;
    }
    return widest;
}

/* ---- checks ------------------------------------------------------------------------------------------------------- */

SHARED enum refusal check_layer(const struct model *model, const struct layer *layer) {
    count size = model->size, hidden = model->hidden, heads = model->heads, middle = layer->down.inputs;
    if (middle < 1) return BAD_SIZES;
    if (!layer->attention_norm || !layer->mlp_norm || !layer->keys || !layer->values) return BAD_WEIGHTS;
    int all_fit = fits(&layer->qkv, (heads + 2 * model->kv_heads) * size, hidden, model->half) &&
                  fits(&layer->output, hidden, heads * size, model->half) &&
                  fits(&layer->gate_up, 2 * middle, hidden, model->half) &&
                  fits(&layer->down, hidden, middle, model->half);
    return all_fit ? FINE : BAD_WEIGHTS;
}

SHARED enum refusal check_model(const struct model *model) {
    if (model->layer_count < 1 || model->hidden < 1 || model->kv_heads < 1 || model->heads % model->kv_heads ||
        model->heads < model->kv_heads || model->size < 2 || model->size % 2 || model->size > LONGEST_HEAD ||
        model->heads / model->kv_heads * model->size > WIDEST_GROUP || model->page_size < 1)
        return BAD_SIZES;
    if (!fits(&model->head, model->head.outputs, model->hidden, model->half) || model->head.outputs < 1)
        return BAD_WEIGHTS;
    enum refusal refusal = FINE;
    for (count number = 0; !refusal && number < model->layer_count; number++)
        refusal = check_layer(model, model->layers + number);
    return refusal;
}

/* Whether a span writes to a page. */
SHARED int writes_to(const struct model *model, const struct step *step, count number, int32_t page) {
    const struct span *span = step->spans + number;
    const int32_t *pages = step->table + number * step->columns;
    for (count i = span->start / model->page_size; i <= (span->start + span->number - 1) / model->page_size; i++)
        if (pages[i] == page) return 1;
    return 0;
}

/* Check a span whose predecessors have passed. */
SHARED enum refusal check_span(const struct model *model, const struct step *step, count number) {
    const struct span *span = step->spans + number;
    const int32_t *pages = step->table + number * step->columns;
    count row = number ? span[-1].row + span[-1].number : 0, page_size = model->page_size;
    if (span->row != row || span->number < 1 || span->number > step->rows - row) return BAD_SIZES;
    if (span->start < 0 || span->start > model->positions - span->number) return BAD_POSITION;
    count last = (span->start + span->number - 1) / page_size;
    if (last >= step->columns) return BAD_POSITION;
    for (count i = 0; i <= last; i++) {
        if (pages[i] < 0 || pages[i] >= model->pages) return BAD_PAGE;
        for (count other = 0; i >= span->start / page_size && other < number; other++)
            if (writes_to(model, step, other, pages[i])) return SHARED_PAGE;
    }
    return FINE;
}

/* Check all numbers that addresses depend on. */
SHARED enum refusal check_step(const struct model *model, const struct step *step) {
    if (step->rows < 1 || step->columns < 1 || step->threads < 1 || step->span_count < 1 || step->kept_count < 0)
        return BAD_SIZES;
    enum refusal refusal = check_model(model);
    for (count number = 0; !refusal && number < step->span_count; number++)
        refusal = check_span(model, step, number);
    if (refusal) return refusal;
    const struct span *last = step->spans + step->span_count - 1;
    if (last->row + last->number != step->rows) return BAD_SIZES;
    for (count row = 0; row < step->rows; row++)
        if (step->tokens[row] < 0 || step->tokens[row] >= model->vocabulary) return BAD_TOKEN;
    for (count i = 0; i < step->kept_count; i++)
        if (step->kept[i] < 0 || step->kept[i] >= step->rows) return BAD_SIZES;
    return FINE;
}

#endif
