/* Products of rows of words with columns of words, added to sums of float32, for whichever vectors the processor has.

   A word is a float32, or a pair of bfloat16 if the processor multiplies those. Kernels are compiled for each width of
   vectors, and the widest is used. */

#ifndef MIDSTREAM_CPU_PRODUCTS_H
#define MIDSTREAM_CPU_PRODUCTS_H

#include "elements.h"

#define HIDDEN __attribute__((visibility("hidden")))

/* ---- vectors --------------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
#define X86
#include <immintrin.h>

#define FOR_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define FOR_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))
#define FOR_AVX2 __attribute__((target("avx2,fma")))

/* Write the sum of each of four vectors. */
FOR_AVX512 static inline __attribute__((unused)) void avx512_sum4(float *to, __m512 a, __m512 b, __m512 c, __m512 d) {
    __m512 left = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 right = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(left), _mm512_castps_pd(right));
    __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(left), _mm512_castps_pd(right));
    __m512 all = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}
#endif

/* What every processor has; AVX2; AVX-512; AVX-512 with its instruction for pairs of bfloat16. */
enum level { PLAIN, AVX2, AVX512, AVX512_BF16, LEVELS };

HIDDEN int vector_level(void);

/* ---- products of words ------------------------------------------------------------------------------------------- */

enum {
    LANES_OF_ALL = 16, /* numbers of columns are multiples of this, so that vectors of any width fit */
    ROWS_OF_ALL = 8    /* numbers of rows are multiples of this */
};

/* Rows of words. `down`: words from a row to the next; `along`: from a word of a row to the next. */
struct left {
    const uint32_t *words;
    count down, along;
};

/* Add to sums, (rows, stride), the products of `rows` rows with the first `columns` columns of right, (depth, stride). */
typedef void products(float *sums, count stride, struct left left, const uint32_t *right, count rows, count columns,
                      count depth);

/* Whether the processor multiplies pairs of bfloat16. */
int midstream_has_pairs(void);
/* Whether the processor's vectors are wide enough to be worth the kernels for rows: AVX2 or wider. */
int midstream_has_wide_vectors(void);
HIDDEN products *products_for(int pairs);

/* Write two rows of floats as one row of pairs of bfloat16; `columns` is a multiple of LANES_OF_ALL. */
HIDDEN void pair_rows(uint32_t *to, const float *first, const float *second, count columns);

/* How many words a row of elements has. */
SHARED count words_of(count elements, int pairs) { return pairs ? elements / 2 : elements; }

/* Write elements as words: pairs are copied, single elements become floats. */
SHARED void as_words(uint32_t *to, const void *from, count offset, count n, int half, int pairs) {
    if (half && !pairs) widen((float *)to, (const uint16_t *)from + offset, n);
    else copy(to, 0, from, offset, n, half);
}

SHARED count up_to(count n, count multiple) { return (n + multiple - 1) / multiple * multiple; }

/* ---- one query in pairs of bfloat16 ------------------------------------------------------------------------------- */

enum { PAIRED = 32 /* elements of a vector; sizes are multiples of this, also the most positions of a call */ };

/* scores: (positions); query: (size); keys: (positions, size). */
HIDDEN void score_pairs(float *scores, const uint16_t *query, const uint16_t *keys, float scale, count positions,
                        count size);

/* Add the values, (positions, size), times their weights, which are rounded, to the sums in `mixed`, (size). The sums are
   in an order that `in_order` undoes. `weights` has room for PAIRED of them. */
HIDDEN void mix_pairs(float *mixed, float *weights, const uint16_t *values, count positions, count size);

/* Bring the sums into the order of the values. */
HIDDEN void in_order(float *mixed, count size);

#endif
