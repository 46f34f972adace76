/* Which vectors the processor has: kernels are compiled for each, and the widest is taken. */

#ifndef MIDSTREAM_CPU_VECTORS_H
#define MIDSTREAM_CPU_VECTORS_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
#define X86
#include <immintrin.h>

#define FOR_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define FOR_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))
#define FOR_AVX2 __attribute__((target("avx2,fma")))
#endif

/* What every processor has, AVX2, AVX-512, and that with its instruction for pairs of bfloat16. */
enum level { PLAIN, AVX2, AVX512, AVX512_BF16, LEVELS };

__attribute__((visibility("hidden"))) int vector_level(void);

#endif
