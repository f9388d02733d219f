/* Products of rows with quantised weights in panels of eight or 16 outputs, for processors with AVX2 or AVX-512.

   llama.cpp multiplies by most types one output of one row at a time, and unpacks the weights anew for each row. Here
   a panel holds the same four inputs of its outputs side by side, so that one instruction computes for all of them,
   and what is unpacked is used for up to eight or 12 rows. A row's sums are made in one order, whatever rows are beside
   it. What each type does with a panel is in panel_types.h.

   Rows are quantised as llama.cpp quantises them for Q4_1: 32 inputs at a time (Q8_1). */
#pragma once
#include "bytes.h"
#include "weights.h"
#include <stddef.h>

namespace foredraft {

constexpr int INPUTS = 32;            // of a block
constexpr int NIBBLES = 16 * OUTPUTS; // bytes of a block's
constexpr int MOST_ROWS = OUTPUTS == 16 ? 12 : 8;  // that share what is unpacked, by how many registers there are,
constexpr int FEWER_ROWS = OUTPUTS == 16 ? 8 : 6;  // and of types that need more of them
constexpr int AHEAD_OF_PANEL = 2560;  // bytes; the processor alone does not look so far ahead while it computes

/* 32 inputs of a row: `d` times `values`; the sum of all, and the sums of the values of each half. */
struct Input {
    float d, sum;
    int32_t halves[2];
    int8_t values[INPUTS];
};

struct Blocks { // a block of each of some rows
    const Input * first;
    ptrdiff_t step;
    const Input & of(int row) const { return first[row * step]; }
};

static inline float largest_of(__m256 x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* 32 numbers, the largest of which becomes 127. */
static inline Input quantized(const float * numbers) {
    __m256 parts[4], largest = _mm256_setzero_ps();
    for (int i = 0; i < 4; ++i) {
        parts[i] = _mm256_loadu_ps(numbers + 8 * i);
        largest = _mm256_max_ps(largest, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), parts[i]));
    }
    const float most = largest_of(largest), by = most > 0.0f ? 127.0f / most : 0.0f;
    __m256i whole[4];
    for (int i = 0; i < 4; ++i) whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(parts[i], _mm256_set1_ps(by)));
    const __m256i first = _mm256_packs_epi32(whole[0], whole[1]), second = _mm256_packs_epi32(whole[2], whole[3]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); // packing takes halves by turns
    const __m256i values = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order);
    const __m256i raised = _mm256_xor_si256(values, _mm256_set1_epi8(char(128))); // by 128, for sums of bytes
    const __m256i quarters = _mm256_sad_epu8(raised, _mm256_setzero_si256());
    Input input;
    input.d = most / 127.0f;
    for (int half = 0; half < 2; ++half) {
        const __m128i two = half ? _mm256_extracti128_si256(quarters, 1) : _mm256_castsi256_si128(quarters);
        input.halves[half] = _mm_cvtsi128_si32(two) + _mm_extract_epi32(two, 2) - 16 * 128;
    }
    input.sum = input.d * float(input.halves[0] + input.halves[1]);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(input.values), values);
    return input;
}

/* The sums over a block of nibbles. Without VNNI 16 bits are enough for 32 products of 15 and 127. */
template <int R> FOREDRAFT_INLINE void nibble_sums(const char * packed, Blocks rows, Ints * sums) {
    for (int r = 0; r < R; ++r) sums[r] = no_ints();
    for (int k = 0; k < 4; ++k) {
        const Ints both = ints(packed + 4 * OUTPUTS * k);
        const Ints low = low_bits(both), high = low_bits(right(both, 4));
        for (int r = 0; r < R; ++r) {
            const int8_t * values = rows.of(r).values + 4 * k;
#ifdef FOREDRAFT_VNNI
            add_products<R>(sums[r], low, values, high, values + 16);
#else
            const Ints some = plus_in_halves(products(low, four(values)), products(high, four(values + 16)));
            sums[r] = plus_in_halves(sums[r], some);
            settle<R>(sums[r]);
#endif
        }
    }
#ifndef FOREDRAFT_VNNI
    for (int r = 0; r < R; ++r) sums[r] = pairs(sums[r]);
#endif
}

/* The same with a fifth bit, from 4 bytes more of each output: bit k of byte 4 o + j for input 4 k + j of output o, bit
   4 + k for the input 16 further on. 16 bits are enough for 8 products of 31 and 127. */
template <int R> FOREDRAFT_INLINE void fifth_sums(const char * packed, const char * fifths, Blocks rows, Ints * sums) {
    const Ints bits = ints(fifths), sixteen = all_bytes(16);
    for (int r = 0; r < R; ++r) sums[r] = no_ints();
    for (int k = 0; k < 4; ++k) {
        const Ints both = ints(packed + 4 * OUTPUTS * k);
        const Ints low = low_bits(both) | (left(bits, 4 - k) & sixteen);
        const Ints high = low_bits(right(both, 4)) | (right(bits, k) & sixteen);
        for (int r = 0; r < R; ++r) {
            const int8_t * values = rows.of(r).values + 4 * k;
            add_products<R>(sums[r], low, values, high, values + 16);
        }
    }
}

/* A panel of the type B times R rows, `units` of the type's inputs long; `out[r]` is where a row's go. `once`: it is
   not read again while it is in the caches (weights.h). */
template <typename B, int R>
static void multiply_panel(int units, Blocks rows, const char * panel, float * const * out, bool once) {
    Fractions totals[R];
    for (int r = 0; r < R; ++r) totals[r] = all_fractions(0.0f);
    constexpr int part = OUTPUTS * B::bytes / B::blocks;
    for (int u = 0; u < units; ++u, panel += B::blocks * part) {
        for (int b = 0; b < B::blocks; ++b, ++rows.first) {
            for (int line = (b * part + 63) / 64 * 64; line < (b + 1) * part; line += 64) {
                ask_for(panel + AHEAD_OF_PANEL + line, once);
            }
            B::template add_to<R>(totals, panel, b, rows);
        }
    }
    for (int r = 0; r < R; ++r) put(out[r], totals[r]);
}

} // namespace foredraft
