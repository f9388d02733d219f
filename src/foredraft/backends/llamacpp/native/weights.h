/* How weights lie in memory, and how they are asked for.

   A forward reads every weight once. Where all of them are more than the caches hold, none is still there when the
   next forward comes, and what they drive out is all that is needed between two forwards: the text, the drafters, the
   planner. So they are asked for past the caches. And they lie in pages of 2 MB where the system has such: the
   processor remembers the places of a few thousand pages, and weights are tens of thousands of small ones.

   The cache next to the processor can wait for two dozen lines at a time, and each is held until memory has answered.
   Where several rows use a line before the next one is due, that many are not enough to keep memory busy: such are
   asked for into the second cache, which can wait for more, from further away. */
#pragma once
#include "lanes.h"
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace foredraft {

constexpr size_t LARGE_PAGE = 2 << 20;
constexpr int64_t USUAL_CACHE = 32 << 20; // bytes, where the system does not say

/* Bytes of the last cache before memory, as Linux tells: sysconf has it ten times too large on some virtual machines. */
static inline int64_t largest_cache() {
    long kilobytes = 0;
    if (FILE * file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r")) {
        if (fscanf(file, "%ldK", &kilobytes) != 1) kilobytes = 0;
        fclose(file);
    }
    return kilobytes > 0 ? int64_t(kilobytes) << 10 : USUAL_CACHE;
}

/* Bytes of all weights that are laid out in this process. */
inline int64_t all_weights = 0;

/* Whether weights are gone from the caches by the time that they are read again. */
static inline bool passing() {
    static const int64_t cache = largest_cache();
    return __atomic_load_n(&all_weights, __ATOMIC_RELAXED) > cache;
}

/* Asks memory for a line: past the caches if it is read `once`. */
static inline void ask_for(const char * at, bool once) {
    if (once) {
        _mm_prefetch(at, _MM_HINT_NTA);
    } else {
        _mm_prefetch(at, _MM_HINT_T0);
    }
}

/* Asks for a line before which many others are used. */
static inline void ask_for_later(const char * at) { _mm_prefetch(at, _MM_HINT_T1); }

/* Memory for weights in large pages, as far as the system has such; null if there is none. */
inline void * new_weights(size_t bytes) {
    void * memory = nullptr;
    const size_t whole = (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    if (posix_memalign(&memory, LARGE_PAGE, whole)) return nullptr;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    // Before any of it is written: a large page is given where all of it was asked for.
    madvise(memory, whole, MADV_HUGEPAGE);
#endif
    __atomic_add_fetch(&all_weights, int64_t(bytes), __ATOMIC_RELAXED);
    return memory;
}

inline void free_weights(void * memory, size_t bytes) {
    __atomic_sub_fetch(&all_weights, int64_t(bytes), __ATOMIC_RELAXED);
    free(memory);
}

} // namespace foredraft
