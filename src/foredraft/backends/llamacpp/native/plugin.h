/* What the parts of the plug-in have for each other. */
#pragma once
#include "ggml_abi.h"

namespace foredraft {

/* For an operation FLASH_ATTN_EXT; null for one that is llama.cpp's business. */
Traits * attention_of(const Tensor * op);

/* The same for FILL. */
Traits * filling_of(const Tensor * op);

} // namespace foredraft
