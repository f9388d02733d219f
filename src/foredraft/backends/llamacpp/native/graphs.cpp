/* Several graphs of a context, each ready to be computed again.

   llama.cpp keeps the graph of the last forward and computes it again if the next one has its shape. A draft changes the
   number of rows, and back: building, dividing and placing a graph of a small model anew takes 0.9 ms, where a forward
   takes 6.6. Here a context's graph, and the scheduler that has placed it in memory of its own, can be exchanged for
   others, one for each shape. Whether a graph fits a forward is still decided by llama.cpp, as for the last one.

   The members that are exchanged are private, and no header of an interface tells their places. But all are words, and two exported functions
   return what two of them hold: so they are looked for in the object, and refused if anything about them is not as
   expected. In llama-context.h of build 11549: `sched` (a unique_ptr), and one after the other `gf_res_prev` (two
   unique_ptr), `gf_res_reserve` (one) and `gf_res_prev_active` (null, or what one of the two holds).

   Not where a GPU takes part: it may compute a graph yet when its place is taken. */
#include "library.h"
#include <malloc.h>
#include <new>
#include <type_traits>

#define FOREDRAFT_EXPORTED extern "C" __attribute__((visibility("default")))

namespace foredraft {

constexpr int MOST_BACKENDS = 16;

/* llm_graph_result: its destructor is its first virtual function. */
struct Result {
    virtual ~Result() = default;
};

/* Where members are in a context, in words. */
struct Places {
    size_t scheduler, results, active;
};

/* What a context has for one graph. */
struct Graph {
    Places places;
    Scheduler * scheduler;
    Result * results[2];
    Result * active;
};

static void ** words_of(void * context) { return static_cast<void **>(context); }

/* Index of the only word with this value among `count`; `count` if there is none or another. */
static size_t only(void ** words, size_t count, const void * value) {
    size_t found = count;
    for (size_t i = 0; i < count; ++i) {
        if (words[i] != value) continue;
        if (found != count) return count;
        found = i;
    }
    return found;
}

/* Where the members are; null if that is known, else why it is not. */
static const char * find(void * context, Places & places) {
    void ** words = words_of(context);
    const size_t count = malloc_usable_size(context) / sizeof(void *);
    const void * scheduler = graph_library._ZNK13llama_context9get_schedEv(context);
    const void * reserved = graph_library._ZNK13llama_context18get_gf_res_reserveEv(context);
    if (!scheduler || !reserved || scheduler == reserved) return "the context has no graph in reserve";
    places.scheduler = only(words, count, scheduler);
    const size_t reserve = only(words, count, reserved);
    if (places.scheduler == count || reserve == count) return "the context's members were not found";
    if (reserve < 2 || reserve + 1 >= count) return "the context's graphs are not where they were";
    places.results = reserve - 2;
    places.active = reserve + 1;
    // llama.cpp's own answer is one of the two; it makes one if there is none yet.
    const void * previous = graph_library._ZN13llama_context15get_gf_res_prevEv(context);
    void * const * results = words + places.results;
    if (!previous || (results[0] != previous && results[1] != previous) || results[0] == results[1] ||
        results[0] == reserved || results[1] == reserved) {
        return "the context's graphs are not where they were";
    }
    const void * active = words[places.active];
    if (active && active != results[0] && active != results[1]) return "the graph in use is not where it was";
    return nullptr;
}

static bool computes_on_gpu(Scheduler * scheduler, int backends) {
    for (int i = 0; i < backends; ++i) {
        Device * device =
            graph_library.ggml_backend_get_device(graph_library.ggml_backend_sched_get_backend(scheduler, i));
        const int type = device ? graph_library.ggml_backend_dev_type(device) : DEVICE_CPU;
        if (type != DEVICE_CPU && type != DEVICE_ACCELERATOR) return true;
    }
    return false;
}

/* A scheduler like the context's; null where there can be none. */
static Scheduler * another_scheduler(const void * context) {
    Scheduler * own = graph_library._ZNK13llama_context9get_schedEv(context);
    const int count = graph_library.ggml_backend_sched_get_n_backends(own);
    if (count > MOST_BACKENDS || computes_on_gpu(own, count)) return nullptr;
    Backend * backends[MOST_BACKENDS];
    BufferType * types[MOST_BACKENDS];
    for (int i = 0; i < count; ++i) {
        backends[i] = graph_library.ggml_backend_sched_get_backend(own, i);
        types[i] = graph_library.ggml_backend_sched_get_buffer_type(own, backends[i]);
    }
    const void * reserved = graph_library._ZNK13llama_context18get_gf_res_reserveEv(context);
    const size_t nodes = size_t(graph_library._ZNK16llm_graph_result13get_max_nodesEv(reserved));
    return graph_library.ggml_backend_sched_new(backends, types, count, nodes, false, false);
}

} // namespace foredraft

/* Finds llama.cpp's functions in a library: what dlopen returned for it. Null if all are there; else the one that is
   not, and then no other function of this file may be called. */
FOREDRAFT_EXPORTED const char * foredraft_graphs_attach(void * handle) {
    foredraft::GraphLibrary found;
    if (const char * missing = foredraft::find_graph_functions(handle, found)) return missing;
    foredraft::graph_library = found;
    return nullptr;
}

/* Why the graphs of this context cannot be kept; null if they can. */
FOREDRAFT_EXPORTED const char * foredraft_graphs_refused(void * context) {
    foredraft::Places places;
    return foredraft::find(context, places);
}

/* A place for another graph of the context; null where there can be none. To be freed before the context. */
FOREDRAFT_EXPORTED foredraft::Graph * foredraft_graph_new(void * context) {
    using namespace foredraft;
    Places places;
    if (find(context, places)) return nullptr;
    Scheduler * scheduler = another_scheduler(context);
    Graph * graph = scheduler ? new (std::nothrow) Graph{places, scheduler, {nullptr, nullptr}, nullptr} : nullptr;
    if (scheduler && !graph) graph_library.ggml_backend_sched_free(scheduler);
    return graph;
}

/* Exchange the context's graph for this one. */
FOREDRAFT_EXPORTED void foredraft_graph_swap(void * context, foredraft::Graph * graph) {
    using namespace foredraft;
    void ** words = words_of(context);
    const auto exchange = [](void *& word, auto *& held) {
        void * other = held;
        held = static_cast<std::remove_reference_t<decltype(held)>>(word);
        word = other;
    };
    exchange(words[graph->places.scheduler], graph->scheduler);
    for (int i = 0; i < 2; ++i) exchange(words[graph->places.results + size_t(i)], graph->results[i]);
    exchange(words[graph->places.active], graph->active);
}

/* Frees the place and its graph: the graph goes before the scheduler that placed it. */
FOREDRAFT_EXPORTED void foredraft_graph_free(foredraft::Graph * graph) {
    for (foredraft::Result * result : graph->results) delete result;
    foredraft::graph_library.ggml_backend_sched_free(graph->scheduler);
    delete graph;
}
