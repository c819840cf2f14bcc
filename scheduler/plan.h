/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of a stream: 1024 slots -> (primary, secondary) worker. A new plan interleaves homes (W consecutive slots, W
 * homes); a change moves only the slots that it must; secondaries spread a dead worker's load evenly. Plain data.
 */
#ifndef SCHEDULER_PLAN_H
#define SCHEDULER_PLAN_H

#include "base/error.h"

#define SCHEDULER_PLAN_SLOTS 1024
#define SCHEDULER_PLAN_WORKERS 1024 /* of one plan, at most */
#define SCHEDULER_PLAN_NOBODY UINT64_C(0)

struct scheduler_plan {
    uint32_t version; /* rises with every change; 0: no plan yet */
    uint64_t primary[SCHEDULER_PLAN_SLOTS], secondary[SCHEDULER_PLAN_SLOTS]; /* worker ids; 0 = nobody */
};

/* Eligible workers with their weights (capacity, any unit; taken in 1/65536ths, from one of these to 2^14). */
struct scheduler_plan_worker {
    uint64_t id;
    double weight;
    int64_t tag; /* the caller's */
};

/* Makes `next` from `previous` (version 0: from nothing) for exactly these workers, at most SCHEDULER_PLAN_WORKERS; count 0 gives a
 * plan of nobodies. A slot keeps its home while that worker is eligible and not over its share (rounded up, plus one); a dead home's
 * slots go to their secondaries. version = previous + 1 if anything differs, else previous. Deterministic.
 * `moves` (NULL: no bound) bounds the slots that change between workers that both had some before, because their weights have
 * changed; what was moved is taken off it. Deaths and joins are not bounded by it. */
void scheduler_plan_next(const struct scheduler_plan *previous, const struct scheduler_plan_worker *workers,
                         int count, int *moves, struct scheduler_plan *next);

/* Which workers a plan has when there are more of them than slots: puts the SCHEDULER_PLAN_WORKERS with the highest scores first and
 * returns how many those are. *least: the lowest score among them; -INFINITY when all are. */
int scheduler_plan_admit(const uint8_t family[32], struct scheduler_plan_worker *workers, int count,
                         double *least);
/* Weighted rendezvous: a worker's chance to be among the highest rises with its weight, and a worker more or less changes nothing
 * about the order of the others. */
double scheduler_plan_score(const uint8_t family[32], const struct scheduler_plan_worker *worker);

/* The slot of a block: (block + h) mod 1024, h from (the stream's family, epoch) when the stream uses the epoch, else 0: with
 * equal plans block k of all siblings has the same home. */
uint32_t scheduler_plan_slot(const uint8_t family[32], bool uses_epoch, uint32_t epoch, uint64_t block);

/* The order in which a client tries workers for a slot: primary, secondary, then rendezvous over the rest, the same for
 * all clients. Fills at most `most` distinct ids of `workers`, returns how many. */
int scheduler_plan_candidates(const struct scheduler_plan *plan, uint32_t slot, const uint64_t *workers,
                              int count, uint64_t *out, int most);

#endif
