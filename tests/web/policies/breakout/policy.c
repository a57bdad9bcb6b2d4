#include "policy.h"

/* Where a ball that comes down meets the paddle's height, in bricks, walls and all. */
static float landing(const float* seen) {
    const float x = (seen[1] + 1.0f) * 9.0f, y = (seen[2] + 1.0f) * 5.5f;
    if (seen[5] <= 0)
        return x;
    float end = x + (10.1f - y) / seen[5] * seen[4];
    for (int bounces = 0; bounces < 4 && (end < 0.2f || end > 17.8f); ++bounces)
        end = end < 0.2f ? 0.4f - end : 35.6f - end;
    return end;
}

/* The state counts steps, so that the ball is hit with every part of the paddle in turn; else it
   would go up and down in one place for ever. */
void fugu_policy_forward(const void* observation, float* state, float* params, float* values) {
    const float* seen = observation;
    const int step = (int)state[0];
    const float turn = (float)(step % 97) / 48.0f - 1.0f; /* from -1 to 1 */
    const float away = landing(seen) + 0.5f * turn - (seen[0] + 1.0f) * 9.0f;
    state[0] = (float)(step + 1);
    params[0] = 1.0f - (away < 0 ? -away : away);
    params[1] = -3.0f * away - 1.0f;
    params[2] = 3.0f * away - 1.0f;
    values[0] = 400.0f * seen[8] * seen[7];
}

void fugu_policy_act(const float* params, const unsigned char* mask, unsigned long long* random,
                     void* action) {
    long long best = -1;
    for (int i = 0; i < FUGU_POLICY_CHOICES; ++i)
        if ((!mask || mask[i]) && (best < 0 || params[i] > params[best]))
            best = i;
    if (random) { /* one step in eight is any */
        *random = *random * 6364136223846793005ull + 1442695040888963407ull;
        if (*random >> 61 == 0)
            best = (long long)((*random >> 33) % FUGU_POLICY_CHOICES);
    }
    *(long long*)action = best;
}
