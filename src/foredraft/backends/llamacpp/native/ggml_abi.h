/* What the kernels need to know of ggml's binary interface: layouts, numbers and names, of llama.cpp's build 11549.

   Users have llama.cpp as a compiled library, without headers. These are facts about that library, in names of our own;
   all are checked before the kernels are used (plugin.cpp, kernels.py): sizes and places against the binding's and
   against what the library's own functions return, numbers against its names of them, and what no function tells
   by a product and an attention computed in another process. C++ classes are as the Itanium C++ ABI has them:
   virtual functions count in the order of their declaration, a destructor as two. */
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace foredraft {

constexpr int GGML_BUILD = 11549;

struct Backend;    // these are only passed on
struct Device;
struct Registry;
struct Scheduler;
struct Threadpool;
struct BufferType;
struct Buffer;

/* Numbers of types, with the names that `ggml_type_name` has for them. */
constexpr int F32 = 0, F16 = 1, Q4_0_TYPE = 2, Q4_1_TYPE = 3, Q5_0_TYPE = 6, Q5_1_TYPE = 7, Q8_0_TYPE = 8, Q4_K_TYPE = 12,
              Q5_K_TYPE = 13, Q6_K_TYPE = 14, BF16 = 30;
struct Named {
    int number;
    const char * name;
};
constexpr Named TYPES[] = {{F32, "f32"},        {F16, "f16"},        {BF16, "bf16"},      {Q4_0_TYPE, "q4_0"},
                           {Q4_1_TYPE, "q4_1"}, {Q5_0_TYPE, "q5_0"}, {Q5_1_TYPE, "q5_1"}, {Q8_0_TYPE, "q8_0"},
                           {Q4_K_TYPE, "q4_K"}, {Q5_K_TYPE, "q5_K"}, {Q6_K_TYPE, "q6_K"}};

/* Numbers of operations, with the names that `ggml_op_name` has for them. */
constexpr int MUL_MAT = 29, FILL = 73, FLASH_ATTN_EXT = 74;
constexpr Named OPERATIONS[] = {{MUL_MAT, "MUL_MAT"}, {FILL, "FILL"}, {FLASH_ATTN_EXT, "FLASH_ATTN_EXT"}};

/* Kinds of devices. */
constexpr int DEVICE_CPU = 0, DEVICE_ACCELERATOR = 3;

struct Tensor {
    int32_t type;
    Buffer * buffer;
    int64_t ne[4]; // numbers
    size_t nb[4];  // bytes from one to the next
    int32_t op;
    int32_t op_params[16];
    int32_t flags;
    Tensor * src[10];
    Tensor * view_src;
    size_t view_offs;
    void * data;
    char name[64];
    void * extra;
    char padding[8];
};
static_assert(sizeof(Tensor) == 336, "ggml_tensor");

/* What a thread is told when it takes part in an operation. */
struct Params {
    int ith, nth;
    size_t work_bytes;
    void * work; // of all threads
    Threadpool * threadpool;
    bool reference; // plain code is wanted
};

/* Computes an operation, or says no: then the next is asked, and ggml itself at last. */
struct Traits {
    virtual ~Traits() = default;
    virtual bool work_size(int threads, const Tensor * op, size_t & bytes) = 0;
    virtual bool compute_forward(Params * params, Tensor * op) = 0;
};

/* The context of an entry of the CPU backend's list of buffer types. */
struct ExtraBuffers {
    virtual ~ExtraBuffers() = default;
    virtual bool supports_op(Device * device, const Tensor * op) = 0;
    virtual Traits * get_tensor_traits(const Tensor * op) = 0;
};

struct BufferType {
    const char * (*get_name)(BufferType *);
    Buffer * (*alloc_buffer)(BufferType *, size_t);
    void * alloc_buffer_n;
    size_t (*get_alignment)(BufferType *);
    void * get_max_size;
    void * get_alloc_size;
    void * get_alloc_size_n;
    bool (*is_host)(BufferType *);
    Device * device;
    ExtraBuffers * context;
};
static_assert(sizeof(BufferType) == 80, "ggml_backend_buffer_type");

struct BufferFunctions {
    void (*free_buffer)(Buffer *);
    void * (*get_base)(Buffer *);
    int (*init_tensor)(Buffer *, Tensor *);
    void (*memset_tensor)(Buffer *, Tensor *, uint8_t, size_t offset, size_t bytes);
    void (*set_tensor)(Buffer *, Tensor *, const void *, size_t offset, size_t bytes);
    void * get_tensor;
    void * set_tensor_2d;
    void * get_tensor_2d;
    void * cpy_tensor;
    void (*clear)(Buffer *, uint8_t);
    void * reset;
};

struct Buffer {
    BufferFunctions functions;
    BufferType * type;
    void * context;
    size_t bytes;
    int usage;
};
static_assert(offsetof(Buffer, type) == 88 && sizeof(Buffer) == 120, "ggml_backend_buffer");

/* std::vector<ggml_backend_buffer_type_t>, as GCC's and LLVM's standard libraries have it. */
struct BufferTypes {
    BufferType **first, **last, **room;
};

} // namespace foredraft
