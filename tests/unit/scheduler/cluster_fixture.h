/* SPDX-License-Identifier: Apache-2.0 */
/* Short hands for tests of the cluster machine. */
#ifndef TESTS_UNIT_SCHEDULER_CLUSTER_FIXTURE_H
#define TESTS_UNIT_SCHEDULER_CLUSTER_FIXTURE_H

#include "scheduler/cluster.h"

#define MS INT64_C(1000000)
#define SECOND INT64_C(1000000000)

/* A worker as the test sees it: syncs as told, answers all probes with `bits`, is eligible for data set 1 (and 2). */
struct fake_worker {
    uint64_t id, incarnation;
    double weight;
    uint8_t bits; /* its fingerprint is this byte 16 times */
    bool draining, not_eligible, cannot_make;
    double queue_ms;
    uint32_t front_epoch;
    const uint8_t *front_stream; /* NULL: tells none */
};

void fixture_version(uint8_t n, uint8_t version[BASE_SHA256_BYTES]);
/* Syncs until no probe is left unanswered. */
enum base_code fixture_sync(struct scheduler_cluster *cluster, int64_t now_ns,
                            const struct fake_worker *worker, struct base_error *error);
/* imagenet_train over 1000 items of data set 1; world 1, batch 10, exact, now. */
struct scheduler_job_request fixture_request(const char *job);
const char *fixture_sample_text(const char *preset);
int fixture_held(const struct scheduler_live_stream *stream, uint64_t worker);

#endif
