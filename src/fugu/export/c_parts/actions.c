/* SplitMix64. */
static uint64_t random_bits(unsigned long long* random) {
    uint64_t word = *random += 0x9E3779B97F4A7C15u;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    return word ^ (word >> 31);
}

/* 24 bits: a number of [0, 1) in units of 2^-24. */
static uint32_t random_unit(unsigned long long* random) {
    return (uint32_t)(random_bits(random) >> 40);
}

/* cos(2 pi turn) for turns in units of 2^-24: to the nearest quarter, then a polynomial. */
static float cos_of_turn(uint32_t turn) {
    const uint32_t quarter = (turn + 0x200000u) >> 22;
    const float r = (float)((int32_t)turn - (int32_t)(quarter << 22)) * 3.74507039e-07f, s = r * r;
    const float p = 0.008333329f + s * (-0.00019839316f + s * 2.7181218e-06f);
    const float sine = r + r * s * (-0.16666667f + s * p);
    const float q = 0.041666646f + s * (-0.0013887353f + s * 2.4436611e-05f);
    const float cosine = 1.0f - 0.5f * s + s * s * q;
    const float y = quarter & 1u ? -sine : cosine;
    return quarter & 2u ? -y : y;
}

/* Of mean 0 and deviation 1 (Box and Muller). */
static float random_normal(unsigned long long* random) {
    const float u = 1.0f - (float)random_unit(random) * (1.0f / 16777216.0f);
    const float size = sqrt_of(-2.0f * log_of(u));
    return size * cos_of_turn(random_unit(random));
}

/* A choice's weight, e^(logit - the largest), in units of 2^-31. */
static uint32_t weigh(float logit, float most) {
    const float weight = exp_of(logit - most);
    return weight > 0.0f && weight <= 1.0f ? (uint32_t)(weight * 2147483648.0f) : 0u;
}

/* The choice at which the running sum of weights passes a random share of their total. */
static int draw(const float* logits, const unsigned char* mask, int choices, float most,
                unsigned long long* random) {
    uint64_t total = 0, running = 0;
    const uint64_t unit = random_unit(random);
    int last = 0;
    for (int i = 0; i < choices; ++i)
        total += !mask || mask[i] ? weigh(logits[i], most) : 0u;
    const uint64_t share = (total >> 24) * unit + ((total & 0xFFFFFFu) * unit >> 24);
    for (int i = 0; i < choices; ++i) {
        const uint32_t weight = !mask || mask[i] ? weigh(logits[i], most) : 0u;
        running += weight;
        last = weight ? i : last;
        if (running > share)
            break;
    }
    return last;
}

/* The most probable choice that is allowed, the first of equals; or one that is drawn. */
static int choose(const float* logits, const unsigned char* mask, int choices,
                  unsigned long long* random) {
    int best = -1;
    for (int i = 0; i < choices; ++i)
        if ((!mask || mask[i]) && (best < 0 || logits[i] > logits[best]))
            best = i;
    if (best < 0)
        return 0; /* nothing is allowed */
    return random ? draw(logits, mask, choices, logits[best], random) : best;
}

/* A normal's mean, or a number that is drawn from it. */
static float normal(float mean, float log_std, unsigned long long* random) {
    return random ? mean + exp_of(log_std) * random_normal(random) : mean;
}

static float within(float x, float low, float high) {
    return x < low ? low : x > high ? high : x;
}

static double within_double(double x, double low, double high) {
    return x < low ? low : x > high ? high : x;
}
