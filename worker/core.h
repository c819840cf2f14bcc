/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker's machine without I/O: (now, event) -> queue of actions. No sockets, no threads, no clock; one
 * owner. The program drives it with libevent and pools, tests/sim with virtual time, thousands at once: an
 * empty one is under 1 KB.
 *
 * A block (stream, epoch key, number) and its life:
 *
 *            GET, home or insist            memory and a place
 *   ABSENT ----------------------> QUEUED --------------------> MAKING   action MAKE(offset)
 *    ^ ^ ^   last waiter cancels   |  ^                         | | |
 *    | | +-------------------------+  |  GET after `until`      | | |  made(UNAVAILABLE, text): RETRY to waiters
 *    | |                              +------------- RESTING <--+ | |     (no memory, backoff)
 *    | |  nobody asks for 30 s                         |          | |
 *    | +-----------------------------------------------+          | |  made(OK): DATA to waiters
 *    |                                  READY(pins) <-------------+ |     (one pin a DATA being sent)
 *    |  evicted: farthest next use,     |                           |
 *    |  no pins                         |                           |  made(other code): FAIL to waiters
 *    +----------------------------------+---------------------------+
 *
 * A request (GET) ends in exactly one of DATA, MOVED, RETRY, FAIL, unless it is cancelled or its connection
 * closes: READY -> DATA; QUEUED, MAKING -> waits (single flight); RESTING -> RETRY; ABSENT -> made here when
 * the plan says we are the home, or nobody is, or with INSIST, or when our plan is older than the request's;
 * MOVED(home) otherwise. A draining worker, and one whose stream was removed, makes nothing new: RETRY. Out
 * of range: FAIL invalid.
 *
 * Blocks of streams of one family are made together while that pays (siblings.c): then the MAKE of one takes the
 * others along, from QUEUED or ABSENT to MAKING, and each is made by itself.
 *
 * What is made next: streams have their parts of the making by the weights of their live jobs; what a job has made again
 * (pressure, late, hedge) is at its own charge, by its own weight. Within WORKER_SHARE_WINDOW_NS of fairness the earliest
 * deadline goes first. See worker/machine.h and docs/adr/0006-fair-shares.md.
 *
 * Handles of blocks, connections and sends are (generation << 32 | index), never 0, never pointers; a stale
 * one is ignored. After each event take the actions until there are none. When memory for the machine's own
 * tables runs out it is broken (worker_core_broken): end the process, the design lives with dead workers.
 */
#ifndef WORKER_CORE_H
#define WORKER_CORE_H

#include "base/error.h"
#include "scheduler/plan.h"
#include "scheduler/stream.h"

#include <stddef.h>

#define WORKER_TICK_MS 250 /* WAIT or PING to everyone who waits: or a busy worker would look dead */
#define WORKER_UNKNOWN_STREAM_MS 200 /* RETRY of an OPEN whose stream the server has not told us yet */
#define WORKER_REST_FIRST_MS 100     /* after an unavailable item; doubles ... */
#define WORKER_REST_MOST_MS 5000     /* ... up to this */
#define WORKER_LATE_MS 20000 /* in the making for so long (storage hangs): those who wait may ask elsewhere */
#define WORKER_REFUSALS_MAX 64 /* of requests that make no sense, on one connection; then it is dropped */
#define WORKER_CANCELLED_MAX                                                                                 \
    64 /* times requests_max: cancelled while they are sent, on one handle; then, too */
#define WORKER_CLAIMS_MAX 65536 /* of one stream */
#define WORKER_LEARN_BLOCKS 8   /* learn_blocks, if 0 */
#define WORKER_LEARN_AGAIN 1000 /* learn_again, if 0 */
#define WORKER_MARK_MS 1000     /* trainers tell their low-waters at least so often */
#define WORKER_DORMANT_MS 5000  /* without a move while others of the stream move: the claim does not count */
#define WORKER_STILL_MS                                                                                      \
    30000 /* no claim of a stream moved for so long: none counts, and nothing that is not asked for is made for it */
#define WORKER_WEIGHT_LEAST 0.001 /* weights of jobs are kept between these */
#define WORKER_WEIGHT_MOST 1000.0
/* How far slack may go before fairness: core time by unit of weight. Any two that wait all the time are never farther
 * apart than this and a block of each. */
#define WORKER_SHARE_WINDOW_NS (100 * INT64_C(1000000))

struct worker_core;

struct worker_core_options {
    uint64_t worker;        /* own id, as plans name it */
    uint64_t staging_bytes; /* budget of block memory */
    uint32_t making_max;    /* blocks in the making at once; siblings made together are one */
    uint32_t requests_max;  /* in flight on a handle, told at OPEN; enforced at twice that: ends cross on the
                               wire */
    /* Siblings: of each so many are made alone, then so many together, before that is compared. */
    uint32_t learn_blocks;
    uint32_t learn_again; /* after so many together, or apart, it is learnt anew */
};

/* Why a block is made. All but FIRST count as remade. */
enum worker_cause {
    WORKER_CAUSE_FIRST,
    WORKER_CAUSE_PLAN,     /* INSIST where we are not the home */
    WORKER_CAUSE_DEATH,    /* INSIST | DEATH where we are not the home */
    WORKER_CAUSE_HEDGE,    /* INSIST | HEDGE where we are not the home */
    WORKER_CAUSE_PRESSURE, /* made here before, and evicted while a live claim was still to use it */
    WORKER_CAUSE_LATE,     /* made here before, and asked again when all claims had passed it */
    WORKER_CAUSES,
};
const char *worker_cause_name(enum worker_cause cause); /* "first", "plan", ... */

enum worker_action_kind {
    WORKER_SEND_OPENED, /* connection, request, handle, stream: reply to OPEN, with requests_max */
    WORKER_SEND_DATA, /* connection, request, handle, stream, block, epoch, number, from, to, offset; then say
                         worker_core_sent(send) */
    WORKER_SEND_WAIT, /* connection, request, handle; making, queue, time_ms = estimate */
    WORKER_SEND_MOVED, /* connection, request, handle; home */
    WORKER_SEND_RETRY, /* connection, request, handle; code, time_ms = after, text */
    WORKER_SEND_FAIL,  /* connection, request (0: of the connection), handle; code, text */
    WORKER_SEND_PING,  /* connection */
    WORKER_DROP,       /* connection: close it when what is queued has left, then say worker_core_closed */
    WORKER_MAKE,       /* stream, block, epoch, number, rows, offset, size_bytes, deadline_ns, cause; then say
                          worker_core_made */
    WORKER_HASTEN,     /* block, deadline_ns: someone needs it earlier than MAKE said */
    WORKER_WANT_SYNC,  /* an OPEN named a stream that we do not know: ask the server now */
    WORKER_STREAM_GONE, /* stream: removed, and no block or handle of it is left: free what belongs to it */
};

/* A block of another stream of the family, same epoch and number, that is made from the same items. */
#define WORKER_SIBLINGS 3
struct worker_sibling {
    void *stream;
    uint64_t block, offset, size_bytes;
    enum worker_cause cause;
    uint16_t jobs;
};

struct worker_action {
    enum worker_action_kind kind;
    uint64_t connection, request;
    uint64_t send;               /* DATA: pass to worker_core_sent */
    uint64_t block;              /* handle */
    void *stream;                /* the context given at worker_core_stream_add */
    uint64_t number;             /* of the block in its epoch */
    uint64_t offset, size_bytes; /* of the block in staging memory */
    int64_t deadline_ns;
    uint64_t home;
    const char *text; /* valid until the next call of worker_core_next or any event */
    uint32_t handle;
    uint32_t plan;  /* our plan version of that stream, for the frame */
    uint32_t epoch; /* DATA: as asked; MAKE: the key's (0 where the stream does not use it) */
    uint32_t time_ms, queue, rows;
    uint16_t from, to;
    uint16_t jobs; /* MAKE: how many jobs are waiting for it */
    enum base_code code;
    enum worker_cause cause;
    bool making;
    struct worker_sibling
        siblings[WORKER_SIBLINGS]; /* MAKE: made together with it, each with a worker_core_made */
    int sibling_count;
};

/* ---- life ---- */

enum base_code worker_core_create(struct worker_core **core, const struct worker_core_options *options,
                                  struct base_error *error);
void worker_core_destroy(struct worker_core *core); /* NULL is fine; actions not taken are dropped */
bool worker_core_broken(const struct worker_core *core);

/* The next action; false: none, or the machine is broken: what it would do may rest on tables that are not whole. */
bool worker_core_next(struct worker_core *core, struct worker_action *action);
/* When worker_core_tick wants to be called; INT64_MAX: nothing to wait for. Earlier calls are harmless. */
int64_t worker_core_wake_ns(const struct worker_core *core);
void worker_core_tick(struct worker_core *core, int64_t now_ns);

/* ---- what the server says ---- */

/* A live stream. `block_bytes` is the size of a whole block in memory; one that is over the staging budget is
 * TOO_LARGE. `context` comes back in actions, until STREAM_GONE. Known already: it lives (again) and
 * `*context` becomes the one that it had. */
enum base_code worker_core_stream_add(struct worker_core *core, int64_t now_ns,
                                      const struct scheduler_stream *stream, uint64_t block_bytes,
                                      void **context, struct base_error *error);
/* Staged blocks stay until their memory is wanted, and are served to those who have it open. */
void worker_core_stream_remove(struct worker_core *core, int64_t now_ns, const uint8_t stream[32]);
/* A plan that is not newer than the one we have is ignored. Unknown streams, too. */
void worker_core_stream_plan(struct worker_core *core, int64_t now_ns, const uint8_t stream[32],
                             const struct scheduler_plan *plan);
struct worker_live_job {
    const char *job;
    double weight; /* its part of the making beside others; not finite or <= 0 counts as 1 */
};
/* The live jobs: claims of others fade, until they are heard of again. While the server is away the last list
 * stays. */
void worker_core_stream_jobs(struct worker_core *core, int64_t now_ns, const uint8_t stream[32],
                             const struct worker_live_job *jobs, int count);
/* Nothing new is made from now on; queued requests get RETRY; staged blocks and those in the making are
 * served. */
void worker_core_drain(struct worker_core *core, int64_t now_ns);
bool worker_core_idle(
    const struct worker_core *core); /* nothing in the making, nothing being sent, nobody waits */

/* ---- what clients say ---- */

uint64_t worker_core_connected(struct worker_core *core); /* a handle; 0: broken */
/* Its waiting requests are forgotten at once; those being sent end with worker_core_sent(done false), before
 * or after this. */
void worker_core_closed(struct worker_core *core, int64_t now_ns, uint64_t connection);

struct worker_open {
    uint64_t request;
    uint32_t handle, rank;
    const uint8_t *stream, *fingerprint; /* 32 and 16 bytes */
    const char *job;
};
void worker_core_open(struct worker_core *core, int64_t now_ns, uint64_t connection,
                      const struct worker_open *open);

struct worker_get {
    uint64_t request, block;
    uint32_t handle, epoch, plan, slack_ms;
    uint16_t from, to;
    bool insist, death, hedge; /* death, hedge: why it insists */
    uint32_t mark_epoch;       /* low-water: the rank's first position not yet received */
    uint64_t mark_position;
};
void worker_core_get(struct worker_core *core, int64_t now_ns, uint64_t connection,
                     const struct worker_get *get);
void worker_core_cancel(struct worker_core *core, int64_t now_ns, uint64_t connection, uint64_t request);
void worker_core_mark(struct worker_core *core, int64_t now_ns, uint64_t connection, uint32_t handle,
                      uint32_t epoch, uint64_t position);

/* ---- completions ---- */

struct worker_made {
    enum base_code code; /* OK; UNAVAILABLE (and other retryable ones): tried again later; else: FAIL */
    const char *text;    /* names item and cause; NULL when OK */
    uint64_t used_bytes; /* from the block's start; memory behind it is given back (0: all is used) */
    int64_t cost_ns;     /* how long it took, for estimates */
    int64_t cpu_ns;      /* of prep threads; of blocks made together for all of them, said with each */
};
void worker_core_made(struct worker_core *core, int64_t now_ns, uint64_t block,
                      const struct worker_made *made);
void worker_core_sent(struct worker_core *core, int64_t now_ns, uint64_t send, bool done);

/* ---- looking in ---- */

struct worker_counts {
    /* totals */
    uint64_t blocks_made, rows_made, blocks_remade[WORKER_CAUSES], blocks_unavailable, blocks_failed,
        blocks_evicted;
    uint64_t sibling_sets_forgotten; /* before their cost was known: too many */
    uint64_t opens, requests, sent, sent_rows, moved, retried, failed, invalid, cancelled, waits;
    /* now */
    uint64_t connections, handles, streams, claims, waiting, sending;
    uint64_t claims_dormant; /* when staging was last short */
    uint64_t blocks_queued, blocks_making, blocks_ready, staged_bytes;
    uint64_t blocks_riding; /* of those in the making: beside another, whose place they share */
    /* smoothed over seconds */
    double queue_ms; /* from QUEUED to MAKING; falls while nothing is queued, rises while the queue stands */
    double making_share; /* of making_max, in use */
};
void worker_core_counts(const struct worker_core *core, int64_t now_ns, struct worker_counts *counts);

/* For StreamFront: calls `visit` for each live stream that had a request. */
struct worker_front {
    const uint8_t *stream; /* 32 bytes */
    uint32_t epoch;        /* the latest one with a request */
    uint64_t position;     /* first position of the furthest block asked for in it */
};
void worker_core_fronts(const struct worker_core *core,
                        void (*visit)(void *context, const struct worker_front *front), void *context);

enum worker_block_state {
    WORKER_ABSENT,
    WORKER_QUEUED,
    WORKER_MAKING,
    WORKER_READY,
    WORKER_RESTING,
    WORKER_BLOCK_STATES
};
/* State of a block, for tests and oracles; `next_use` (or NULL) gets the distance of a READY one as if the stream's
 * last move was now, UINT64_MAX: none. */
enum worker_block_state worker_core_block(struct worker_core *core, const uint8_t stream[32], uint32_t epoch,
                                          uint64_t number, uint64_t *next_use);

#endif
