/* Attention of several rows to the same cells (llama.cpp's flash attention on a processor).

   llama.cpp takes rows one by one, and cells one by one: a product, an exponential and a sum for each, some 50 ns.
   Here a block of cells is taken at once, and rows share what is loaded of it. A row's result depends on nothing but
   its query and the cells it sees: blocks begin at fixed cells, and cells behind a row's own add exact zeros. The
   running maximum and sum are those of Milakov and Gimelshein (2018, arXiv 1805.02867). */
#pragma once
#include "lanes.h"
#include "ggml_abi.h"
#include <string.h>

namespace foredraft {

constexpr int TOGETHER = 4;    // rows
constexpr int MOST_SIZE = 256; // numbers of a value
constexpr int AHEAD_OF_CELL = 16;   // cells; the processor does not foresee steps over other heads' numbers
constexpr int WIDE = REGISTERS / 8; // registers of a value that are summed up at once

template <int TYPE> static inline Floats numbers(const char * at, int index) {
    if constexpr (TYPE == F32) return load(reinterpret_cast<const float *>(at) + index);
    if constexpr (TYPE == F16) return load_fp16(at + 2 * index);
    return load_bf16(at + 2 * index);
}

/* Asks for the memory from `at` on. Many such questions at once are forgotten, so one is asked with each cell. */
static inline void expect(const char * at, size_t bytes) {
    _mm_prefetch(at, _MM_HINT_T0);
    if (bytes > 64) _mm_prefetch(at + 64, _MM_HINT_T0);
    for (size_t line = 128; line < bytes; line += 64) _mm_prefetch(at + line, _MM_HINT_T0);
}

struct Cells {
    const char * keys, * values;
    size_t key_step, value_step; // bytes
    int64_t count;
    int key_size, value_size;
    float scale;
};

struct Rows {
    const float * query[TOGETHER];
    const char * mask[TOGETHER]; // fp16, added to the scores: -infinity where a row must not look; or null
    float * out[TOGETHER];
};

/* What is added to a row's scores of a block: -infinity behind the last cell, too. */
static inline Floats hidden(const char * mask, int64_t first, int64_t count) {
    if (mask && first + LANES <= count) return load_fp16(mask + 2 * first);
    alignas(64) uint16_t some[LANES];
    for (int c = 0; c < LANES; ++c) some[c] = first + c < count ? 0 : 0xfc00;
    if (mask) memcpy(some, mask + 2 * first, 2 * size_t(count - first < LANES ? count - first : LANES));
    return load_fp16(reinterpret_cast<const char *>(some));
}

/* Products of the queries with the keys of a block, scaled. */
template <int K, int R>
static inline void score(const Cells & cells, const Rows & rows, int64_t first, Floats * scores) {
    Floats parts[R][LANES];
    for (int c = 0; c < LANES; ++c) {
        const int64_t cell = first + c < cells.count ? first + c : cells.count - 1;
        const char * key = cells.keys + cell * cells.key_step;
        expect(key + AHEAD_OF_CELL * cells.key_step, size_t(cells.key_size) * (K == F32 ? 4 : 2));
        Floats part[R];
        for (int r = 0; r < R; ++r) part[r] = all(0.0f);
        for (int i = 0; i < cells.key_size; i += LANES) {
            const Floats some = numbers<K>(key, i);
            for (int r = 0; r < R; ++r) part[r] = fma(some, load(rows.query[r] + i), part[r]);
        }
        for (int r = 0; r < R; ++r) parts[r][c] = part[r];
    }
    for (int r = 0; r < R; ++r) scores[r] = mul(sums(parts[r]), all(cells.scale));
}

/* Adds a block's values, times their weights, to W registers of the totals, from `at` on. */
template <int V, int R, int W>
static inline void weigh(
    const Cells & cells, const float (*weights)[LANES], int64_t first, int at, float (*totals)[MOST_SIZE]) {
    Floats total[R][W];
    for (int r = 0; r < R; ++r) {
        for (int w = 0; w < W; ++w) total[r][w] = load(totals[r] + at + w * LANES);
    }
    const int end = cells.count - first < LANES ? int(cells.count - first) : LANES;
    const char * value = cells.values + first * cells.value_step;
    for (int c = 0; c < end; ++c, value += cells.value_step) {
        const int bytes = V == F32 ? 4 : 2;
        expect(value + AHEAD_OF_CELL * cells.value_step + at * bytes, size_t(W * LANES * bytes));
        Floats some[W];
        for (int w = 0; w < W; ++w) some[w] = numbers<V>(value, at + w * LANES);
        for (int r = 0; r < R; ++r) {
            const Floats weight = all(weights[r][c]);
            for (int w = 0; w < W; ++w) total[r][w] = fma(weight, some[w], total[r][w]);
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int w = 0; w < W; ++w) store(totals[r] + at + w * LANES, total[r][w]);
    }
}

/* R rows over all cells. */
template <int K, int V, int R> static void attend(const Cells & cells, const Rows & rows) {
    alignas(64) float totals[R][MOST_SIZE] = {};
    alignas(64) float weights[R][LANES];
    Floats sums_of[R];
    float top[R];
    for (int r = 0; r < R; ++r) {
        sums_of[r] = all(0.0f);
        top[r] = -INFINITY;
    }
    for (int64_t first = 0; first < cells.count; first += LANES) {
        Floats added[R], scores[R];
        bool seen[R], any = false;
        for (int r = 0; r < R; ++r) {
            added[r] = hidden(rows.mask[r], first, cells.count);
            seen[r] = largest(added[r]) > -INFINITY;
            any |= seen[r];
        }
        if (!any) continue;
        score<K, R>(cells, rows, first, scores);
        for (int r = 0; r < R; ++r) {
            if (!seen[r]) {
                store(weights[r], all(0.0f));
                continue;
            }
            const Floats found = where_above(added[r], -INFINITY, add(scores[r], added[r]), all(-INFINITY));
            const float highest = largest(found);
            if (highest > top[r]) {
                const Floats less = top[r] > -INFINITY ? exponential(all(top[r] - highest)) : all(0.0f);
                top[r] = highest;
                sums_of[r] = mul(sums_of[r], less);
                for (int i = 0; i < cells.value_size; i += LANES) store(totals[r] + i, mul(load(totals[r] + i), less));
            }
            const Floats weight = exponential(sub(found, all(top[r])));
            const Floats kept = where_above(added[r], -INFINITY, weight, all(0.0f));
            sums_of[r] = add(sums_of[r], kept);
            store(weights[r], kept);
        }
        int at = 0;
        for (; at + WIDE * LANES <= cells.value_size; at += WIDE * LANES) {
            weigh<V, R, WIDE>(cells, weights, first, at, totals);
        }
        for (; at < cells.value_size; at += LANES) weigh<V, R, 1>(cells, weights, first, at, totals);
    }
    for (int r = 0; r < R; ++r) {
        const float whole = sum(sums_of[r]);
        const Floats part = all(whole > 0.0f ? 1.0f / whole : 0.0f);
        for (int i = 0; i < cells.value_size; i += LANES) store(rows.out[r] + i, mul(load(totals[r] + i), part));
    }
}

using Attend = void (*)(const Cells &, const Rows &);

template <int K, int V> static Attend of_rows(int count) {
    static const Attend known[] = {attend<K, V, 1>, attend<K, V, 2>, attend<K, V, 3>, attend<K, V, 4>};
    return known[count - 1];
}

/* For `count` rows and caches of these types; null for types that are llama.cpp's business. */
static inline Attend choose(int keys, int values, int count) {
    if (keys == BF16 && values == BF16) return of_rows<BF16, BF16>(count);
    if (keys == BF16 && values == F16) return of_rows<BF16, F16>(count);
    if (keys == F16 && values == F16) return of_rows<F16, F16>(count);
    if (keys == F16 && values == BF16) return of_rows<F16, BF16>(count);
    if (keys == F32 && values == F32) return of_rows<F32, F32>(count);
    return nullptr;
}

} // namespace foredraft
