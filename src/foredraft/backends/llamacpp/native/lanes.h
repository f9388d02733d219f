/* As many numbers as the processor takes at once: 16 with AVX-512, 8 with AVX2. */
#pragma once
#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define FOREDRAFT_LANES 16
#else
#define FOREDRAFT_LANES 8
#endif
#include <immintrin.h>
#include <math.h>
#include <stdint.h>

namespace foredraft {

constexpr int LANES = FOREDRAFT_LANES;

#if FOREDRAFT_LANES == 16
using Floats = __m512;
constexpr int REGISTERS = 32;

static inline Floats all(float x) { return _mm512_set1_ps(x); }
static inline Floats load(const float * at) { return _mm512_loadu_ps(at); }
static inline void store(float * at, Floats x) { _mm512_storeu_ps(at, x); }
static inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
static inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
static inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
static inline Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
static inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); } // a × b + c
static inline float largest(Floats x) { return _mm512_reduce_max_ps(x); }
static inline float sum(Floats x) { return _mm512_reduce_add_ps(x); }
static inline Floats nearest(Floats x) { return _mm512_roundscale_ps(x, 8); }
static inline Floats power_of_two(Floats n) { // of whole numbers from -126 on
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
}
static inline Floats where_above(Floats x, float bound, Floats then, Floats otherwise) {
    return _mm512_mask_mov_ps(otherwise, _mm512_cmp_ps_mask(x, all(bound), _CMP_GT_OQ), then);
}
static inline Floats load_fp16(const char * at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(at)));
}
static inline Floats load_bf16(const char * at) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
static inline Floats sums(const Floats * x) { // of each of 16, in order
    Floats quarters[4], halves[2];
    for (int i = 0; i < 4; ++i, x += 4) {
        const Floats a = add(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
        const Floats b = add(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
        const __m512d c = _mm512_castps_pd(a), d = _mm512_castps_pd(b);
        quarters[i] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)), _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
    }
    for (int i = 0; i < 2; ++i) {
        const Floats a = quarters[2 * i], b = quarters[2 * i + 1];
        halves[i] = add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    return add(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88), _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
}
#else
using Floats = __m256;
constexpr int REGISTERS = 16;

static inline Floats all(float x) { return _mm256_set1_ps(x); }
static inline Floats load(const float * at) { return _mm256_loadu_ps(at); }
static inline void store(float * at, Floats x) { _mm256_storeu_ps(at, x); }
static inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
static inline Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
static inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
static inline Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }
static inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); } // a × b + c
static inline float largest(Floats x) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
static inline float sum(Floats x) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
static inline Floats nearest(Floats x) { return _mm256_round_ps(x, 8); }
static inline Floats power_of_two(Floats n) { // of whole numbers from -126 on
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
static inline Floats where_above(Floats x, float bound, Floats then, Floats otherwise) {
    return _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps(x, all(bound), _CMP_GT_OQ));
}
static inline Floats load_fp16(const char * at) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at)));
}
static inline Floats load_bf16(const char * at) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i *>(at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
static inline Floats sums(const Floats * x) { // of each of 8, in order
    const Floats a = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    const Floats b = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
    return add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
#endif

/* The sum of each of two, in the lower half. */
static inline __m128 sums_of_two(Floats a, Floats b) {
#if FOREDRAFT_LANES == 16
    const __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(b), _mm512_extractf32x8_ps(b, 1));
#else
    const __m256 x = a, y = b;
#endif
    const __m256 pairs = _mm256_hadd_ps(x, y);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
    return _mm_hadd_ps(four, four);
}

/* exp(x) for x ≤ 0, 1 for 0: x is a whole number of ln 2, and a rest of half of it at most, whose series is short. */
static inline Floats exponential(Floats x) {
    x = larger(x, all(-87.0f));
    const Floats n = nearest(mul(x, all(1.44269504f)));
    Floats rest = fma(n, all(-0.693359375f), x); // ln 2 in two parts, the first of few bits
    rest = fma(n, all(2.12194440e-4f), rest);
    const float factors[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f};
    Floats series = all(1.0f / 720);
    for (const float factor : factors) {
        series = fma(series, rest, all(factor));
    }
    return mul(series, power_of_two(n));
}

} // namespace foredraft
