/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the worker's machine (worker/core.h), for its own files only: core.c, block.c, request.c, session.c, share.c,
 * siblings.c. */
#ifndef WORKER_MACHINE_H
#define WORKER_MACHINE_H

#include "worker/arena.h"
#include "worker/claims.h"
#include "worker/core.h"
#include "worker/history.h"
#include "worker/load.h"
#include "worker/shelf.h"
#include "worker/slots.h"

#define WORKER_NONE UINT32_MAX
#define WORKER_REST_FORGET_NS                                                                                \
    (30 * INT64_C(1000000000)) /* a resting block that nobody asks for is forgotten */

struct worker_heap {  /* queued blocks of a share, least deadline first */
    uint32_t *blocks; /* owned */
    uint32_t count;
};

struct worker_cost { /* prep CPU, smoothed (siblings.c) */
    double cpu_ns, rows;
    uint32_t blocks;
};

/*
 * Who has how much of the making (docs/adr/0006-fair-shares.md): each stream, by the weights of its live jobs, for what
 * it makes first or because of plan and death; and each job of a stream, by its own weight, for what it had made again.
 *
 *   had_ns, core time by weight:   |--stream 1--------*              window: of those not farther than
 *                                  |--stream 2----*                  WORKER_SHARE_WINDOW_NS from the least, the one
 *   virtual_ns, the least so far:  |--------------^----------|       whose first block has the earliest deadline
 *                                  |--stream 2, job c-------------*  not now
 */
struct worker_share {
    struct worker_slot slot;
    uint32_t stream;
    bool of_job;
    uint64_t job; /* hash of its name */
    double weight, had_ns;
    struct worker_heap queue;
    uint32_t active_at; /* in core->active; WORKER_NONE: nothing is queued */
    uint32_t keepers;   /* claims, blocks QUEUED or MAKING, or the stream */
};

struct worker_weight {
    uint64_t job; /* hash of its name */
    double weight;
};

struct worker_stream {
    uint8_t hash[32], family[32], fingerprint[16];
    void *context;
    uint64_t items, blocks, block_bytes;
    uint32_t block_rows;
    bool uses_epoch, live;
    uint32_t plan_version;
    uint64_t *homes; /* SCHEDULER_PLAN_SLOTS; owned; NULL: no plan yet */
    struct worker_claims claims;
    struct worker_shelf shelf;
    struct worker_history history;
    uint32_t share;                /* its own */
    struct worker_weight *weights; /* of the jobs that the server listed, by hash; owned */
    uint32_t weight_count;
    double weight;                      /* their sum */
    uint32_t handle_count, block_count; /* that keep it */
    double row_cost_ns;                 /* measured, smoothed: of a block's own part */
    double row_making_ns;               /* of the whole making that it came of */
    struct worker_cost alone;           /* of blocks that are made alone */
    uint64_t alone_blocks;
    bool asked; /* front is known */
    uint32_t front_epoch;
    uint64_t front_position;
};

struct worker_block {
    struct worker_slot slot;
    uint32_t hash_next, stream;
    uint32_t epoch;
    uint64_t number;
    enum worker_block_state state;
    enum worker_cause cause;
    uint64_t offset, size_bytes; /* MAKING, READY */
    int64_t deadline_ns;         /* QUEUED, MAKING; RESTING: until */
    int64_t since_ns;            /* QUEUED, MAKING */
    uint32_t share, heap_at;     /* QUEUED, MAKING: who pays; QUEUED: place in its queue */
    double charged_ns;           /* MAKING: what was guessed */
    uint32_t first_waiter, waiters, pins, attempts;
    uint32_t group; /* MAKING with siblings: whose cost it tells (siblings.c) */
    double part;    /* MAKING: of the making's cost; 1: alone */
    double pays;    /* MAKING: that, and parts of those that are spared */
    bool rides;     /* MAKING: beside the block that the action names first */
    bool unasked; /* MAKING, READY: it went along, and nobody has asked for it yet, so that nobody has paid */
    bool spared;  /* MAKING: it went along while its account was far ahead, which does not pay */
    double owed_ns; /* READY, unasked: what it cost */
    char *text;     /* RESTING: why; owned */
};

struct worker_request {
    struct worker_slot slot;
    uint64_t id; /* the client's */
    uint32_t connection, handle, stream, block;
    uint32_t epoch; /* as asked */
    uint16_t from, to;
    bool sending, orphan;                        /* orphan: its connection is gone, only the pin is left */
    bool cancelled;                              /* while it is sent: the client counts it no more */
    uint32_t block_next, block_before;           /* waiters of the block */
    uint32_t connection_next, connection_before; /* requests of the connection */
};

struct worker_handle {
    uint32_t number, stream, claim, inflight, cancelled; /* inflight: of these, cancelled ones, too */
};

struct worker_connection {
    struct worker_slot slot;
    struct worker_handle *handles; /* owned */
    uint32_t handle_count;
    uint32_t first_request, requests, refusals;
    bool dropped; /* DROP was said: nothing more is heard or answered */
};

struct worker_queued_action {
    struct worker_action action;
    char *text; /* owned */
};

struct worker_core {
    struct worker_core_options options;
    bool broken, draining;
    int64_t tick_ns; /* the next one; INT64_MAX: none */
    struct worker_arena arena;
    uint64_t evictable_bytes;
    struct worker_stream **streams; /* NULL: free place */
    uint32_t stream_count;
    struct worker_slots blocks, requests, connections, shares;
    uint32_t *buckets; /* first block of each chain; a power of two */
    uint32_t bucket_count, resting;
    uint32_t *active; /* shares with something queued; owned */
    uint32_t active_count;
    double active_weight, virtual_ns, most_had_ns;
    struct worker_queued_action *actions; /* a ring */
    uint32_t action_first, action_count, action_capacity;
    char *taken_text;
    struct worker_load load;
    struct worker_siblings *siblings; /* owned; NULL: none was met yet */
    struct worker_counts counts;
};

/* ---- core.c ---- */

/* Queues an action; `text` is copied. */
void worker_core_act(struct worker_core *core, const struct worker_action *action);
struct worker_stream *worker_core_find_stream(struct worker_core *core, const uint8_t hash[32],
                                              uint32_t *index);
void worker_core_release_stream(struct worker_core *core,
                                uint32_t index); /* frees it when nothing is left of it */
void worker_core_begin_tick(struct worker_core *core, int64_t now_ns); /* somebody waits from now on */

/* ---- block.c: states, admission, eviction ---- */

static inline struct worker_block *worker_block_at(const struct worker_core *core, uint32_t index)
{
    return worker_slots_at(&core->blocks, index);
}
/* Places in the making that are taken. */
static inline uint64_t worker_block_makings(const struct worker_core *core)
{
    return core->counts.blocks_making - core->counts.blocks_riding;
}
uint64_t worker_block_start(const struct worker_stream *stream, uint32_t epoch, uint64_t number);
uint32_t worker_block_rows(const struct worker_stream *stream, uint64_t number);
uint32_t worker_block_find(const struct worker_core *core, uint32_t stream, uint32_t epoch, uint64_t number);
/* ABSENT -> QUEUED: stream, epoch, number, cause, since and deadline are those of `asked`. WORKER_NONE: no memory. */
uint32_t worker_block_queue(struct worker_core *core, const struct worker_block *asked, uint32_t asker);
/* RESTING -> QUEUED */
void worker_block_requeue(struct worker_core *core, uint32_t index, int64_t now_ns, int64_t deadline_ns,
                          uint32_t asker);
void worker_block_hasten(struct worker_core *core, uint32_t index,
                         int64_t deadline_ns);                      /* an earlier deadline */
void worker_block_forget(struct worker_core *core, uint32_t index); /* -> ABSENT, no pins, no waiters */
/* Memory, by evicting in the order of the farthest next use, none nearer than `nearest`. False: what is left is that, or is
 * being made or sent. */
bool worker_block_reserve(struct worker_core *core, int64_t now_ns, uint64_t size_bytes, uint64_t nearest,
                          uint64_t *offset);
/* Would that succeed? For blocks of several sizes only mostly. */
bool worker_block_room(struct worker_core *core, int64_t now_ns, uint64_t size_bytes, uint64_t nearest);
/* QUEUED -> MAKING, charged to its stream. The caller says MAKE. */
void worker_block_begin(struct worker_core *core, int64_t now_ns, uint32_t index, uint64_t offset);
uint16_t worker_block_jobs(const struct worker_core *core, const struct worker_block *block); /* that wait */
void worker_block_pin(struct worker_core *core, uint32_t index);
void worker_block_unpin(struct worker_core *core, uint32_t index);
/* Starts what can be started. Called at the end of every event that may have made room. */
void worker_block_admit(struct worker_core *core, int64_t now_ns);
void worker_block_forget_rested(struct worker_core *core, int64_t now_ns);
void worker_block_excuse_late(struct worker_core *core, int64_t now_ns);
void worker_block_clear(struct worker_core *core); /* frees what blocks own, at the end */
uint32_t worker_block_estimate_ms(const struct worker_core *core, uint32_t index);

/* ---- share.c: what is made next, and who pays ---- */

/* The share of a stream (job NULL; each call makes one) or of a job in it, by its name's hash. Each goes when it was
 * released as often. WORKER_NONE: no memory. */
uint32_t worker_share_open(struct worker_core *core, uint32_t stream, const uint64_t *job);
void worker_share_release(struct worker_core *core, uint32_t share);
void worker_share_sweep(struct worker_core *core,
                        struct worker_stream *stream); /* releases those of forgotten claims */
void worker_share_close(struct worker_core *core,
                        struct worker_stream *stream); /* all of a stream without blocks */
void worker_share_clear(struct worker_core *core);     /* frees, at the end */
void worker_share_weigh(struct worker_core *core, uint32_t stream, const struct worker_live_job *jobs,
                        int count);
/* A block is QUEUED from now on, because of its cause and the job of share `asker` (WORKER_NONE: nobody's). */
void worker_share_put(struct worker_core *core, uint32_t block, uint32_t asker);
/* Another job wants it, too: of two that would pay themselves, the one that is served sooner does. */
void worker_share_offer(struct worker_core *core, uint32_t block, uint32_t asker);
/* MAKING or READY: the job of share `asker` wants it. What went along unasked is paid for from now on. */
void worker_share_ask(struct worker_core *core, uint32_t block, uint32_t asker);
void worker_share_hasten(struct worker_core *core, uint32_t block);           /* its deadline came nearer */
void worker_share_drop(struct worker_core *core, uint32_t block);             /* QUEUED -> not made */
uint32_t worker_share_first(const struct worker_core *core, uint32_t stream); /* any QUEUED block of it */
uint32_t worker_share_next(const struct worker_core *core);                   /* the block to make next */
void worker_share_start(struct worker_core *core,
                        uint32_t block); /* QUEUED -> MAKING: charged, if asked for */
void worker_share_settle(struct worker_core *core, uint32_t block,
                         double cost_ns); /* made, or not; of the whole making; 0: unknown */
/* Another one's making takes a QUEUED block along: its account is spared when it would not be served now, so that it does not let
 * wait what is more urgent to it. */
void worker_share_spare(struct worker_core *core, uint32_t block);
/* How many blocks are made before a QUEUED one, about. */
double worker_share_before(const struct worker_core *core, uint32_t block);

/* ---- siblings.c: blocks of a family's streams made together ---- */

/* The block at `index` begins: adds those that are made with it to the action, as MAKING. */
void worker_siblings_join(struct worker_core *core, int64_t now_ns, uint32_t index,
                          struct worker_action *action);
/* Learns from what a block cost, while it is MAKING yet. */
void worker_siblings_made(struct worker_core *core, const struct worker_block *block,
                          const struct worker_made *made);
void worker_siblings_forget(struct worker_core *core, uint32_t stream); /* its index will be another's */
void worker_siblings_fini(struct worker_core *core);

/* ---- request.c: answers ---- */

uint64_t worker_request_home(const struct worker_stream *stream, uint32_t epoch, uint64_t number);

static inline struct worker_request *worker_request_at(const struct worker_core *core, uint32_t index)
{
    return worker_slots_at(&core->requests, index);
}
void worker_request_serve(struct worker_core *core, uint32_t index); /* waiting -> DATA */
void worker_request_end(struct worker_core *core, uint32_t index);   /* out of all lists */
void worker_request_wait(struct worker_core *core, const struct worker_request *request);
void worker_request_retry(struct worker_core *core, uint32_t index, enum base_code code, uint32_t after_ms,
                          const char *text);
void worker_request_fail(struct worker_core *core, uint32_t index, enum base_code code, const char *text);
/* Waiting ones are forgotten, those being sent live on for their pins. */
void worker_request_abandon_all(struct worker_core *core, uint32_t connection);

/* ---- session.c: connections and handles ---- */

static inline struct worker_connection *worker_connection_at(const struct worker_core *core, uint32_t index)
{
    return worker_slots_at(&core->connections, index);
}
/* FAIL of the connection, then DROP: it broke the rules. */
void worker_session_drop(struct worker_core *core, uint32_t connection, enum base_code code,
                         const char *text);
/* One more request of it makes no sense: false when that was one too many, and it is dropped. */
bool worker_session_bear(struct worker_core *core, uint32_t connection);
struct worker_handle *worker_session_handle(const struct worker_connection *connection, uint32_t number);
void worker_session_move(struct worker_core *core, int64_t now_ns, const struct worker_handle *handle,
                         uint32_t epoch, uint64_t position);

#endif
