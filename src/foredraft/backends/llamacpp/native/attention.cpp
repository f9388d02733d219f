/* Attention (FLASH_ATTN_EXT): for which operations there are kernels, and who computes what of one. */
#include "attention.h"
#include "library.h"
#include "plugin.h"

namespace foredraft {

constexpr int MANY = 32;  // rows for each thread, from which on they are given out one part after the other,
constexpr int PARTS = 8;  // as the cells that rows of a prompt see differ in number; so many for each thread

static const char * place(const Tensor * tensor, int64_t i1, int64_t i2, int64_t i3) {
    return static_cast<const char *>(tensor->data) + i1 * tensor->nb[1] + i2 * tensor->nb[2] + i3 * tensor->nb[3];
}

struct Options {
    float scale, alibi, softcap; // the last: what scores are squeezed into
};

static Options options_of(const Tensor * op) {
    Options options;
    memcpy(&options, op->op_params, sizeof(options));
    return options;
}

/* Not ALiBi, squeezed scores, sinks, other types and sizes: these are llama.cpp's business. */
static bool attends(const Tensor * op) {
    const Tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3];
    const Options options = options_of(op);
    return options.alibi == 0.0f && options.softcap == 0.0f && !op->src[4] && choose(k->type, v->type, 1) &&
           q->type == F32 && k->ne[0] % LANES == 0 && v->ne[0] % LANES == 0 && v->ne[0] <= MOST_SIZE &&
           (!mask || mask->type == F16) && v->ne[2] == k->ne[2] && v->ne[3] == k->ne[3];
}

/* Computes rows `row` to `end` of those of the operation: all rows of a head, then those of the next. Up to four that
   share keys are taken together. */
static void attend_rows(Tensor * op, int64_t row, int64_t end) {
    const Tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3];
    Cells cells{nullptr, nullptr, k->nb[1], v->nb[1], k->ne[1], int(k->ne[0]), int(v->ne[0]), options_of(op).scale};
    const int64_t count = q->ne[1], heads = q->ne[2], shared = heads / k->ne[2];
    while (row < end) {
        const int64_t i3 = row / (heads * count), group = row / count % heads / shared;
        const int64_t with_keys = (i3 * heads + (group + 1) * shared) * count; // up to where rows have these keys
        const int64_t last = with_keys < end ? with_keys : end;
        cells.keys = place(k, 0, group, i3 / (q->ne[3] / k->ne[3]));
        cells.values = place(v, 0, group, i3 / (q->ne[3] / v->ne[3]));
        Rows rows;
        int many = 0;
        for (; many < TOGETHER && row < last; ++many, ++row) {
            const int64_t i1 = row % count, i2 = row / count % heads;
            const int64_t at = i3 * op->ne[2] * op->ne[1] + i2 + i1 * op->ne[1];
            rows.query[many] = reinterpret_cast<const float *>(place(q, i1, i2, i3));
            rows.mask[many] = mask ? place(mask, i1, i2 % mask->ne[2], i3 % mask->ne[3]) : nullptr;
            rows.out[many] = reinterpret_cast<float *>(static_cast<char *>(op->data) + at * op->nb[1]);
        }
        choose(k->type, v->type, many)(cells, rows);
    }
}

/* Few rows are divided evenly, which needs no word between threads. A row's result does not depend on who computes it,
   nor on the rows beside it. */
static void attend(Params * params, Tensor * op) {
    const int64_t rows = op->src[0]->ne[1] * op->src[0]->ne[2] * op->src[0]->ne[3];
    if (params->nth == 1 || rows < MANY * params->nth) {
        attend_rows(op, rows * params->ith / params->nth, rows * (params->ith + 1) / params->nth);
        return;
    }
    if (params->ith == 0) library.ggml_threadpool_chunk_set(params->threadpool, params->nth);
    library.ggml_barrier(params->threadpool);
    const int64_t parts = int64_t(params->nth) * PARTS, fours = (rows + TOGETHER - 1) / TOGETHER;
    for (int64_t part = params->ith; part < parts; part = library.ggml_threadpool_chunk_add(params->threadpool, 1)) {
        const int64_t end = fours * (part + 1) / parts * TOGETHER;
        attend_rows(op, fours * part / parts * TOGETHER, end < rows ? end : rows);
    }
}

struct Attention final : Traits {
    bool work_size(int, const Tensor *, size_t &) override { return false; } // what llama.cpp's own needs is enough
    bool compute_forward(Params * params, Tensor * op) override {
        if (params->reference) return false;
        attend(params, op);
        return true;
    }
};

Traits * attention_of(const Tensor * op) {
    static Attention attention;
    return attends(op) ? &attention : nullptr;
}

} // namespace foredraft
