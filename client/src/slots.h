/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a job's batch slots: one chunk a slot, from the caller's allocator when he gave one, for the rows as they come
 * and, with a finish section, for the finished images and mixed labels. Parts are received straight into it.
 *
 *   chunk: one run a sent field, each at a multiple of 64: batch * max_bytes; ragged rows are packed at hand-over
 */
#ifndef CLIENT_SLOTS_H
#define CLIENT_SLOTS_H

#include "client/include/millrace/millrace.h"
#include "client/src/core.h"
#include "client/src/mix.h"
#include "scheduler/pipeline.h"

#define CLIENT_FIELDS SCHEDULER_PIPELINE_FIELDS

/* Which of the made fields are sent. */
struct client_fields {
    const struct scheduler_pipeline *pipeline;
    int count;
    struct scheduler_field sent[CLIENT_FIELDS]; /* in the order they are made, as they travel */
    int shown[CLIENT_FIELDS];                   /* i-th field that the trainer asked for: index in `sent` */
    uint8_t wanted;                             /* bit i: made field i is sent */
    bool all;                                   /* all made fields: row hashes can be verified */
};

struct client_batch {
    struct mr_batch public;
    struct mr_job *job;
    uint32_t slot;
    struct mr_row *rows;
    struct mr_field fields[CLIENT_FIELDS];
};

struct client_slot_memory {
    uint8_t *chunk;
    uint8_t *values[CLIENT_FIELDS];   /* of sent fields */
    uint32_t *lengths[CLIENT_FIELDS]; /* ragged: elements of each row */
    uint64_t *places[CLIENT_FIELDS];  /* ragged: where each row's values are, bytes in the field's run */
    int64_t *offsets[CLIENT_FIELDS];  /* ragged: [batch + 1], for the trainer */
    uint8_t *finished;                /* images after the finish and batch sections; NULL: none */
    uint8_t *mixed;                   /* labels after MixUp or CutMix; NULL: none */
    struct mr_row_draw *draws;        /* [batch * views]; NULL: no batch op */
    struct client_batch batch;
};

struct client_slots {
    struct client_fields fields;
    struct client_finish finish;
    struct mr_finish asked;
    bool finishes;    /* apply_finish, and the image is sent */
    bool draws;       /* and there are batch ops */
    bool mixes;       /* and they mix labels, which are sent */
    int image, label; /* index in `sent`, -1: not sent */
    uint32_t batch, count;
    size_t chunk_bytes;
    void *(*allocate)(void *context, size_t bytes);
    void (*release)(void *context, void *memory, size_t bytes);
    void *context;
    struct client_slot_memory *slots;
    enum client_on_bad on_bad;
};

struct client_slots_options {
    const struct mr_job_options *job;
    const struct scheduler_pipeline *pipeline;
    const struct mr_finish *finish;
    uint32_t count;
};
enum base_code client_slots_init(struct client_slots *slots, const struct client_slots_options *options,
                                 struct base_error *error);
void client_slots_fini(struct client_slots *slots); /* of zeros is fine */

/* What the trainer gets of a step that was taken: padding filled in, ragged fields packed, finish and batch ops run, labels of rows that
 * are not to be used set to -100. The trainer's thread; touches nothing but the slot. `epoch`, `cursor` and the pointers of
 * `batch->job` are the caller's to fill. */
struct client_batch *client_slots_batch(struct client_slots *slots, const struct client_step *step);

#endif
