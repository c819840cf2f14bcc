/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims of one stream: hints about who will still use what. A claim is a (job, rank) with its low-water, the
 * first position that the rank has not received, in linear positions (epoch * M + position); where the stream
 * does not use the epoch positions go round modulo M instead. Claims fade when their job leaves the
 * membership; they never block anything. A claim that did not move while others of the stream did, for
 * WORKER_DORMANT_MS of their time, is dormant: a trainer that is stopped does not hold staging. It counts again when
 * it moves. While none of a stream has moved for WORKER_STILL_MS all of them are dormant: their blocks go before those
 * of streams that run; the first one that moves wakes its fellows.
 *
 *            passed          next use of this block: 7        next use: 0 (low-water inside)
 *   ...=======|-----c-------#######-----------------------c##----------> positions
 */
#ifndef WORKER_CLAIMS_H
#define WORKER_CLAIMS_H

#include <stdbool.h>
#include <stdint.h>

#define WORKER_CLAIMS_NEVER UINT64_MAX
#define WORKER_CLAIMS_NO_SHARE UINT32_MAX

struct worker_live_job; /* worker/core.h */

struct worker_claim {
    char *job; /* owned */
    uint64_t job_hash, low_water;
    int64_t moved_ns;       /* on the stream's clock */
    uint32_t rank, handles; /* handles: open ones that move it */
    uint32_t share; /* its job's, for worker/share.c; stays when it is forgotten, until that took it back */
    bool live, counted; /* counted: its low-water is in `sorted` */
};

struct worker_claims {
    struct worker_claim *items; /* owned; stable indexes, free ones have job NULL */
    uint32_t count;
    uint64_t *sorted; /* low-waters of those that count, when not stale; owned */
    uint32_t sorted_count, sorted_capacity, in_use;
    uint32_t dormant;           /* at the last sort */
    bool stale;                 /* `sorted` is to be made anew */
    bool still;                 /* at the last sort: none had moved for long */
    int64_t clock_ns, heard_ns; /* a clock that stands while no claim moves, and when it was read last */
    int64_t sleeps_ns;          /* on it, when one of `sorted` may be dormant, at the earliest */
    uint64_t wrap;              /* M, or 0: linear */
};

void worker_claims_init(struct worker_claims *claims, uint64_t wrap);
void worker_claims_fini(struct worker_claims *claims);

/* Finds or adds; counts one more handle on it. -1: no memory. */
int64_t worker_claims_open(struct worker_claims *claims, const char *job, uint32_t rank);
void worker_claims_close(struct worker_claims *claims, uint32_t claim);
/* Hearing of a claim makes it live; that it moves wakes it. */
void worker_claims_move(struct worker_claims *claims, uint32_t claim, int64_t now_ns, uint64_t low_water);
/* Those whose job is not in the list fade; those without an open handle are forgotten. */
void worker_claims_list(struct worker_claims *claims, const struct worker_live_job *jobs, int count);

/* Low-waters of claims that are live and not dormant, ascending. Valid until the claims change, or time passes. False: no
 * memory. */
bool worker_claims_sort(struct worker_claims *claims, int64_t now_ns);
/* Distance from the nearest low-water behind to a block at [start, end); WORKER_CLAIMS_NEVER: none. Needs
 * sort. */
uint64_t worker_claims_next_use(const struct worker_claims *claims, uint64_t start, uint64_t end);

#endif
