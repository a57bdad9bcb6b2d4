static void copy(const float* restrict x, int count, float* restrict y) {
    for (int i = 0; i < count; ++i)
        y[i] = x[i];
}

/* Columns of one table put among those of another, whose rows are `whole` wide. */
static void put_columns(const float* restrict x, int rows, int width, int whole,
                        float* restrict y) {
    for (int row = 0; row < rows; ++row)
        copy(x + row * width, width, y + row * whole);
}

/* Columns taken from a table whose rows are `whole` wide. */
static void take_columns(const float* restrict x, int rows, int width, int whole,
                         float* restrict y) {
    for (int row = 0; row < rows; ++row)
        copy(x + row * whole, width, y + row * width);
}

/* Axes of each row's array in another order: `steps` are what an axis of y means for x. */
static void permute(const float* restrict x, int rows, int width, int rank, const int* sizes,
                    const int* steps, float* restrict y) {
    for (int i = 0; i < rows * width; ++i) {
        int rest = i % width, from = i - rest;
        for (int axis = rank - 1; axis >= 0; --axis) {
            from += rest % sizes[axis] * steps[axis];
            rest /= sizes[axis];
        }
        y[i] = x[from];
    }
}

/* y[rows][outputs] = x[rows][inputs] times weight[inputs][outputs], four inputs at once. */
static void product(const float* restrict x, int rows, int inputs, int outputs,
                    const Weight* restrict weight, float* restrict y) {
    for (int row = 0; row < rows; ++row, x += inputs, y += outputs) {
        const Weight* w = weight;
        int i = 0;
        for (int o = 0; o < outputs; ++o)
            y[o] = 0.0f;
        for (; i + 4 <= inputs; i += 4, w += 4 * outputs) {
            const Weight *w1 = w + outputs, *w2 = w1 + outputs, *w3 = w2 + outputs;
            const float a = x[i], b = x[i + 1], c = x[i + 2], d = x[i + 3];
            for (int o = 0; o < outputs; ++o)
                y[o] +=
                    (a * (float)w[o] + b * (float)w1[o]) + (c * (float)w2[o] + d * (float)w3[o]);
        }
        for (; i < inputs; ++i, w += outputs)
            for (int o = 0; o < outputs; ++o)
                y[o] += x[i] * (float)w[o];
    }
}

/* Adds what comes of a few inputs, x[i] times weight[i's place][outputs]. */
static void add_inputs(const float* restrict x, int rows, int inputs, int outputs, int count,
                       const int* restrict which, const float* restrict weight, float* restrict y) {
    for (int row = 0; row < rows; ++row, x += inputs, y += outputs)
        for (int k = 0; k < count; ++k)
            for (int o = 0; o < outputs; ++o)
                y[o] += x[which[k]] * weight[k * outputs + o];
}

static void add_columns(float* restrict x, int rows, int width, const float* restrict numbers) {
    for (int row = 0; row < rows; ++row, x += width)
        for (int i = 0; i < width; ++i)
            x[i] += numbers[i];
}

static void multiply_columns(float* restrict x, int rows, int width,
                             const float* restrict numbers) {
    for (int row = 0; row < rows; ++row, x += width)
        for (int i = 0; i < width; ++i)
            x[i] *= numbers[i];
}

/* Images of `channels` planes of height by width, and the windows that slide over them. */
typedef struct Windows {
    int channels, height, width;
    int out_channels, out_height, out_width;
    int kernel, stride, padding;
} Windows;

/* What a window sees, [channels][kernel][kernel]; zeros beyond the image's edges. */
static void look(const float* restrict x, const Windows* at, int top, int left,
                 float* restrict patch) {
    for (int c = 0; c < at->channels; ++c)
        for (int i = top; i < top + at->kernel; ++i)
            for (int j = left; j < left + at->kernel; ++j) {
                const int inside = i >= 0 && i < at->height && j >= 0 && j < at->width;
                *patch++ = inside ? x[(c * at->height + i) * at->width + j] : 0.0f;
            }
}

/* A convolution: each window's patch times weight[channels * kernel * kernel][out_channels]. */
static void convolve(const float* restrict x, int images, const Windows* at,
                     const Weight* restrict weight, float* restrict patch, float* restrict pixel,
                     float* restrict y) {
    const int area = at->out_height * at->out_width;
    for (int image = 0; image < images; ++image) {
        for (int i = 0; i < area; ++i) {
            const int top = i / at->out_width * at->stride - at->padding;
            const int left = i % at->out_width * at->stride - at->padding;
            look(x, at, top, left, patch);
            product(patch, 1, at->channels * at->kernel * at->kernel, at->out_channels, weight,
                    pixel);
            for (int o = 0; o < at->out_channels; ++o)
                y[o * area + i] = pixel[o];
        }
        x += at->channels * at->height * at->width;
        y += at->out_channels * area;
    }
}

static void add_planes(float* restrict x, int images, int channels, int area,
                       const float* restrict numbers) {
    for (int plane = 0; plane < images * channels; ++plane, x += area)
        for (int i = 0; i < area; ++i)
            x[i] += numbers[plane % channels];
}

static void multiply_planes(float* restrict x, int images, int channels, int area,
                            const float* restrict numbers) {
    for (int plane = 0; plane < images * channels; ++plane, x += area)
        for (int i = 0; i < area; ++i)
            x[i] *= numbers[plane % channels];
}

/* The largest number that a window sees in a plane; what is beyond the edges does not count. */
static float largest_seen(const float* x, const Windows* at, int top, int left) {
    const int bottom = top + at->kernel, right = left + at->kernel;
    float most = x[(top < 0 ? 0 : top) * at->width + (left < 0 ? 0 : left)];
    for (int i = top < 0 ? 0 : top; i < bottom && i < at->height; ++i)
        for (int j = left < 0 ? 0 : left; j < right && j < at->width; ++j)
            most = x[i * at->width + j] > most ? x[i * at->width + j] : most;
    return most;
}

static void pool(const float* restrict x, int images, const Windows* at, float* restrict y) {
    for (int plane = 0; plane < images * at->channels; ++plane) {
        for (int i = 0; i < at->out_height; ++i)
            for (int j = 0; j < at->out_width; ++j)
                *y++ =
                    largest_seen(x, at, i * at->stride - at->padding, j * at->stride - at->padding);
        x += at->height * at->width;
    }
}

/* (x - shift) / divisor, column by column. */
static void rescale(float* restrict x, int rows, int width, const float* restrict shift,
                    const float* restrict divisor) {
    for (int row = 0; row < rows; ++row, x += width)
        for (int i = 0; i < width; ++i)
            x[i] = (x[i] - shift[i]) / divisor[i];
}

/* (x - shift) / divisor */
static void rescale_all(float* x, int count, float shift, float divisor) {
    for (int i = 0; i < count; ++i)
        x[i] = (x[i] - shift) / divisor;
}

/* Numbers cut off at `most` either way. */
static void limit(float* x, int count, float most) {
    for (int i = 0; i < count; ++i)
        x[i] = x[i] < -most ? -most : x[i] > most ? most : x[i];
}

static void relu(float* x, int count) {
    for (int i = 0; i < count; ++i)
        x[i] = x[i] < 0.0f ? 0.0f : x[i];
}

static void gelu(float* x, int count) {
    for (int i = 0; i < count; ++i)
        x[i] = x[i] * 0.5f * (1.0f + erf_of(x[i] * 0.707106769f));
}

static void silu(float* x, int count) {
    for (int i = 0; i < count; ++i)
        x[i] = x[i] * sigmoid_of(x[i]);
}

static void hyperbolic_tangent(float* x, int count) {
    for (int i = 0; i < count; ++i)
        x[i] = tanh_of(x[i]);
}

static void sigmoid(float* x, int count) {
    for (int i = 0; i < count; ++i)
        x[i] = sigmoid_of(x[i]);
}

/* sign(x) log(1 + |x|) */
static void symlog(float* x, int count) {
    for (int i = 0; i < count; ++i) {
        const float y = log1p_of(x[i] < 0.0f ? -x[i] : x[i]);
        x[i] = x[i] < 0.0f ? -y : y;
    }
}

/* x + 1/2 from 0 on, and a sigmoid below. */
static void mingru(float* x, int count) {
    for (int i = 0; i < count; ++i) {
        const float below = sigmoid_of(x[i]);
        x[i] = x[i] < 0.0f ? below : x[i] + 0.5f;
    }
}

/* 0 in place of what is no finite number. */
static void finite(float* x, int count) {
    for (int i = 0; i < count; ++i)
        x[i] = x[i] >= -3.40282347e+38f && x[i] <= 3.40282347e+38f ? x[i] : 0.0f;
}

static void add(float* restrict x, const float* restrict y, int count) {
    for (int i = 0; i < count; ++i)
        x[i] += y[i];
}

static void multiply(float* restrict x, const float* restrict y, int count) {
    for (int i = 0; i < count; ++i)
        x[i] *= y[i];
}

/* From x towards y, as far as the weight says. */
static void blend(float* restrict x, const float* restrict y, const float* restrict weight,
                  int count) {
    for (int i = 0; i < count; ++i)
        x[i] += weight[i] * (y[i] - x[i]);
}

/* Zeros in rows whose flag is not above 0. */
static void keep_rows(float* restrict x, int rows, int width, const float* restrict flags) {
    for (int row = 0; row < rows; ++row)
        for (int i = 0; i < width; ++i)
            x[row * width + i] = flags[row] > 0.0f ? x[row * width + i] : 0.0f;
}

/* The sum of every `count` rows. */
static void sum_rows(const float* restrict x, int rows, int count, int width, float* restrict y) {
    for (int row = 0; row < rows; ++row, y += width) {
        for (int i = 0; i < width; ++i)
            y[i] = 0.0f;
        for (int k = 0; k < count; ++k, x += width)
            for (int i = 0; i < width; ++i)
                y[i] += x[i];
    }
}

/* The largest of every `count` rows, column by column. */
static void largest_rows(const float* restrict x, int rows, int count, int width,
                         float* restrict y) {
    for (int row = 0; row < rows; ++row, y += width) {
        copy(x, width, y);
        for (int k = 0; k < count; ++k, x += width)
            for (int i = 0; i < width; ++i)
                y[i] = x[i] > y[i] ? x[i] : y[i];
    }
}

/* Layer norm: each row with mean 0 and variance 1, then weight * x + bias. */
static void normalise(float* restrict x, int rows, int width, const float* restrict weight,
                      const float* restrict bias, float epsilon) {
    for (int row = 0; row < rows; ++row, x += width) {
        float sum = 0.0f, squares = 0.0f;
        for (int i = 0; i < width; ++i)
            sum += x[i];
        const float mean = sum / (float)width;
        for (int i = 0; i < width; ++i)
            squares += (x[i] - mean) * (x[i] - mean);
        const float spread = sqrt_of(squares / (float)width + epsilon);
        for (int i = 0; i < width; ++i)
            x[i] = (x[i] - mean) / spread * weight[i] + bias[i];
    }
}

/* Weights of the last `count` places: e^(score - the largest), with sum 1; 0 for older ones. */
static void softmax_last(float* scores, int places, float count) {
    float most = scores[places - 1], total = 0.0f;
    for (int place = 0; place < places; ++place)
        if ((float)(places - 1 - place) < count && scores[place] > most)
            most = scores[place];
    for (int place = 0; place < places; ++place) {
        const int counts = (float)(places - 1 - place) < count;
        scores[place] = counts ? exp_of(scores[place] - most) : 0.0f;
        total += scores[place];
    }
    for (int place = 0; place < places; ++place)
        scores[place] /= total;
}

/* One query over keys and values [places][heads * width], of which the last `count` count. A score
   is query * key / root + bias[head][age]; the last place has age 0. */
static void attend(const float* restrict query, const float* restrict keys,
                   const float* restrict values, float count, int places, int heads, int width,
                   float root, const float* restrict bias, float* restrict scores,
                   float* restrict y) {
    const int whole = heads * width;
    for (int head = 0; head < heads; ++head, query += width, bias += places, y += width) {
        const float *key = keys + head * width, *value = values + head * width;
        for (int place = 0; place < places; ++place, key += whole) {
            float score = 0.0f;
            for (int i = 0; i < width; ++i)
                score += query[i] * key[i];
            scores[place] = score / root + bias[places - 1 - place];
        }
        softmax_last(scores, places, count);
        for (int i = 0; i < width; ++i)
            y[i] = 0.0f;
        for (int place = 0; place < places; ++place, value += whole)
            for (int i = 0; i < width; ++i)
                y[i] += scores[place] * value[i];
    }
}
