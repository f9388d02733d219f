/* Products of rows with F16 weights in panels of two outputs, or of four with AVX-512.

   A panel holds as many inputs as the processor takes at once of each of its outputs, side by side, so that memory is
   read in one stream, and what is read and unpacked is used for up to six rows. A row's sums are made in one order,
   whatever rows are beside it. */
#pragma once
#include "lanes.h"
#include "weights.h"
#include <string.h>

namespace foredraft {

constexpr int F16_OUTPUTS = LANES == 16 ? 4 : 2;  // of a panel
constexpr int F16_LINE = 2 * LANES * F16_OUTPUTS; // bytes of all outputs' inputs that are side by side
constexpr int F16_ROWS = 6;     // at once: registers for their sums, for the weights, and for a row
constexpr int F16_GROUP = 12 << 10; // bytes of weights that all rows take before the next ones, where they are more,
constexpr int F16_LARGE = 72 << 10; // and with a prompt, whose rows have to come from further away for each group
constexpr int F16_FEW = 4;          // parts of rows with which they do not
constexpr int F16_AHEAD = 2560; // bytes; the processor alone does not look so far ahead
constexpr int F16_LATER = 8192; // with so many rows, in so many parts, for which the second cache is asked:
constexpr int F16_LEAST = 4, F16_PARTS = 2;

/* The outputs' weights, one after the other as in the file, as panels; inputs are a multiple of LANES. */
static inline void pack_f16(int64_t inputs, int64_t outputs, const char * from, char * to) {
    for (int64_t o = 0; o < outputs; o += F16_OUTPUTS) {
        for (int64_t i = 0; i < inputs; i += LANES) {
            for (int64_t c = o; c < o + F16_OUTPUTS; ++c, to += 2 * LANES) {
                memcpy(to, from + 2 * (c * inputs + i), 2 * LANES);
            }
        }
    }
}

/* Rows and where their results go; the distances are in bytes. */
struct F16Rows {
    const char * rows;
    int64_t step;
    char * out;
    int64_t out_step;
};

/* What to ask memory for meanwhile: from where, how many bytes further with each line, and how (weights.h). */
struct F16Ahead {
    const char * at;
    unsigned step;
    bool once;
    template <bool LATER> void ask() { // for each 64 bytes once
        for (unsigned some = 0; some < step; some += 64) {
            if (reinterpret_cast<uintptr_t>(at + some) % 64 >= step) continue;
            if (LATER) {
                ask_for_later(at + some);
            } else {
                ask_for(at + some, once);
            }
        }
        at += step;
    }
};

/* R rows of `inputs` numbers times panels of `outputs` outputs. */
template <int R, bool LATER>
static void multiply_f16_panels(int inputs, int64_t outputs, const char * weights, F16Rows at, F16Ahead ahead) {
    constexpr int C = F16_OUTPUTS;
    for (int64_t o = 0; o < outputs; o += C, at.out += C * sizeof(float)) {
        Floats totals[C][R];
        for (int c = 0; c < C; ++c) {
            for (int r = 0; r < R; ++r) totals[c][r] = all(0.0f);
        }
        for (int i = 0; i < inputs; i += LANES, weights += F16_LINE) {
            ahead.ask<LATER>();
            Floats some[C];
            for (int c = 0; c < C; ++c) some[c] = load_fp16(weights + 2 * c * LANES);
            for (int r = 0; r < R; ++r) {
                Floats row = load(reinterpret_cast<const float *>(at.rows + r * at.step) + i);
                __asm__("" : "+x"(row)); // loaded once: the compiler would have all products load it
                for (int c = 0; c < C; ++c) totals[c][r] = fma(row, some[c], totals[c][r]);
            }
        }
        for (int r = 0; r < R; ++r) {
            for (int c = 0; c < C; c += 2) {
                const __m128 sums = sums_of_two(totals[c][r], totals[c + 1][r]);
                _mm_storel_pi(reinterpret_cast<__m64 *>(at.out + r * at.out_step + c * sizeof(float)), sums);
            }
        }
    }
}

/* `count` rows times panels of `outputs` outputs. More than six rows are taken in even parts, while a group of panels
   is in the caches; each part asks for its share of the next group, so that memory does not rest meanwhile. */
static inline void multiply_f16(int inputs, int64_t outputs, int64_t count, const char * weights, const F16Rows & at) {
    using Multiply = void (*)(int, int64_t, const char *, F16Rows, F16Ahead);
    static const Multiply soon[F16_ROWS] = {multiply_f16_panels<1, false>, multiply_f16_panels<2, false>,
                                            multiply_f16_panels<3, false>, multiply_f16_panels<4, false>,
                                            multiply_f16_panels<5, false>, multiply_f16_panels<6, false>};
    static const Multiply later[F16_ROWS] = {multiply_f16_panels<1, true>, multiply_f16_panels<2, true>,
                                             multiply_f16_panels<3, true>, multiply_f16_panels<4, true>,
                                             multiply_f16_panels<5, true>, multiply_f16_panels<6, true>};
    const int64_t panel = 2 * F16_OUTPUTS * inputs; // bytes
    const int64_t parts = (count + F16_ROWS - 1) / F16_ROWS;
    const int64_t most = parts > F16_FEW ? F16_LARGE : F16_GROUP, panels = most > panel ? most / panel : 1;
    const int64_t shared = parts > 1 ? panels * F16_OUTPUTS : outputs, group = panels * panel;
    const bool second = count >= F16_LEAST && parts <= F16_PARTS, once = parts == 1 && passing();
    const Multiply * known = second ? later : soon;
    for (int64_t o = 0; o < outputs; o += shared, weights += group) {
        const int64_t some = outputs - o < shared ? outputs - o : shared;
        for (int64_t part = 0, first = 0; part < parts; ++part) {
            const int64_t next = count * (part + 1) / parts;
            char * to = at.out + first * at.out_step + o * int64_t(sizeof(float));
            const int64_t ahead = parts > 1 ? group + group * part / parts : second ? F16_LATER : F16_AHEAD;
            known[next - first - 1](inputs, some, weights, {at.rows + first * at.step, at.step, to, at.out_step},
                                    {weights + ahead, unsigned(F16_LINE / parts), once});
            first = next;
        }
    }
}

} // namespace foredraft
