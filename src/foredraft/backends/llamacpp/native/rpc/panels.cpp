/* Weights of an RPC server in Foredraft's panels (../panels.h), so that its processor's products are those of a model that
   is not split: as fast, and with the same bits.

   llama.cpp's server takes the memory of everything, weights, cells and what is computed in between, from the device's
   usual buffer type, and its client does not say what is what. So the device that is served here has a type of buffers
   that are plain memory, but for matrices that a client writes whole and that the usual names say to be only multiplied
   with: these are laid out in panels. Before a graph is computed, each such matrix in it is said to lie in a buffer of the
   kernels' type, by which they know it. A graph that does anything else with one cannot be computed: the process ends, and
   the client is told that it lost the host. */
#include "panels.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu/traits.h"
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <unistd.h>

namespace foredraft {

struct Region {
    size_t bytes;
    ggml_type type;
    int64_t ne[2];
    ggml_backend_buffer_t within;
};

static std::map<const char *, Region> regions; // by where they begin
static ggml_backend_buffer_type_t panels;      // of the kernels
static ggml_backend_buffer_type plain_type;
static ggml_backend_device device;
static ggml_backend_dev_t original;
static ggml_status (*compute_as_usual)(ggml_backend_t, ggml_cgraph *);

static ggml_backend_buffer_t within(ggml_backend_buffer_t buffer) {
    return static_cast<ggml_backend_buffer_t>(buffer->context);
}

[[noreturn]] static void fail(const ggml_tensor * tensor) {
    fprintf(stderr, "A matrix in panels (%s) is used in a way that is not known.\n", tensor->name);
    _exit(1);
}

/* The region with a place, or null. */
static const Region * region_of(const void * place, const char ** begins = nullptr) {
    auto after = regions.upper_bound(static_cast<const char *>(place));
    if (after == regions.begin()) return nullptr;
    --after;
    if (static_cast<const char *>(place) >= after->first + after->second.bytes) return nullptr;
    if (begins) *begins = after->first;
    return &after->second;
}

/* Whether any of these bytes are of a matrix in panels. */
static bool touch_panels(const char * from, size_t size) {
    const auto next = regions.lower_bound(from);
    return size && (region_of(from) || (next != regions.end() && next->first < from + size));
}

static void forget(const char * from, const char * to) {
    regions.erase(regions.lower_bound(from), regions.lower_bound(to));
}

/* Whether a model multiplies with the matrix, and does nothing else. */
static bool is_factor(const std::string & name) {
    if (name == "output.weight") return true;
    static const char * const known[] = {"attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output",
                                         "ffn_gate", "ffn_up", "ffn_down"};
    for (const char * one : known) {
        const std::string end = std::string(".") + one + ".weight";
        if (name.size() > end.size() && !name.compare(0, 4, "blk.") && !name.compare(name.size() - end.size(), end.size(), end)) {
            return true;
        }
    }
    return false;
}

/* Whether the kernels have panels for the matrix. */
static bool have_panels(ggml_backend_buffer_t buffer, const ggml_tensor & matrix) {
    ggml_tensor product{}, factor = matrix, rows{};
    factor.buffer = within(buffer);
    rows.type = GGML_TYPE_F32;
    rows.nb[0] = sizeof(float);
    product.op = GGML_OP_MUL_MAT;
    product.src[0] = &factor;
    product.src[1] = &rows;
    return static_cast<ggml::cpu::extra_buffer_type *>(panels->context)->supports_op(original, &product);
}

static void set_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    char * const to = static_cast<char *>(tensor->data);
    if (offset == 0 && size == ggml_nbytes(tensor) && is_factor(tensor->name) && have_panels(buffer, *tensor)) {
        within(buffer)->iface.set_tensor(within(buffer), tensor, data, 0, size);
        regions[to] = {size, tensor->type, {tensor->ne[0], tensor->ne[1]}, within(buffer)};
        return;
    }
    if (touch_panels(to + offset, size)) fail(tensor);
    memcpy(to + offset, data, size);
}

static void get_tensor(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    const char * const from = static_cast<const char *>(tensor->data) + offset;
    if (touch_panels(from, size)) fail(tensor);
    memcpy(data, from, size);
}

static void memset_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, uint8_t value, size_t offset, size_t size) {
    char * const to = static_cast<char *>(tensor->data) + offset;
    if (touch_panels(to, size)) fail(tensor);
    memset(to, value, size);
}

static bool copy_tensor(ggml_backend_buffer_t, const ggml_tensor * from, ggml_tensor * to) {
    const size_t size = ggml_nbytes(from);
    if (!ggml_backend_buffer_is_host(from->buffer)) return false;
    if (touch_panels(static_cast<const char *>(from->data), size)) fail(from);
    if (touch_panels(static_cast<const char *>(to->data), size)) fail(to);
    memcpy(to->data, from->data, size);
    return true;
}

static void * base_of(ggml_backend_buffer_t buffer) { return ggml_backend_buffer_get_base(within(buffer)); }

static void clear(ggml_backend_buffer_t buffer, uint8_t value) {
    char * const base = static_cast<char *>(base_of(buffer));
    forget(base, base + buffer->size);
    memset(base, value, buffer->size);
}

static void free_buffer(ggml_backend_buffer_t buffer) {
    const char * const base = static_cast<const char *>(base_of(buffer));
    forget(base, base + buffer->size);
    ggml_backend_buffer_free(within(buffer));
}

static ggml_backend_buffer_t new_buffer(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t inside = ggml_backend_buft_alloc_buffer(panels, size);
    if (!inside) return nullptr;
    ggml_backend_buffer_i functions{};
    functions.free_buffer = free_buffer;
    functions.get_base = base_of;
    functions.memset_tensor = memset_tensor;
    functions.set_tensor = set_tensor;
    functions.get_tensor = get_tensor;
    functions.cpy_tensor = copy_tensor;
    functions.clear = clear;
    return ggml_backend_buffer_init(type, functions, inside, size);
}

/* Show the kernels what lies in panels. */
static ggml_status compute(ggml_backend_t backend, ggml_cgraph * graph) {
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        ggml_tensor * node = ggml_graph_node(graph, i);
        for (int j = 0; j < GGML_MAX_SRC; ++j) {
            ggml_tensor * source = node->src[j];
            const char * begins = nullptr;
            const Region * region = source ? region_of(source->data, &begins) : nullptr;
            if (!region) continue;
            const bool whole = source->data == begins && source->type == region->type && source->ne[0] == region->ne[0] &&
                               source->ne[1] == region->ne[1];
            if (node->op != GGML_OP_MUL_MAT || j || !whole) fail(source);
            source->buffer = region->within;
        }
    }
    return compute_as_usual(backend, graph);
}

static ggml_backend_t new_backend(ggml_backend_dev_t, const char * parameters) {
    ggml_backend_t backend = original->iface.init_backend(original, parameters);
    if (!backend) return nullptr;
    backend->device = &device;
    compute_as_usual = backend->iface.graph_compute;
    backend->iface.graph_compute = compute;
    return backend;
}

ggml_backend_dev_t with_panels(ggml_backend_dev_t processor, ggml_backend_buffer_type_t type) {
    panels = type;
    original = processor;
    device = *processor;
    device.iface.init_backend = new_backend;
    device.iface.get_buffer_type = [](ggml_backend_dev_t) { return &plain_type; };
    plain_type = *ggml_backend_cpu_buffer_type();
    plain_type.iface.alloc_buffer = new_buffer;
    plain_type.device = &device;
    return &device;
}

} // namespace foredraft
