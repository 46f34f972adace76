/* Matrix products of few rows, for CPUs. They are bound by memory, so the weights are read once, as they are stored.

   A weight matrix has its outputs as rows, as in torch, and is not rearranged: products of many rows (prefill.c, or
   torch's) use the same weights. Four rows of weights are read at a time, far apart, which keeps four streams of memory
   busy. Each part of a product is computed by one thread. Elements are float32, bfloat16 or int8; all sums are float32,
   and a row's numbers do not depend on how many rows are multiplied beside it.

   Vectors: AVX-512 with its instruction for pairs of bfloat16, AVX-512, AVX2, or what every processor has. */

#include "products.h"
#include "linear.h"

#include <omp.h>

enum {
    RUN = 64,             /* the most outputs of a part that one of its four streams gives */
    PARTS_A_THREAD = 4,   /* several parts a thread, so that a late thread holds up less */
    CACHED = 1 << 18,     /* bytes of weights that are read again for every few rows, so that they stay in the L2 cache */
    MOST_ROWS_OF_ALL = 6, /* the most rows that any kind of tile takes at a time */
    WORTH_SHARING = 1 << 15
};

typedef void tile(float *sums, const void *const *weights, count times, const void *given, count inputs, count rows);

#ifdef X86
#define LANES 16
#define MOST_ROWS 6
#define TARGET FOR_AVX512
#define NAME(of) avx512_##of
#define SUM4(to, a, b, c, d) avx512_sum4(to, (__m512)(a), (__m512)(b), (__m512)(c), (__m512)(d))
#define AVX512_CODES_AS_FLOATS(from) \
    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(from))))
#define CODES_AS_FLOATS(from) AVX512_CODES_AS_FLOATS(from)
#define HALVES_AS_FLOATS(from) \
    _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(from))), 16))
#include "linear_tiles.h"

#define LANES 16
#define MOST_ROWS 6
#define TARGET FOR_AVX512_BF16
#define NAME(of) avx512_bf16_##of
#define CODES_AS_FLOATS(from) AVX512_CODES_AS_FLOATS(from)
#define SUM4(to, a, b, c, d) avx512_sum4(to, (__m512)(a), (__m512)(b), (__m512)(c), (__m512)(d))
#define ADD_PAIRS avx512_bf16_add_pairs
#define ADD_CODE_PAIRS avx512_bf16_add_code_pairs
#define INLINE __attribute__((always_inline)) TARGET static inline
typedef float avx512_bf16_sums __attribute__((vector_size(64)));
INLINE void avx512_bf16_add(avx512_bf16_sums (*sums)[4], count rows, const __m512bh *weights, const uint16_t *given,
                            count stride) {
    _Pragma("GCC unroll 8") for (count m = 0; m < rows; m++) {
        __m512bh x = (__m512bh)_mm512_loadu_si512(given + m * stride);
        _Pragma("GCC unroll 8") for (count j = 0; j < 4; j++) sums[m][j] =
            (avx512_bf16_sums)_mm512_dpbf16_ps((__m512)sums[m][j], weights[j], x);
    }
}
INLINE void avx512_bf16_add_pairs(avx512_bf16_sums (*sums)[4], count rows, const uint16_t *const *weights,
                                  const uint16_t *given, count stride) {
    __m512bh pairs[4];
    _Pragma("GCC unroll 8") for (count j = 0; j < 4; j++) pairs[j] = (__m512bh)_mm512_loadu_si512(weights[j]);
    avx512_bf16_add(sums, rows, pairs, given, stride);
}
INLINE void avx512_bf16_add_code_pairs(avx512_bf16_sums (*sums)[4], count rows, const int8_t *const *weights,
                                       const uint16_t *given, count stride) {
    __m512bh pairs[4]; /* bfloat16 holds every code exactly */
    _Pragma("GCC unroll 8") for (count j = 0; j < 4; j++) pairs[j] =
        _mm512_cvtne2ps_pbh(CODES_AS_FLOATS(weights[j] + LANES), CODES_AS_FLOATS(weights[j]));
    avx512_bf16_add(sums, rows, pairs, given, stride);
}
#undef INLINE
#include "linear_tiles.h"

#define LANES 8
#define MOST_ROWS 2
#define TARGET FOR_AVX2
#define NAME(of) avx2_##of
TARGET static inline void avx2_sum4(float *to, __m256 a, __m256 b, __m256 c, __m256 d) {
    __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}
#define SUM4(to, a, b, c, d) avx2_sum4(to, (__m256)(a), (__m256)(b), (__m256)(c), (__m256)(d))
#define CODES_AS_FLOATS(from) _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(from))))
#define HALVES_AS_FLOATS(from) \
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(from))), 16))
#include "linear_tiles.h"
#endif

#define LANES 4
#define MOST_ROWS 2
#define TARGET
#define NAME(of) plain_##of
#define SUM(of) (((of)[0] + (of)[2]) + ((of)[1] + (of)[3]))
#define SUM4(to, a, b, c, d) ((to)[0] = SUM(a), (to)[1] = SUM(b), (to)[2] = SUM(c), (to)[3] = SUM(d))
#define CODES_AS_FLOATS(from) ((plain_floats){(from)[0], (from)[1], (from)[2], (from)[3]})
#define HALVES_AS_FLOATS(from) ((plain_words){(from)[0], (from)[1], (from)[2], (from)[3]} << 16)
#include "linear_tiles.h"

/* ---- which tiles -------------------------------------------------------------------------------------------------- */

/* The tiles of a level for each kind of weights. int8 has two, for rows of float32 and of bfloat16. */
struct tiles {
    tile *floats, *halves, *codes, *codes_to_halves;
    count rows;
};

#define TILES(of, halves_of, rows)                                                          \
    {of##_floats_tile_of_any, halves_of##_halves_tile_of_any, of##_codes_tile_of_any, \
     halves_of##_codes_to_halves_tile_of_any, rows}

static const struct tiles tiles[LEVELS] = {
    [PLAIN] = TILES(plain, plain, 2),
#ifdef X86
    [AVX2] = TILES(avx2, avx2, 2),
    [AVX512] = TILES(avx512, avx512, 6),
    [AVX512_BF16] = TILES(avx512, avx512_bf16, 6),
#endif
};

static tile *tile_for(const struct tiles *of, const struct product *product) {
    switch (product->by->kind) {
    case FLOATS: return of->floats;
    case HALVES: return of->halves;
    default: return product->half ? of->codes_to_halves : of->codes;
    }
}

/* ---- one product -------------------------------------------------------------------------------------------------- */

static count weight_bytes(int64_t kind) { return kind == FLOATS ? 4 : kind == HALVES ? 2 : 1; }

static count made_outputs(const struct product *product) { return product->by->outputs / (product->gated ? 2 : 1); }

struct cut cut_product(const struct product *product, count threads) {
    count outputs = made_outputs(product), streams = product->gated ? 2 : 4;
    count row_bytes = (product->by->inputs * weight_bytes(product->by->kind) + 1) * 4, run = RUN;
    if (product->rows > MOST_ROWS_OF_ALL && run * row_bytes > CACHED) run = CACHED / row_bytes + 1;
    count rounds = (outputs + threads * PARTS_A_THREAD * streams * run - 1) / (threads * PARTS_A_THREAD * streams * run);
    count parts = rounds * threads * PARTS_A_THREAD;
    run = (outputs + parts * streams - 1) / (parts * streams);
    return (struct cut){(outputs + run * streams - 1) / (run * streams), run * streams};
}

/* Write some outputs of a row, given their sums, and the sums of the other half (`ups`) if the product is gated. */
static void finish(const struct product *product, count row, count first, count n, float *sums, float *ups) {
    const struct matrix *by = product->by;
    float room[RUN], all[RUN];
    count place = row * made_outputs(product) + first;
    for (count part = 0; part < (product->gated ? 2 : 1); part++) {
        float *some = part ? ups : sums;
        count from = part * (by->outputs / 2) + first;
        if (by->scale) {
            const float *scale = read(room, by->scale, from, n, product->half);
            for (count i = 0; i < n; i++) some[i] *= scale[i];
        }
        if (by->bias) {
            const float *bias = read(room, by->bias, from, n, product->half);
            for (count i = 0; i < n; i++) some[i] += bias[i];
        }
    }
    if (product->gated) {
        gate(all, sums, ups, n);
        write(product->made, place, all, n, product->half);
        return;
    }
    if (product->added) {
        const float *added = read(room, product->added, place, n, product->half);
        for (count i = 0; i < n; i++) sums[i] += added[i];
    }
    write(product->made, place, sums, n, product->half);
}

/* A run of `n` outputs from `first` on in each stream; streams are `apart` outputs from each other. */
struct run {
    count first, n, apart;
};

static void compute_run(const struct product *product, struct run run) {
    const struct matrix *by = product->by;
    const struct tiles *of = tiles + vector_level();
    const char *weight = by->weight;
    count row_bytes = by->inputs * weight_bytes(by->kind), given_bytes = by->inputs * (product->half ? 2 : 4);
    count halfway = by->outputs / 2, blocks = (product->rows + of->rows - 1) / of->rows;
    const void *streams[4];
    for (count j = 0; j < 4; j++) {
        count output = product->gated ? run.first + j % 2 * run.apart + j / 2 * halfway : run.first + j * run.apart;
        streams[j] = weight + output * row_bytes;
    }
    for (count block = 0; block < blocks; block++) {
        count begin = product->rows * block / blocks, end = product->rows * (block + 1) / blocks;
        float sums[MOST_ROWS_OF_ALL * 4 * RUN];
        const char *given = (const char *)product->given + begin * given_bytes;
        tile_for(of, product)(sums, streams, run.n, given, by->inputs, end - begin);
        for (count row = begin; row < end; row++) {
            float *made = sums + (row - begin) * 4 * RUN;
            for (count j = 0; j < (product->gated ? 2 : 4); j++) {
                if (j && !run.apart) break;
                finish(product, row, run.first + j * run.apart, run.n, made + j * RUN, made + (j + 2) * RUN);
            }
        }
    }
}

void compute_part(const struct product *product, struct cut cut, count part) {
    count streams = product->gated ? 2 : 4, first = part * cut.outputs, end = made_outputs(product);
    if (end > first + cut.outputs) end = first + cut.outputs;
    count run = (end - first) / streams;
    if (run) compute_run(product, (struct run){first, run, run});
    /* The rest of a part whose outputs the streams don't divide evenly: all streams read the same row, and one counts. */
    for (first += run * streams; first < end; first++) compute_run(product, (struct run){first, 1, 0});
}

/* Multiply. Returns 1, or 0 if the kinds or sizes of weights and rows do not fit together and nothing was done. */
int midstream_linear(const struct matrix *by, const void *given, count rows, int half, void *made) {
    if (by->kind < FLOATS || by->kind > CODES || by->kind == (half ? FLOATS : HALVES)) return 0;
    if (rows < 0 || by->outputs < 0 || by->inputs < 0) return 0;
    if (!rows || !by->outputs) return 1;
    const struct product product = {by, given, NULL, made, rows, half, 0};
    const struct cut cut = cut_product(&product, omp_get_max_threads());
#pragma omp parallel for schedule(dynamic) if (rows * by->outputs * by->inputs > WORTH_SHARING)
    for (count part = 0; part < cut.parts; part++) compute_part(&product, cut, part);
    return 1;
}
