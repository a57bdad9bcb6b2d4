// What networks are computed with: loops over plain memory, compiled for several kinds of
// processor. A row's numbers are the same bits whatever stands around it.
#pragma once

#include <cstddef>
#include <cstdint>

#define FUGU_NET_INLINE inline __attribute__((always_inline))

// Before a loop of a fixed number of passes over sums: written out, so that those stay in
// registers.
#if defined(__clang__)
#define FUGU_UNROLLED _Pragma("clang loop unroll(full)")
#else
#define FUGU_UNROLLED _Pragma("GCC unroll 32")
#endif

namespace fugu::nets {

enum class Function { Relu, Gelu, Silu, Tanh, Sigmoid, Symlog, Mingru, Finite };
enum class Pair { Add, Multiply };
enum class Reduction { Sum, Mean, Largest };
enum class Type { Bool, I8, U8, I16, U16, I32, U32, I64, U64, F16, F32, F64 };

// Rows of numbers; the stride counts numbers.
template <typename T> struct Table {
    T* data = nullptr;
    size_t rows = 0, width = 0, stride = 0;

    FUGU_NET_INLINE T* at(size_t row) const { return data + row * stride; }
    FUGU_NET_INLINE bool dense() const { return stride == width; }
    // The same numbers as a single row, of a table without gaps.
    FUGU_NET_INLINE Table flat() const { return {data, 1, rows * width, rows * width}; }
};
using In = Table<const float>;
using Out = Table<float>;

// What is multiplied stands in words of 32 bits: each is a float, or a pair of bfloat16 numbers
// whose two products are added up at once, in float32.
enum class Words { Floats, Pairs };

// out = x @ weight + bias. What is multiplied need not stand side by side: a row has pieces of one
// length, each at its offset, so that images need not be copied. Lengths count words.
struct Product {
    const float* x = nullptr;
    size_t stride = 0; // between rows of x
    const int32_t* pieces = nullptr;
    size_t num_pieces = 0, length = 0;
    const float *weight = nullptr, *bias = nullptr; // as Packed arranges them
    bool narrow = false;                            // how they are arranged
    Words words = Words::Floats;
    bool adds = false; // to what stands there
    Out out;
};

// out += one^T @ other, of two tables whose rows belong together.
struct Outer {
    In one, other; // [depth, rows of out], [depth, width of out], in words
    Words words = Words::Floats;
    Out out;
};

// Images [height, width, channels], or [channels, height, width] of what comes in.
struct Convolution {
    Product product;                            // of one row of pixels: without x and out
    size_t step = 0;                            // numbers from one row of windows to the next
    size_t rows = 0, columns = 0, channels = 0; // of what it gives
};

struct Pooling {
    size_t height = 0, width = 0, channels = 0, rows = 0, columns = 0;
    size_t kernel = 0, stride = 0, padding = 0;
};

struct Attention {
    In query, keys, values; // [1, width], [places, width] twice
    float count = 0;        // of the last places
    size_t heads = 0, ages = 0;
    const float* bias = nullptr;             // [heads, ages]
    float *scores = nullptr, *out = nullptr; // [places], [width]
};

// One step of an LSTM's cells. Gates stand in torch's order: input, forget, cell, output.
struct LstmForth {
    Out gates;                       // [rows, 4 hidden]: of the inputs; kept gates stand there then
    In made;                         // the same of what is fed back
    const float* bias = nullptr;     // [4 hidden]
    In before;                       // [rows, hidden]: cells
    Out after, shown;                // [rows, hidden]
    const uint8_t* resets = nullptr; // [rows]; none if missing
    bool keeps = false;
};
struct LstmBack {
    Out gates;               // as they were kept; their gradients stand there then
    In before, after;        // [rows, hidden]: cells
    In shown_grad, fed_grad; // [rows, hidden]; of what was shown, and fed to the next step
    Out cell_grad;           // [rows, hidden]: of the cells after, becomes that of those before
    const uint8_t *resets = nullptr, *next_resets = nullptr; // [rows]; none if missing
};

struct Kernels {
    const char* name;
    size_t lanes; // numbers of a vector

    bool multiplies_pairs; // by an instruction of its own

    void (*product)(const Product&);
    void (*outer)(const Outer&);
    // Numbers as words of pairs: neighbours in a row [rows, width / 2], or in a column [rows / 2,
    // width], rows of which stand so far apart; what has no neighbour is paired with 0.
    void (*pair_rows)(const In&, float* out);
    void (*pair_columns)(const In&, size_t stride, float* out);
    void (*convolve)(const Convolution&, const float* image, float* out);
    void (*pool)(const Pooling&, const float* image, float* out);
    void (*apply)(Function, const In&, const Out&);
    // With the slopes, which gradients are multiplied by.
    void (*apply_keeping)(Function, const In&, const Out&, const Out& slopes);
    void (*combine)(Pair, const In&, const In&, const Out&);
    void (*add_product)(const In&, const In&, const Out&); // out += a * b
    void (*add_rows)(const In&, float* sums);              // of each column
    void (*blend)(const In& start, const In& end, const In& weight, const Out&);
    void (*scale)(const In&, const float* shift, const float* divisor, float most, const Out&);
    void (*normalise)(const In&, const float* weight, const float* bias, float epsilon, const Out&);
    // Adds the gradients of what came in, and of weight and bias, each if it is wanted.
    void (*normalise_back)(const In&, const In& grads, const float* weight, float epsilon,
                           const Out&, float* weight_grad, float* bias_grad);
    void (*reduce)(Reduction, const In&, size_t count, const Out&);
    void (*lstm_forth)(const LstmForth&);
    void (*lstm_back)(const LstmBack&);
    void (*attend)(const Attention&);
    void (*convert)(Type, const void*, size_t count, float* out);
};

} // namespace fugu::nets
