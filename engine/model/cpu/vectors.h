/* Which vectors the processor has. Kernels are compiled for each width, and the widest is used. */

#ifndef MIDSTREAM_CPU_VECTORS_H
#define MIDSTREAM_CPU_VECTORS_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
#define X86
#include <immintrin.h>

#define FOR_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define FOR_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))
#define FOR_AVX2 __attribute__((target("avx2,fma")))

/* Write the sums of four vectors' elements. */
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

__attribute__((visibility("hidden"))) int vector_level(void);

#endif
