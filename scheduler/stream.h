/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream's identity: what jobs must have in common to share. Hash of a canonical text, so that server, workers and
 * clients compute the same one. Seed and epoch enter only where something uses them.
 */
#ifndef SCHEDULER_STREAM_H
#define SCHEDULER_STREAM_H

#include "base/hash.h"
#include "scheduler/pipeline.h"

struct scheduler_stream {
    uint8_t dataset_version[BASE_SHA256_BYTES];
    uint64_t items;                                  /* N = M for the samplers there are */
    bool shuffle;                                    /* sampler */
    uint64_t seed;                                   /* 0 unless uses_seed */
    char sample_text[SCHEDULER_PIPELINE_TEXT_BYTES]; /* canonical sample section */
    uint8_t fingerprint[16];                         /* zeros until known */
    /* derived */
    bool uses_epoch; /* shuffle or a random op: else every epoch is the same, and block keys carry epoch 0 */
    uint8_t hash[BASE_SHA256_BYTES];
    /* Shared by streams of the same dataset version, items, sampler and seed: position p of epoch e is the same item in all of
     * them, and block k has the same slot of the plan. */
    uint8_t family[BASE_SHA256_BYTES];
    struct scheduler_pipeline pipeline; /* of sample_text */
};

/* The seed that jobs share unless they say another: derived from the dataset version. */
uint64_t scheduler_stream_default_seed(const uint8_t dataset_version[BASE_SHA256_BYTES]);

/* Fills `stream` (derived parts, too) from its given parts: dataset_version, items, shuffle, seed, sample_text,
 * fingerprint. Refuses text that is not canonical or not parsable. */
enum base_code scheduler_stream_seal(struct scheduler_stream *stream, struct base_error *error);

/* Of an epoch; the last may be short. */
uint64_t scheduler_stream_blocks(const struct scheduler_stream *stream);
uint32_t scheduler_stream_block_rows(const struct scheduler_stream *stream, uint64_t block);

#endif
