/* Detects which vectors the processor has, and multiplies words by each width of them: see products.h. */

#include "products.h"

#include <stdatomic.h>

static int best_level(void) {
#ifdef X86
    __builtin_cpu_init();
    int has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (has_avx512) return __builtin_cpu_supports("avx512bf16") ? AVX512_BF16 : AVX512;
    if (has_avx2) return AVX2;
#endif
    return PLAIN;
}

static _Atomic int level = -1;

int vector_level(void) {
    int known = atomic_load_explicit(&level, memory_order_relaxed);
    if (known >= 0) return known;
    known = best_level();
    atomic_store_explicit(&level, known, memory_order_relaxed);
    return known;
}

/* Use no wider vectors than those of level `most`; below 0, the widest. Returns the level in use. For tests. */
int midstream_vectors(int most) {
    int best = best_level(), chosen = most < 0 || most > best ? best : most;
    atomic_store_explicit(&level, chosen, memory_order_relaxed);
    return chosen;
}

/* ---- products of words ------------------------------------------------------------------------------------------- */

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

/* ---- one query in pairs of bfloat16 -------------------------------------------------------------------------------

   Keys and values are read as they are stored: four positions at a time for scores, two for sums. */

#ifdef X86
FOR_AVX512_BF16 void score_pairs(float *scores, const uint16_t *query, const uint16_t *keys, float scale,
                                 count positions, count size) {
    for (count t = 0; t < positions; t += 4) {
        __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
        const uint16_t *rows[4];
        float four[4];
        for (count j = 0; j < 4; j++) rows[j] = keys + (t + j < positions ? t + j : positions - 1) * size;
        for (count i = 0; i < size; i += PAIRED) {
            __m512bh asked = (__m512bh)_mm512_loadu_si512(query + i);
            for (count j = 0; j < 4; j++)
                sums[j] = _mm512_dpbf16_ps(sums[j], (__m512bh)_mm512_loadu_si512(rows[j] + i), asked);
        }
        avx512_sum4(four, sums[0], sums[1], sums[2], sums[3]);
        for (count j = 0; j < 4 && t + j < positions; j++) scores[t + j] = four[j] * scale;
    }
}

FOR_AVX512_BF16 void mix_pairs(float *mixed, float *weights, const uint16_t *values, count positions, count size) {
    uint32_t pairs[PAIRED / 2];
    for (count t = positions; t < PAIRED; t++) weights[t] = 0;
    _mm512_storeu_si512(pairs, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(weights + 16), _mm512_loadu_ps(weights)));
    for (count i = 0; i < size; i += PAIRED) {
        __m512 low = _mm512_loadu_ps(mixed + i), high = _mm512_loadu_ps(mixed + i + 16);
        for (count t = 0; t < positions; t += 2) {
            const uint16_t *row = values + t * size + i;
            __m512i first = _mm512_loadu_si512(row), second = _mm512_setzero_si512();
            if (t + 1 < positions) second = _mm512_loadu_si512(row + size);
            __m512bh weight = (__m512bh)_mm512_set1_epi32((int)pairs[t / 2]);
            low = _mm512_dpbf16_ps(low, (__m512bh)_mm512_unpacklo_epi16(first, second), weight);
            high = _mm512_dpbf16_ps(high, (__m512bh)_mm512_unpackhi_epi16(first, second), weight);
        }
        _mm512_storeu_ps(mixed + i, low);
        _mm512_storeu_ps(mixed + i + 16, high);
    }
}

/* Unpacking puts four elements of each eight into the low vector, and the others into the high one. */
void in_order(float *mixed, count size) {
    for (count i = 0; i < size; i += PAIRED) {
        float row[PAIRED];
        for (count j = 0; j < PAIRED; j++) row[j] = mixed[i + j / 8 * 4 + j % 4 + (j % 8 < 4 ? 0 : 16)];
        memcpy(mixed + i, row, sizeof row);
    }
}
#else /* never called: only x86 processors multiply pairs */
void score_pairs(float *scores, const uint16_t *query, const uint16_t *keys, float scale, count positions, count size) {
    (void)scores, (void)query, (void)keys, (void)scale, (void)positions, (void)size;
}

void mix_pairs(float *mixed, float *weights, const uint16_t *values, count positions, count size) {
    (void)mixed, (void)weights, (void)values, (void)positions, (void)size;
}

void in_order(float *mixed, count size) { (void)mixed, (void)size; }
#endif
