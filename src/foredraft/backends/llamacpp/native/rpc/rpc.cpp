/* llama.cpp's RPC backend with connections of ours (transport.cpp), and what Foredraft calls of it.

   ggml-rpc.cpp is included as it is: what its messages look like is known there only. Its files are ours (kept.h). */
#include "ggml-backend-impl.h"
#include "ggml-cpp.h"
#include "ggml-impl.h"
#include "ggml-rpc.h"
#include "kept.h"
#include "transport.h"
#define std foredraft_std
#include "ggml-rpc.cpp"
#undef std
#include "panels.h"
#include "rpc.h"
#include <map>

#define FOREDRAFT_EXPORTED extern "C" __attribute__((visibility("default")))
#define FOREDRAFT_TEXT_OF(x) #x
#define FOREDRAFT_TEXT(x) FOREDRAFT_TEXT_OF(x)

namespace foredraft {

static_assert(HELLO == RPC_CMD_HELLO && RPC_CMD_COUNT == 24, "the commands have changed");

template <typename Request> static Request read_as(const void * data, size_t size) {
    Request request{};
    memcpy(&request, data, std::min(size, sizeof request));
    return request;
}

/* Bytes of the reply to a command with this request; 0: it has none. */
uint64_t size_of_reply(uint8_t command, const void * data, size_t size) {
    switch (command) {
        case RPC_CMD_ALLOC_BUFFER: return sizeof(rpc_msg_alloc_buffer_rsp);
        case RPC_CMD_GET_ALIGNMENT: return sizeof(rpc_msg_get_alignment_rsp);
        case RPC_CMD_GET_MAX_SIZE: return sizeof(rpc_msg_get_max_size_rsp);
        case RPC_CMD_BUFFER_GET_BASE: return sizeof(rpc_msg_buffer_get_base_rsp);
        case RPC_CMD_SET_TENSOR_HASH: return sizeof(rpc_msg_set_tensor_hash_rsp);
        case RPC_CMD_GET_TENSOR: return read_as<rpc_msg_get_tensor_req>(data, size).size;
        case RPC_CMD_COPY_TENSOR: return sizeof(rpc_msg_copy_tensor_rsp);
        case RPC_CMD_GET_DEVICE_MEMORY: return sizeof(rpc_msg_get_device_memory_rsp);
        case RPC_CMD_GET_ALLOC_SIZE: return sizeof(rpc_msg_get_alloc_size_rsp);
        case RPC_CMD_HELLO: return sizeof(rpc_msg_hello_rsp);
        case RPC_CMD_DEVICE_COUNT: return sizeof(rpc_msg_device_count_rsp);
        case RPC_CMD_GET_TENSOR_2D: {
            const auto request = read_as<rpc_msg_get_tensor_2d_req>(data, size);
            return request.size * request.n_copies;
        }
        case RPC_CMD_COMM_INIT: return sizeof(rpc_msg_comm_init_rsp);
        default: return 0;
    }
}

/* The reply of a host that is not there: a buffer is not allocated, a device has no memory, but what has been asked of
   llama.cpp is never invalid. */
void empty_reply(uint8_t command, void * data, size_t size) {
    memset(data, 0, size);
    uint64_t word = 0;
    switch (command) {
        case RPC_CMD_GET_ALIGNMENT: word = 64; break;
        case RPC_CMD_GET_MAX_SIZE: word = SIZE_MAX; break;
        case RPC_CMD_BUFFER_GET_BASE: word = 4096; break;
        case RPC_CMD_SET_TENSOR_HASH:
        case RPC_CMD_COPY_TENSOR: memset(data, 1, size); return;
        case RPC_CMD_HELLO: *static_cast<uint8_t *>(data) = RPC_PROTO_MAJOR_VERSION; return;
        default: return;
    }
    memcpy(data, &word, std::min(size, sizeof word));
}

/* What is wrong with a reply that llama.cpp would believe, or an empty text. */
std::string fault_of_reply(uint8_t command, const void * data, size_t size) {
    if (command == RPC_CMD_HELLO) {
        const auto reply = read_as<rpc_msg_hello_rsp>(data, size);
        if (reply.major == RPC_PROTO_MAJOR_VERSION && reply.minor <= RPC_PROTO_MINOR_VERSION) return "";
        return "it has version " + std::to_string(reply.major) + "." + std::to_string(reply.minor) + " of the RPC protocol";
    }
    if (command == RPC_CMD_DEVICE_COUNT && read_as<rpc_msg_device_count_rsp>(data, size).device_count > 64) {
        return "it says that it has more than 64 devices";
    }
    if (command == RPC_CMD_GET_ALIGNMENT) {
        const uint64_t alignment = read_as<rpc_msg_get_alignment_rsp>(data, size).alignment;
        if (!alignment || alignment > 1 << 20 || alignment & (alignment - 1)) return "it aligns memory impossibly";
    }
    return "";
}

} // namespace foredraft

FOREDRAFT_EXPORTED int foredraft_rpc_version() { return RPC_PROTO_MAJOR_VERSION << 8 | RPC_PROTO_MINOR_VERSION; }
FOREDRAFT_EXPORTED const char * foredraft_rpc_sources() { return FOREDRAFT_TEXT(FOREDRAFT_SOURCES); }
FOREDRAFT_EXPORTED void foredraft_rpc_patience(int milliseconds) { foredraft::set_patience(milliseconds); }
FOREDRAFT_EXPORTED const char * foredraft_rpc_lost(const char * endpoint) { return foredraft::why_lost(endpoint); }

/* A host's name with a number: the name of another connection to it. */
static std::string numbered(const std::string & endpoint, int number) {
    if (number == 1) return endpoint;
    return std::string(endpoint).insert(endpoint.find(':'), "#" + std::to_string(number));
}

/* Whether a connection that was made earlier still is one: its host may have gone and come back meanwhile. */
static bool is_alive(const std::string & name) {
    size_t free, total;
    if (!foredraft::why_lost(name)) ggml_backend_rpc_get_device_memory(name.c_str(), 0, &free, &total);
    return !foredraft::why_lost(name);
}

/* Connects to a host with so many devices; `frames`: whether it is one of ours. Writes the devices to `found` and the
   connection's name to `name`. Returns whether the host is there.

   The connection is kept: llama.cpp would make another for each question about a device. llama.cpp knows connections by
   name and has one as long as a model uses it, also a lost one. Models that are loaded after that get one with another
   name, so what is said of a name is true for everyone who has it. */
FOREDRAFT_EXPORTED bool foredraft_rpc_connect(const char * endpoint, bool frames, ggml_backend_dev_t * found, int count,
                                              char * name, size_t most) {
    struct Connection {
        std::shared_ptr<rpc_dispatcher> kept;
        std::weak_ptr<rpc_dispatcher> used;
    };
    static std::mutex mutex;
    static auto & connections = *new std::map<std::string, Connection>(); // never freed: threads may wait at the end
    std::lock_guard<std::mutex> lock(mutex);
    for (int number = 1;; ++number) {
        const std::string its = numbered(endpoint, number);
        snprintf(name, most, "%s", its.c_str());
        Connection & connection = connections[its];
        if (connection.kept && !is_alive(its)) connection.kept = nullptr;
        if (!connection.kept) {
            if (!connection.used.expired()) continue; // lost, and a model has it still
            foredraft::expect_frames(its, frames);
            connection.used = connection.kept = get_dispatcher(its);
        }
        ggml_backend_reg_t host = foredraft::why_lost(its) ? nullptr : ggml_backend_rpc_add_server(its.c_str());
        if (!host || foredraft::why_lost(its)) {
            connection.kept = nullptr;
            return false;
        }
        if (ggml_backend_reg_dev_count(host) != size_t(count)) { // llama.cpp counted at an earlier connection
            connection.kept = nullptr;
            if (number < 100) continue;
            return false;
        }
        for (int i = 0; i < count; ++i) found[i] = ggml_backend_reg_dev_get(host, size_t(i));
        return true;
    }
}

/* Serves one connection of a socket that listens, tells the other file who connected, and ends the process. `panels`: the
   kernels' buffer type, or null; the processor's weights then lie in such. */
FOREDRAFT_EXPORTED void foredraft_rpc_serve(int listens, int tells, const char * cache, size_t threads,
                                            ggml_backend_dev_t * devices, size_t count, ggml_backend_buffer_type_t panels) {
    foredraft::Serving settings;
    settings.listens = listens;
    settings.tells = tells;
    settings.on_processors = true;
    for (size_t i = 0; i < count; ++i) {
        const bool processor = ggml_backend_dev_type(devices[i]) == GGML_BACKEND_DEVICE_TYPE_CPU;
        settings.on_processors &= processor;
        if (processor && panels) devices[i] = foredraft::with_panels(devices[i], panels);
    }
    foredraft::serve_with(settings);
    ggml_backend_rpc_start_server("0.0.0.0:1", cache, threads, count, devices);
}
