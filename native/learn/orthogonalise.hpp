// Matrices made orthogonal by Newton-Schulz steps, as Muon's updates are; the definition, in torch,
// is fugu/algos/muon.py. Threads share the rows of each product; how many there are does not
// change a bit.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/team.hpp"
#include "nets/weights.hpp"

namespace fugu::learn {

class Orthogonaliser {
public:
    using Polynomial = std::array<float, 3>; // a, b, c of x (a + b x'x + c (x'x)^2)

    Orthogonaliser(const nets::Kernels& kernels, size_t rows, size_t columns, size_t threads)
        : kernels_(kernels), rows_(rows), columns_(columns),
          threads_(rows * columns * columns < kAlone ? 1 : threads) {
        next_.resize(rows * columns);
        gram_.resize(columns * columns), square_.resize(columns * columns);
    }

    // In place; `x` has no fewer rows than columns.
    void run(float* x, const std::vector<Polynomial>& steps) {
        const float scale = 1.0f / std::max(norm(x), 1e-7f);
        float *now = x, *next = next_.data();
        for (size_t i = 0; i < rows_ * columns_; ++i)
            now[i] *= scale;
        for (const Polynomial& polynomial : steps) {
            step(now, polynomial, next);
            std::swap(now, next);
        }
        if (now != x)
            std::copy_n(now, rows_ * columns_, x);
    }

private:
    static constexpr size_t kAlone = size_t{1} << 18; // multiplications that one thread does best

    // Sums are taken side by side, in one order.
    float norm(const float* x) const {
        constexpr size_t kSums = 8;
        const size_t size = rows_ * columns_;
        double sums[kSums] = {}, squares = 0.0;
        size_t i = 0;
        for (; i + kSums <= size; i += kSums)
            for (size_t k = 0; k < kSums; ++k)
                sums[k] += static_cast<double>(x[i + k]) * static_cast<double>(x[i + k]);
        for (; i < size; ++i)
            squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        for (double sum : sums)
            squares += sum;
        return static_cast<float>(std::sqrt(squares));
    }
    void step(const float* x, const Polynomial& polynomial, float* next) {
        const auto [a, b, c] = polynomial;
        multiply_columns({x, rows_, columns_, columns_}, gram_.data());
        // It is its own transpose, so that columns serve as rows.
        multiply_columns({gram_.data(), columns_, columns_, columns_}, square_.data());
        for (size_t i = 0; i < columns_ * columns_; ++i)
            square_.data()[i] = b * gram_.data()[i] + c * square_.data()[i];
        for (size_t i = 0; i < columns_; ++i)
            square_.data()[i * columns_ + i] += a;
        const nets::Matrix factor{square_.data(), columns_, columns_};
        factor_.load(kernels_, nets::Packed::back(factor), nullptr, true);
        in_parts(rows_, [&](size_t begin, size_t end) {
            nets::Product task = factor_.product();
            task.x = x + begin * columns_, task.stride = columns_;
            task.out = {next + begin * columns_, end - begin, columns_, columns_};
            kernels_.product(task);
        });
    }
    // out = x' x, [width, width]
    void multiply_columns(const nets::In& x, float* out) {
        std::fill_n(out, x.width * x.width, 0.0f);
        in_parts(x.width, [&](size_t begin, size_t end) {
            nets::Outer task;
            task.one = {x.data + begin, x.rows, end - begin, x.stride}, task.other = x;
            task.out = {out + begin * x.width, end - begin, x.width, x.width};
            kernels_.outer(task);
        });
    }
    template <typename Work> void in_parts(size_t count, const Work& work) {
        const size_t parts = std::max<size_t>(1, std::min(threads_, count));
        Team::run(parts, threads_, [&](size_t part) {
            const size_t begin = part * count / parts, end = (part + 1) * count / parts;
            if (begin < end)
                work(begin, end);
        });
    }

    const nets::Kernels& kernels_;
    size_t rows_, columns_, threads_;
    nets::Buffer next_, gram_, square_;
    nets::Packed factor_;
};

} // namespace fugu::learn
