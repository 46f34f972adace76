/* A Llama-like model as the kernels for whole steps see it, and the operations on single rows that they share. */

#ifndef MIDSTREAM_CPU_MODEL_H
#define MIDSTREAM_CPU_MODEL_H

#include "linear.h"

enum {
    WIDEST_GROUP = 1 << 14 /* elements of the queries that share a head: they lie on the stack */
};

/* One layer, with the fields of `_Layer` in decoder.py. Norms: (hidden); of queries and keys, (size) or NULL. keys,
   values: (pages, kv_heads, page_size, size). */
struct layer {
    const void *attention_norm, *mlp_norm, *query_norm, *key_norm;
    struct matrix qkv, output, gate_up, down;
    void *keys, *values;
    count pages, page_size;
};

/* A model, with the fields of `_Model` in decoder.py. embedding: (vocabulary, hidden); cosine, sine: (positions, size),
   the first half of the sines negative. */
struct model {
    const void *embedding, *norm, *cosine, *sine;
    const struct layer *layers;
    struct matrix head;
    count layer_count, hidden, heads, kv_heads, size, vocabulary, positions;
    float epsilon, scale;
    int64_t half;
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
    if (middle < 1 || layer->page_size < 1 || layer->pages < 1) return BAD_SIZES;
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
        model->heads / model->kv_heads * model->size > WIDEST_GROUP)
        return BAD_SIZES;
    if (!fits(&model->head, model->head.outputs, model->hidden, model->half) || model->head.outputs < 1)
        return BAD_WEIGHTS;
    enum refusal refusal = FINE;
    for (count number = 0; !refusal && number < model->layer_count; number++)
        refusal = check_layer(model, model->layers + number);
    return refusal;
}

/* Check that the pages of a request, (columns), exist in every layer, up to its position `last`. */
SHARED enum refusal check_pages(const struct model *model, const int32_t *pages, count columns, int64_t last) {
    if (last < 0 || last >= model->positions) return BAD_POSITION;
    for (count number = 0; number < model->layer_count; number++) {
        const struct layer *layer = model->layers + number;
        if (number && layer->pages >= layer[-1].pages && layer->page_size == layer[-1].page_size) continue;
        if (last / layer->page_size >= columns) return BAD_POSITION;
        for (count page = 0; page <= last / layer->page_size; page++)
            if (pages[page] < 0 || pages[page] >= layer->pages) return BAD_PAGE;
    }
    return FINE;
}

#endif
