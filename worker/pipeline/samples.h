/* SPDX-License-Identifier: Apache-2.0 */
/* Small images of every kind that the decoders tell apart; what fingerprints are made of. */
#ifndef WORKER_PIPELINE_SAMPLES_H
#define WORKER_PIPELINE_SAMPLES_H

#include <stddef.h>
#include <stdint.h>

struct pipeline_sample {
    const uint8_t *bytes;
    size_t size;
};

extern const struct pipeline_sample pipeline_samples[];
extern const int pipeline_sample_count;

#endif
