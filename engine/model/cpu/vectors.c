/* Detects which vectors the processor has. */

#include "vectors.h"

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
