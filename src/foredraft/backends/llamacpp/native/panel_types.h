/* The types of quantised weights in panels: how a block of each is laid out, and what it adds to the sums of rows. */
#pragma once
#include "panels.h"

namespace foredraft {

static inline uint32_t word(const uint8_t * at) {
    uint32_t four;
    memcpy(&four, at, sizeof(four));
    return four;
}

/* `to` + 4 OUTPUTS k + 4 o: four inputs of output o, 4 k and on in the low bits, 16 + 4 k and on in the high ones, which
   are what `of(o, k)` returns. */
template <typename F> static inline void pack_nibbles(char * to, F of) {
    for (int k = 0; k < 4; ++k) {
        for (int o = 0; o < OUTPUTS; ++o) {
            const uint32_t four = of(o, k);
            memcpy(to + 4 * (OUTPUTS * k + o), &four, sizeof(four));
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

/* What the types are made of: `inputs` of one output in `bytes`, `blocks` of them; `pack` puts those of a panel's
   outputs, which begin at `from[o]`, side by side, and `add_to` adds the products of block `b` of these to the totals
   of R rows: of up to `rows`, where more would leave too few registers. */
struct Q4_0 {
    static constexpr int blocks = 1, inputs = INPUTS, bytes = 18, rows = MOST_ROWS;
    static void pack(const uint8_t * const * from, char * to) {
        pack_nibbles(to, [&](int o, int k) { return word(from[o] + 2 + 4 * k); });
        for (int o = 0; o < OUTPUTS; ++o) memcpy(to + NIBBLES + 2 * o, from[o], 2);
    }
    template <int R> FOREDRAFT_INLINE void add_to(Fractions * totals, const char * packed, int, Blocks rows) {
        Ints sums[R];
        nibble_sums<R>(packed, rows, sums);
        const Fractions scale = from_halves(packed + NIBBLES);
        for (int r = 0; r < R; ++r) {
            const Input & row = rows.of(r);
            const Ints zero = all_ints(8 * (row.halves[0] + row.halves[1]));
            add(totals[r], minus(sums[r], zero), scale, row.d);
        }
    }
};

struct Q4_1 {
    static constexpr int blocks = 1, inputs = INPUTS, bytes = 20, rows = MOST_ROWS;
    static void pack(const uint8_t * const * from, char * to) {
        pack_nibbles(to, [&](int o, int k) { return word(from[o] + 4 + 4 * k); });
        for (int o = 0; o < OUTPUTS; ++o) {
            memcpy(to + NIBBLES + 2 * o, from[o], 2);
            memcpy(to + NIBBLES + 2 * OUTPUTS + 2 * o, from[o] + 2, 2);
        }
    }
    template <int R> FOREDRAFT_INLINE void add_to(Fractions * totals, const char * packed, int, Blocks rows) {
        Ints sums[R];
        nibble_sums<R>(packed, rows, sums);
        const Fractions scale = from_halves(packed + NIBBLES), least = from_halves(packed + NIBBLES + 2 * OUTPUTS);
        for (int r = 0; r < R; ++r) {
            const Input & row = rows.of(r);
            add(totals[r], sums[r], scale, row.d);
            totals[r] = times_plus(least, all_fractions(row.sum), totals[r]);
        }
    }
};

struct Q5_0 {
    static constexpr int blocks = 1, inputs = INPUTS, bytes = 22, rows = FEWER_ROWS;
    static constexpr int fifths = NIBBLES, scales = fifths + 4 * OUTPUTS;
    static void pack(const uint8_t * const * from, char * to) {
        pack_nibbles(to, [&](int o, int k) { return word(from[o] + 6 + 4 * k); });
        pack_fifths(to + fifths, [&](int o, int i) { return word(from[o] + 2) >> i & 1; });
        for (int o = 0; o < OUTPUTS; ++o) memcpy(to + scales + 2 * o, from[o], 2);
    }
    template <int R> FOREDRAFT_INLINE void add_to(Fractions * totals, const char * packed, int, Blocks rows) {
        Ints sums[R];
        fifth_sums<R>(packed, packed + fifths, rows, sums);
        const Fractions scale = from_halves(packed + scales);
        for (int r = 0; r < R; ++r) {
            const Input & row = rows.of(r);
            const Ints zero = all_ints(16 * (row.halves[0] + row.halves[1]));
            add(totals[r], minus(sums[r], zero), scale, row.d);
        }
    }
};

struct Q5_1 {
    static constexpr int blocks = 1, inputs = INPUTS, bytes = 24, rows = FEWER_ROWS;
    static constexpr int fifths = NIBBLES, scales = fifths + 4 * OUTPUTS;
    static void pack(const uint8_t * const * from, char * to) {
        pack_nibbles(to, [&](int o, int k) { return word(from[o] + 8 + 4 * k); });
        pack_fifths(to + fifths, [&](int o, int i) { return word(from[o] + 4) >> i & 1; });
        for (int o = 0; o < OUTPUTS; ++o) {
            memcpy(to + scales + 2 * o, from[o], 2);
            memcpy(to + scales + 2 * OUTPUTS + 2 * o, from[o] + 2, 2);
        }
    }
    template <int R> FOREDRAFT_INLINE void add_to(Fractions * totals, const char * packed, int, Blocks rows) {
        Ints sums[R];
        fifth_sums<R>(packed, packed + fifths, rows, sums);
        const Fractions scale = from_halves(packed + scales), least = from_halves(packed + scales + 2 * OUTPUTS);
        for (int r = 0; r < R; ++r) {
            const Input & row = rows.of(r);
            add(totals[r], sums[r], scale, row.d);
            totals[r] = times_plus(least, all_fractions(row.sum), totals[r]);
        }
    }
};

struct Q8_0 {
    static constexpr int blocks = 1, inputs = INPUTS, bytes = 34, rows = FEWER_ROWS;
    static void pack(const uint8_t * const * from, char * to) {
        for (int o = 0; o < OUTPUTS; ++o) {
            for (int k = 0; k < 8; ++k) memcpy(to + 4 * (OUTPUTS * k + o), from[o] + 2 + 4 * k, 4);
            memcpy(to + 32 * OUTPUTS + 2 * o, from[o], 2);
        }
    }
    template <int R> FOREDRAFT_INLINE void add_to(Fractions * totals, const char * packed, int, Blocks rows) {
        Ints sums[R];
        for (int r = 0; r < R; ++r) sums[r] = no_ints();
        for (int k = 0; k < 8; ++k) {
            const Ints weights = ints(packed + 4 * OUTPUTS * k);
#ifdef FOREDRAFT_VNNI
            const Ints raised = weights ^ all_bytes(128); // by 128, as one side has no sign
            for (int r = 0; r < R; ++r) sums[r] = dot(sums[r], raised, four(rows.of(r).values + 4 * k));
#else
            const Ints sizes = _mm256_abs_epi8(weights);
            for (int r = 0; r < R; ++r) {
                const Ints signs = _mm256_sign_epi8(four(rows.of(r).values + 4 * k), weights);
                sums[r] = plus(sums[r], pairs(products(sizes, signs)));
                settle<R>(sums[r]);
            }
#endif
        }
        const Fractions scale = from_halves(packed + 32 * OUTPUTS);
        for (int r = 0; r < R; ++r) {
            const Input & row = rows.of(r);
#ifdef FOREDRAFT_VNNI
            sums[r] = minus(sums[r], all_ints(128 * (row.halves[0] + row.halves[1])));
#endif
            add(totals[r], sums[r], scale, row.d);
        }
    }
};

/* Q4_K and, with a fifth bit, Q5_K: eight blocks with scales and least values of 6 bits, in 12 bytes: the last four
   have their upper two bits in the bytes of the first four. */
template <bool FIFTHS> struct Q45_K {
    static constexpr int blocks = 8, inputs = blocks * INPUTS, bytes = FIFTHS ? 176 : 144;
    static constexpr int rows = FIFTHS ? FEWER_ROWS : MOST_ROWS;
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
            memcpy(to + halves + 2 * OUTPUTS + 2 * o, from[o] + 2, 2);
        }
    }
    static inline void of_block(const char * at, int b, Ints & scale, Ints & least) {
        const auto stored = [&](int s) { return from_bytes(at + OUTPUTS * s); };
        const Ints six = all_ints(63), upper = all_ints(48);
        if (b < 4) {
            scale = stored(b) & six;
            least = stored(b + 4) & six;
            return;
        }
        const Ints lower = stored(b + 4);
        scale = (lower & all_ints(15)) | (right_in_ints(stored(b - 4), 2) & upper);
        least = right_in_ints(lower, 4) | (right_in_ints(stored(b), 2) & upper);
    }
    template <int R> FOREDRAFT_INLINE void add_to(Fractions * totals, const char * packed, int b, Blocks rows) {
        const Fractions unit = from_halves(packed + halves), unit_of_least = from_halves(packed + halves + 2 * OUTPUTS);
        Ints sums[R], scale, least;
        if constexpr (FIFTHS) {
            fifth_sums<R>(packed + b * NIBBLES, packed + fifths + b * 4 * OUTPUTS, rows, sums);
        } else {
            nibble_sums<R>(packed + b * NIBBLES, rows, sums);
        }
        of_block(packed + scales, b, scale, least);
        const Fractions by = times(unit, fractions(scale));
        const Fractions less = times(unit_of_least, fractions(least));
        for (int r = 0; r < R; ++r) {
            add(totals[r], sums[r], by, rows.of(r).d);
            totals[r] = minus_times(less, all_fractions(rows.of(r).sum), totals[r]);
        }
    }
};
using Q4_K = Q45_K<false>;
using Q5_K = Q45_K<true>;

/* Eight blocks of two halves, each half with a scale of 8 bits; numbers of 6 bits, 32 of which stand for 0. Their
   lower four bits are packed like nibbles, their upper two, four numbers a byte, behind all of these. */
struct Q6_K {
    static constexpr int blocks = 8, inputs = blocks * INPUTS, bytes = 210, rows = FEWER_ROWS;
    static constexpr int upper = blocks * NIBBLES, scales = upper + blocks * 8 * OUTPUTS;
    static constexpr int halves = scales + 16 * OUTPUTS;
    static void pack(const uint8_t * const * from, char * to) {
        for (int b = 0; b < blocks; ++b) {
            const int lower = b / 4 * 64 + b % 2 * 32, above = 128 + b / 4 * 32, pair = b % 4 * 2;
            const auto four = [&](int o, int k) { return nibbles(from[o] + lower, k, pair / 4 * 4); };
            pack_nibbles(to + b * NIBBLES, four);
            for (int o = 0; o < OUTPUTS; ++o) {
                for (int i = 0; i < 16; i += 8) { // inputs i and 16 + i, then i + 4 and 20 + i, two bits each
                    const auto bits = [&](int at) { return word(from[o] + above + at) >> pair & 0x03030303; };
                    const uint32_t all = bits(i) | bits(i + 16) << 2 | bits(i + 4) << 4 | bits(i + 20) << 6;
                    memcpy(to + upper + OUTPUTS * (8 * b + i / 2) + 4 * o, &all, sizeof(all));
                }
            }
        }
        for (int o = 0; o < OUTPUTS; ++o) {
            for (int s = 0; s < 16; ++s) to[scales + OUTPUTS * s + o] = char(from[o][192 + s]);
            memcpy(to + halves + 2 * o, from[o] + 208, 2);
        }
    }
    template <int R> FOREDRAFT_INLINE void add_to(Fractions * totals, const char * packed, int b, Blocks rows) {
        const Ints two = all_bytes(48);
        const Fractions unit = from_halves(packed + halves);
        Ints sums[2][R];
        for (int r = 0; r < R; ++r) sums[0][r] = sums[1][r] = no_ints();
        for (int k = 0; k < 4; k += 2) {
            const Ints some = ints(packed + b * NIBBLES + 4 * OUTPUTS * k);
            const Ints more = ints(packed + b * NIBBLES + 4 * OUTPUTS * (k + 1));
            const Ints above = ints(packed + upper + OUTPUTS * (8 * b + 2 * k));
            const Ints numbers[2][2] = {
                {low_bits(some) | (left(above, 4) & two), low_bits(more) | (above & two)},
                {low_bits(right(some, 4)) | (left(above, 2) & two),
                 low_bits(right(more, 4)) | (right(above, 2) & two)}};
            for (int half = 0; half < 2; ++half) {
                for (int r = 0; r < R; ++r) {
                    const int8_t * values = rows.of(r).values + 16 * half + 4 * k;
                    add_products<R>(sums[half][r], numbers[half][0], values, numbers[half][1], values + 4);
                }
            }
        }
        for (int half = 0; half < 2; ++half) {
            const char * at = packed + scales + OUTPUTS * (2 * b + half);
            const Fractions by = times(unit, fractions(from_signed_bytes(at)));
            for (int r = 0; r < R; ++r) {
                const Ints zero = all_ints(32 * rows.of(r).halves[half]);
                add(totals[r], minus(sums[half][r], zero), by, rows.of(r).d);
            }
        }
    }
};

} // namespace foredraft
