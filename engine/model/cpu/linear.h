/* Products with matrices that are stored as in torch, one output after the other: see linear.c. */

#ifndef MIDSTREAM_CPU_LINEAR_H
#define MIDSTREAM_CPU_LINEAR_H

#include "elements.h"

enum kind { FLOATS, HALVES, CODES };

/* weight: (outputs, inputs) of float32, bfloat16 or int8; scale, for int8 only, and bias, or NULL: (outputs), of the same
   elements as the rows. `Matrix` in kernels.py has the same fields. */
struct matrix {
    const void *weight, *scale, *bias;
    count outputs, inputs;
    int64_t kind;
};

/* A product: given, (rows, inputs), becomes made, (rows, outputs), to which `added`, of the same shape or NULL, is
   added. With `gated`, the first half of the outputs is a gate: silu(gate) * up is made, (rows, outputs /
   2), and nothing is added. Rows are contiguous, one after the other. `added` may be `made`. */
struct product {
    const struct matrix *by;
    const void *given, *added;
    void *made;
    count rows;
    int half, gated;
};

/* How a product is cut: into `parts`, each of `outputs` outputs; the last one may have fewer. */
struct cut {
    count parts, outputs;
};

__attribute__((visibility("hidden"))) struct cut cut_product(const struct product *product, count threads);
__attribute__((visibility("hidden"))) void compute_part(const struct product *product, struct cut cut, count part);

enum { LONGEST_HEAD = 512 };

/* What is wrong with a whole step, as `decoder.py` reports it. */
enum refusal { FINE, BAD_SIZES, BAD_WEIGHTS, NO_MEMORY, BAD_TOKEN, BAD_POSITION, BAD_PAGE, SHARED_PAGE };

SHARED int fits(const struct matrix *by, count outputs, count inputs, int64_t half) {
    int kind_fits = by->kind == CODES ? by->scale != NULL : by->kind == (half ? HALVES : FLOATS) && !by->scale;
    return by->weight && kind_fits && by->outputs == outputs && by->inputs == inputs;
}

#endif
