/* The functions of a llama.cpp library that are called here. They are found by name in a library that is loaded
   already, so that the kernels fit any that exports them. */
#pragma once
#include "ggml_abi.h"

namespace foredraft {

/* What products and attention need: name, result, parameters. */
#define FOREDRAFT_FUNCTIONS(F)                                                                                           \
    F(_Z39ggml_backend_cpu_get_extra_buffer_typesv, BufferTypes *, ())                                                   \
    F(ggml_barrier, void, (Threadpool *))                                                                                \
    F(ggml_threadpool_chunk_set, void, (Threadpool *, int))                                                              \
    F(ggml_threadpool_chunk_add, int, (Threadpool *, int))                                                               \
    F(ggml_type_name, const char *, (int))                                                                               \
    F(ggml_op_name, const char *, (int))                                                                                 \
    F(ggml_tensor_overhead, size_t, ())                                                                                  \
    F(ggml_backend_cpu_reg, Registry *, ())                                                                              \
    F(ggml_backend_reg_dev_get, Device *, (Registry *, size_t))                                                          \
    F(ggml_backend_reg_get_proc_address, void *, (Registry *, const char *))                                             \
    F(ggml_backend_cpu_buffer_type, BufferType *, ())                                                                    \
    F(ggml_backend_buft_name, const char *, (BufferType *))                                                              \
    F(ggml_backend_buft_is_host, bool, (BufferType *))                                                                   \
    F(ggml_backend_buft_alloc_buffer, Buffer *, (BufferType *, size_t))                                                  \
    F(ggml_backend_buffer_init, Buffer *, (BufferType *, BufferFunctions, void *, size_t))                               \
    F(ggml_backend_buffer_free, void, (Buffer *))                                                                        \
    F(ggml_backend_buffer_get_type, BufferType *, (Buffer *))                                                            \
    F(ggml_backend_buffer_get_size, size_t, (Buffer *))                                                                  \
    F(ggml_backend_buffer_get_base, void *, (Buffer *))                                                                  \
    F(ggml_backend_buffer_set_usage, void, (Buffer *, int))

/* What keeping graphs needs beside these. */
#define FOREDRAFT_GRAPH_FUNCTIONS(F)                                                                                     \
    F(_ZNK13llama_context9get_schedEv, Scheduler *, (const void *))                                                      \
    F(_ZNK13llama_context18get_gf_res_reserveEv, void *, (const void *))                                                 \
    F(_ZN13llama_context15get_gf_res_prevEv, void *, (void *))                                                           \
    F(_ZNK16llm_graph_result13get_max_nodesEv, int64_t, (const void *))                                                  \
    F(ggml_backend_get_device, Device *, (Backend *))                                                                    \
    F(ggml_backend_dev_type, int, (Device *))                                                                            \
    F(ggml_backend_sched_new, Scheduler *, (Backend **, BufferType **, int, size_t, bool, bool))                         \
    F(ggml_backend_sched_free, void, (Scheduler *))                                                                      \
    F(ggml_backend_sched_get_n_backends, int, (Scheduler *))                                                             \
    F(ggml_backend_sched_get_backend, Backend *, (Scheduler *, int))                                                     \
    F(ggml_backend_sched_get_buffer_type, BufferType *, (Scheduler *, Backend *))

#define FOREDRAFT_FIELD(name, result, parameters) result(*name) parameters;
struct Library {
    FOREDRAFT_FUNCTIONS(FOREDRAFT_FIELD)
};
struct GraphLibrary {
    FOREDRAFT_GRAPH_FUNCTIONS(FOREDRAFT_FIELD)
};
#undef FOREDRAFT_FIELD

/* Those of the library that this is attached to: written whole, once everything is found to fit. */
extern Library library;
extern GraphLibrary graph_library;

/* Fills one of these from what dlopen returned for a library; the name of a function that it lacks, or null. */
const char * find_functions(void * handle, Library & found);
const char * find_graph_functions(void * handle, GraphLibrary & found);

/* Where row `row` of a tensor lies, all rows of all its matrices counted. */
inline char * row_of(const Tensor * tensor, int64_t row) {
    const int64_t i1 = row % tensor->ne[1], rest = row / tensor->ne[1];
    return static_cast<char *>(tensor->data) + i1 * tensor->nb[1] + rest % tensor->ne[2] * tensor->nb[2] +
           rest / tensor->ne[2] * tensor->nb[3];
}

} // namespace foredraft
