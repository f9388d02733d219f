/* Products of rows with F16 weights.

   llama.cpp takes four rows at a time through all weights, so that five rows read them twice, and waits for each; where
   it has no AMX, sums depend on the number of rows. Here rows share each weight that is read, what is left over finds
   it in the caches, and the next outputs' weights are asked for while these are computed. The sums are made as
   llama.cpp makes them for AMX's buffers, so that the bits of one row are those it has among many. */
#pragma once
#include "attention.h"
#ifdef FORETOKEN_LANES

namespace foretoken {

constexpr int FEW_F16 = 64; // rows up to which this is faster than what llama.cpp does in AMX's buffers
constexpr int TOGETHER_F16 = REGISTERS / 4;
constexpr int COLUMNS = 3; // as many sums as rows times this, and what they are made of, fit the registers

/* R rows of `inputs` numbers, `step` bytes apart, times C outputs' weights. */
template <int R, int C>
static void multiply_f16(int inputs, const char * rows, int64_t step, const char * weights, float * const * out) {
    Floats total[R][C];
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < C; ++c) total[r][c] = all(0.0f);
    }
    for (int i = 0; i < inputs; i += LANES) {
        Floats some[C];
        for (int c = 0; c < C; ++c) {
            const char * at = weights + 2 * (int64_t(c) * inputs + i);
            if (i % 32 == 0) _mm_prefetch(at + 2 * COLUMNS * int64_t(inputs), _MM_HINT_T0);
            some[c] = load_fp16(at);
        }
        for (int r = 0; r < R; ++r) {
            const Floats row = load(reinterpret_cast<const float *>(rows + r * step) + i);
            for (int c = 0; c < C; ++c) total[r][c] = fma(row, some[c], total[r][c]);
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < C; ++c) out[r][c] = sum(total[r][c]);
    }
}

/* `count` rows, as many at a time as there are registers for. `out(row)` is where a row's C outputs go. */
template <int C, typename F>
static void all_rows_f16(int64_t count, int inputs, const char * rows, int64_t step, const char * weights, F out) {
    using Multiply = void (*)(int, const char *, int64_t, const char *, float * const *);
    static const Multiply known[] = {multiply_f16<1, C>, multiply_f16<2, C>, multiply_f16<3, C>, multiply_f16<4, C>,
#if FORETOKEN_LANES == 16
                                     multiply_f16<5, C>, multiply_f16<6, C>, multiply_f16<7, C>, multiply_f16<8, C>,
#endif
    };
    for (int64_t first = 0; first < count; first += TOGETHER_F16) {
        const int some = count - first < TOGETHER_F16 ? int(count - first) : TOGETHER_F16;
        float * to[TOGETHER_F16];
        for (int r = 0; r < some; ++r) to[r] = out(first + r);
        known[some - 1](inputs, rows + first * step, step, weights, to);
    }
}

/* Where row `row` of a tensor lies, all rows of all its matrices counted. */
template <typename T> static char * row_of(const T * tensor, int64_t row) {
    const int64_t i1 = row % tensor->ne[1], rest = row / tensor->ne[1];
    return static_cast<char *>(tensor->data) + i1 * tensor->nb[1] + rest % tensor->ne[2] * tensor->nb[2] +
           rest / tensor->ne[2] * tensor->nb[3];
}

/* Outputs `at` to `end` of `count` rows of one matrix of the product `op`, from row `first` on. */
template <typename T> static void multiply_f16(T * op, int64_t at, int64_t end, int64_t first, int64_t count) {
    const T * weights = op->src[0], * rows = op->src[1];
    const int inputs = int(weights->ne[0]);
    const char * from = row_of(rows, first);
    char * to = row_of(op, first);
    const char * by = static_cast<const char *>(weights->data) + at * weights->nb[1];
    const auto out = [&](int64_t row) {
        return reinterpret_cast<float *>(to + row * op->nb[1]) + at;
    };
    // One row waits for memory, which AVX2's processors read faster one output after the other.
    const bool together = count > 1 || LANES > 8;
    for (; together && at + COLUMNS <= end; at += COLUMNS, by += COLUMNS * weights->nb[1]) {
        all_rows_f16<COLUMNS>(count, inputs, from, rows->nb[1], by, out);
    }
    for (; at < end; ++at, by += weights->nb[1]) all_rows_f16<1>(count, inputs, from, rows->nb[1], by, out);
}

/* Computes this thread's share of the product `op`. False, with nothing done, for what is llama.cpp's business. */
template <typename P, typename T> static bool multiplied(const P * params, T * op) {
    const int64_t count = op->ne[1], outputs = op->ne[0];
    if (int(op->src[0]->type) != F16 || count > FEW_F16 || op->ne[2] != 1 || op->ne[3] != 1 ||
        op->src[0]->ne[0] % LANES) {
        return false;
    }
    const int64_t end = outputs * (params->ith + 1) / params->nth;
    multiply_f16(op, outputs * params->ith / params->nth, end, 0, count);
    return true;
}

} // namespace foretoken

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)
/* llama.cpp's function of this name takes (const ggml_compute_params *), and the call passes one that is not const. */
template <typename P, typename T> static void ggml_backend_amx_mul_mat(P * params, T * op) {
    if (!foretoken::multiplied(params, op)) {
        const P * fixed = params;
        ggml_backend_amx_mul_mat(fixed, op);
    }
}
#endif
#endif
