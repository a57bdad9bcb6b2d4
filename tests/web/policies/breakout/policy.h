/* A policy for breakout, written by hand: it follows the ball. */
#ifndef POLICY_H
#define POLICY_H

#define FUGU_POLICY_OBSERVATION_BYTES 472
#define FUGU_POLICY_STATE 1
#define FUGU_POLICY_PARAMS 3
#define FUGU_POLICY_CRITICS 1
#define FUGU_POLICY_CHOICES 3
#define FUGU_POLICY_ACTION_BYTES 8

void fugu_policy_forward(const void* observation, float* state, float* params, float* values);
void fugu_policy_act(const float* params, const unsigned char* mask, unsigned long long* random,
                     void* action);

#endif
