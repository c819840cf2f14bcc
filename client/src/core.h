/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One job's client as a machine without I/O: which rows to ask of whom, where they go, when a step is ready.
 * No sockets, threads or clock: the owner reports what happened (functions with `now_ns`) and then carries
 * out what client_core_act hands out until it answers false. client/src/loop.c drives it on sockets,
 * tests/sim on virtual time.
 *
 * A step is one batch of this rank. look_ahead + 1 slots hold steps, in step order; each slot's life:
 *
 *        steps are left      first GET         all parts DONE      take        release
 *   FREE ------------> WANTED ------> FILLING -------------> READY ----> HELD -------> FREE
 *                        |                                     ^
 *                        +-------------------------------------+  no rows (tail exact)
 *
 * Seek makes all that are not HELD ABANDONED: their requests are cancelled, and they are FREE as soon as nothing is being
 * received into them. A worker may be sending what is cancelled all the same: no more than four caps of it, until it comes or
 * nothing more of it has come for stall_ns.
 *
 * A step's rows are cut into parts: maximal runs of consecutive positions inside one block. Padding rows are
 * not asked for: row i >= distinct is a copy of row i % distinct. One request a part, at one worker at a time:
 *
 *             GET           WAIT              place               data
 *   PLANNED ------> SENT ----------> WAITING -------> RECEIVING --------> DONE
 *                    |  \              |               ^  |
 *                    |   +-------------|---- place ----+  |
 *                    +--------+--------+                  |
 *     an answer of that kind  |        or its connection is lost: LOST
 *                             v
 *   MOVED   at once, INSIST at the named worker
 *   RETRY   when due; after two at one worker elsewhere, INSIST
 *   LOST    at once, INSIST|DEATH at the next candidate
 *
 * Each of these three -- GET --> SENT again, under a new request number: an answer to an old number goes to
 * scratch. Whom to ask: the plan's primary while it is not down, else the next of scheduler_plan_candidates
 * that is not. Never more requests in flight at a worker than its OPEN reply allows; each has its slot room.
 *
 *   NEW ---- CONNECT ----> CONNECTING ---- connected ----> OPENING ---- opened ----> UP
 *    ^                         |                              |                       |
 *    |  100 ms .. 2 s          v   lost, or silent too long   v                       v
 *    +---------------------- DOWN <---------------------------+-----------------------+
 *
 * HEDGE: a part that is SENT or WAITING is asked of the next candidate, too, with INSIST|HEDGE, when the trainer
 * is about to starve for it and its worker has been silent for 300 ms, or twice what its first answers take if
 * that is more. (A worker that lives speaks of each request that waits every 250 ms, so one that says WAIT is
 * never hedged.) At most one a part and 2% of all requests; none while anybody says RETRY, or did less than 5 s ago;
 * none for a part that was INSISTed for death.
 *
 *                          place from the home: CANCEL there
 *   no hedge --- GET ---> out ------------------------------------> no hedge
 *                          |  place from it: it is the request, CANCEL at the home
 *                          |  the home is lost, says MOVED or RETRY: it is the request, SENT
 *                          +-- lost, MOVED, RETRY, FAIL: as if it had never been
 *
 * An UP peer is silent too long after its patience without a frame while requests are outstanding, one that is
 * dialled after twice that. Patience is stall_ns, but on a starved machine that drops workers which live, and all of
 * their work with them:
 *
 *                   lost for silence, or for want of a connection, and UP again: it had not died
 *   stall_ns -------------------------------------------------> 2 x ------> 4 x ------> 8 x
 *      ^                                                         |           |           |
 *      +---- parts come, and 20 s UP without such a silence -----+-----------+-----------+
 *
 * When all that are UP owe something and have said nothing for half of stall_ns, it was rather us, or the way to all
 * of them: none of several is lost before 4 x stall_ns. The time that we slept ourselves (act came later than asked
 * for) is nobody's silence. The pause is back at 100 ms when a part has come. Requests wait for a worker that is connecting for the first time, and
 * go elsewhere while one is down or coming back. With all candidates down they wait for the first to come up.
 * Nothing here ever gives up, except on permanent errors.
 */
#ifndef CLIENT_CORE_H
#define CLIENT_CORE_H

#include "base/error.h"
#include "proto/wire/rows.h"
#include "scheduler/plan.h"
#include "scheduler/steps.h"

#include <stddef.h>

struct client_core; /* one thread at a time */

enum client_on_bad {
    CLIENT_ON_BAD_ERROR,
    CLIENT_ON_BAD_SKIP,
    CLIENT_ON_BAD_REPLACE
}; /* numbers of enum mr_on_bad */

struct client_core_options {
    struct scheduler_shape shape;
    uint8_t family[32];  /* of the stream, for slots of the plan */
    bool uses_epoch;     /* of the stream: else requests say epoch 0 */
    uint32_t block_rows; /* K, 1..256 */
    struct scheduler_cursor start;
    uint32_t first_epoch; /* the stream epoch that is the job's epoch 0 */
    uint32_t epochs;      /* ends after so many of the job's; 0: never */
    uint32_t look_ahead;  /* 1.. : slots - 1, and how many may be held */
    enum client_on_bad on_bad;
    int64_t stall_ns;       /* > 0 */
    int64_t unavailable_ns; /* > 0 */
};

/* INVALID: an epoch without a step (tail drop, fewer positions than world * batch), a cursor outside the
 * epoch. */
enum base_code client_core_create(struct client_core **core, const struct client_core_options *options,
                                  struct base_error *error);
void client_core_destroy(struct client_core *core); /* NULL is fine */

/* ---- what to do ---- */

enum client_action_kind {
    CLIENT_ACTION_CONNECT = 1, /* worker: dial it and agree on HELLO; then client_core_connected or _lost */
    CLIENT_ACTION_OPEN,        /* worker: send OPEN; then client_core_opened or _lost */
    CLIENT_ACTION_CLOSE,       /* worker: drop the connection (or the dialling); report nothing more of it */
    CLIENT_ACTION_GET,         /* worker: everything but slot */
    CLIENT_ACTION_CANCEL,      /* worker, request: an answer may still come, and will go to scratch */
    CLIENT_ACTION_MARK,        /* worker, mark */
    CLIENT_ACTION_READY,       /* slot: complete. Once a step, unless it is taken before */
    CLIENT_ACTION_FETCH_PLAN,  /* plan: a version that somebody has; try to get it (again each second while
                                  behind) */
    CLIENT_ACTION_ERROR,       /* client_core_take has something to say: wake who waits for it */
};

struct client_action {
    enum client_action_kind kind;
    uint64_t worker;
    /* GET */
    uint64_t request; /* never 0, never used twice */
    uint32_t plan;    /* version that this client has */
    uint32_t epoch;   /* as it enters keys: 0 when the stream does not use it */
    uint64_t block;
    uint32_t from, to;            /* rows [from, to) of the block */
    bool insist, death, hedge;    /* WIRE_FLAG_... */
    uint32_t slack_ms;            /* how soon the trainer would starve */
    struct scheduler_cursor mark; /* GET, MARK: the first position not received (real stream epoch) */
    /* READY */
    uint32_t slot;
};

/* The next thing to do at `now_ns`; false: nothing until an event, or until client_core_wake_ns. Timers run
 * in here. */
bool client_core_act(struct client_core *core, int64_t now_ns, struct client_action *action);
/* When act must be called again although nothing happens; INT64_MAX: never. */
int64_t client_core_wake_ns(const struct client_core *core);

/* ---- what happened: the plan ---- */

/* A plan and the ids of all its workers (those without a slot, too). Not newer than the one here: ignored. */
enum base_code client_core_plan(struct client_core *core, int64_t now_ns, const struct scheduler_plan *plan,
                                const uint64_t *workers, int count, struct base_error *error);
uint32_t client_core_plan_version(const struct client_core *core);

/* ---- what happened: a worker's connection. Events of unknown workers and requests are ignored. ---- */

void client_core_connected(struct client_core *core, int64_t now_ns, uint64_t worker);
void client_core_opened(struct client_core *core, int64_t now_ns, uint64_t worker, uint32_t requests_max);
/* The worker does not know the stream yet: OPEN again after `after_ms`. */
void client_core_not_opened(struct client_core *core, int64_t now_ns, uint64_t worker, uint32_t after_ms);
/* Refused, reset, closed, garbage: it is no more. `why` (or NULL) is kept for client_core_why. */
void client_core_lost(struct client_core *core, int64_t now_ns, uint64_t worker, const char *why);
/* Any frame, or bytes of one, with the plan version of its header (0: none said). Call it before what the
 * frame says. */
void client_core_heard(struct client_core *core, int64_t now_ns, uint64_t worker, uint32_t plan_version);

void client_core_wait(struct client_core *core, int64_t now_ns, uint64_t worker, uint64_t request,
                      bool making, uint32_t queue);
void client_core_moved(struct client_core *core, int64_t now_ns, uint64_t worker, uint64_t request,
                       uint64_t home);
/* `code` retryable; `text` names item and cause. */
void client_core_retry(struct client_core *core, int64_t now_ns, uint64_t worker, uint64_t request,
                       uint32_t after_ms, const struct base_error *cause);
/* A permanent code ends the job (client_core_take tells it); a retryable one is a retry. */
void client_core_fail(struct client_core *core, int64_t now_ns, uint64_t worker, uint64_t request,
                      const struct base_error *cause);

/* A DATA frame's header came: where do its rows go? Row i of the frame is row `row` + i of slot `slot`. */
struct client_arrival {
    uint64_t request, block;
    uint32_t epoch, from, to;
};
struct client_place {
    uint32_t slot, row;
};
enum client_placed {
    CLIENT_PLACED_SLOT,    /* yours to write until data or lost; nobody else writes there */
    CLIENT_PLACED_SCRATCH, /* nobody waits for it any more: read and forget */
    CLIENT_PLACED_WRONG,   /* not what was asked for under this number: drop the connection */
};
enum client_placed client_core_place(struct client_core *core, int64_t now_ns, uint64_t worker,
                                     const struct client_arrival *arrival, struct client_place *place);
/* More bytes of one that goes to scratch. */
void client_core_stray(struct client_core *core, int64_t now_ns, uint64_t worker);
/* The placed part is there, verified. `rows`: its to - from rows. */
void client_core_data(struct client_core *core, int64_t now_ns, uint64_t worker, uint64_t request,
                      const struct wire_row *rows);

/* ---- the trainer's side ---- */

/* A step, from take until release. */
struct client_step {
    uint32_t slot;
    uint32_t epoch;                /* stream epoch */
    uint64_t step, steps;          /* of this epoch as this run sees it */
    struct scheduler_cursor after; /* cursor to go on behind it */
    struct scheduler_batch batch;  /* rows, positions */
    uint32_t distinct;             /* rows received; row i >= distinct is a copy of row i % distinct */
    uint32_t valid_rows;
    const uint8_t *valid; /* [rows]: 0 for padding, and for bad rows by policy (their label is to be -100) */
    const struct wire_row *rows; /* [rows], copies filled in */
};

/* BASE_OK: the next step in order. BASE_BUSY: look_ahead steps are held. BASE_TIMEOUT: not ready yet.
 * BASE_CLOSED: the end, no more steps. BASE_UNAVAILABLE: the step waits for an item that is unavailable
 * everywhere since unavailable_ns; told once, then its clock starts anew. BASE_BAD_SAMPLE: the step has a bad
 * row and the policy is error. Other codes: a worker's permanent refusal. The last two come again and again:
 * the job is over. */
enum base_code client_core_take(struct client_core *core, int64_t now_ns, struct client_step *step,
                                struct base_error *error);
void client_core_release(struct client_core *core, int64_t now_ns, uint32_t slot);
/* The trainer has had so little to do with its last steps that handing over is most of it. */
bool client_core_is_brisk(const struct client_core *core);

/* The next step is the one at `to` (its normal form), in the epochs of a job that began at stream epoch `first_epoch`. Held
 * steps stay. INVALID: outside the epoch; the error of a job that is over: nothing changes. */
enum base_code client_core_seek(struct client_core *core, int64_t now_ns, uint32_t first_epoch,
                                struct scheduler_cursor to, struct base_error *error);

/* The row that BASE_BAD_SAMPLE was about. */
struct client_core_bad {
    uint64_t item, position;
    uint32_t epoch;
    uint8_t cause;
};
struct client_core_bad client_core_bad(const struct client_core *core);

/* After the step handed over last (at first: the normal form of where it starts). */
struct scheduler_cursor client_core_cursor(const struct client_core *core);
/* The first position of this rank that has not been received. */
struct scheduler_cursor client_core_mark(const struct client_core *core);
/* Why the front step is not ready, in words. */
void client_core_why(const struct client_core *core, char *text, size_t text_bytes);

struct client_core_stats {
    uint64_t requests, moved, retries, reconnects,
        failovers;                   /* failovers: requests taken from a lost worker */
    uint64_t hedges, hedges_won;     /* asked of a second worker, too; which was the quicker one */
    uint64_t rows, steps;            /* handed over; rows without padding */
    uint64_t substituted, skipped;   /* of rows handed over */
    uint32_t ready, held, in_flight; /* now */
    uint32_t peers, peers_up;
};
struct client_core_stats client_core_stats(const struct client_core *core);
/* Requests in flight at a worker, and its cap (0: not up). For tests of the invariants. */
void client_core_load(const struct client_core *core, uint64_t worker, uint32_t *in_flight, uint32_t *most);

#endif
