#include "library.h"
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <string.h>

namespace foredraft {

Library library;
GraphLibrary graph_library;

/* What is looked for, and where: a library, and what else lies in its folder. */
struct Wanted {
    const char * name;
    char folder[PATH_MAX]; // with a slash at its end; empty if it is not known
    void * found;
};

static int look_in(dl_phdr_info * object, size_t, void * data) {
    Wanted & wanted = *static_cast<Wanted *>(data);
    const char * file = strrchr(object->dlpi_name, '/');
    const size_t length = file ? size_t(file + 1 - object->dlpi_name) : 0;
    if (!length || length != strlen(wanted.folder) || strncmp(object->dlpi_name, wanted.folder, length)) return 0;
    if (strncmp(file + 1, "libggml-cpu", strlen("libggml-cpu"))) return 0;
    void * handle = dlopen(object->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) return 0;
    wanted.found = dlsym(handle, wanted.name);
    dlclose(handle);
    return wanted.found != nullptr;
}

/* In the library that dlopen returned this for, and what that needs; or in the processor's part of it that it has loaded
   itself from its folder (GGML_BACKEND_DL). */
static void * look_up(void * handle, const char * name) {
    if (void * found = dlsym(handle, name)) return found;
    Wanted wanted{name, "", nullptr};
    Dl_info known;
    void * const base = dlsym(handle, "ggml_tensor_overhead");
    if (!base || !dladdr(base, &known) || !known.dli_fname) return nullptr;
    const char * end = strrchr(known.dli_fname, '/');
    if (!end || size_t(end + 2 - known.dli_fname) > sizeof(wanted.folder)) return nullptr;
    memcpy(wanted.folder, known.dli_fname, size_t(end + 1 - known.dli_fname));
    dl_iterate_phdr(look_in, &wanted);
    return wanted.found;
}

#define FOREDRAFT_FIND(name, result, parameters)                                                                         \
    if (!(found.name = reinterpret_cast<result(*) parameters>(look_up(handle, #name)))) return #name;

const char * find_functions(void * handle, Library & found) {
    FOREDRAFT_FUNCTIONS(FOREDRAFT_FIND)
    return nullptr;
}

const char * find_graph_functions(void * handle, GraphLibrary & found) {
    FOREDRAFT_GRAPH_FUNCTIONS(FOREDRAFT_FIND)
    return nullptr;
}

} // namespace foredraft
