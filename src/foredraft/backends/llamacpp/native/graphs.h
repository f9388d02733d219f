/* Several graphs of a context, each ready to be computed again.

   llama.cpp keeps the graph of the last forward and computes it again if the next one has its shape. A draft changes the
   number of rows, and back: building, dividing and placing a graph of a small model anew takes 0.9 ms, where a forward
   takes 6.6. Here a context's graph, and the scheduler that has placed it in memory of its own, can be exchanged for
   others, one for each shape. Whether a graph fits a forward is still decided by llama.cpp, as for the last one.

   The members in question are private. Naming them in an explicit instantiation is allowed all the same (C++17,
   [temp.explicit]); no file of llama.cpp is changed. Not where a GPU takes part: it may compute a graph yet
   when its place is taken. */
#if !defined(FOREDRAFT_WITHOUT_GRAPHS) && defined(LLAMA_BUILD) && __has_include("llama-context.h") && __has_include("llama-graph.h")
#include "llama-context.h"
#include "llama-graph.h"

#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace foredraft {

template <typename Name, auto Member> struct Opened {
    friend constexpr auto member(Name) { return Member; }
};
struct Scheduler { friend constexpr auto member(Scheduler); };
struct Results { friend constexpr auto member(Results); };
struct Active { friend constexpr auto member(Active); };
struct Backends { friend constexpr auto member(Backends); };
struct BufferTypes { friend constexpr auto member(BufferTypes); };
template struct Opened<Scheduler, &llama_context::sched>;
template struct Opened<Results, &llama_context::gf_res_prev>;
template struct Opened<Active, &llama_context::gf_res_prev_active>;
template struct Opened<Backends, &llama_context::backend_ptrs>;
template struct Opened<BufferTypes, &llama_context::backend_buft>;

template <typename Name>
using Value = std::remove_reference_t<decltype(std::declval<llama_context &>().*member(Name()))>;

/* What a context has for one graph. The graph goes before the scheduler that placed it. */
struct Graph {
    Value<Scheduler> scheduler;
    Value<Results> results;
    Value<Active> active;
};

inline bool computes_on_gpu(const std::vector<ggml_backend_t> & backends) {
    for (ggml_backend_t backend : backends) {
        const auto type = ggml_backend_dev_type(ggml_backend_get_device(backend));
        if (type != GGML_BACKEND_DEVICE_TYPE_CPU && type != GGML_BACKEND_DEVICE_TYPE_ACCEL) {
            return true;
        }
    }
    return false;
}

}  // namespace foredraft

extern "C" {
/* A place for another graph of the context; nullptr where there can be none. To be freed before the context. */
__attribute__((visibility("default"))) foredraft::Graph * foredraft_graph_new(llama_context * context);
__attribute__((weak, used)) foredraft::Graph * foredraft_graph_new(llama_context * context) {
    auto & backends = context->*member(foredraft::Backends());
    if (foredraft::computes_on_gpu(backends) || !context->get_gf_res_reserve()) {
        return nullptr;
    }
    auto * graph = new (std::nothrow) foredraft::Graph();
    if (graph) {
        graph->scheduler.reset(ggml_backend_sched_new(
            backends.data(), (context->*member(foredraft::BufferTypes())).data(), (int) backends.size(),
            context->get_gf_res_reserve()->get_max_nodes(), false, context->get_cparams().op_offload));
    }
    return graph;
}

/* Exchange the context's graph for this one. */
__attribute__((visibility("default"))) void foredraft_graph_swap(llama_context * context, foredraft::Graph * graph);
__attribute__((weak, used)) void foredraft_graph_swap(llama_context * context, foredraft::Graph * graph) {
    std::swap(context->*member(foredraft::Scheduler()), graph->scheduler);
    std::swap(context->*member(foredraft::Results()), graph->results);
    std::swap(context->*member(foredraft::Active()), graph->active);
}

__attribute__((visibility("default"))) void foredraft_graph_free(foredraft::Graph * graph);
__attribute__((weak, used)) void foredraft_graph_free(foredraft::Graph * graph) {
    delete graph;
}
}
#endif
