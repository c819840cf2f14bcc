/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where finish and batch ops run: what was asked for, or what was measured. A pure machine: times come in as samples.
 *
 *   WARMING, MEASURING: batches go to the GPU and to the trainer's CPU in turn; the first of each is not counted
 *   DECIDED, for good:  the place with the smaller median cost
 *
 * The cost of a batch is all that a place takes for it, one after the other: CPU time of the trainer's thread, copy, kernels.
 * Within a tenth the GPU has it, because it leaves the thread alone. Only full batches count. It is never measured again: the
 * work of a batch does not change, and where it runs changes no bit.
 */
#ifndef GPU_INGEST_PLACEMENT_H
#define GPU_INGEST_PLACEMENT_H

#include "gpu_ingest/include/millrace/ingest.h"

#include <stdbool.h>

#define INGEST_PLACEMENT_SAMPLES 3

struct ingest_sample { /* of one batch */
    int64_t cpu_ns, copy_ns, kernel_ns;
    uint64_t copied_bytes;
};

struct ingest_trial { /* of one place */
    struct ingest_sample samples[INGEST_PLACEMENT_SAMPLES];
    uint32_t seen; /* the first, which is not counted, too */
};

struct ingest_placement {
    enum mr_finish_where asked;
    bool gpu; /* there is one */
    struct ingest_trial trials[2];
};

/* `gpu` false: all is done on the CPU, whatever was asked for. */
void ingest_placement_init(struct ingest_placement *placement, enum mr_finish_where asked, bool gpu);
/* MR_FINISH_CLIENT or MR_FINISH_GPU, for the next batch. */
enum mr_finish_where ingest_placement_where(const struct ingest_placement *placement);
/* Whether a sample of a batch done there is of use. */
bool ingest_placement_wants(const struct ingest_placement *placement, enum mr_finish_where where);
void ingest_placement_add(struct ingest_placement *placement, enum mr_finish_where where,
                          const struct ingest_sample *sample);
bool ingest_placement_decided(const struct ingest_placement *placement);
/* Fills all but `size`. */
void ingest_placement_describe(const struct ingest_placement *placement, struct mr_placement *out);

#endif
