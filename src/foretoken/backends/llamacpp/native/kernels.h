/* Foretoken's part of llama.cpp: included before every file of it (-include kernels.h), when llama.cpp is compiled.

   Verifying a draft is a forward of several rows. llama.cpp reads the cells of a context again for each of them, and,
   with AMX, weights by way of tiles that pay from eight rows on. What is here lets rows share what is read, with the
   results of one row, bit for bit. No file of llama.cpp is changed: overloads that fit a call better than its own
   functions are preferred to these, by the rules of C++. Where they no longer fit, llama.cpp's own are called.

   The function says what was compiled in, for kernels.py. Its number is raised when a result may change, or its cost. */
#if defined(__cplusplus) && defined(__GNUC__)
#define FORETOKEN_KERNELS "5"
#include "amx_tiles.h"
#include "attention.h"
#include "few_rows_f16.h"
#include "few_rows_packed.h"
#include "graphs.h"
#include "repacked.h"
#ifdef FORETOKEN_ATTENTION
#define FORETOKEN_ATTENTION_NAME " attention"
#else
#define FORETOKEN_ATTENTION_NAME ""
#endif
#ifdef FORETOKEN_FEW_ROWS
#define FORETOKEN_FEW_ROWS_NAME " few-rows"
#else
#define FORETOKEN_FEW_ROWS_NAME ""
#endif
#if defined(FORETOKEN_WIDE)
#define FORETOKEN_PANELS_NAME " panels-wide"
#elif defined(FORETOKEN_VNNI)
#define FORETOKEN_PANELS_NAME " panels-vnni"
#elif defined(FORETOKEN_PANELS)
#define FORETOKEN_PANELS_NAME " panels"
#else
#define FORETOKEN_PANELS_NAME ""
#endif
extern "C" {
__attribute__((visibility("default"))) const char * foretoken_kernels();
__attribute__((weak, used)) const char * foretoken_kernels() {
    return FORETOKEN_KERNELS FORETOKEN_ATTENTION_NAME FORETOKEN_FEW_ROWS_NAME FORETOKEN_PANELS_NAME;
}
}
#endif
