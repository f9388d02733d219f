/* Foredraft's part of llama.cpp: included before every file of it (-include kernels.h), when llama.cpp is compiled.

   Verifying a draft is a forward of several rows. llama.cpp reads the cells of a context again for each of them, and,
   with AMX, weights by way of tiles that pay from eight rows on. What is here lets rows share what is read, with the
   results of one row, bit for bit. No file of llama.cpp is changed: overloads that fit a call better than its own
   functions are preferred to these, by the rules of C++. Where they no longer fit, llama.cpp's own are called.

   The function says what was compiled in, for kernels.py. Its number is raised when a result may change, or its cost. */
#if defined(__cplusplus) && defined(__GNUC__)
#define FOREDRAFT_KERNELS "5"
#include "amx_tiles.h"
#include "attention.h"
#include "few_rows_f16.h"
#include "few_rows_packed.h"
#include "graphs.h"
#include "repacked.h"
#ifdef FOREDRAFT_ATTENTION
#define FOREDRAFT_ATTENTION_NAME " attention"
#else
#define FOREDRAFT_ATTENTION_NAME ""
#endif
#ifdef FOREDRAFT_FEW_ROWS
#define FOREDRAFT_FEW_ROWS_NAME " few-rows"
#else
#define FOREDRAFT_FEW_ROWS_NAME ""
#endif
#if defined(FOREDRAFT_WIDE)
#define FOREDRAFT_PANELS_NAME " panels-wide"
#elif defined(FOREDRAFT_VNNI)
#define FOREDRAFT_PANELS_NAME " panels-vnni"
#elif defined(FOREDRAFT_PANELS)
#define FOREDRAFT_PANELS_NAME " panels"
#else
#define FOREDRAFT_PANELS_NAME ""
#endif
extern "C" {
__attribute__((visibility("default"))) const char * foredraft_kernels();
__attribute__((weak, used)) const char * foredraft_kernels() {
    return FOREDRAFT_KERNELS FOREDRAFT_ATTENTION_NAME FOREDRAFT_FEW_ROWS_NAME FOREDRAFT_PANELS_NAME;
}
}
#endif
