/* SPDX-License-Identifier: Apache-2.0 */
/* A bed for the worker's machine: some streams, some connections, and a book of all that it answered. */
#ifndef TESTS_UNIT_WORKER_BED_H
#define TESTS_UNIT_WORKER_BED_H

#include "worker/core.h"

#define BED_REQUESTS 4096
#define BED_MAKING 64
#define BED_SENDS 1024
#define BED_STREAMS 6
#define BED_ME 7
#define BED_OTHER 9
#define BED_MS INT64_C(1000000)

enum bed_state { BED_UNUSED, BED_OPEN, BED_ANSWERED, BED_CANCELLED, BED_GONE };

struct bed_request {
    enum bed_state state;
    uint64_t connection;
    enum worker_action_kind answer;
    struct worker_action action; /* the answer */
    char text[128];
    int waits;
    uint32_t wait_ms; /* as the last of them said */
};

struct bed {
    struct worker_core *core;
    int64_t now_ns;
    struct scheduler_stream streams[BED_STREAMS]; /* all use the epoch, but [1] */
    struct bed_request requests[BED_REQUESTS];
    uint64_t next_request;
    struct worker_action making[BED_MAKING];
    int making_count, makes, makes_of[WORKER_CAUSES], together; /* together: makes beside another */
    int64_t together_cpu_ns; /* of a making of siblings; of one alone it is 8 ms */
    uint64_t sends[BED_SENDS];
    struct worker_action sending[BED_SENDS]; /* beside sends */
    int send_count, syncs, gone, drops, pings, hastened, second_answers;
    uint64_t dropped[64];
    bool went[2]; /* the stream was said to be gone */
};

/* Items 100, block rows 8, block bytes 8192; staging for `blocks` blocks. */
void bed_start(struct bed *bed, int blocks, uint32_t making_max, uint32_t requests_max);
/* Where sharing pays it is learnt anew after so many blocks. */
void bed_start_learning(struct bed *bed, int blocks, uint32_t making_max, uint32_t requests_max,
                        uint32_t learn_again);
void bed_stop(struct bed *bed);
void bed_add_stream(struct bed *bed, int stream);
/* Slot i's home: BED_ME when i % of == 0, else BED_OTHER. */
void bed_plan(struct bed *bed, int stream, uint32_t version, uint32_t of);
void bed_take(struct bed *bed); /* all actions, into the book */

uint64_t bed_connect(struct bed *bed);
/* Handle number = stream + 1. */
struct bed_request *bed_open(struct bed *bed, uint64_t connection, int stream, const char *job,
                             uint32_t rank);
struct worker_get bed_get_of(struct bed *bed, int stream, uint32_t epoch, uint64_t block);
struct bed_request *bed_send(struct bed *bed, uint64_t connection, struct worker_get get);
struct bed_request *bed_get(struct bed *bed, uint64_t connection, int stream, uint32_t epoch, uint64_t block);
void bed_made(struct bed *bed, int making, enum base_code code); /* removes it from the list */
void bed_make_all(struct bed *bed);
void bed_sent(struct bed *bed, int send, bool done);
void bed_send_all(struct bed *bed);
/* Stream 1 becomes a sibling of stream 0, before they are added. */
void bed_relate(struct bed *bed);
/* A block that the plan says is ours (or not) in an epoch, from `block` on. */
uint64_t bed_block(const struct bed *bed, int stream, uint32_t epoch, uint64_t block, bool ours, uint32_t of);

#endif
