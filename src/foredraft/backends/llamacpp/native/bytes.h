/* Products of bytes for the panels of panels.h, of as many outputs as the processor takes at once: 16 with AVX-512 and
   its VNNI, 8 with AVX2. With VNNI one instruction multiplies four bytes of each output and adds them up. */
#pragma once
#include "lanes.h"
#if FOREDRAFT_LANES == 16 || defined(__AVXVNNI__)
#define FOREDRAFT_VNNI
#endif
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* Where sums are handed on that have to stay in registers. */
#define FOREDRAFT_INLINE static inline __attribute__((always_inline))

namespace foredraft {

#if FOREDRAFT_LANES == 16
using Ints = __m512i;     // a number of 32 bits for each output, or four bytes
using Fractions = __m512; // a fraction for each output
constexpr int OUTPUTS = 16;

static inline Ints ints(const void * at) { return _mm512_loadu_si512(at); }
static inline Ints all_ints(int32_t x) { return _mm512_set1_epi32(x); }
static inline Ints all_bytes(int x) { return _mm512_set1_epi8(char(x)); }
static inline Ints no_ints() { return _mm512_setzero_si512(); }
static inline Ints plus(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
static inline Ints minus(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
static inline Ints left(Ints x, int bits) { return _mm512_slli_epi16(x, unsigned(bits)); }
static inline Ints right(Ints x, int bits) { return _mm512_srli_epi16(x, unsigned(bits)); }
static inline Ints right_in_ints(Ints x, int bits) { return _mm512_srli_epi32(x, unsigned(bits)); }
static inline Ints from_bytes(const char * at) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) at)); }
static inline Ints from_signed_bytes(const char * at) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) at));
}
static inline Fractions from_halves(const char * at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) at));
}
static inline Fractions fractions(Ints x) { return _mm512_cvtepi32_ps(x); }
static inline Fractions all_fractions(float x) { return _mm512_set1_ps(x); }
static inline Fractions times(Fractions a, Fractions b) { return _mm512_mul_ps(a, b); }
static inline Fractions times_plus(Fractions a, Fractions b, Fractions c) { return _mm512_fmadd_ps(a, b, c); }
/* c - a × b */
static inline Fractions minus_times(Fractions a, Fractions b, Fractions c) { return _mm512_fnmadd_ps(a, b, c); }
static inline void put(float * at, Fractions x) { _mm512_storeu_ps(at, x); }
/* Sums, and products of bytes from 0 to 255 with bytes from -128 to 127. */
static inline Ints dot(Ints sums, Ints bytes, Ints values) { return _mm512_dpbusd_epi32(sums, bytes, values); }
#else
using Ints = __m256i;
using Fractions = __m256;
constexpr int OUTPUTS = 8;

static inline Ints ints(const void * at) { return _mm256_loadu_si256(static_cast<const __m256i *>(at)); }
static inline Ints all_ints(int32_t x) { return _mm256_set1_epi32(x); }
static inline Ints all_bytes(int x) { return _mm256_set1_epi8(char(x)); }
static inline Ints no_ints() { return _mm256_setzero_si256(); }
static inline Ints plus(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
static inline Ints minus(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
static inline Ints left(Ints x, int bits) { return _mm256_slli_epi16(x, bits); }
static inline Ints right(Ints x, int bits) { return _mm256_srli_epi16(x, bits); }
static inline Ints right_in_ints(Ints x, int bits) { return _mm256_srli_epi32(x, bits); }
static inline Ints from_bytes(const char * at) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) at)); }
static inline Ints from_signed_bytes(const char * at) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) at));
}
static inline Fractions from_halves(const char * at) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) at)); }
static inline Fractions fractions(Ints x) { return _mm256_cvtepi32_ps(x); }
static inline Fractions all_fractions(float x) { return _mm256_set1_ps(x); }
static inline Fractions times(Fractions a, Fractions b) { return _mm256_mul_ps(a, b); }
static inline Fractions times_plus(Fractions a, Fractions b, Fractions c) { return _mm256_fmadd_ps(a, b, c); }
/* c - a × b */
static inline Fractions minus_times(Fractions a, Fractions b, Fractions c) { return _mm256_fnmadd_ps(a, b, c); }
static inline void put(float * at, Fractions x) { _mm256_storeu_ps(at, x); }
#ifdef FOREDRAFT_VNNI
static inline Ints dot(Ints sums, Ints bytes, Ints values) { return _mm256_dpbusd_avx_epi32(sums, bytes, values); }
#else
static inline Ints pairs(Ints sixteen) { return _mm256_madd_epi16(sixteen, _mm256_set1_epi16(1)); }
static inline Ints plus_in_halves(Ints a, Ints b) { return _mm256_add_epi16(a, b); }
static inline Ints products(Ints bytes, Ints values) { return _mm256_maddubs_epi16(bytes, values); } // of two, added
#endif
#endif

static inline Ints low_bits(Ints bytes) { return bytes & all_bytes(15); }
static inline Ints four(const int8_t * values) { // inputs, the same for all outputs
    int32_t all;
    memcpy(&all, values, sizeof(all));
    return all_ints(all);
}

/* So that the compiler adds those of R rows at once: in an order of its own it would keep products on the stack. */
template <int R> FOREDRAFT_INLINE void settle(Ints & sums) {
    if (R > 1) __asm__("" : "+x"(sums));
}

/* Adds products of two times four bytes; without VNNI 16 bits have to be enough for four of them. */
template <int R> FOREDRAFT_INLINE void add_products(Ints & sums, Ints a, const int8_t * x, Ints b, const int8_t * y) {
#ifdef FOREDRAFT_VNNI
    sums = dot(dot(sums, a, four(x)), b, four(y));
#else
    sums = plus(sums, pairs(plus_in_halves(products(a, four(x)), products(b, four(y)))));
    settle<R>(sums);
#endif
}

static inline void add(Fractions & total, Ints sums, Fractions scale, float d) {
    total = times_plus(fractions(sums), times(scale, all_fractions(d)), total);
}

} // namespace foredraft
