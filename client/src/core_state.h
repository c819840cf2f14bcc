/* SPDX-License-Identifier: Apache-2.0 */
/* What is inside struct client_core. Private to the files of the machine: core.c (events, actions), step.c (slots),
 * abandon.c (steps no longer wanted), request.c (one part's request), hedge.c (its second one), peer.c (one worker's
 * connection). The drawings are in core.h. */
#ifndef CLIENT_CORE_STATE_H
#define CLIENT_CORE_STATE_H

#include "client/src/core.h"

/* ---- a part and its request ---- */

enum client_request_state {
    CLIENT_REQUEST_PLANNED,
    CLIENT_REQUEST_SENT,
    CLIENT_REQUEST_WAITING,
    CLIENT_REQUEST_RECEIVING,
    CLIENT_REQUEST_DONE,
    CLIENT_REQUEST_MOVED,
    CLIENT_REQUEST_RETRY,
    CLIENT_REQUEST_LOST,
    CLIENT_REQUEST_DROPPED, /* the job is over: not asked any more */
    CLIENT_REQUEST_STATES,
};

/* Something asked of a worker. */
struct client_ask {
    uint64_t worker, number; /* number: on the wire while in flight, else 0 */
    int64_t sent_ns;
};

struct client_request {
    enum client_request_state state;
    bool insist, death, making;
    uint8_t retries; /* RETRY answers in a row from one worker */
    uint16_t plan_slot;
    uint32_t from, to, row; /* rows [from, to) of the block go to slot rows row .. */
    uint32_t queue;         /* as WAIT said */
    uint64_t block;
    uint64_t number;         /* on the wire while in flight, else 0 */
    uint64_t worker;         /* asked, or asked last; 0: never */
    uint64_t fixed;          /* to be asked unless it is down; 0: by the plan */
    uint64_t avoid;          /* to be asked: whoever comes behind this one; 0: by the plan */
    struct client_ask hedge; /* asked besides */
    int64_t sent_ns;
    int64_t due_ns;               /* RETRY: when */
    int64_t unavailable_since_ns; /* the first RETRY; 0: none */
};

/* ---- a step's slot ---- */

enum client_slot_state {
    CLIENT_SLOT_FREE,
    CLIENT_SLOT_WANTED,
    CLIENT_SLOT_FILLING,
    CLIENT_SLOT_READY,
    CLIENT_SLOT_HELD,
    CLIENT_SLOT_ABANDONED,
};

struct client_slot {
    enum client_slot_state state;
    bool told_ready, told_error; /* have been actions */
    uint32_t distinct, valid_rows;
    uint32_t part_count, unsent, undone, retrying; /* retrying: parts that are unavailable for now */
    uint64_t step, steps;
    struct scheduler_cursor begin, after;
    struct scheduler_batch batch;
    struct client_request *parts; /* [parts_max] of the core */
    struct wire_row *rows;        /* [batch] */
    uint8_t *valid;               /* [batch] */
    struct base_error verdict;    /* not OK: take answers this */
    struct client_core_bad bad;   /* when that is BAD_SAMPLE */
    struct base_error cause;      /* of the latest RETRY */
};

/* ---- a worker ---- */

enum client_peer_state {
    CLIENT_PEER_NEW,
    CLIENT_PEER_CONNECTING,
    CLIENT_PEER_OPENING,
    CLIENT_PEER_UP,
    CLIENT_PEER_DOWN,
};

#define CLIENT_PEER_WHY_CHARS 160
struct client_peer {
    uint64_t id;
    enum client_peer_state state;
    bool troubled; /* was lost, and is not UP again yet */
    bool doubted;  /* another was quicker, and nothing was heard since */
    bool leaving;  /* in no plan any more: goes when nothing is in flight */
    bool want_open, want_close;
    bool judged;        /* lost for silence, or for no connection in time, and not UP since */
    uint8_t excused;    /* doublings of our patience, for it came back after it was judged */
    uint8_t vain_dials; /* likewise with a connection, for none came */
    uint32_t cap, in_flight;
    uint32_t owed;         /* cancelled: it may be sending them all the same */
    int64_t owed_ns;       /* the first of them, or when more of what nobody waits for came */
    int64_t well_since_ns; /* UP, and never silent for stall_ns */
    int64_t since_ns;      /* when it was first heard of, or is dialled */
    int64_t heard_ns;
    int64_t idle_ns;                 /* since when nothing is asked of it, if so */
    int64_t again_ns;                /* DOWN: dial then; OPENING: send OPEN then */
    int64_t pause_ns;                /* the backoff that a loss now would bring */
    int64_t marked_ns;               /* the last MARK */
    int64_t answer_ns;               /* from a request to the first answer, smoothed; 0: none yet */
    char why[CLIENT_PEER_WHY_CHARS]; /* it was lost */
};

/* ---- hedging ---- */

#define CLIENT_HEDGES 16 /* out at a time, and saved up */

struct client_hedges {
    uint32_t credit; /* a request earns one, a hedge costs 50 */
    int out;
    struct client_ask cancels[CLIENT_HEDGES]; /* to be told that another was quicker */
    int cancel_count;
    int64_t due_ns;         /* look for late requests then; INT64_MAX: never */
    int64_t quiet_until_ns; /* storage throttles: none before */
};

/* ---- all of it ---- */

struct client_scan { /* where client_core_act goes on */
    int peer;
    uint32_t slot, part; /* index in queue, index in its parts */
};

struct client_core {
    struct client_core_options options;
    int64_t now_ns, wake_ns;
    bool dirty; /* something happened: timers and scans begin anew */
    struct client_scan scan;

    struct client_slot *slots;
    uint32_t slot_count, parts_max;
    uint32_t *queue, queued; /* slots whose steps are not handed over, in step order */
    struct client_request *parts;
    struct wire_row *rows;
    uint8_t *valid;
    uint64_t serial; /* of request numbers */
    struct client_hedges hedges;
    int64_t woke_ns; /* the last time that we found we had slept */

    struct scheduler_cursor next, cursor; /* of the next step to want; after the one handed over last */
    struct scheduler_cursor mark;         /* client_core_mark while requests go out */
    uint64_t next_step, next_steps;       /* its number in its epoch; 0 steps: the epoch is not begun */
    bool ended;                           /* no more steps to want */
    struct base_error over;               /* not OK: take answers only this */
    struct client_core_bad bad;
    int64_t taken_ns, asked_ns,
        step_ns; /* last take; first ask since (0: none); the trainer's own time a step */

    struct scheduler_plan plan;
    struct client_peer *peers; /* by id */
    int peer_count;
    uint32_t plan_seen; /* the newest version that anybody has */
    int64_t fetched_ns; /* the last FETCH_PLAN */
    struct client_core_stats stats;
};

/* ---- request.c ---- */

const char *client_request_state_name(enum client_request_state state);
bool client_request_in_flight(const struct client_request *request);
/* The request in flight (or hedged) under `number` at `worker`, and its slot; NULL: none. */
struct client_request *client_request_find(struct client_core *core, uint64_t worker, uint64_t number,
                                           struct client_slot **slot);
/* The peer to ask now: UP, and with room. NULL: wait. */
struct client_peer *client_request_choose(struct client_core *core, struct client_request *request);
/* The first that is not down behind `avoid` in the order of candidates, the same for all clients; NULL: none. */
struct client_peer *client_request_behind(struct client_core *core, const struct client_request *request,
                                          uint64_t avoid);
void client_request_send(struct client_core *core, struct client_slot *slot, struct client_request *request,
                         struct client_peer *peer, struct client_action *action);
/* GET of its rows at `peer` under a new number. */
void client_request_ask(struct client_core *core, const struct client_slot *slot,
                        const struct client_request *request, struct client_peer *peer,
                        struct client_action *action);
void client_request_wait(struct client_core *core, struct client_request *request, bool making,
                         uint32_t queue);
/* Rows come under `number`: who asked besides is out. False: it does not wait for rows. */
bool client_request_receive(struct client_core *core, struct client_request *request, uint64_t number);
/* Each takes it from its peer's load. */
void client_request_done(struct client_core *core, struct client_slot *slot, struct client_request *request);
void client_request_moved(struct client_core *core, struct client_slot *slot, struct client_request *request,
                          uint64_t home);
void client_request_retry(struct client_core *core, struct client_slot *slot, struct client_request *request,
                          int64_t after_ns, const struct base_error *cause);
void client_request_lost(struct client_core *core, struct client_slot *slot, struct client_request *request);
void client_request_drop(struct client_core *core, struct client_slot *slot, struct client_request *request);

/* ---- abandon.c ---- */

/* CANCEL of what abandoned steps asked for. */
bool client_abandon_act(struct client_core *core, struct client_action *action);
/* Frees their slots when nothing is in flight for them. */
void client_abandon_sweep(struct client_core *core);

/* ---- hedge.c ---- */

/* CANCEL of those that lost. */
bool client_hedge_act_cancel(struct client_core *core, struct client_action *action);
/* GET of a late request at the next candidate. */
bool client_hedge_act(struct client_core *core, struct client_action *action);
void client_hedge_note_sent(struct client_core *core, const struct client_peer *peer);
/* A worker says that something is unavailable. */
void client_hedge_note_throttle(struct client_core *core);
/* The hedge gave rows first: it is the request, the other is cancelled. */
void client_hedge_win(struct client_core *core, struct client_request *request);
/* The request was answered, or nobody waits any more: the hedge, if any, is cancelled. */
void client_hedge_lose(struct client_core *core, struct client_request *request);
/* The request itself is out of flight: the hedge takes its place. */
void client_hedge_take(struct client_core *core, struct client_request *request);
/* The hedge has ended by itself. */
void client_hedge_end(struct client_core *core, struct client_request *request);
/* The connection has gone: nothing to cancel there. */
void client_hedge_forget(struct client_core *core, uint64_t worker);
/* Silence for so long is more than being busy. */
int64_t client_hedge_patience_ns(const struct client_peer *peer);

/* ---- step.c ---- */

/* Gives free slots the next steps. */
void client_step_refill(struct client_core *core);
/* All parts are there: padding, validity, the policy for bad rows. */
void client_step_complete(struct client_core *core, struct client_slot *slot);
/* A part of the slot, last answered RETRY, is unavailable for longer than allowed; *since_ns (or NULL) gets when the oldest
 * began, INT64_MAX: none. */
bool client_step_overdue(const struct client_core *core, const struct client_slot *slot, int64_t *since_ns);
void client_step_count(const struct client_core *core, struct client_core_stats *stats);
/* Milliseconds until the trainer would starve for queue[index]. */
uint32_t client_step_slack_ms(const struct client_core *core, uint32_t index);

/* ---- peer.c ---- */

struct client_peer *client_peer_find(struct client_core *core, uint64_t id);
/* Workers of a new plan join, others leave. */
enum base_code client_peer_update(struct client_core *core, const uint64_t *workers, int count,
                                  struct base_error *error);
/* Requests do not wait for it. */
bool client_peer_is_down(const struct client_core *core, const struct client_peer *peer);
/* DOWN, its requests LOST. `close`: the connection is still there. */
void client_peer_lose(struct client_core *core, struct client_peer *peer, bool close, const char *why);
/* It gave a part: it works. */
void client_peer_praise(const struct client_core *core, struct client_peer *peer);
/* We slept: what came meanwhile is not read yet. */
void client_peer_forgive(const struct client_core *core, struct client_peer *peer, int64_t late_ns);
void client_peer_load(struct client_core *core, struct client_peer *peer);
void client_peer_unload(struct client_core *core, uint64_t worker);
/* It may be asked one more. What it may still be sending counts for as long as a send may make no progress. */
bool client_peer_has_room(const struct client_peer *peer);
/* It is told to forget a request; an answer came that nobody waits for. */
void client_peer_note_cancelled(struct client_core *core, uint64_t worker);
void client_peer_note_stray(struct client_core *core, uint64_t worker);
/* The first answer to what was sent at `sent_ns`. */
void client_peer_note_answer(struct client_core *core, uint64_t worker, int64_t sent_ns);
void client_peer_tick(struct client_core *core, struct client_peer *peer);
/* What `peer` wants done; false: nothing. */
bool client_peer_act(struct client_core *core, struct client_peer *peer, struct client_action *action);
int64_t client_peer_wake_ns(const struct client_core *core, const struct client_peer *peer);
void client_peer_sweep(struct client_core *core); /* forgets those that have left */

#endif
