/* A policy over many rows, for callers to whom one call is dear. */
#include "policy.h"

/* The sizes that policy.h names, by which a caller can tell that the policy is the one it means. */
int fugu_policy_size(int which) {
    const int sizes[] = {
        FUGU_POLICY_OBSERVATION_BYTES, FUGU_POLICY_STATE,   FUGU_POLICY_PARAMS,
        FUGU_POLICY_CRITICS,           FUGU_POLICY_CHOICES, FUGU_POLICY_ACTION_BYTES};
    return which >= 0 && which < (int)(sizeof(sizes) / sizeof(sizes[0])) ? sizes[which] : -1;
}

typedef struct Batch {
    const unsigned char* rows;
    float *states, *params, *values;
    int count;
} Batch;

void fugu_policy_rows(const Batch* batch) {
    for (int i = 0; i < batch->count; ++i)
        fugu_policy_forward(batch->rows + (ptrdiff_t)i * FUGU_POLICY_OBSERVATION_BYTES,
                            batch->states + (ptrdiff_t)i * FUGU_POLICY_STATE,
                            batch->params + (ptrdiff_t)i * FUGU_POLICY_PARAMS,
                            batch->values + (ptrdiff_t)i * FUGU_POLICY_CRITICS);
}
