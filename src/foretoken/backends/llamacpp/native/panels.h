/* Products of rows with quantised weights in panels of eight outputs, for processors with AVX2.

   llama.cpp multiplies by most types one output of one row at a time, and unpacks the weights anew for each row. Here
   a panel holds the same four inputs of eight outputs side by side, so that one instruction computes for all of them,
   and what is unpacked is used for up to eight rows. A row's sums are made in one order, whatever rows are beside it.

   Rows are quantised as llama.cpp quantises them for Q4_1: 32 inputs at a time (Q8_1). */
#pragma once
#include "lanes.h"
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define FORETOKEN_PANELS
#include <stddef.h>
#include <string.h>

namespace foretoken {

constexpr int OUTPUTS = 8;            // of a panel
constexpr int INPUTS = 32;            // of a block
constexpr int NIBBLES = 16 * OUTPUTS; // bytes of a block's
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

static inline __m256i ints(const void * at) { return _mm256_loadu_si256(static_cast<const __m256i *>(at)); }
static inline __m256 eight_halves(const char * at) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at)));
}
static inline __m256i four(const int8_t * values) { // inputs, the same for all outputs
    int32_t all;
    memcpy(&all, values, sizeof(all));
    return _mm256_set1_epi32(all);
}
static inline __m256i pairs(__m256i sixteen) { return _mm256_madd_epi16(sixteen, _mm256_set1_epi16(1)); }
/* So that the compiler adds those of R rows at once: in an order of its own it would keep products on the stack. */
template <int R> static inline void settle(__m256i & sums) {
    if (R > 1) __asm__("" : "+x"(sums));
}
static inline __m256i low_bits(__m256i bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(15)); }
static inline __m256i eight_bytes(const char * at) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(at)));
}
static inline void add(__m256 & total, __m256i sums, __m256 scale, float d) {
    total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_mul_ps(scale, _mm256_set1_ps(d)), total);
}

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

/* The sums over a block of nibbles: 16 bits are enough for 32 products of 15 and 127. */
template <int R> static inline void nibble_sums(const char * packed, Blocks rows, __m256i * sums) {
    for (int r = 0; r < R; ++r) sums[r] = _mm256_setzero_si256();
    for (int k = 0; k < 4; ++k) {
        const __m256i both = ints(packed + 32 * k);
        const __m256i low = low_bits(both), high = low_bits(_mm256_srli_epi16(both, 4));
        for (int r = 0; r < R; ++r) {
            const int8_t * values = rows.of(r).values + 4 * k;
            const __m256i some = _mm256_maddubs_epi16(low, four(values));
            const __m256i more = _mm256_maddubs_epi16(high, four(values + 16));
            sums[r] = _mm256_add_epi16(sums[r], _mm256_add_epi16(some, more));
            settle<R>(sums[r]);
        }
    }
    for (int r = 0; r < R; ++r) sums[r] = pairs(sums[r]);
}

/* The same with a fifth bit, from 32 bytes more: bit k of byte 4 o + j for input 4 k + j of output o, bit 4 + k for the
   input 16 further on. 16 bits are enough for 8 products of 31 and 127. */
template <int R> static inline void fifth_sums(const char * packed, const char * fifths, Blocks rows, __m256i * sums) {
    const __m256i bits = ints(fifths), sixteen = _mm256_set1_epi8(16);
    for (int r = 0; r < R; ++r) sums[r] = _mm256_setzero_si256();
    for (int k = 0; k < 4; ++k) {
        const __m256i both = ints(packed + 32 * k);
        const __m256i low = low_bits(both) | (_mm256_slli_epi16(bits, 4 - k) & sixteen);
        const __m256i high = low_bits(_mm256_srli_epi16(both, 4)) | (_mm256_srli_epi16(bits, k) & sixteen);
        for (int r = 0; r < R; ++r) {
            const int8_t * values = rows.of(r).values + 4 * k;
            const __m256i some = _mm256_maddubs_epi16(low, four(values));
            const __m256i more = _mm256_maddubs_epi16(high, four(values + 16));
            sums[r] = _mm256_add_epi32(sums[r], pairs(_mm256_add_epi16(some, more)));
            settle<R>(sums[r]);
        }
    }
}

static inline uint32_t word(const uint8_t * at) {
    uint32_t four;
    memcpy(&four, at, sizeof(four));
    return four;
}

/* `to` + 32 k + 4 o: four inputs of output o, 4 k and on in the low bits, 16 + 4 k and on in the high ones, which are
   what `of(o, k)` returns. */
template <typename F> static inline void pack_nibbles(char * to, F of) {
    for (int k = 0; k < 4; ++k) {
        for (int o = 0; o < OUTPUTS; ++o) {
            const uint32_t four = of(o, k);
            memcpy(to + 32 * k + 4 * o, &four, sizeof(four));
        }
    }
}

/* The same of 32 bytes of which nibbles at bit `shift` are wanted. */
static inline uint32_t nibbles(const uint8_t * bytes, int k, int shift) {
    const uint32_t low = word(bytes + 4 * k) >> shift, high = word(bytes + 16 + 4 * k) >> shift;
    return (low & 0x0f0f0f0f) | (high & 0x0f0f0f0f) << 4;
}

/* The fifth bits of a block for `fifth_sums`; `of(o, i)` is that of an input. */
template <typename F> static inline void pack_fifths(char * to, F of) {
    for (int o = 0; o < OUTPUTS; ++o) {
        for (int j = 0; j < 4; ++j) {
            int bits = 0;
            for (int k = 0; k < 8; ++k) bits |= of(o, 4 * k + j) << k;
            to[4 * o + j] = char(bits);
        }
    }
}

/* What the types are made of: `inputs` of one output in `bytes`; `pack` puts those of eight outputs, which begin at
   `from[o]`, into a panel, and `add_to` adds their products to the totals of R rows: of up to `rows`, where more would
   leave too few registers. */
struct Q4_0 {
    static constexpr int inputs = INPUTS, bytes = 18, rows = 8;
    static void pack(const uint8_t * const * from, char * to) {
        pack_nibbles(to, [&](int o, int k) { return word(from[o] + 2 + 4 * k); });
        for (int o = 0; o < OUTPUTS; ++o) memcpy(to + NIBBLES + 2 * o, from[o], 2);
    }
    template <int R> static inline void add_to(__m256 * totals, const char * packed, Blocks rows) {
        __m256i sums[R];
        nibble_sums<R>(packed, rows, sums);
        const __m256 scale = eight_halves(packed + NIBBLES);
        for (int r = 0; r < R; ++r) {
            const Input & row = rows.of(r);
            const __m256i zero = _mm256_set1_epi32(8 * (row.halves[0] + row.halves[1]));
            add(totals[r], _mm256_sub_epi32(sums[r], zero), scale, row.d);
        }
    }
};

struct Q4_1 {
    static constexpr int inputs = INPUTS, bytes = 20, rows = 8;
    static void pack(const uint8_t * const * from, char * to) {
        pack_nibbles(to, [&](int o, int k) { return word(from[o] + 4 + 4 * k); });
        for (int o = 0; o < OUTPUTS; ++o) {
            memcpy(to + NIBBLES + 2 * o, from[o], 2);
            memcpy(to + NIBBLES + 16 + 2 * o, from[o] + 2, 2);
        }
    }
    template <int R> static inline void add_to(__m256 * totals, const char * packed, Blocks rows) {
        __m256i sums[R];
        nibble_sums<R>(packed, rows, sums);
        const __m256 scale = eight_halves(packed + NIBBLES), least = eight_halves(packed + NIBBLES + 16);
        for (int r = 0; r < R; ++r) {
            const Input & row = rows.of(r);
            add(totals[r], sums[r], scale, row.d);
            totals[r] = _mm256_fmadd_ps(least, _mm256_set1_ps(row.sum), totals[r]);
        }
    }
};

struct Q5_0 {
    static constexpr int inputs = INPUTS, bytes = 22, rows = 6;
    static constexpr int fifths = NIBBLES, scales = fifths + 4 * OUTPUTS;
    static void pack(const uint8_t * const * from, char * to) {
        pack_nibbles(to, [&](int o, int k) { return word(from[o] + 6 + 4 * k); });
        pack_fifths(to + fifths, [&](int o, int i) { return word(from[o] + 2) >> i & 1; });
        for (int o = 0; o < OUTPUTS; ++o) memcpy(to + scales + 2 * o, from[o], 2);
    }
    template <int R> static inline void add_to(__m256 * totals, const char * packed, Blocks rows) {
        __m256i sums[R];
        fifth_sums<R>(packed, packed + fifths, rows, sums);
        const __m256 scale = eight_halves(packed + scales);
        for (int r = 0; r < R; ++r) {
            const Input & row = rows.of(r);
            const __m256i zero = _mm256_set1_epi32(16 * (row.halves[0] + row.halves[1]));
            add(totals[r], _mm256_sub_epi32(sums[r], zero), scale, row.d);
        }
    }
};

struct Q5_1 {
    static constexpr int inputs = INPUTS, bytes = 24, rows = 6;
    static constexpr int fifths = NIBBLES, scales = fifths + 4 * OUTPUTS;
    static void pack(const uint8_t * const * from, char * to) {
        pack_nibbles(to, [&](int o, int k) { return word(from[o] + 8 + 4 * k); });
        pack_fifths(to + fifths, [&](int o, int i) { return word(from[o] + 4) >> i & 1; });
        for (int o = 0; o < OUTPUTS; ++o) {
            memcpy(to + scales + 2 * o, from[o], 2);
            memcpy(to + scales + 16 + 2 * o, from[o] + 2, 2);
        }
    }
    template <int R> static inline void add_to(__m256 * totals, const char * packed, Blocks rows) {
        __m256i sums[R];
        fifth_sums<R>(packed, packed + fifths, rows, sums);
        const __m256 scale = eight_halves(packed + scales), least = eight_halves(packed + scales + 16);
        for (int r = 0; r < R; ++r) {
            const Input & row = rows.of(r);
            add(totals[r], sums[r], scale, row.d);
            totals[r] = _mm256_fmadd_ps(least, _mm256_set1_ps(row.sum), totals[r]);
        }
    }
};

struct Q8_0 {
    static constexpr int inputs = INPUTS, bytes = 34, rows = 6;
    static void pack(const uint8_t * const * from, char * to) {
        for (int o = 0; o < OUTPUTS; ++o) {
            for (int k = 0; k < 8; ++k) memcpy(to + 32 * k + 4 * o, from[o] + 2 + 4 * k, 4);
            memcpy(to + 32 * OUTPUTS + 2 * o, from[o], 2);
        }
    }
    template <int R> static inline void add_to(__m256 * totals, const char * packed, Blocks rows) {
        __m256i sums[R];
        for (int r = 0; r < R; ++r) sums[r] = _mm256_setzero_si256();
        for (int k = 0; k < 8; ++k) {
            const __m256i weights = ints(packed + 32 * k), sizes = _mm256_abs_epi8(weights);
            for (int r = 0; r < R; ++r) {
                const __m256i signs = _mm256_sign_epi8(four(rows.of(r).values + 4 * k), weights);
                sums[r] = _mm256_add_epi32(sums[r], pairs(_mm256_maddubs_epi16(sizes, signs)));
                settle<R>(sums[r]);
            }
        }
        const __m256 scale = eight_halves(packed + 32 * OUTPUTS);
        for (int r = 0; r < R; ++r) add(totals[r], sums[r], scale, rows.of(r).d);
    }
};

/* Q4_K and, with a fifth bit, Q5_K: eight blocks with scales and least values of 6 bits, in 12 bytes: the last four
   have their upper two bits in the bytes of the first four. */
template <bool FIFTHS> struct Q45_K {
    static constexpr int blocks = 8, inputs = blocks * INPUTS, bytes = FIFTHS ? 176 : 144, rows = FIFTHS ? 6 : 8;
    static constexpr int fifths = blocks * NIBBLES, scales = fifths + (FIFTHS ? blocks * 4 * OUTPUTS : 0);
    static constexpr int halves = scales + 12 * OUTPUTS;
    static void pack(const uint8_t * const * from, char * to) {
        for (int b = 0; b < blocks; ++b) { // two blocks share 32 bytes
            const int at = (FIFTHS ? 48 : 16) + b / 2 * 32;
            pack_nibbles(to + b * NIBBLES, [&](int o, int k) { return nibbles(from[o] + at, k, b % 2 * 4); });
            if (FIFTHS) {
                const auto fifth = [&](int o, int i) { return from[o][16 + i] >> b & 1; };
                pack_fifths(to + fifths + b * 4 * OUTPUTS, fifth);
            }
        }
        for (int o = 0; o < OUTPUTS; ++o) {
            for (int s = 0; s < 12; ++s) to[scales + OUTPUTS * s + o] = char(from[o][4 + s]);
            memcpy(to + halves + 2 * o, from[o], 2);
            memcpy(to + halves + 16 + 2 * o, from[o] + 2, 2);
        }
    }
    static inline void of_block(const char * at, int b, __m256i & scale, __m256i & least) {
        const auto stored = [&](int s) { return eight_bytes(at + OUTPUTS * s); };
        const __m256i six = _mm256_set1_epi32(63), upper = _mm256_set1_epi32(48);
        if (b < 4) {
            scale = _mm256_and_si256(stored(b), six);
            least = _mm256_and_si256(stored(b + 4), six);
            return;
        }
        const __m256i lower = stored(b + 4);
        scale = _mm256_and_si256(_mm256_srli_epi32(stored(b - 4), 2), upper);
        scale = _mm256_or_si256(_mm256_and_si256(lower, _mm256_set1_epi32(15)), scale);
        least = _mm256_and_si256(_mm256_srli_epi32(stored(b), 2), upper);
        least = _mm256_or_si256(_mm256_srli_epi32(lower, 4), least);
    }
    template <int R> static inline void add_to(__m256 * totals, const char * packed, Blocks rows) {
        const __m256 unit = eight_halves(packed + halves), unit_of_least = eight_halves(packed + halves + 16);
        for (int b = 0; b < blocks; ++b, ++rows.first) {
            __m256i sums[R], scale, least;
            if constexpr (FIFTHS) {
                fifth_sums<R>(packed + b * NIBBLES, packed + fifths + b * 4 * OUTPUTS, rows, sums);
            } else {
                nibble_sums<R>(packed + b * NIBBLES, rows, sums);
            }
            of_block(packed + scales, b, scale, least);
            const __m256 by = _mm256_mul_ps(unit, _mm256_cvtepi32_ps(scale));
            const __m256 less = _mm256_mul_ps(unit_of_least, _mm256_cvtepi32_ps(least));
            for (int r = 0; r < R; ++r) {
                add(totals[r], sums[r], by, rows.of(r).d);
                totals[r] = _mm256_fnmadd_ps(less, _mm256_set1_ps(rows.of(r).sum), totals[r]);
            }
        }
    }
};
using Q4_K = Q45_K<false>;
using Q5_K = Q45_K<true>;

/* Eight blocks of two halves, each half with a scale of 8 bits; numbers of 6 bits, 32 of which stand for 0. Their
   lower four bits are packed like nibbles, their upper two, four numbers a byte, behind all of these. */
struct Q6_K {
    static constexpr int blocks = 8, inputs = blocks * INPUTS, bytes = 210, rows = 6;
    static constexpr int upper = blocks * NIBBLES, scales = upper + blocks * 64, halves = scales + 16 * OUTPUTS;
    static void pack(const uint8_t * const * from, char * to) {
        for (int b = 0; b < blocks; ++b) {
            const int lower = b / 4 * 64 + b % 2 * 32, above = 128 + b / 4 * 32, pair = b % 4 * 2;
            const auto four = [&](int o, int k) { return nibbles(from[o] + lower, k, pair / 4 * 4); };
            pack_nibbles(to + b * NIBBLES, four);
            for (int o = 0; o < OUTPUTS; ++o) {
                for (int i = 0; i < 16; i += 8) { // inputs i and 16 + i, then i + 4 and 20 + i, two bits each
                    const auto bits = [&](int at) { return word(from[o] + above + at) >> pair & 0x03030303; };
                    const uint32_t all = bits(i) | bits(i + 16) << 2 | bits(i + 4) << 4 | bits(i + 20) << 6;
                    memcpy(to + upper + b * 64 + 4 * i + 4 * o, &all, sizeof(all));
                }
            }
        }
        for (int o = 0; o < OUTPUTS; ++o) {
            for (int s = 0; s < 16; ++s) to[scales + OUTPUTS * s + o] = char(from[o][192 + s]);
            memcpy(to + halves + 2 * o, from[o] + 208, 2);
        }
    }
    template <int R> static inline void add_to(__m256 * totals, const char * packed, Blocks rows) {
        const __m256i two = _mm256_set1_epi8(48);
        const __m256 unit = eight_halves(packed + halves);
        for (int b = 0; b < blocks; ++b, ++rows.first) {
            __m256i sums[2][R];
            for (int r = 0; r < R; ++r) sums[0][r] = sums[1][r] = _mm256_setzero_si256();
            for (int k = 0; k < 4; k += 2) {
                const __m256i some = ints(packed + b * NIBBLES + 32 * k);
                const __m256i more = ints(packed + b * NIBBLES + 32 * k + 32);
                const __m256i above = ints(packed + upper + b * 64 + 16 * k);
                const __m256i numbers[2][2] = {
                    {low_bits(some) | (_mm256_slli_epi16(above, 4) & two), low_bits(more) | (above & two)},
                    {low_bits(_mm256_srli_epi16(some, 4)) | (_mm256_slli_epi16(above, 2) & two),
                     low_bits(_mm256_srli_epi16(more, 4)) | (_mm256_srli_epi16(above, 2) & two)}};
                for (int half = 0; half < 2; ++half) {
                    for (int r = 0; r < R; ++r) {
                        const int8_t * values = rows.of(r).values + 16 * half + 4 * k;
                        const __m256i a = _mm256_maddubs_epi16(numbers[half][0], four(values));
                        const __m256i c = _mm256_maddubs_epi16(numbers[half][1], four(values + 4));
                        sums[half][r] = _mm256_add_epi32(sums[half][r], pairs(_mm256_add_epi16(a, c)));
                        settle<R>(sums[half][r]);
                    }
                }
            }
            for (int half = 0; half < 2; ++half) {
                const char * at = packed + scales + OUTPUTS * (2 * b + half);
                const __m128i stored = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(at));
                const __m256 by = _mm256_mul_ps(unit, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(stored)));
                for (int r = 0; r < R; ++r) {
                    const __m256i zero = _mm256_set1_epi32(32 * rows.of(r).halves[half]);
                    add(totals[r], _mm256_sub_epi32(sums[half][r], zero), by, rows.of(r).d);
                }
            }
        }
    }
};

/* Eight outputs of R rows, `units` of the type's inputs long; `out[r]` is where a row's go. */
template <typename B, int R>
static void multiply_panel(int units, Blocks rows, const char * panel, float * const * out) {
    __m256 totals[R];
    for (int r = 0; r < R; ++r) totals[r] = _mm256_setzero_ps();
    for (int u = 0; u < units; ++u, panel += OUTPUTS * B::bytes, rows.first += B::inputs / INPUTS) {
        for (int line = 0; line < OUTPUTS * B::bytes; line += 64) {
            _mm_prefetch(panel + AHEAD_OF_PANEL + line, _MM_HINT_T0);
        }
        B::template add_to<R>(totals, panel, rows);
    }
    for (int r = 0; r < R; ++r) _mm256_storeu_ps(out[r], totals[r]);
}

} // namespace foretoken
#endif
