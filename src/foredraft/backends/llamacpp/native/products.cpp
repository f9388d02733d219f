/* Products of rows with weights in panels: who computes what of them. The kernels are in panels.h and panels_f16.h. */
#include "products.h"
#include "panel_types.h"
#include "panels_f16.h"

namespace foredraft {

constexpr int CHUNKS = 4;         // for each thread, so that one that is held up does less
constexpr int ROWS_TOGETHER = 64; // of a prompt, which stay in the caches while a chunk's weights are read

/* Calls `work` with the first and the last output of each part that this thread takes, whole panels each. */
template <typename F> static void share_outputs(Params * params, int64_t outputs, F work) {
    const int64_t panels = outputs / OUTPUTS, parts = int64_t(params->nth) * CHUNKS;
    if (params->ith == 0) library.ggml_threadpool_chunk_set(params->threadpool, params->nth);
    library.ggml_barrier(params->threadpool);
    for (int64_t part = params->ith; part < parts; part = library.ggml_threadpool_chunk_add(params->threadpool, 1)) {
        work(panels * part / parts * OUTPUTS, panels * (part + 1) / parts * OUTPUTS);
    }
}

/* This thread's share of the rows' blocks, quantised into the work space: all those of a row, then the next. */
static void quantize_rows(Params * params, const Tensor * rows, int64_t count) {
    const int64_t blocks = rows->ne[0] / INPUTS, total = count * blocks;
    const int64_t end = total * (params->ith + 1) / params->nth;
    Input * to = static_cast<Input *>(params->work);
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

template <typename B>
static void multiply_block(Tensor * op, const Input * inputs, int64_t first, int64_t last, int64_t at, int64_t end) {
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

template <typename B> struct InPanels final : Weights {
    bool work_size(int, const Tensor * op, size_t & bytes) override {
        const Tensor * rows = op->src[1];
        bytes = size_t(rows->ne[0] * rows->ne[1] * rows->ne[2] * rows->ne[3]) / INPUTS * sizeof(Input);
        return true;
    }
    void lay_out(Tensor * tensor, const void * data) override {
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
    }
    bool compute_forward(Params * params, Tensor * op) override {
        const int64_t rows = op->ne[1] * op->ne[2] * op->ne[3];
        quantize_rows(params, op->src[1], rows);
        const Input * inputs = static_cast<const Input *>(params->work);
        share_outputs(params, op->ne[0], [&](int64_t at, int64_t end) {
            for (int64_t first = 0; first < rows; first += ROWS_TOGETHER) {
                const int64_t last = first + ROWS_TOGETHER < rows ? first + ROWS_TOGETHER : rows;
                multiply_block<B>(op, inputs, first, last, at, end);
            }
        });
        return true;
    }
};

struct InF16Panels final : Weights {
    bool work_size(int, const Tensor *, size_t & bytes) override {
        bytes = 0;
        return true;
    }
    void lay_out(Tensor * tensor, const void * data) override {
        pack_f16(tensor->ne[0], tensor->ne[1], static_cast<const char *>(data), static_cast<char *>(tensor->data));
    }
    bool compute_forward(Params * params, Tensor * op) override {
        const int64_t rows = op->ne[1] * op->ne[2] * op->ne[3];
        const int64_t inputs = op->src[0]->ne[0], many = op->ne[1];
        const char * weights = static_cast<const char *>(op->src[0]->data);
        const Tensor * from = op->src[1];
        share_outputs(params, op->ne[0], [&](int64_t at, int64_t end) {
            for (int64_t first = 0; first < rows; first += many) { // rows of one matrix lie evenly
                char * to = row_of(op, first) + at * sizeof(float);
                const F16Rows places{row_of(from, first), int64_t(from->nb[1]), to, int64_t(op->nb[1])};
                multiply_f16(int(inputs), end - at, many, weights + 2 * at * inputs, places);
            }
        });
        return true;
    }
};

template <typename P> static Weights * shared() {
    static P weights;
    return &weights;
}

int outputs_of_a_panel() { return OUTPUTS; }

Weights * weights_of(const Tensor * tensor) {
    if (tensor->ne[1] % OUTPUTS || tensor->ne[2] != 1 || tensor->ne[3] != 1) return nullptr;
    switch (tensor->type) {
        case F16: return tensor->ne[0] % LANES ? nullptr : shared<InF16Panels>();
        case Q4_0_TYPE: return shared<InPanels<Q4_0>>();
        case Q4_1_TYPE: return shared<InPanels<Q4_1>>();
        case Q5_0_TYPE: return shared<InPanels<Q5_0>>();
        case Q5_1_TYPE: return shared<InPanels<Q5_1>>();
        case Q8_0_TYPE: return shared<InPanels<Q8_0>>();
        case Q4_K_TYPE: return shared<InPanels<Q4_K>>();
        case Q5_K_TYPE: return shared<InPanels<Q5_K>>();
        case Q6_K_TYPE: return shared<InPanels<Q6_K>>();
        default: return nullptr;
    }
}

} // namespace foredraft
