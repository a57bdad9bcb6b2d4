static void read_TYPE(const unsigned char* row, int count, float* restrict y) {
    for (int i = 0; i < count; ++i) {
        TYPE number;
        fugu_policy_copy(&number, row + i * (int)sizeof(number), sizeof(number));
        y[i] = (float)number;
    }
}

/* Which of `count` categories from `start` on an integer is; the nearest if it is none. */
static inline int category_TYPE(const unsigned char* at, int64_t start, int64_t count) {
    TYPE number;
    fugu_policy_copy(&number, at, sizeof(number));
    if ((int64_t)number < start)
        return 0;
    const uint64_t category = (uint64_t)(int64_t)number - (uint64_t)start;
    return (int)(category < (uint64_t)count ? category : (uint64_t)count - 1);
}

/* Integers, each one-hot; `start` and `counts` of column i stand at i * step. */
static void one_hot_TYPE(const unsigned char* row, int rows, int columns, const int64_t* start,
                         const int32_t* counts, int step, float* restrict y) {
    for (int i = 0; i < rows * columns; ++i) {
        const int column = i % columns * step, count = counts[column];
        const int hot = category_TYPE(row + i * (int)sizeof(TYPE), start[column], count);
        for (int k = 0; k < count; ++k)
            y[k] = k == hot ? 1.0f : 0.0f;
        y += count;
    }
}

/* Integers, each a row of the table; column i's rows begin with row offsets[i]. */
static void embed_TYPE(const unsigned char* row, int rows, int columns, const int64_t* start,
                       const int32_t* counts, const int32_t* offsets, const Weight* table,
                       int width, float* restrict y) {
    for (int i = 0; i < rows * columns; ++i) {
        const int column = i % columns;
        const unsigned char* at = row + i * (int)sizeof(TYPE);
        const int place = offsets[column] + category_TYPE(at, start[column], counts[column]);
        for (int k = 0; k < width; ++k)
            y[i * width + k] = (float)table[place * width + k];
    }
}
