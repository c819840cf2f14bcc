/* SPDX-License-Identifier: Apache-2.0 */
/* A client and a job of the library against the fake cluster, and what its batches must hold. */
#ifndef TESTS_UNIT_CLIENT_BENCH_H
#define TESTS_UNIT_CLIENT_BENCH_H

#include "millrace/millrace.h"

#include "tests/unit/client/fake.h"

#define BENCH_WAIT_MS 20000

struct bench {
    struct fake *fake;
    struct mr_client *client;
    struct mr_job *job;
    enum mr_code tolerated; /* by bench_read_all: asked again */
};

struct fake_options bench_fake_options(void);  /* two workers, 700 items, all kinds of fields */
struct mr_job_options bench_job_options(void); /* batches of 50, one epoch, tail exact */
void bench_open_client(struct bench *bench, const struct fake_options *options);
void bench_open_job(struct bench *bench, const struct mr_job_options *options);
void bench_close_all(struct bench *bench); /* in time */
struct mr_job_stats bench_stats(struct bench *bench);
/* Items and fields are what the fake makes. */
void bench_check_batch(const struct bench *bench, const struct mr_batch *batch);
/* To the end of the job: every position once, in order. Calls `between(step)` if given. */
void bench_read_all(struct bench *bench, uint64_t first, uint64_t items,
                    void (*between)(struct bench *, uint64_t));

/* A caller's own memory for slots. */
struct bench_pool {
    int live, peak, refused;
    size_t bytes, misplaced_bytes;
    bool refuses;
};
void *bench_pool_allocate(void *context, size_t bytes);
void bench_pool_free(void *context, void *memory, size_t bytes);

/* A manifest at a path as mkstemp wants it, which the cluster's workers then hold: of 20,000 items the cluster has 15,000. */
void bench_make_manifest(struct fake_options *cluster, char *path);

#endif
