/* Products of few rows with F16 weights in AMX's buffers.

   llama.cpp takes four rows at a time through all weights, so that five rows read them twice, and waits for each. Here
   up to eight rows share each weight that is read, what is left over finds it in the caches, and the next outputs'
   weights are asked for while these are computed. The sums are made as llama.cpp makes them, so that the bits of one
   row are those it has among many. */
#include "attention.h"
#if defined(__AMX_INT8__) && defined(__AVX512VNNI__) && defined(__F16C__)
#include <immintrin.h>
#include <stdint.h>

namespace foredraft {

constexpr int FEW_F16 = 64; // rows up to which this is faster
constexpr int TOGETHER_F16 = 8;
constexpr int COLUMNS = 3; // 8 × 3 sums and what they are made of fit the registers

/* R rows of `inputs` numbers times C outputs' weights. */
template <int R, int C>
static void multiply_f16(int inputs, const float * rows, const uint16_t * weights, float * out, int64_t step) {
    __m512 total[R][C];
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < C; ++c) total[r][c] = _mm512_setzero_ps();
    }
    for (int i = 0; i < inputs; i += 16) {
        __m512 some[C];
        for (int c = 0; c < C; ++c) {
            const uint16_t * at = weights + int64_t(c) * inputs + i;
            if (i % 32 == 0) _mm_prefetch(reinterpret_cast<const char *>(at + C * inputs), _MM_HINT_T0);
            some[c] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(at)));
        }
        for (int r = 0; r < R; ++r) {
            const __m512 row = _mm512_loadu_ps(rows + int64_t(r) * inputs + i);
            for (int c = 0; c < C; ++c) total[r][c] = _mm512_fmadd_ps(row, some[c], total[r][c]);
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < C; ++c) out[r * step + c] = _mm512_reduce_add_ps(total[r][c]);
    }
}

template <int C>
static void by_eights(int count, int inputs, const float * rows, const uint16_t * weights, float * out, int64_t step) {
    using Multiply = void (*)(int, const float *, const uint16_t *, float *, int64_t);
    static const Multiply known[] = {multiply_f16<1, C>, multiply_f16<2, C>, multiply_f16<3, C>, multiply_f16<4, C>,
                                     multiply_f16<5, C>, multiply_f16<6, C>, multiply_f16<7, C>, multiply_f16<8, C>};
    for (int first = 0; first < count; first += TOGETHER_F16) {
        const int some = count - first < TOGETHER_F16 ? count - first : TOGETHER_F16;
        known[some - 1](inputs, rows + int64_t(first) * inputs, weights, out + first * step, step);
    }
}

/* Computes this thread's share of the product `op`. False, with nothing done, for what is llama.cpp's business. */
template <typename P, typename T> static bool multiplied(const P * params, T * op) {
    const T * weights = op->src[0], * rows = op->src[1];
    const int64_t count = op->ne[1], outputs = op->ne[0], inputs = weights->ne[0];
    if (int(weights->type) != F16 || count > FEW_F16 || op->ne[2] != 1 || op->ne[3] != 1 ||
        inputs % 16) {
        return false;
    }
    const int64_t step = op->nb[1] / int64_t(sizeof(float));
    const int64_t end = outputs * (params->ith + 1) / params->nth;
    int64_t at = outputs * params->ith / params->nth;
    const float * from = static_cast<const float *>(rows->data);
    const uint16_t * by = static_cast<const uint16_t *>(weights->data);
    float * to = static_cast<float *>(op->data);
    for (; at + COLUMNS <= end; at += COLUMNS) {
        by_eights<COLUMNS>(int(count), int(inputs), from, by + at * inputs, to + at, step);
    }
    for (; at < end; ++at) by_eights<1>(int(count), int(inputs), from, by + at * inputs, to + at, step);
    return true;
}

} // namespace foredraft

/* llama.cpp's function of this name takes (const ggml_compute_params *), and the call passes one that is not const. */
template <typename P, typename T> static void ggml_backend_amx_mul_mat(P * params, T * op) {
    if (!foredraft::multiplied(params, op)) {
        const P * fixed = params;
        ggml_backend_amx_mul_mat(fixed, op);
    }
}
#endif
