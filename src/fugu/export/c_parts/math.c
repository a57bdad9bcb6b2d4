typedef union Bits {
    float number;
    uint32_t bits;
} Bits;

/* e^x. With x = n log 2 + r and |r| <= log(2) / 2, a polynomial gives e^r; 2^n is put together from
   its bits, in two halves, so that results below the smallest normal number come out right. */
static inline float exp_of(float x) {
    const float high = x < 89.0f ? x : 89.0f;
    const float within = high > -104.0f ? high : -104.0f;
    const int32_t n = (int32_t)(within * 1.44269502f + (within < 0.0f ? -0.5f : 0.5f));
    const float r = within - (float)n * 0.693359375f - (float)n * -2.12194442e-4f;
    const float p = 0.0083335033f + r * (0.001394574f + r * 0.00019789273f);
    const float e = 1.0f + (r + r * r * (0.5f + r * (0.16666666f + r * (0.04166628f + r * p))));
    Bits one, other;
    one.bits = (uint32_t)(n / 2 + 127) << 23;
    other.bits = (uint32_t)(n - n / 2 + 127) << 23;
    return x == x ? e * one.number * other.number : x;
}

/* The logarithm of a normal number x > 0. With x = m 2^k and m near 1, log(m) is
   2 atanh((m - 1) / (m + 1)). */
static inline float log_of(float x) {
    Bits m;
    m.number = x;
    const int32_t above = (int32_t)((m.bits - 0x3F3504F3u) >> 23); /* of sqrt(1/2), modulo 512 */
    const int32_t k = above < 256 ? above : above - 512;
    m.bits -= (uint32_t)k << 23;
    const float r = m.number - 1.0f, s = r / (2.0f + r), q = s * s;
    const float p = 0.6666666f + q * (0.40000337f + q * (0.2853716f + q * 0.23585173f));
    return (float)k * 0.693359375f + ((float)k * -2.12194442e-4f + (2.0f * s + s * q * p));
}

/* log(1 + x) for x >= 0; what 1 + x has lost is added again. */
static inline float log1p_of(float x) {
    const float u = 1.0f + x;
    const float lost = x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x);
    return x <= 3.40282347e+38f ? log_of(u) + lost / u : x;
}

/* The square root of x >= 0, by Newton's method from a guess that halves the exponent. */
static inline float sqrt_of(float x) {
    if (!(x > 0.0f && x <= 3.40282347e+38f))
        return x;
    const int tiny = x < 1.17549435e-38f;
    const float scaled = tiny ? x * 16777216.0f : x;
    Bits root;
    root.number = scaled;
    root.bits = (root.bits >> 1) + 0x1FBD1DF5u;
    for (int i = 0; i < 3; ++i)
        root.number = 0.5f * (root.number + scaled / root.number);
    return tiny ? root.number * (1.0f / 4096.0f) : root.number;
}

/* The hyperbolic tangent: a polynomial near 0, exponentials elsewhere. */
static inline float tanh_of(float x) {
    const float size = x < 0.0f ? -x : x, s = x * x;
    const float e = exp_of(-2.0f * size);
    const float large = (1.0f - e) / (1.0f + e);
    const float p = -0.053952474f + s * (0.021734439f + s * (-0.008267091f + s * 0.002231064f));
    const float small = x + x * s * (-0.3333333f + s * (0.13333248f + s * p));
    return size < 0.6f ? small : x < 0.0f ? -large : large;
}

/* The error function: a polynomial near 0, else 1 - e^p with a polynomial p. */
static inline float erf_of(float x) {
    const float size = x < 0.0f ? -x : x, t = size < 4.0f ? size : 4.0f, s = t * t;
    float p = 0.025171803f + t * (-0.0041908533f + t * (0.00043852945f + t * -2.1445523e-05f));
    p = 0.00018245936f + t * (-1.129552f + t * (-0.6332724f + t * (-0.10836154f + t * p)));
    const float large = 1.0f - exp_of(p);
    float q = 0.005221075f + s * (-0.0008484712f + s * (0.00011270546f + s * -9.6801405e-06f));
    q = 1.1283792f + s * (-0.37612638f + s * (0.11283783f + s * (-0.026865445f + s * q)));
    const float small = x * q;
    const float y = size < 1.0f ? small : x < 0.0f ? -large : large;
    return x == x ? y : x;
}

/* 1 / (1 + e^-x) */
static inline float sigmoid_of(float x) {
    const float e = exp_of(x < 0.0f ? x : -x);
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
