/* Products of few rows with weights that llama.cpp has laid out for AMX.

   From two rows on llama.cpp takes AMX's tiles: it unpacks weights for them, stores what they add up to, and reads it
   back, which for few rows takes longer than reading the weights. Here weights are unpacked once for up to four rows,
   in registers. Sums of whole numbers are exact in any order, and the others are made in llama.cpp's: the bits are
   those of its one row, and of its tiles. */
#if defined(__AMX_INT8__) && defined(__AVX512VNNI__) && defined(__F16C__)
#define FOREDRAFT_FEW_ROWS
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <type_traits>

namespace foredraft {

constexpr int FEW = 8;        // rows, from which on tiles are faster
constexpr int FEW_OF_ANY = 4; // the same for types without a kernel here
constexpr int PANEL = 32;     // outputs of a call
constexpr int AHEAD = 1280;   // bytes; the processor alone does not look so far ahead while it computes

struct Nibbles {
    static constexpr bool known = true;
    static constexpr int scales = 256; // bytes before them
    static void unpack(const char * packed, __m512i * bytes) {
        const __m512i low = _mm512_set1_epi8(15);
        for (int k = 0; k < 8; k += 2) {
            const __m512i both = _mm512_loadu_si512(packed + k * 32);
            bytes[k] = _mm512_and_si512(both, low);
            bytes[k + 1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        }
    }
};

struct Bytes {
    static constexpr bool known = true;
    static constexpr int scales = 512;
    static void unpack(const char * packed, __m512i * bytes) {
        const __m512i sign = _mm512_set1_epi8(char(128));
        for (int k = 0; k < 8; ++k) bytes[k] = _mm512_xor_si512(_mm512_loadu_si512(packed + k * 64), sign);
    }
};

/* A packed block, of 32 inputs and 16 outputs, of the type whose block of one output has so many bytes. `zero` is the
   byte that stands for 0; without one, a block has its least values behind its scales. */
template <size_t BYTES> struct Block {
    static constexpr bool known = false;
};
template <> struct Block<18> : Nibbles { // Q4_0
    static constexpr int size = 288, zero = 8;
};
template <> struct Block<20> : Nibbles { // Q4_1
    static constexpr int size = 320, zero = 0;
};
template <> struct Block<34> : Bytes { // Q8_0
    static constexpr int size = 608, zero = 128;
};

static inline __m512 halves(const char * at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(at)));
}

static inline __m512 half(uint16_t number) { return _mm512_set1_ps(_cvtsh_ss(number)); }

/* The sums over a block's inputs, of bytes and the signed bytes at `row`. */
static inline __m512i products(const __m512i * bytes, const int32_t * row) {
    __m512i sum = _mm512_setzero_si512();
    for (int k = 0; k < 8; ++k) sum = _mm512_dpbusd_epi32(sum, bytes[k], _mm512_set1_epi32(row[k]));
    return sum;
}

static inline __m512i products(char byte, const int32_t * row) {
    const __m512i same = _mm512_set1_epi8(byte);
    const __m512i bytes[] = {same, same, same, same, same, same, same, same};
    return products(bytes, row);
}

/* R rows times a panel. `TA` is ggml's block of 32 inputs of a row. */
template <typename TA, typename B, int R>
static void multiply(int blocks, const TA * inputs, const char * weights, float * out, int step) {
    __m512 total[R][2];
    for (int r = 0; r < R; ++r) total[r][0] = total[r][1] = _mm512_setzero_ps();
    for (int i = 0; i < blocks; ++i) {
        for (int side = 0; side < 2; ++side) {
            const char * packed = weights + size_t(side * blocks + i) * B::size;
            for (int line = 0; line < B::size; line += 64) _mm_prefetch(packed + AHEAD + line, _MM_HINT_T0);
            __m512i bytes[8];
            B::unpack(packed, bytes);
            const __m512 scale = halves(packed + B::scales);
            for (int r = 0; r < R; ++r) {
                const TA & row = inputs[r * blocks + i];
                const int32_t * signs = reinterpret_cast<const int32_t *>(row.qs);
                __m512i sum = products(bytes, signs);
                if constexpr (B::zero != 0) sum = _mm512_sub_epi32(sum, products(char(B::zero), signs));
                const __m512 both = _mm512_mul_ps(scale, half(row.d));
                total[r][side] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), both, total[r][side]);
                if constexpr (B::zero == 0) {
                    const __m512 least = halves(packed + B::scales + 32);
                    total[r][side] = _mm512_fmadd_ps(least, half(row.s), total[r][side]);
                }
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int side = 0; side < 2; ++side) _mm512_storeu_ps(out + r * step + side * 16, total[r][side]);
    }
}

template <typename TA, typename B>
static void by_fours(int rows, int blocks, const TA * inputs, const char * weights, float * out, int step) {
    for (; rows >= 4; rows -= 4, inputs += 4 * blocks, out += 4 * step) {
        multiply<TA, B, 4>(blocks, inputs, weights, out, step);
    }
    if (rows == 3) multiply<TA, B, 3>(blocks, inputs, weights, out, step);
    if (rows == 2) multiply<TA, B, 2>(blocks, inputs, weights, out, step);
    if (rows == 1) multiply<TA, B, 1>(blocks, inputs, weights, out, step);
}

} // namespace foredraft

/* In the namespace without a name, as llama.cpp's are: declarations of what is called here, then the function that is
   preferred to its two of this name. They take (const void *) where the call passes (const char *). */
namespace {
template <typename T> struct is_type_qkk;
template <typename, typename, typename, int, int, int> struct tinygemm_kernel_vnni;
template <typename TA, typename TB, typename TC, int SIZE, typename std::enable_if<!is_type_qkk<TB>::value, int>::type>
void tinygemm_kernel_amx(int, int, int, const void *, const void *, TC *, int);
template <typename TA, typename TB, typename TC, int SIZE, typename std::enable_if<is_type_qkk<TB>::value, int>::type>
void tinygemm_kernel_amx(int, int, int, const void *, const void *, float *, int);

template <typename TA, typename TB, typename TC, int SIZE>
void tinygemm_kernel_amx(
    int rows, int outputs, int blocks, const char * inputs, const char * weights, TC * out, int step) {
    using B = foredraft::Block<is_type_qkk<TB>::value ? 0 : sizeof(TB)>;
    if (outputs != foredraft::PANEL || rows > (B::known ? foredraft::FEW : foredraft::FEW_OF_ANY)) {
        const void * a = inputs;
        const void * b = weights;
        tinygemm_kernel_amx<TA, TB, TC, SIZE, 0>(rows, outputs, blocks, a, b, out, step);
    } else if constexpr (B::known) {
        foredraft::by_fours<TA, B>(rows, blocks, reinterpret_cast<const TA *>(inputs), weights, out, step);
    } else {
        for (int row = 0; row < rows; ++row) {
            const char * one = inputs + size_t(row) * blocks * sizeof(TA);
            tinygemm_kernel_vnni<TA, TB, TC, 1, foredraft::PANEL, SIZE>::apply(
                blocks, one, weights, out + row * step, step);
        }
    }
}
} // namespace
#endif
