/* A bare loop over CartPole's dynamics, nothing around it: the limit that native.py measures. */
#include <math.h>
#include <stdint.h>

typedef struct Cart {
    float x, speed, angle, spin;
    uint32_t steps, random;
} Cart;

static float draw(uint32_t* random) {
    *random ^= *random << 13;
    *random ^= *random >> 17;
    *random ^= *random << 5;
    return (float)(*random >> 8) * (0.1f / 16777216.0f) - 0.05f;
}

/* Steps every cart `rounds` times; `actions` is [64, count]. */
void bare_cartpole(Cart* carts, const int64_t* actions, float* observations, float* rewards,
                   unsigned char* ends, int64_t count, int64_t rounds) {
    for (int64_t r = 0; r < rounds; ++r)
        for (int64_t i = 0; i < count; ++i) {
            Cart* c = &carts[i];
            const float force = actions[(r % 64) * count + i] ? 10.0f : -10.0f;
            const float cosine = cosf(c->angle), sine = sinf(c->angle);
            const float push = (force + 0.05f * c->spin * c->spin * sine) / 1.1f;
            const float turn = (9.8f * sine - cosine * push) /
                               (0.5f * (4.0f / 3.0f - 0.1f * cosine * cosine / 1.1f));
            const float pull = push - 0.05f * turn * cosine / 1.1f;
            c->x += 0.02f * c->speed;
            c->speed += 0.02f * pull;
            c->angle += 0.02f * c->spin;
            c->spin += 0.02f * turn;
            const int ended =
                fabsf(c->x) > 2.4f || fabsf(c->angle) > 0.20943951f || ++c->steps >= 500;
            rewards[i] = 1.0f;
            ends[i] = (unsigned char)ended;
            if (ended) {
                c->x = draw(&c->random);
                c->speed = draw(&c->random);
                c->angle = draw(&c->random);
                c->spin = draw(&c->random);
                c->steps = 0;
            }
            observations[4 * i] = c->x;
            observations[4 * i + 1] = c->speed;
            observations[4 * i + 2] = c->angle;
            observations[4 * i + 3] = c->spin;
        }
}
