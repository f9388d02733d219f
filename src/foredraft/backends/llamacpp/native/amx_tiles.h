/* Mends GCC 12's intrinsics that configure AMX's tiles: they say that 8 bytes are read or written where 64 are, so that
   the stores of the other 56 are left out. */
#if defined(__x86_64__) && defined(__AMX_TILE__)
#include <immintrin.h>
#undef _tile_loadconfig
#undef _tile_storeconfig
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg\t%0" ::"m"(*(const char(*)[64])(config)))
#define _tile_storeconfig(config) __asm__ volatile("sttilecfg\t%0" : "=m"(*(char(*)[64])(config)))
#endif
