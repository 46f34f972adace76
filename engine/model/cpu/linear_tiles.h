/* Sums of products of four weight rows with up to MOST_ROWS given rows, for one width of vectors. Included once for each
   width.

   The including source defines LANES of float32 in a vector; MOST_ROWS; TARGET (an attribute); NAME(of a function); SUM4,
   which writes the sum of each of four vectors; and CODES_AS_FLOATS and HALVES_AS_FLOATS, which read LANES of them.
   Vectors are the compiler's vector extensions. A bfloat16 is the upper half of a float32, so a vector of pairs makes two
   vectors of floats: the second elements, masked, and the first ones, shifted. */

#define FOR_ALL(i, n) _Pragma("GCC unroll 8") for (count i = 0; i < (n); i++)
#define INLINE static inline __attribute__((always_inline)) TARGET

typedef float NAME(floats) __attribute__((vector_size(LANES * 4)));
typedef uint32_t NAME(words) __attribute__((vector_size(LANES * 4)));

#define LOAD(kind, from)                             \
    ({                                               \
        NAME(kind) loaded;                           \
        __builtin_memcpy(&loaded, from, sizeof loaded); \
        loaded;                                      \
    })

#ifndef ADD_PAIRS
/* ---- one vector's worth of each row ------------------------------------------------------------------------------- */

INLINE void NAME(add_floats)(NAME(floats) (*sums)[4], count rows, const float *const *weights, const float *given,
                             count stride) {
    FOR_ALL(m, rows) {
        NAME(floats) x = LOAD(floats, given + m * stride);
        FOR_ALL(j, 4) sums[m][j] += x * LOAD(floats, weights[j]);
    }
}

INLINE void NAME(add_halves)(NAME(floats) (*sums)[4], count rows, const uint16_t *const *weights,
                             const uint16_t *given, count stride) {
    FOR_ALL(j, 4) {
        NAME(words) pairs = LOAD(words, weights[j]);
        NAME(floats) first = (NAME(floats))(pairs << 16), second = (NAME(floats))(pairs & 0xffff0000u);
        FOR_ALL(m, rows) {
            NAME(words) x = LOAD(words, given + m * stride);
            sums[m][j] += first * (NAME(floats))(x << 16);
            sums[m][j] += second * (NAME(floats))(x & 0xffff0000u);
        }
    }
}

INLINE void NAME(add_codes)(NAME(floats) (*sums)[4], count rows, const int8_t *const *weights, const float *given,
                            count stride) {
    FOR_ALL(j, 4) {
        NAME(floats) weight = (NAME(floats))CODES_AS_FLOATS(weights[j]);
        FOR_ALL(m, rows) sums[m][j] += weight * LOAD(floats, given + m * stride);
    }
}

INLINE void NAME(add_codes_to_halves)(NAME(floats) (*sums)[4], count rows, const int8_t *const *weights,
                                      const uint16_t *given, count stride) {
    FOR_ALL(j, 4) {
        NAME(floats) weight = (NAME(floats))CODES_AS_FLOATS(weights[j]);
        FOR_ALL(m, rows) sums[m][j] += weight * (NAME(floats))HALVES_AS_FLOATS(given + m * stride);
    }
}

#endif

/* ---- whole rows ---------------------------------------------------------------------------------------------------- */

#define TILE(name, weight_type, given_type, step, add)                                                               \
    INLINE void NAME(name)(float *sums, const void *const *weights, count times, const void *given, count inputs,    \
                           count rows) {                                                                             \
        const given_type *x = given;                                                                                 \
        count whole = inputs / (step) * (step), rest = inputs - whole;                                               \
        weight_type weight_rest[4][step] = {0};                                                                      \
        given_type given_rest[MOST_ROWS][step] = {0};                                                                \
        for (count m = 0; rest && m < rows; m++)                                                                     \
            memcpy(given_rest[m], x + m * inputs + whole, (size_t)rest * sizeof *x);                                 \
        for (count i = 0; i < times; i++) {                                                                          \
            const weight_type *at[4];                                                                                \
            NAME(floats) all[MOST_ROWS][4];                                                                          \
            FOR_ALL(j, 4) at[j] = (const weight_type *)weights[j] + i * inputs;                                      \
            FOR_ALL(m, rows) FOR_ALL(j, 4) all[m][j] = (NAME(floats)){0};                                            \
            for (count k = 0; k < whole; k += (step)) {                                                              \
                const weight_type *now[4] = {at[0] + k, at[1] + k, at[2] + k, at[3] + k};                            \
                add(all, rows, now, x + k, inputs);                                                                  \
            }                                                                                                        \
            if (rest) {                                                                                              \
                const weight_type *now[4] = {weight_rest[0], weight_rest[1], weight_rest[2], weight_rest[3]};        \
                FOR_ALL(j, 4) memcpy(weight_rest[j], at[j] + whole, (size_t)rest * sizeof **now);                    \
                add(all, rows, now, given_rest[0], step);                                                            \
            }                                                                                                        \
            FOR_ALL(m, rows) {                                                                                       \
                float four[4];                                                                                       \
                SUM4(four, all[m][0], all[m][1], all[m][2], all[m][3]);                                              \
                FOR_ALL(j, 4) sums[(m * 4 + j) * RUN + i] = four[j];                                                 \
            }                                                                                                        \
        }                                                                                                            \
    }                                                                                                                \
    TARGET static void NAME(name##_of_any)(float *sums, const void *const *weights, count times, const void *given,  \
                                           count inputs, count rows) {                                               \
        switch (rows) {                                                                                              \
        case 1: NAME(name)(sums, weights, times, given, inputs, 1); return;                                          \
        case 2: NAME(name)(sums, weights, times, given, inputs, 2); return;                                          \
        case 3: NAME(name)(sums, weights, times, given, inputs, MOST_ROWS < 3 ? 1 : 3); return;                      \
        case 4: NAME(name)(sums, weights, times, given, inputs, MOST_ROWS < 4 ? 1 : 4); return;                      \
        case 5: NAME(name)(sums, weights, times, given, inputs, MOST_ROWS < 5 ? 1 : 5); return;                      \
        default: NAME(name)(sums, weights, times, given, inputs, MOST_ROWS < 6 ? 1 : 6); return;                     \
        }                                                                                                            \
    }

#ifdef ADD_PAIRS
TILE(halves_tile, uint16_t, uint16_t, 2 * LANES, ADD_PAIRS)
TILE(codes_to_halves_tile, int8_t, uint16_t, 2 * LANES, ADD_CODE_PAIRS)
#else
TILE(floats_tile, float, float, LANES, NAME(add_floats))
TILE(halves_tile, uint16_t, uint16_t, 2 * LANES, NAME(add_halves))
TILE(codes_tile, int8_t, float, LANES, NAME(add_codes))
TILE(codes_to_halves_tile, int8_t, uint16_t, LANES, NAME(add_codes_to_halves))
#endif

#undef FOR_ALL
#undef INLINE
#undef LOAD
#undef TILE
#undef LANES
#undef MOST_ROWS
#undef TARGET
#undef NAME
#undef SUM4
#undef CODES_AS_FLOATS
#undef HALVES_AS_FLOATS
#undef ADD_PAIRS
#undef ADD_CODE_PAIRS
