/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of batch slots that outlives its job: arrays in Python may be held after the Loader was closed. A chunk is free when
 * the library and all leases (lease.c) have let go of it.
 */
#ifndef CLIENT_PYTHON_MEMORY_H
#define CLIENT_PYTHON_MEMORY_H

#include "client/include/millrace/millrace.h"

#include <stdatomic.h>

struct python_chunk {
    void *memory;
    size_t bytes;
    atomic_int refs;
};

struct python_ring;

/* What a job and its leases share. */
struct python_pool {
    atomic_int refs;
    struct python_ring *ring; /* of a device, whose memory slots are then; NULL: none. A reference */
    uint32_t room, count;
    struct python_chunk *chunks; /* [room] */
    /* under the GIL: */
    struct mr_job *job; /* NULL: not open yet, or closed */
    uint32_t held;      /* batches that leases hold in its slots, or in the ring */
};

struct python_pool *python_memory_open(uint32_t room); /* one reference; NULL: no memory */
void python_memory_get(struct python_pool *pool);
void python_memory_put(struct python_pool *pool);

/* slot_allocate and slot_free of struct mr_job_options; context: the pool. */
void *python_memory_allocate(void *context, size_t bytes);
void python_memory_free(void *context, void *memory, size_t bytes);

/* The chunk that `at` lies in, with a reference; NULL: none. */
struct python_chunk *python_memory_hold(struct python_pool *pool, const void *at);
void python_memory_release(struct python_chunk *chunk);

#endif
