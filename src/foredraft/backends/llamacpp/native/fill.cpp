/* Tensors filled with one number (FILL).

   ggml finds the place of each row by two divisions. A head that proposes some of the target's tokens gives all others
   a logit of -infinity, in a tensor whose rows are one number long: 0.5 ms for each row of a head and 49,152 tokens, where
   all else of a small head takes 0.1. */
#include "plugin.h"
#include <string.h>

namespace foredraft {

static bool is_whole(const Tensor * tensor) {
    size_t bytes = sizeof(float);
    for (int i = 0; i < 4; ++i) {
        if (tensor->nb[i] != bytes) return false;
        bytes *= size_t(tensor->ne[i]);
    }
    return tensor->type == F32;
}

struct Filling final : Traits {
    bool work_size(int, const Tensor *, size_t &) override { return false; } // as in llama.cpp
    bool compute_forward(Params * params, Tensor * op) override {
        if (params->reference) return false;
        float number;
        memcpy(&number, op->op_params, sizeof(number));
        const int64_t count = op->ne[0] * op->ne[1] * op->ne[2] * op->ne[3];
        float * numbers = static_cast<float *>(op->data);
        const int64_t end = count * (params->ith + 1) / params->nth;
        for (int64_t i = count * params->ith / params->nth; i < end; ++i) numbers[i] = number;
        return true;
    }
};

Traits * filling_of(const Tensor * op) {
    static Filling filling;
    return is_whole(op) ? &filling : nullptr;
}

} // namespace foredraft
