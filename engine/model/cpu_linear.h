/* Products with matrices whose rows lie as torch has them, one output after the other: see cpu_linear.c. */

#ifndef MIDSTREAM_CPU_LINEAR_H
#define MIDSTREAM_CPU_LINEAR_H

#include "../attention/cpu_elements.h"

enum kind { FLOATS, HALVES, CODES };

/* weight: (outputs, inputs) of float32, bfloat16 or int8; scale, for int8 alone, and bias, or NULL: (outputs), of the
   elements that the rows have. As `Matrix` in cpu_linear.py has it. */
struct matrix {
    const void *weight, *scale, *bias;
    count outputs, inputs;
    int64_t kind;
};

/* What is to be multiplied: given, (rows, inputs), becomes made, (rows, outputs), and `added`, or NULL, of the same
   shape, comes to it. With `gated`, the first half of the outputs is a gate: silu(gate) * up is made, (rows, outputs /
   2), and nothing is added. Rows are contiguous, one after the other. `added` may be `made`. */
struct product {
    const struct matrix *by;
    const void *given, *added;
    void *made;
    count rows;
    int half, gated;
};

/* How a product is cut: into `parts`, each of so many outputs (the last one of less). */
struct cut {
    count parts, outputs;
};

__attribute__((visibility("hidden"))) struct cut cut_product(const struct product *product, count threads);
__attribute__((visibility("hidden"))) void compute_part(const struct product *product, struct cut cut, count part);

#endif
