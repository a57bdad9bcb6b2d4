/* A number to the nearest float16, as its bits. */
static inline uint16_t fugu_policy_to_half(float value) {
    uint32_t bits, half, rest; /* the rest: what is cut off, as a share of 2^32 */
    fugu_policy_copy(&bits, &value, sizeof(bits));
    const uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7FFFFFFFu;
    if (size >= 0x477FF000u) /* 65520 and above, and what is no number */
        return (uint16_t)(sign | (size > 0x7F800000u ? 0x7E00u : 0x7C00u));
    if (size >= 0x38800000u) {
        half = (size - 0x38000000u) >> 13;
        rest = size << 19;
    } else { /* below the smallest normal number */
        const uint32_t shift = 126u - (size >> 23), digits = (size & 0x7FFFFFu) | 0x800000u;
        half = shift < 32u ? digits >> shift : 0u;
        rest = shift < 32u ? digits << (32u - shift) : 0u;
    }
    if (rest > 0x80000000u || (rest == 0x80000000u && (half & 1u)))
        ++half;
    return (uint16_t)(sign | half);
}

static inline float fugu_policy_from_half(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, size = half & 0x7FFFu;
    if (size < 0x0400u)
        return (sign ? -1.0f : 1.0f) * (float)size * (1.0f / 16777216.0f);
    const uint32_t bits = sign | ((size << 13) + (size < 0x7C00u ? 0x38000000u : 0x70000000u));
    float value;
    fugu_policy_copy(&value, &bits, sizeof(value));
    return value;
}

static inline void fugu_policy_put_halves(void* to, const float* from, int count) {
    for (int i = 0; i < count; ++i) {
        const uint16_t half = fugu_policy_to_half(from[i]);
        fugu_policy_copy((unsigned char*)to + 2 * i, &half, sizeof(half));
    }
}

static inline void fugu_policy_take_halves(const void* from, int count, float* to) {
    for (int i = 0; i < count; ++i) {
        uint16_t half;
        fugu_policy_copy(&half, (const unsigned char*)from + 2 * i, sizeof(half));
        to[i] = fugu_policy_from_half(half);
    }
}
