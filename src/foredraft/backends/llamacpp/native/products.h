/* Weights that are laid out in panels, and products with them. */
#pragma once
#include "library.h"

namespace foredraft {

/* A type of weights: how a tensor of it is laid out, and the products (MUL_MAT) with one that is. */
struct Weights : Traits {
    /* Writes all `data` of the tensor, as a file has it, to where the tensor is, in panels. */
    virtual void lay_out(Tensor * tensor, const void * data) = 0;
};

/* For a matrix of this type and shape; null for what is llama.cpp's business. */
Weights * weights_of(const Tensor * tensor);

/* A matrix has to have a multiple of so many. */
int outputs_of_a_panel();

} // namespace foredraft
