/* Scores and weighted sums of one query, for processors that multiply pairs of bfloat16. Keys and values are read as they
   are stored: four positions at a time for scores, two for sums. */

#include "query.h"

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
