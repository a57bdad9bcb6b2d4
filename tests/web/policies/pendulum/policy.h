/* A policy for the pendulum, written by hand: numbers for actions, two critics, no state. */
#ifndef POLICY_H
#define POLICY_H

#define FUGU_POLICY_OBSERVATION_BYTES 12
#define FUGU_POLICY_STATE 0
#define FUGU_POLICY_PARAMS 2
#define FUGU_POLICY_CRITICS 2
#define FUGU_POLICY_CHOICES 0
#define FUGU_POLICY_ACTION_BYTES 4

void fugu_policy_forward(const void* observation, float* state, float* params, float* values);
void fugu_policy_act(const float* params, const unsigned char* mask, unsigned long long* random,
                     void* action);

#endif
