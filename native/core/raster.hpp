// Pictures of display lists, drawn by hand so that they need neither a screen nor a library.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/fugu_env.h"
#include "core/raster_font.hpp"

namespace fugu {

// Every shape becomes convex pieces, and a convex piece crosses each row of samples in one span. A
// pixel has kSamples rows and columns of samples, whose colours are averaged at last: a sample
// belongs to exactly one of two pieces that touch, so that no seam shows between them.
class Raster {
public:
    Raster(uint32_t background, const FuguShape* shapes, size_t count, float width, float height)
        : background_(background), shapes_(shapes), count_(count), width_(width), height_(height) {}

    // Draws into RGB8 pixels, [rows, columns, 3]; the picture keeps its shape and is centred.
    void draw(uint8_t* out, size_t columns, size_t rows) {
        place(columns, rows);
        pieces_.clear();
        for (size_t i = 0; i < count_; ++i)
            add(shapes_[i]);
        for (size_t row = 0; row < rows; row += kBand)
            draw_band(out + row * columns * 3, row, std::min(kBand, rows - row));
    }

private:
    static constexpr int kSamples = 4;
    static constexpr size_t kBand = 8;       // rows of pixels drawn at a time, to stay in cache
    static constexpr double kThinnest = 0.8; // pixels: what is thinner would come and go

    struct Point {
        double x, y;
    };

    // The convex hull of circles and edges, in samples; x is to be shifted by each row's share.
    struct Piece {
        uint32_t color;
        int circles, edges;
        double radius, top, bottom;
        Point centres[2];
        Point ends[4][2];
    };

    // ------------------------------------------------------------------ shapes to pieces

    void place(size_t columns, size_t rows) {
        columns_ = columns;
        scale_ =
            std::min(static_cast<double>(columns) / width_, static_cast<double>(rows) / height_);
        left_ = (static_cast<double>(columns) - scale_ * width_) / 2;
        top_ = (static_cast<double>(rows) - scale_ * height_) / 2;
        scale_ *= kSamples;
        left_ *= kSamples;
        top_ *= kSamples;
        right_ = left_ + scale_ * width_;
        bottom_ = top_ + scale_ * height_;
    }

    Point point(float x, float y) const { return {left_ + scale_ * x, top_ + scale_ * y}; }

    void add(const FuguShape& s) {
        for (int i = 0; i < 3; ++i)
            if (!std::isfinite(s.x[i]) || !std::isfinite(s.y[i]))
                return;
        const double size = std::isfinite(s.size) ? scale_ * s.size : 0;
        const Point a = point(s.x[0], s.y[0]), b = point(s.x[1], s.y[1]), c = point(s.x[2], s.y[2]);
        if (s.kind == FUGU_RECTANGLE)
            add_polygon(s.color, {a, {b.x, a.y}, b, {a.x, b.y}});
        else if (s.kind == FUGU_TRIANGLE)
            add_polygon(s.color, {a, b, c});
        else if (size <= 0)
            return;
        else if (s.kind == FUGU_CIRCLE)
            add_stroke(s.color, a, a, size);
        else if (s.kind == FUGU_LINE)
            add_stroke(s.color, a, b, size / 2);
        else if (s.kind == FUGU_LETTERS)
            add_text(s.color, a, size / kTextHeight, s.text);
    }

    void add_polygon(uint32_t color, std::initializer_list<Point> corners) {
        Piece piece{color, 0, 0, 0, INFINITY, -INFINITY, {}, {}};
        const Point* first = corners.begin();
        const size_t count = corners.size();
        for (size_t i = 0; i < count; ++i) {
            piece.top = std::min(piece.top, first[i].y);
            piece.bottom = std::max(piece.bottom, first[i].y);
            add_edge(piece, first[i], first[(i + 1) % count]);
        }
        keep(piece);
    }

    // What a round pen leaves between two points.
    void add_stroke(uint32_t color, Point a, Point b, double radius) {
        radius = std::max(radius, kThinnest * kSamples / 2);
        const double dx = b.x - a.x, dy = b.y - a.y, length = std::hypot(dx, dy);
        Piece piece{color,  1, 0, radius, std::min(a.y, b.y) - radius, std::max(a.y, b.y) + radius,
                    {a, b}, {}};
        if (length > 0) {
            const double x = -dy / length * radius, y = dx / length * radius;
            piece.circles = 2;
            add_edge(piece, {a.x + x, a.y + y}, {b.x + x, b.y + y});
            add_edge(piece, {a.x - x, a.y - y}, {b.x - x, b.y - y});
        }
        keep(piece);
    }

    static void add_edge(Piece& piece, Point a, Point b) {
        if (a.y == b.y)
            return; // its ends are ends of others, or of the circles
        piece.ends[piece.edges][0] = a.y < b.y ? a : b;
        piece.ends[piece.edges++][1] = a.y < b.y ? b : a;
    }

    void keep(const Piece& piece) {
        if (piece.bottom > top_ && piece.top < bottom_)
            pieces_.push_back(piece);
    }

    // ------------------------------------------------------------------ text

    void add_text(uint32_t color, Point middle, double step, const char* text) {
        double width = -kTextGap;
        for (const char* at = text; *at; ++at)
            width += advance_of(static_cast<unsigned char>(*at));
        Point corner{middle.x - width * step / 2, middle.y - kTextMiddle * step};
        for (const char* at = text; *at; ++at) {
            add_letter(color, corner, step, strokes_of(static_cast<unsigned char>(*at)));
            corner.x += advance_of(static_cast<unsigned char>(*at)) * step;
        }
    }

    void add_letter(uint32_t color, Point corner, double step, const char* strokes) {
        while (*strokes) {
            Point pen{}, pull{};
            bool down = false, pulled = false;
            double length = 0;
            for (; *strokes && *strokes != ' '; strokes += 2) {
                const bool control = strokes[1] < 'a';
                const int row = strokes[1] - (control ? 'B' : 'b');
                const Point next{corner.x + (strokes[0] - '0') * kTextAspect * step,
                                 corner.y + row * step};
                if (control && !pulled) {
                    pull = next;
                    pulled = true;
                    continue;
                }
                const Point end =
                    control ? Point{(pull.x + next.x) / 2, (pull.y + next.y) / 2} : next;
                if (down)
                    length += add_curve(color, pen, pulled ? pull : pen, end, step * kTextPen / 2);
                pen = end;
                down = true;
                pulled = control;
                pull = next;
            }
            if (length == 0 && down)
                add_stroke(color, pen, pen, step * kTextDot / 2);
            strokes += *strokes == ' ';
        }
    }

    double add_curve(uint32_t color, Point a, Point pull, Point b, double radius) {
        const bool straight = pull.x == a.x && pull.y == a.y;
        const int pieces = straight ? 1 : 6;
        Point last = a;
        for (int i = 1; i <= pieces && (a.x != b.x || a.y != b.y); ++i) {
            const double t = static_cast<double>(i) / pieces, u = 1 - t;
            const double w0 = straight ? u : u * u, w1 = straight ? 0 : 2 * u * t;
            const double w2 = straight ? t : t * t;
            const Point next{w0 * a.x + w1 * pull.x + w2 * b.x, w0 * a.y + w1 * pull.y + w2 * b.y};
            add_stroke(color, last, next, radius);
            last = next;
        }
        return std::hypot(b.x - a.x, b.y - a.y);
    }

    // ------------------------------------------------------------------ pieces to samples

    void draw_band(uint8_t* out, size_t row, size_t rows) {
        const size_t stride = columns_ * kSamples;
        samples_.assign(stride * rows * kSamples, background_);
        const double begin = static_cast<double>(row * kSamples);
        const double end = begin + static_cast<double>(rows * kSamples);
        for (const Piece& piece : pieces_) {
            const double top = std::max({piece.top, begin, top_}) - begin;
            const double bottom = std::min({piece.bottom, end, bottom_}) - begin;
            for (int y = first_sample(top); y < first_sample(bottom); ++y)
                draw_row(piece, begin + y + 0.5, y % kSamples,
                         samples_.data() + static_cast<size_t>(y) * stride);
        }
        average(out, rows);
    }

    // The first sample whose middle is not before `at`.
    static int first_sample(double at) { return static_cast<int>(std::ceil(at - 0.5)); }

    void draw_row(const Piece& piece, double y, int row, uint32_t* samples) const {
        double low = INFINITY, high = -INFINITY;
        for (int i = 0; i < piece.circles; ++i) {
            const double dy = y - piece.centres[i].y;
            const double square = piece.radius * piece.radius - dy * dy;
            if (square >= 0) {
                const double half = std::sqrt(square);
                low = std::min(low, piece.centres[i].x - half);
                high = std::max(high, piece.centres[i].x + half);
            }
        }
        for (int i = 0; i < piece.edges; ++i) {
            const Point &a = piece.ends[i][0], &b = piece.ends[i][1];
            if (y < a.y || y > b.y)
                continue;
            const double x = a.x + (b.x - a.x) * ((y - a.y) / (b.y - a.y));
            low = std::min(low, x);
            high = std::max(high, x);
        }
        // Rows are set off against each other, so that upright edges get more shades too.
        static const double kShift[kSamples] = {-0.375, 0.125, -0.125, 0.375};
        low = std::max(low, left_) + kShift[row];
        high = std::min(high, right_) + kShift[row];
        if (low < high) {
            const double last = static_cast<double>(columns_ * kSamples);
            const int begin = first_sample(std::clamp(low, 0.0, last));
            const int end = first_sample(std::clamp(high, 0.0, last));
            if (begin < end)
                std::fill(samples + begin, samples + end, piece.color);
        }
    }

    void average(uint8_t* out, size_t rows) const {
        constexpr uint32_t kCount = kSamples * kSamples;
        const size_t stride = columns_ * kSamples;
        for (size_t row = 0; row < rows; ++row)
            for (size_t column = 0; column < columns_; ++column, out += 3) {
                const uint32_t* from =
                    samples_.data() + row * kSamples * stride + column * kSamples;
                // Red and blue are added side by side: 16 bits hold the sum of 16 samples.
                uint32_t red_blue = 0, green = 0;
                for (int y = 0; y < kSamples; ++y, from += stride)
                    for (int x = 0; x < kSamples; ++x) {
                        red_blue += from[x] & 0xFF00FF;
                        green += from[x] >> 8 & 0xFF;
                    }
                out[0] = static_cast<uint8_t>(((red_blue >> 16) + kCount / 2) / kCount);
                out[1] = static_cast<uint8_t>((green + kCount / 2) / kCount);
                out[2] = static_cast<uint8_t>(((red_blue & 0xFFFF) + kCount / 2) / kCount);
            }
    }

    uint32_t background_;
    const FuguShape* shapes_;
    size_t count_, columns_ = 0;
    double width_, height_;                                          // in units of the list
    double scale_ = 1, left_ = 0, top_ = 0, right_ = 0, bottom_ = 0; // of it, in samples
    std::vector<Piece> pieces_;
    std::vector<uint32_t> samples_;
};

} // namespace fugu
