/* fugu_web.h: an environment, and the policies of its groups, as a WebAssembly module. What is
   declared here is written for each module: which environment, its settings, its policies. */
#ifndef FUGU_WEB_H
#define FUGU_WEB_H

#include "fugu_env.h"

/* A policy as `fugu export --to c` writes it. */
typedef struct FuguPolicy {
    uint32_t observation_bytes, state, params, critics, choices, action_bytes;
    void (*forward)(const void* observation, float* state, float* params, float* values);
    void (*act)(const float* params, const unsigned char* mask, unsigned long long* random,
                void* action);
} FuguPolicy;

/* Bytes of one agent's rows. */
typedef struct FuguRowBytes {
    uint32_t observation, action, mask;
} FuguRowBytes;

extern const FuguDefinition* const fugu_web_definition;
extern const double fugu_web_settings[];            /* values of all settings, in order */
extern const FuguRowBytes fugu_web_rows[];          /* by group */
extern const FuguPolicy* const fugu_web_policies[]; /* by group; null where there is none */

#endif
