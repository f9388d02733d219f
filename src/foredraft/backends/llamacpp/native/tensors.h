/* Where llama.cpp's tensors have their rows. */
#pragma once
#include <stdint.h>

namespace foredraft {

/* Where row `row` of a tensor lies, all rows of all its matrices counted. */
template <typename T> static char * row_of(const T * tensor, int64_t row) {
    const int64_t i1 = row % tensor->ne[1], rest = row / tensor->ne[1];
    return static_cast<char *>(tensor->data) + i1 * tensor->nb[1] + rest % tensor->ne[2] * tensor->nb[2] +
           rest / tensor->ne[2] * tensor->nb[3];
}

} // namespace foredraft
