/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches in a device's memory: a ring that is lent out batch by batch, and for whoever keeps all of it one more batch of its
 * own memory each time. Ring and device live until the last loan has come back, maybe after the Loader was closed.
 *
 *   mr_batch --submit--> loan, its copy queued --use(stream)...--> release: written again after what those streams have queued
 *
 * Any thread, without the GIL or with it: nothing here waits for the GIL. After a fork the child's copy does nothing.
 */
#ifndef CLIENT_PYTHON_RING_H
#define CLIENT_PYTHON_RING_H

#include "gpu_ingest/include/millrace/ingest.h"

#include <stdbool.h>

struct python_ring;

/* A batch on the device, and its fields that stay in host memory. */
struct python_loan {
    struct python_ring *ring;
    struct mr_device_batch *batch;
    struct mr_ingest *own;     /* whose batch it is; NULL: the ring's */
    void *streams[MR_STREAMS]; /* where consumers use it */
    uint32_t stream_count;
    struct mr_field *others; /* copies: all but image and label */
    int other_count;
    void *others_memory; /* of their values and offsets; whoever takes it frees it, and sets NULL here */
};

struct python_ring_options {
    enum mr_backend backend;
    int ordinal;
    uint32_t entries; /* loans from the ring */
    uint32_t rows;    /* of a batch, at most */
    enum mr_finish_where where;
};

/* One reference. Opens the device: it may take as long as making a CUDA context does. */
enum mr_code python_ring_open(struct python_ring **ring, const struct python_ring_options *options,
                              struct mr_error *error);
void python_ring_get(struct python_ring *ring);
void python_ring_put(struct python_ring *ring);               /* NULL is fine */
const char *python_ring_name(const struct python_ring *ring); /* "cuda:1 NVIDIA H200", "host" */
/* False: nothing is known before the first batch. */
bool python_ring_placement(struct python_ring *ring, struct mr_placement *placement);
struct mr_device *python_ring_device(struct python_ring *ring);
int python_ring_ordinal(const struct python_ring *ring); /* -1: its memory is the host's */
/* Before the first submit. */
void python_ring_plan(struct python_ring *ring, const struct mr_finish *finish);

bool python_ring_has_room(struct python_ring *ring); /* one that is not lent */
/* On success the batch is the ring's, which lets go of it when it has been copied; else it stays the caller's. MR_BUSY: the
 * ring is lent out; not with `grow`. */
enum mr_code python_ring_submit(struct python_ring *ring, struct mr_batch *batch, bool grow,
                                struct python_loan **loan, struct mr_error *error);
/* Returns when no mr_batch is being copied: before their job is closed. */
void python_ring_settle(struct python_ring *ring);

/* What is queued on `stream` from now on sees the batch whole, and the batch is not written before what is queued there when it
 * is released. MR_CLOSED: in a forked child. MR_TOO_LARGE: too many streams. */
enum mr_code python_loan_use(struct python_loan *loan, void *stream, struct mr_error *error);
void python_loan_release(struct python_loan *loan); /* NULL is fine */

#endif
