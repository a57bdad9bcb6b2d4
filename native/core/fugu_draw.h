/* fugu_draw.h: pictures as display lists; one rasteriser makes pixels of them. */
#ifndef FUGU_DRAW_H
#define FUGU_DRAW_H

#include <stdint.h>

#define FUGU_TEXT 48

enum { FUGU_RECTANGLE, FUGU_CIRCLE, FUGU_LINE, FUGU_TRIANGLE, FUGU_LETTERS };

/* One item of a display list; later ones lie above earlier ones. Colours are 0xRRGGBB. */
typedef struct FuguShape {
    int32_t kind;
    uint32_t color;
    float x[3], y[3]; /* corner or centre or ends or corners; y grows downward */
    float size;       /* a circle's radius, a line's width, the height of letters */
    char text[FUGU_TEXT];
} FuguShape;

typedef struct FuguCanvas {
    FuguShape* shapes;
    int32_t count, capacity; /* what does not fit is counted and not drawn */
    uint32_t background;
} FuguCanvas;

static inline void fugu_shape(FuguCanvas* canvas, int kind, uint32_t color, float x0, float y0,
                              float x1, float y1, float x2, float y2, float size) {
    if (canvas->count < canvas->capacity) {
        FuguShape* shape = &canvas->shapes[canvas->count];
        shape->kind = kind;
        shape->color = color;
        shape->x[0] = x0;
        shape->y[0] = y0;
        shape->x[1] = x1;
        shape->y[1] = y1;
        shape->x[2] = x2;
        shape->y[2] = y2;
        shape->size = size;
        shape->text[0] = 0;
    }
    ++canvas->count;
}

static inline void fugu_rectangle(FuguCanvas* canvas, float x, float y, float width, float height,
                                  uint32_t color) {
    fugu_shape(canvas, FUGU_RECTANGLE, color, x, y, x + width, y + height, 0, 0, 0);
}

static inline void fugu_circle(FuguCanvas* canvas, float x, float y, float radius, uint32_t color) {
    fugu_shape(canvas, FUGU_CIRCLE, color, x, y, 0, 0, 0, 0, radius);
}

static inline void fugu_line(FuguCanvas* canvas, float x0, float y0, float x1, float y1,
                             float width, uint32_t color) {
    fugu_shape(canvas, FUGU_LINE, color, x0, y0, x1, y1, 0, 0, width);
}

static inline void fugu_triangle(FuguCanvas* canvas, float x0, float y0, float x1, float y1,
                                 float x2, float y2, uint32_t color) {
    fugu_shape(canvas, FUGU_TRIANGLE, color, x0, y0, x1, y1, x2, y2, 0);
}

/* Letters whose middle is at (x, y): ASCII, at most FUGU_TEXT - 1 of them. Capitals are two thirds
   of the height. */
static inline void fugu_text(FuguCanvas* canvas, float x, float y, float height, uint32_t color,
                             const char* text) {
    fugu_shape(canvas, FUGU_LETTERS, color, x, y, 0, 0, 0, 0, height);
    if (canvas->count <= canvas->capacity) {
        char* out = canvas->shapes[canvas->count - 1].text;
        int i = 0;
        for (; text[i] && i < FUGU_TEXT - 1; ++i)
            out[i] = text[i];
        out[i] = 0;
    }
}

/* A whole number behind some words, of which at most 24 letters are shown. */
static inline void fugu_number(FuguCanvas* canvas, float x, float y, float height, uint32_t color,
                               const char* words, int64_t number) {
    char text[FUGU_TEXT], digits[24];
    int length = 0, count = 0;
    for (; words[length] && length < FUGU_TEXT - 24; ++length)
        text[length] = words[length];
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do {
        digits[count++] = (char)('0' + left % 10);
        left /= 10;
    } while (left);
    if (number < 0)
        text[length++] = '-';
    while (count)
        text[length++] = digits[--count];
    text[length] = 0;
    fugu_text(canvas, x, y, height, color, text);
}

#endif
