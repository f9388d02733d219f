/* Weights in llama.cpp's buffers for repacked ones, multiplied by the kernels of panels.h and panels_f16.h.

   llama.cpp asks one function how a tensor's weights are to be laid out, and gets an object that does it and computes
   with them. Here the function answers with objects of ours for the types that there are kernels for. */
#pragma once
#include "panel_types.h"
#include "panels_f16.h"
#include "tensors.h"
#ifdef FOREDRAFT_PANELS
#include <type_traits>

struct ggml_tensor;
struct ggml_compute_params;
namespace ggml::cpu {
class tensor_traits;
namespace repack {
class tensor_traits_base;
}
} // namespace ggml::cpu

namespace foredraft {

constexpr int CHUNKS = 4;    // for each thread, so that one that is held up does less
constexpr int ROWS_TOGETHER = 64; // of a prompt, which stay in the caches while a chunk's weights are read

/* Calls `work` with the first and the last output of each part that this thread takes, whole panels each. */
template <typename P, typename F> static void share_outputs(P * params, int64_t outputs, F work) {
    const int64_t panels = outputs / OUTPUTS, parts = int64_t(params->nth) * CHUNKS;
    if (params->ith == 0) ggml_threadpool_chunk_set(params->threadpool, params->nth);
    ggml_barrier(params->threadpool);
    for (int64_t part = params->ith; part < parts; part = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        work(panels * part / parts * OUTPUTS, panels * (part + 1) / parts * OUTPUTS);
    }
}

/* This thread's share of the rows' blocks, quantised into the work space: all those of a row, then the next. */
template <typename P, typename T> static void quantize_rows(P * params, const T * rows, int64_t count) {
    const int64_t blocks = rows->ne[0] / INPUTS, total = count * blocks;
    const int64_t end = total * (params->ith + 1) / params->nth;
    Input * to = static_cast<Input *>(params->wdata);
    for (int64_t at = total * params->ith / params->nth; at < end;) {
        const float * numbers = reinterpret_cast<const float *>(row_of(rows, at / blocks));
        const int64_t next = (at / blocks + 1) * blocks;
        for (; at < end && at < next; ++at) to[at] = quantized(numbers + at % blocks * INPUTS);
    }
}

/* Outputs of `many` rows, up to R, panel by panel. */
template <typename B, int R>
static void multiply_panels(
    int many, int units, Blocks rows, const char * weights, int64_t at, int64_t end, char * const * out, bool once) {
    if constexpr (R > 1) {
        if (many < R) return multiply_panels<B, R - 1>(many, units, rows, weights, at, end, out, once);
    }
    for (; at < end; at += OUTPUTS) {
        float * to[R];
        for (int r = 0; r < R; ++r) to[r] = reinterpret_cast<float *>(out[r]) + at;
        multiply_panel<B, R>(units, rows, weights + at * units * B::bytes, to, once);
    }
}

template <typename B, typename T>
static void multiply_block(T * op, const Input * inputs, int64_t first, int64_t last, int64_t at, int64_t end) {
    const int units = int(op->src[0]->ne[0] / B::inputs);
    const ptrdiff_t blocks = op->src[0]->ne[0] / INPUTS;
    const char * weights = static_cast<const char *>(op->src[0]->data);
    const int64_t groups = (last - first + B::rows - 1) / B::rows, size = (last - first + groups - 1) / groups;
    const int64_t step = groups > 1 ? OUTPUTS : end - at; // a panel for all rows, or a row for all
    const bool once = groups == 1 && passing();
    for (; at < end; at += step) {
        for (int64_t row = first; row < last; row += size) {
            const Blocks rows{inputs + row * blocks, blocks};
            const int many = int(last - row < size ? last - row : size);
            char * out[B::rows];
            for (int r = 0; r < many; ++r) out[r] = row_of(op, row + r);
            const int64_t until = at + step < end ? at + step : end;
            multiply_panels<B, B::rows>(many, units, rows, weights, at, until, out, once);
        }
    }
}

/* What both have in common. `Base` is llama.cpp's class, of which nothing is known here yet. */
template <typename Base, typename T, typename P> struct Multiplies : Base {
    bool compute_forward(P * params, T * op) override {
        if (op->src[2]) return false; // a product with experts
        multiply(params, op, int64_t(op->ne[1]) * op->ne[2] * op->ne[3]);
        return true;
    }
    virtual void multiply(P * params, T * op, int64_t rows) = 0;
};

template <typename B, typename Base, typename T, typename P> struct InPanels final : Multiplies<Base, T, P> {
    bool work_size(int, const T * op, size_t & size) override {
        const T * rows = op->src[1];
        size = size_t(rows->ne[0] * rows->ne[1] * rows->ne[2] * rows->ne[3]) / INPUTS * sizeof(Input);
        return !op->src[2];
    }
    int repack(T * tensor, const void * data, size_t bytes) override {
        laying_out(tensor, bytes);
        const int64_t units = tensor->ne[0] / B::inputs, row = units * B::bytes;
        for (int64_t o = 0; o < tensor->ne[1]; o += OUTPUTS) {
            for (int64_t u = 0; u < units; ++u) {
                const uint8_t * from[OUTPUTS];
                for (int i = 0; i < OUTPUTS; ++i) {
                    from[i] = static_cast<const uint8_t *>(data) + (o + i) * row + u * B::bytes;
                }
                B::pack(from, static_cast<char *>(tensor->data) + o * row + u * OUTPUTS * B::bytes);
            }
        }
        return 0;
    }
    void multiply(P * params, T * op, int64_t rows) override {
        quantize_rows(params, op->src[1], rows);
        const Input * inputs = static_cast<const Input *>(params->wdata);
        share_outputs(params, op->ne[0], [&](int64_t at, int64_t end) {
            for (int64_t first = 0; first < rows; first += ROWS_TOGETHER) {
                const int64_t last = first + ROWS_TOGETHER < rows ? first + ROWS_TOGETHER : rows;
                multiply_block<B>(op, inputs, first, last, at, end);
            }
        });
    }
};

template <typename Base, typename T, typename P> struct InF16Panels final : Multiplies<Base, T, P> {
    bool work_size(int, const T * op, size_t & size) override {
        size = 0;
        return !op->src[2];
    }
    int repack(T * tensor, const void * data, size_t bytes) override {
        laying_out(tensor, bytes);
        pack_f16(tensor->ne[0], tensor->ne[1], static_cast<const char *>(data), static_cast<char *>(tensor->data));
        return 0;
    }
    void multiply(P * params, T * op, int64_t rows) override {
        const int64_t inputs = op->src[0]->ne[0], many = op->ne[1];
        const char * weights = static_cast<const char *>(op->src[0]->data);
        const T * from = op->src[1];
        share_outputs(params, op->ne[0], [&](int64_t at, int64_t end) {
            for (int64_t first = 0; first < rows; first += many) { // rows of one matrix lie evenly
                char * to = row_of(op, first) + at * sizeof(float);
                const F16Rows places{row_of(from, first), int64_t(from->nb[1]), to, int64_t(op->nb[1])};
                multiply_f16(int(inputs), end - at, many, weights + 2 * at * inputs, places);
            }
        });
    }
};

/* The object for a matrix of this type and shape; null for what is llama.cpp's business. */
template <typename Base, typename T, typename P> static const ggml::cpu::tensor_traits * traits_of(const T * tensor) {
    static const InPanels<Q4_0, Base, T, P> q4_0;
    static const InPanels<Q4_1, Base, T, P> q4_1;
    static const InPanels<Q5_0, Base, T, P> q5_0;
    static const InPanels<Q5_1, Base, T, P> q5_1;
    static const InPanels<Q8_0, Base, T, P> q8_0;
    static const InPanels<Q4_K, Base, T, P> q4_k;
    static const InPanels<Q5_K, Base, T, P> q5_k;
    static const InPanels<Q6_K, Base, T, P> q6_k;
    static const InF16Panels<Base, T, P> f16;
    if (tensor->ne[1] % OUTPUTS || tensor->ne[2] != 1 || tensor->ne[3] != 1) return nullptr;
    switch (int(tensor->type)) { // ggml.h's numbers
        case F16: return tensor->ne[0] % LANES ? nullptr : &f16;
        case 2: return &q4_0;
        case 3: return &q4_1;
        case 6: return &q5_0;
        case 7: return &q5_1;
        case 8: return &q8_0;
        case 12: return &q4_k;
        case 13: return &q5_k;
        case 14: return &q6_k;
        default: return nullptr;
    }
}

/* T, or what else it is given by the time that it is known. */
template <typename, typename T> struct Later { using Type = T; };

} // namespace foredraft

/* llama.cpp's function of this name takes (const ggml_tensor *), and its calls pass one that is not const. */
template <typename T> static const ggml::cpu::tensor_traits * ggml_repack_get_optimal_repack_type(T * tensor) {
    using Base = typename foredraft::Later<T, ggml::cpu::repack::tensor_traits_base>::Type;
    using P = typename foredraft::Later<T, ggml_compute_params>::Type;
    if (const auto * ours = foredraft::traits_of<Base, T, P>(tensor)) return ours;
    const T * fixed = tensor;
    return ggml_repack_get_optimal_repack_type(fixed);
}
#endif
