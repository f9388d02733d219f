/* A processor that keeps weights in Foredraft's panels, for an RPC server (panels.cpp). */
#pragma once
#include "ggml-backend.h"

namespace foredraft {

/* `type`: the kernels' buffer type. There is one such device in a process. */
ggml_backend_dev_t with_panels(ggml_backend_dev_t processor, ggml_backend_buffer_type_t type);

} // namespace foredraft
