/* Products of words for each width of vectors: see products.h. */

#include "products.h"

#define ADD_FLOATS(of, sums, left, right) ((sums) + (of##_floats)(left) * (of##_floats)(right))

#ifdef X86
#define LANES 16
#define ROWS 8
#define WIDE 3
#define TARGET FOR_AVX512_BF16
#define NAME(of) pairs_##of
#define ADD(sums, left, right) ((pairs_floats)_mm512_dpbf16_ps((__m512)(sums), (__m512bh)(left), (__m512bh)(right)))
#include "panels.h"

FOR_AVX512_BF16 void pair_rows(uint32_t *to, const float *first, const float *second, count columns) {
    for (count i = 0; i < columns; i += LANES_OF_ALL) {
        __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(first + i)));
        __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(second + i)));
        _mm512_storeu_si512(to + i, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
}

#define LANES 16
#define ROWS 8
#define WIDE 3
#define TARGET FOR_AVX512
#define NAME(of) avx512_##of
#define ADD(sums, left, right) ADD_FLOATS(avx512, sums, left, right)
#include "panels.h"

#define LANES 8
#define ROWS 4
#define WIDE 3
#define TARGET FOR_AVX2
#define NAME(of) avx2_##of
#define ADD(sums, left, right) ADD_FLOATS(avx2, sums, left, right)
#include "panels.h"
#else
void pair_rows(uint32_t *to, const float *first, const float *second, count columns) {
    (void)to, (void)first, (void)second, (void)columns; /* never called: only x86 processors multiply pairs */
}
#define pairs_add_products plain_add_products
#endif

#define LANES 4
#define ROWS 4
#define WIDE 3
#define TARGET
#define NAME(of) plain_##of
#define ADD(sums, left, right) ADD_FLOATS(plain, sums, left, right)
#include "panels.h"

static products *const products_of[LEVELS] = {
    [PLAIN] = plain_add_products,
#ifdef X86
    [AVX2] = avx2_add_products,
    [AVX512] = avx512_add_products,
    [AVX512_BF16] = avx512_add_products,
#endif
};

int midstream_has_pairs(void) { return vector_level() == AVX512_BF16; }

int midstream_has_wide_vectors(void) { return vector_level() >= AVX2; }

products *products_for(int pairs) { return pairs ? pairs_add_products : products_of[vector_level()]; }
