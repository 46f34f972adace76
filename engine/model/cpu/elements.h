/* Elements of the kernels for CPUs: bfloat16 (`half`) and float32, read as floats and written back.

   Offsets and sizes count elements. Everything is static, so each source has its own copy. */

#ifndef MIDSTREAM_CPU_ELEMENTS_H
#define MIDSTREAM_CPU_ELEMENTS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Functions are compiled for each width of vectors, and the dynamic loader chooses what the processor has. Compilers
   before GCC 12 do not know the levels of x86-64. */
#if !defined(__x86_64__) || !defined(__gnu_linux__) || defined(__clang__)
#define VECTORS
#elif __GNUC__ >= 12
#define VECTORS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#endif

/* Not every source uses every function. */
#define SHARED __attribute__((unused)) static

typedef ptrdiff_t count;

VECTORS SHARED void widen(float *restrict to, const uint16_t *restrict from, count n) {
    for (count i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(to + i, &bits, sizeof bits);
    }
}

VECTORS SHARED void narrow(uint16_t *restrict to, const float *restrict from, count n) {
    for (count i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, from + i, sizeof bits);
        uint32_t to_nearest_even = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
        int is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
        to[i] = (uint16_t)(is_nan ? 0x7fc0u : to_nearest_even);
    }
}

/* Return elements as floats: in place if they are float32, else widened into `room`. */
SHARED const float *read(float *room, const void *from, count offset, count n, int half) {
    if (!half) return (const float *)from + offset;
    widen(room, (const uint16_t *)from + offset, n);
    return room;
}

SHARED void write(void *to, count offset, const float *from, count n, int half) {
    if (half) narrow((uint16_t *)to + offset, from, n);
    else memcpy((float *)to + offset, from, (size_t)n * sizeof *from);
}

SHARED void copy(void *to, count to_offset, const void *from, count from_offset, count n, int half) {
    count size = half ? 2 : 4;
    memcpy((char *)to + to_offset * size, (const char *)from + from_offset * size, (size_t)(n * size));
}

/* Return e to the power of x, with a relative error of about 1e-6. The polynomial is from the Cephes library. */
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float twos = rintf(x * 1.44269504f);
    float rest = x - twos * 0.693359375f + twos * 2.12194440e-4f;
    float sum = 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    int32_t bits = (int32_t)((uint32_t)((int32_t)twos + 127) << 23);
    float power;
    memcpy(&power, &bits, sizeof power);
    return sum * power;
}

/* silu(gate) * up */
VECTORS SHARED void gate(float *restrict to, const float *restrict gates, const float *restrict ups, count size) {
    for (count i = 0; i < size; i++) to[i] = gates[i] / (1.0f + exponential(-gates[i])) * ups[i];
}

VECTORS SHARED float sum_of_squares(const float *from, count size) {
    float sum = 0;
    for (count i = 0; i < size; i++) sum += from[i] * from[i];
    return sum;
}

VECTORS SHARED void scale_by(float *restrict to, const float *restrict from, const float *restrict weight,
                             float factor, count size) {
    for (count i = 0; i < size; i++) to[i] = from[i] * factor * weight[i];
}

VECTORS SHARED void rotate(float *restrict to, const float *restrict from, const float *restrict cosine,
                           const float *restrict sine, count half_size) {
    for (count i = 0; i < half_size; i++) {
        to[i] = from[i] * cosine[i] + from[i + half_size] * sine[i];
        to[i + half_size] = from[i + half_size] * cosine[i + half_size] + from[i] * sine[i + half_size];
    }
}

#endif
