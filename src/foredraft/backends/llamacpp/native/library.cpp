#include "library.h"
#include <dlfcn.h>

namespace foredraft {

Library library;
GraphLibrary graph_library;

#define FOREDRAFT_FIND(name, result, parameters)                                                                         \
    if (!(found.name = reinterpret_cast<result(*) parameters>(dlsym(handle, #name)))) return #name;

const char * find_functions(void * handle) {
    Library & found = library;
    FOREDRAFT_FUNCTIONS(FOREDRAFT_FIND)
    return nullptr;
}

const char * find_graph_functions(void * handle) {
    GraphLibrary & found = graph_library;
    FOREDRAFT_GRAPH_FUNCTIONS(FOREDRAFT_FIND)
    return nullptr;
}

} // namespace foredraft
