/* Foredraft's kernels in a llama.cpp library that was compiled without them.

   llama.cpp's CPU backend has a list of buffer types beside plain memory. When weights are loaded, it places each in the
   first one that supports what is done with it; and whenever it computes, it asks each entry for a better way than its
   own. The list can be had from outside, and an entry of ours, put first, is asked first: weights of types that there
   are panels for come to lie in panels, and products with them, and attention, are computed here. Everything else
   goes on as before. */
#include "plugin.h"
#include "library.h"
#include "products.h"
#include "weights.h"
#include <new>
#include <string.h>

#define FOREDRAFT_EXPORTED extern "C" __attribute__((visibility("default")))
#define FOREDRAFT_TEXT_OF(x) #x
#define FOREDRAFT_TEXT(x) FOREDRAFT_TEXT_OF(x)

namespace foredraft {

static BufferType buffer_type;

static bool holds(const Tensor * tensor) { return tensor->buffer && tensor->buffer->type == &buffer_type; }

struct Plugin final : ExtraBuffers {
    bool supports_op(Device *, const Tensor * op) override {
        if (op->op != MUL_MAT || !holds(op->src[0]) || op->src[0]->view_src || !weights_of(op->src[0])) return false;
        const Tensor * rows = op->src[1];
        return rows->type == F32 && rows->nb[0] == sizeof(float) &&
               (!rows->buffer || library.ggml_backend_buft_is_host(rows->buffer->type));
    }
    Traits * get_tensor_traits(const Tensor * op) override {
        if (op->op == MUL_MAT && holds(op->src[0])) return weights_of(op->src[0]);
        if (op->op == FILL) return filling_of(op);
        return op->op == FLASH_ATTN_EXT ? attention_of(op) : nullptr;
    }
};

static void free_buffer(Buffer * buffer) { free_weights(buffer->context, buffer->bytes); }
static void * base_of(Buffer * buffer) { return buffer->context; }
static void fill(Buffer *, Tensor * tensor, uint8_t value, size_t offset, size_t bytes) {
    memset(static_cast<char *>(tensor->data) + offset, value, bytes);
}
static void clear(Buffer * buffer, uint8_t value) { memset(buffer->context, value, buffer->bytes); }

/* llama.cpp writes weights whole. */
static void set_tensor(Buffer *, Tensor * tensor, const void * data, size_t, size_t) {
    weights_of(tensor)->lay_out(tensor, data);
}

static const char * name_of(BufferType *) { return "Foredraft"; }
static size_t alignment(BufferType *) { return 64; }
static bool not_host(BufferType *) { return false; }

static Buffer * new_buffer(BufferType * type, size_t bytes) {
    void * memory = new_weights(bytes);
    if (!memory) return nullptr;
    BufferFunctions functions{};
    functions.free_buffer = free_buffer;
    functions.get_base = base_of;
    functions.memset_tensor = fill;
    functions.set_tensor = set_tensor;
    functions.clear = clear;
    return library.ggml_backend_buffer_init(type, functions, memory, bytes);
}

/* Null if ggml's own objects are where ggml_abi.h has them; else what is not. */
static const char * difference(const Library & its) {
    for (const Named & type : TYPES) {
        if (strcmp(its.ggml_type_name(type.number), type.name)) return "numbers of types";
    }
    for (const Named & operation : OPERATIONS) {
        if (strcmp(its.ggml_op_name(operation.number), operation.name)) return "numbers of operations";
    }
    const size_t object = 32; // what a context keeps with each tensor
    if (its.ggml_tensor_overhead() != object + sizeof(Tensor)) return "the size of a tensor";
    BufferType * plain = its.ggml_backend_cpu_buffer_type();
    if (plain->get_name(plain) != its.ggml_backend_buft_name(plain) || plain->context || // of which others are read
        plain->is_host(plain) != its.ggml_backend_buft_is_host(plain)) {
        return "buffer types";
    }
    const size_t bytes = 4096;
    const int usage = 1;
    Buffer * buffer = its.ggml_backend_buft_alloc_buffer(plain, bytes);
    if (!buffer) return "memory";
    its.ggml_backend_buffer_set_usage(buffer, usage);
    const bool same = buffer->type == plain && buffer->bytes == bytes && buffer->usage == usage &&
                      buffer->functions.get_base(buffer) == its.ggml_backend_buffer_get_base(buffer);
    its.ggml_backend_buffer_free(buffer);
    return same ? nullptr : "buffers";
}

/* The list with the entry before all others, in memory of its own; null, or why there is none. */
static const char * with_entry(const BufferTypes & listed, Device * device, BufferTypes & longer) {
    const ptrdiff_t count = listed.last - listed.first;
    if (count < 0 || count > 64 || listed.room < listed.last) return "the list of buffer types";
    for (ptrdiff_t i = 0; i < count; ++i) {
        if (listed.first[i] && listed.first[i]->device != device) return "the entries of the list of buffer types";
    }
    BufferType ** entries = static_cast<BufferType **>(operator new(sizeof(BufferType *) * size_t(count + 1), std::nothrow));
    if (!entries) return "memory";
    entries[0] = &buffer_type;
    if (count) memcpy(entries + 1, listed.first, sizeof(BufferType *) * size_t(count));
    longer = {entries, entries + count + 1, entries + count + 1};
    return nullptr;
}

/* Where the loading of models and adapters finds the entry, in a copy of the list that llama.cpp makes when it is first
   used; null if it does not. */
static BufferType ** place_for_loading() {
    using Listed = BufferType ** (*)(Device *);
    const auto address = library.ggml_backend_reg_get_proc_address(
        library.ggml_backend_cpu_reg(), "ggml_backend_dev_get_extra_bufts");
    BufferType ** listed = address ? reinterpret_cast<Listed>(address)(buffer_type.device) : nullptr;
    while (listed && *listed && *listed != &buffer_type) ++listed;
    return listed && *listed ? listed : nullptr;
}

} // namespace foredraft

/* Attaches the kernels to the library that dlopen returned this for; before it loads its first model, and while it does
   not compute. Null if it worked; else what does not fit, and nothing has changed. */
FOREDRAFT_EXPORTED const char * foredraft_attach(void * handle) {
    using namespace foredraft;
    static Plugin plugin;
    Library found;
    if (const char * missing = find_functions(handle, found)) return missing;
    if (const char * different = difference(found)) return different;
    BufferType entry{};
    entry.get_name = name_of;
    entry.alloc_buffer = new_buffer;
    entry.get_alignment = alignment;
    entry.is_host = not_host;
    entry.device = found.ggml_backend_reg_dev_get(found.ggml_backend_cpu_reg(), 0);
    entry.context = &plugin;
    BufferTypes & listed = *found._Z39ggml_backend_cpu_get_extra_buffer_typesv();
    BufferTypes longer;
    if (const char * fault = with_entry(listed, entry.device, longer)) return fault;
    library = found;
    buffer_type = entry;
    listed = longer; // the old one stays, as other code may hold it: it is a few words
    return nullptr;
}

/* Takes the entry out of the list. Weights that lie in its buffers can no longer be computed with. */
FOREDRAFT_EXPORTED void foredraft_detach() {
    using namespace foredraft;
    BufferTypes & listed = *library._Z39ggml_backend_cpu_get_extra_buffer_typesv();
    BufferType ** to = listed.first;
    for (BufferType ** at = listed.first; at != listed.last; ++at) {
        if (*at != &buffer_type) *to++ = *at;
    }
    listed.last = to;
}

/* Whether models that are loaded from now on find the entry. */
FOREDRAFT_EXPORTED bool foredraft_found_by_models() { return foredraft::place_for_loading(); }

/* Hides the entry from what is loaded (1), and shows it again (0). llama.cpp puts an adapter's matrices beside those that
   they belong to, but not into buffers of a type that it finds in the list. While it is hidden, a model that is loaded
   comes to lie in plain memory. */
FOREDRAFT_EXPORTED void foredraft_hide(int hidden) {
    static foredraft::BufferType ** place;
    if (!place) place = foredraft::place_for_loading();
    if (place) *place = hidden ? foredraft::library.ggml_backend_cpu_buffer_type() : &foredraft::buffer_type;
}

/* The entry, for a tensor to be placed in its buffers. */
FOREDRAFT_EXPORTED void * foredraft_buffer_type() { return &foredraft::buffer_type; }

/* The build of llama.cpp whose layouts are assumed. */
FOREDRAFT_EXPORTED int foredraft_build() { return foredraft::GGML_BUILD; }

/* Outputs of a panel: a matrix has to have a multiple of it. */
FOREDRAFT_EXPORTED int foredraft_panel() { return foredraft::outputs_of_a_panel(); }

/* Places that are assumed in ggml_tensor, to be compared with the binding's; ends with its size and no name. */
FOREDRAFT_EXPORTED const foredraft::Named * foredraft_tensor_layout() {
    using foredraft::Tensor;
#define FOREDRAFT_PLACE(member) {int(offsetof(Tensor, member)), #member}
    static const foredraft::Named places[] = {
        FOREDRAFT_PLACE(type),      FOREDRAFT_PLACE(buffer), FOREDRAFT_PLACE(ne),       FOREDRAFT_PLACE(nb),
        FOREDRAFT_PLACE(op),        FOREDRAFT_PLACE(flags),  FOREDRAFT_PLACE(src),      FOREDRAFT_PLACE(op_params),
        FOREDRAFT_PLACE(view_offs), FOREDRAFT_PLACE(data),   FOREDRAFT_PLACE(view_src), FOREDRAFT_PLACE(name),
        FOREDRAFT_PLACE(extra),     {int(sizeof(Tensor)), nullptr}};
    return places;
}

/* What this was compiled from (build.py): a hash of the sources and the compiler's options. */
FOREDRAFT_EXPORTED const char * foredraft_sources() { return FOREDRAFT_TEXT(FOREDRAFT_SOURCES); }

/* What this was compiled by (build.py): a hash of the compiler's command and version. */
FOREDRAFT_EXPORTED const char * foredraft_compiler() { return FOREDRAFT_TEXT(FOREDRAFT_COMPILER); }
