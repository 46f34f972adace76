/* A step of spans, which are neighbouring tokens of a few requests, and its checks. */

#ifndef MIDSTREAM_CPU_SPANS_H
#define MIDSTREAM_CPU_SPANS_H

#include "prompt.h"
#include "model.h"

/* Neighbouring tokens of a request: `number` rows from `row` on, at positions from `start` on. */
struct span {
    int64_t row, start, number;
};

/* A step, with the fields of `_PrefillStep` in decoder.py. tokens: (rows); spans: (span_count), one after the other; table:
   (span_count, columns); kept: (kept_count), rows; logits: (kept_count, vocabulary of the head); room:
   `midstream_prefill_room` bytes for `threads` threads. */
struct step {
    const int64_t *tokens;
    const struct span *spans;
    const int32_t *table;
    const int64_t *kept;
    void *logits, *room;
    count rows, span_count, columns, kept_count, threads, room_bytes;
};

/* Some queries of a span's chunk. */
struct task {
    count span;
    struct block block;
};

/* Cut the queries of all spans into tasks, or only count them if `tasks` is NULL. Those that see most come first within a
   span. Returns how many tasks there are. */
SHARED count cut_attention(const struct model *model, const struct step *step, count threads, struct task *tasks) {
    count sharing = model->heads / model->kv_heads, number = 0;
    count most = queries_of_block(step->rows * sharing, model->kv_heads, threads);
    for (count i = 0; i < step->span_count; i++) {
        count all = step->spans[i].number * sharing, blocks = (all + most - 1) / most;
        if (step->spans[i].number == 1) blocks = 1;
        for (count block = blocks - 1; block >= 0; block--)
            for (count head = 0; head < model->kv_heads; head++, number++) {
                count first = block * most, some = all - first < most ? all - first : most;
                if (tasks) tasks[number] = (struct task){i, {head, first, some}};
            }
    }
    return number;
}

SHARED enum refusal check_span(const struct model *model, const struct step *step, count number) {
    const struct span *span = step->spans + number;
    count first = number ? span[-1].row + span[-1].number : 0;
    if (span->row != first || span->number < 1 || span->number > step->rows - first) return BAD_SIZES;
    if (span->start < 0 || span->start >= model->positions) return BAD_POSITION;
    return check_pages(model, step->table + number * step->columns, step->columns, span->start + span->number - 1);
}

/* Whether a span writes to a page. */
SHARED int writes_to(const struct step *step, count number, count page_size, int32_t page) {
    const struct span *span = step->spans + number;
    const int32_t *pages = step->table + number * step->columns;
    for (count i = span->start / page_size; i <= (span->start + span->number - 1) / page_size; i++)
        if (pages[i] == page) return 1;
    return 0;
}

/* Whether a span writes to a page that an earlier span writes to. All of them passed `check_span`. */
SHARED int shares_a_page(const struct model *model, const struct step *step, count number) {
    const struct span *span = step->spans + number;
    const int32_t *pages = step->table + number * step->columns;
    for (const struct layer *layer = model->layers; layer < model->layers + model->layer_count; layer++) {
        count page_size = layer->page_size;
        if (layer > model->layers && page_size == layer[-1].page_size) continue;
        for (count i = span->start / page_size; i <= (span->start + span->number - 1) / page_size; i++)
            for (count other = 0; other < number; other++)
                if (writes_to(step, other, page_size, pages[i])) return 1;
    }
    return 0;
}

/* Products of many rows take features in twos, and only weights of the same elements as the rows. */
SHARED enum refusal check_wide(const struct layer *layer) {
    if (layer->down.inputs % 2) return BAD_SIZES;
    int has_codes = layer->qkv.kind == CODES || layer->output.kind == CODES || layer->gate_up.kind == CODES ||
                    layer->down.kind == CODES;
    return has_codes ? BAD_WEIGHTS : FINE;
}

SHARED enum refusal check_step(const struct model *model, const struct step *step) {
    if (step->rows < 1 || step->columns < 1 || step->threads < 1 || step->span_count < 1 || step->kept_count < 0)
        return BAD_SIZES;
    enum refusal refusal = check_model(model);
    if (!refusal && model->hidden % 2) return BAD_SIZES;
    for (count number = 0; !refusal && number < model->layer_count; number++)
        refusal = check_wide(model->layers + number);
    for (count number = 0; !refusal && number < step->span_count; number++) {
        refusal = check_span(model, step, number);
        if (!refusal && shares_a_page(model, step, number)) refusal = SHARED_PAGE;
    }
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
