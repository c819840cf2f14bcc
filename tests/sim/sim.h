/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The product's machines in one process on virtual time: one server (scheduler/cluster.h), some workers (worker/core.h),
 * some jobs of some ranks (client/src/core.h). Everything that happens is an event of one queue, and every delay, loss
 * and death is drawn from the seed, so that a seed is a history that can be run again. What is here plays the programs
 * (sockets, rpc, prep, trainers) and looks on: see sim_fail's callers for the invariants.
 *
 *   queue.c   time: events; the seed's random numbers; memory of one world, freed at once
 *   model.c   what every row must be, and which positions a step has, told apart from the product
 *   plan.c    plans as they travel
 *   link.c    connections: ordered frames, delay, loss in the middle of a part, silence, slow readers
 *   worker.c  drives worker_core: staging, prep, syncs, drain, crash
 *   rank.c    drives client_core: takes steps, checks them
 *   job.c     launches of a job, checkpoints, the ledger of positions
 *   server.c  drives scheduler_cluster: long polls, what is stored, outages
 *   world.c   draws a world from a seed, its faults, its end
 */
#ifndef SIM_H
#define SIM_H

#include "base/clock.h"
#include "client/src/core.h"
#include "proto/wire/rows.h"
#include "scheduler/cluster.h"
#include "scheduler/order.h"
#include "worker/core.h"

#define SIM_MS BASE_NS_PER_MS
#define SIM_S BASE_NS_PER_S

enum { SIM_WORKERS = 5, SIM_JOBS = 4, SIM_RANKS = 3, SIM_CANDIDATES = 3, SIM_EPOCHS = 64, SIM_SLOTS = 4 };

struct sim_world;
struct sim_worker;
struct sim_job;
struct sim_rank;
struct sim_link;

/* ---- queue.c ---- */

struct sim_random {
    uint64_t state;
};
uint64_t sim_random_word(struct sim_random *random);
int64_t sim_random_between(struct sim_random *random, int64_t least, int64_t most); /* both included */
bool sim_random_chance(struct sim_random *random, int permille);

typedef void sim_run(void *who, uint64_t what);
struct sim_event {
    int64_t at_ns;
    uint64_t serial;
    sim_run *run;
    void *who;
    uint64_t what;
};
struct sim_queue {
    struct sim_event *events; /* a heap; owned */
    size_t count, capacity;
    uint64_t serial;
};
void sim_queue_put(struct sim_queue *queue, int64_t at_ns, sim_run *run, void *who, uint64_t what);
bool sim_queue_take(struct sim_queue *queue, struct sim_event *event);
void sim_queue_fini(struct sim_queue *queue);

struct sim_chunk;
struct sim_memory {
    struct sim_chunk *chunks;
    size_t used;
};
void *sim_memory_get(struct sim_memory *memory, size_t size); /* zeroed; lives as long as the world */
void sim_memory_fini(struct sim_memory *memory);

/* ---- plan.c ---- */

struct sim_plan { /* never changes once made */
    struct scheduler_plan plan;
    uint64_t ids[SIM_WORKERS];
    int id_count;
    const struct sim_plan *next;
};

/* ---- model.c ---- */

/* A candidate stream of the world and its live stream: all workers make the same bits. */
struct sim_candidate {
    struct sim_world *world;
    int index;
    struct scheduler_stream stream;                  /* with its fingerprint */
    uint8_t key[BASE_SHA256_BYTES];                  /* without */
    char preset_text[SCHEDULER_PIPELINE_TEXT_BYTES]; /* all sections */
    struct scheduler_order *orders[SIM_EPOCHS];
    const struct sim_plan *plans;
    uint64_t block_bytes;
    int bad_permille;
    int64_t row_ns;
    bool seeded; /* another seed than the dataset's */
    uint64_t rows_made;
};
void sim_model_row(struct sim_candidate *candidate, uint32_t epoch, uint64_t position, struct wire_row *row);
uint64_t sim_model_payload(const struct sim_candidate *candidate,
                           const struct wire_row *row); /* its pixels */

struct sim_shape {
    uint64_t items;
    uint32_t world, batch;
    enum scheduler_tail tail;
};
struct sim_step {          /* a rank's part of the step at a cursor */
    uint64_t begin, valid; /* first position, positions of the step */
    uint64_t offset;       /* of the rank's first row */
    uint32_t rows;
};
bool sim_model_whole(const struct sim_shape *shape, uint64_t position); /* a step begins here */
struct sim_step sim_model_step(const struct sim_shape *shape, uint32_t rank, uint64_t position);
struct scheduler_cursor sim_model_next(const struct sim_shape *shape, struct scheduler_cursor at);

/* ---- plan.c ---- */

const struct sim_plan *sim_plan_keep(struct sim_candidate *candidate, const struct scheduler_plan *plan);

/* ---- link.c ---- */

enum sim_frame_kind {
    SIM_HELLO,
    SIM_OPEN,
    SIM_GET,
    SIM_MARK,
    SIM_CANCEL,
    SIM_DATA, /* one chunk of a part; the first one is its header */
    SIM_WAIT,
    SIM_MOVED,
    SIM_RETRY,
    SIM_FAIL,
    SIM_PING,
    SIM_END, /* nothing comes behind it */
};

struct sim_frame {
    struct sim_frame *next;
    int64_t arrive_ns;
    enum sim_frame_kind kind;
    uint64_t request, block, home, send;
    struct scheduler_cursor mark;
    uint32_t handle, plan, epoch, from, to, time_ms, queue, requests_max;
    uint32_t row, rows; /* DATA: this chunk's rows of the part */
    bool first, last, insist, death, hedge, making, copy;
    enum base_code code;
    uint64_t extent; /* DATA: where the bytes are read from */
};

struct sim_pipe {
    struct sim_frame *first, *last;
    int64_t last_ns, hold_ns; /* nothing arrives before hold_ns */
    int64_t pump_ns;          /* when the pump runs; INT64_MAX: not */
};

struct sim_get { /* at the worker, not answered yet */
    uint64_t request;
    int64_t since_ns;
    bool cancelled;
};

struct sim_send {
    uint64_t send, extent;
};

enum { SIM_SENDS = 64, SIM_GETS = 128 };

struct sim_link {
    struct sim_link *next;
    struct sim_world *world;
    struct sim_rank *rank;
    struct sim_worker *worker;
    uint64_t worker_life;
    bool client_open, worker_open; /* as each end sees it */
    bool closing;                  /* the worker lingers */
    uint64_t connection;
    uint64_t open_number;
    uint32_t handle, cap, asked;  /* client's view: asked and not answered, nor cancelled */
    uint64_t cancelled[SIM_GETS]; /* may be answered all the same */
    int cancelled_count;
    struct sim_pipe up, down;
    int reset_after; /* frames until the connection breaks; -1: it does not */
    int64_t progress_ns, byte_ns;
    struct sim_send sends[SIM_SENDS]; /* on their way */
    int send_count;
    struct sim_get gets[SIM_GETS];
    int get_count;
    struct sim_frame *arriving; /* header of the part that comes */
    enum client_placed placed;
    struct client_place place;
};
void sim_link_dial(struct sim_rank *rank, struct sim_worker *worker);
struct sim_frame *sim_link_frame(struct sim_world *world, enum sim_frame_kind kind);
void sim_link_send_up(struct sim_link *link, struct sim_frame *frame);
void sim_link_send_down(struct sim_link *link, struct sim_frame *frame);
void sim_link_close(struct sim_link *link);                       /* by the client */
void sim_link_asked(struct sim_link *link, uint64_t request);     /* a GET has come to the worker */
void sim_link_cancelled(struct sim_link *link, uint64_t request); /* a CANCEL leaves the client */
void sim_link_answered(struct sim_link *link, uint64_t request, const char *how); /* it ends there */
void sim_link_data(struct sim_link *link, const struct sim_frame *whole);         /* cut into chunks */
void sim_link_drop(struct sim_link *link, bool linger);                           /* by the worker */
void sim_link_reset(struct sim_link *link, bool silent);                          /* by the network */
void sim_link_worker_died(struct sim_worker *worker, bool silent);
void sim_link_sweep(struct sim_world *world); /* stalls, requests without an answer */
void sim_link_hold(struct sim_link *link, int64_t until_ns, bool both);

/* ---- worker.c ---- */

struct sim_extent { /* of staging memory */
    uint64_t serial, offset, size, number, block;
    struct sim_candidate *candidate;
    uint32_t epoch;
    int pins;
    bool made;
};

struct sim_orders { /* a snapshot of what the server orders */
    uint64_t revision;
    bool drain;
    uint32_t probe; /* bits of candidates */
    int stream_count;
    struct {
        struct sim_candidate *candidate;
        const struct sim_plan *plan; /* NULL: none yet */
        const char *jobs[SIM_JOBS];
        int job_count;
    } streams[SIM_CANDIDATES];
};

struct sim_worker {
    struct sim_world *world;
    uint64_t id, incarnation, life; /* life rises with every start and end */
    struct worker_core *core;       /* NULL: not running */
    bool draining, poll_out, news_out, news_wanted, away;
    double weight;
    uint64_t staging_bytes;
    uint32_t making_max, requests_max;
    uint32_t probed, probing, live;
    const struct sim_orders *orders;
    uint64_t seen_revision;
    int64_t again_ns, backoff_ns, wake_ns, hole_ns, storage_ns, leave_ns;
    struct sim_extent *extents; /* owned */
    int extent_count, extent_capacity;
    bool pumping;
};
void sim_worker_start(struct sim_worker *worker);
void sim_worker_stop(struct sim_worker *worker); /* at the world's end: no traces */
void sim_worker_crash(struct sim_worker *worker, int64_t down_ns);
void sim_worker_drain(struct sim_worker *worker, int64_t leave_after_ns, int64_t away_ns);
void sim_worker_pump(struct sim_worker *worker);
void sim_worker_orders(struct sim_worker *worker, bool news, enum base_code code,
                       const struct sim_orders *orders);
struct sim_extent *sim_worker_extent(const struct sim_worker *worker, uint64_t serial);
bool sim_worker_serves(const struct sim_worker *worker, const struct sim_candidate *candidate);

/* ---- server.c ---- */

enum sim_call_kind { SIM_WORKER_SYNC, SIM_JOB_OPEN, SIM_JOB_SYNC, SIM_JOB_CLOSE };

struct sim_answer { /* JobAnswer */
    uint64_t revision;
    bool running;
    struct sim_candidate *candidate;
    const struct sim_plan *plan;
    struct scheduler_cursor start;
    uint32_t first_epoch;
};

struct sim_call {
    struct sim_call *next;
    enum sim_call_kind kind;
    struct sim_world *world;
    struct sim_worker *worker;
    struct sim_rank *rank;
    uint64_t life; /* of the worker */
    bool news, done;
    uint64_t seen_revision;
    int64_t wait_ns, deadline_ns;
    /* what it carries */
    struct scheduler_worker_report report;
    struct scheduler_dataset_held held[2];
    struct scheduler_probe_result probes[SIM_CANDIDATES];
    struct scheduler_front fronts[SIM_CANDIDATES];
    struct scheduler_job_request open;
    struct scheduler_job_cursor resume;
    struct scheduler_job_report job;
    /* the answer */
    enum base_code code;
    struct sim_orders *orders;
    struct sim_answer answer;
};

struct sim_stored_job {
    bool used;
    struct scheduler_job_request request;
    struct scheduler_job_cursor resume;
    struct scheduler_job_stored stored;
};

struct sim_server {
    struct scheduler_cluster *cluster; /* NULL: down */
    uint64_t life;
    struct sim_call *parked;
    int64_t tick_ns, started_ns;
    bool stored[SIM_CANDIDATES]; /* streams */
    uint32_t stored_plan[SIM_CANDIDATES];
    struct sim_stored_job jobs[SIM_JOBS];
    struct scheduler_job_request opened[SIM_JOBS]; /* the record that is kept with a job */
    struct scheduler_job_cursor resumes[SIM_JOBS];
};
void sim_server_start(struct sim_world *world);
void sim_server_stop(struct sim_world *world);
void sim_server_drain(struct sim_world *world, uint64_t worker);
struct sim_call *sim_server_call(struct sim_world *world, enum sim_call_kind kind);
void sim_server_send(struct sim_call *call, int64_t timeout_ns);

/* ---- rank.c ---- */

struct sim_launch;

struct sim_rank {
    struct sim_world *world;
    struct sim_job *job;
    struct sim_launch *launch;
    uint32_t rank;
    uint64_t generation;
    struct client_core *core; /* NULL: not open, or gone */
    bool dead, done, wanting, trying;
    struct sim_candidate *candidate;
    uint32_t first_epoch;
    struct scheduler_cursor at;  /* the step to be taken next */
    struct scheduler_cursor low; /* the first step that is not whole here */
    uint64_t taken, revision, serial;
    struct sim_call *sync;
    int64_t wake_ns, taken_ns;
    uint32_t held[SIM_SLOTS];
    uint32_t held_count;
    uint8_t *received;                /* [epochs * items] */
    uint64_t *payload;                /* [slots * batch] */
    struct sim_link *to[SIM_WORKERS]; /* open ones */
};
void sim_rank_begin(struct sim_rank *rank);
void sim_rank_kill(struct sim_rank *rank);   /* its process ends */
void sim_rank_finish(struct sim_rank *rank); /* closes its job, then ends */
void sim_rank_drive(struct sim_rank *rank);
void sim_rank_try(struct sim_rank *rank); /* soon */
void sim_rank_answer(struct sim_rank *rank, struct sim_call *call);
void sim_rank_received(struct sim_rank *rank, const struct sim_frame *header);

/* ---- job.c ---- */

struct sim_launch {
    struct sim_launch *before;
    struct sim_job *job;
    uint16_t number;
    struct sim_shape shape;
    bool resumes, started, over;
    bool lost; /* its leases have run out once */
    bool half,
        mixed; /* half: over before all ranks had begun; mixed: ranks of the next one may join such a one */
    struct scheduler_job_cursor resume;
    struct scheduler_cursor start;
    struct sim_rank *ranks[SIM_RANKS];
    uint64_t whole; /* steps that all ranks have taken */
    struct scheduler_cursor whole_at;
};

struct sim_job {
    struct sim_world *world;
    int index;
    char name[16];
    struct sim_candidate *candidate;
    enum scheduler_join join;
    enum scheduler_tail tail;
    enum client_on_bad on_bad;
    uint32_t epochs, look_ahead, save_every, hold_most;
    int64_t pace_ns;
    bool lockstep, done, has_saved, spoilt; /* spoilt: ended by a bad sample */
    int refusals;
    struct sim_shape shape;    /* of the next launch */
    uint64_t steps;            /* with that shape, about */
    struct sim_launch *launch; /* the latest; NULL: not begun */
    uint16_t launches;
    uint32_t first_epoch;
    struct scheduler_cursor saved; /* the chain's end */
    uint16_t *delivered;           /* [epochs * items]: the launch that did */
    int64_t progress_ns;
};
void sim_job_draw(struct sim_job *job); /* its next shape */
void sim_job_launch(void *job, uint64_t unused);
void sim_job_crash(struct sim_job *job, bool zombies);
void sim_job_started(struct sim_rank *rank);
void sim_job_took(struct sim_rank *rank, const struct client_step *step);
void sim_job_ended(struct sim_rank *rank);          /* this rank has no more steps */
bool sim_job_kept(const struct sim_launch *launch); /* the server owes its ranks their place */
void sim_job_fenced(struct sim_rank *rank);         /* the server says that it is over */
void sim_job_failed(struct sim_rank *rank);         /* its process ends: so does the launch */

/* ---- world.c ---- */

enum sim_fault {
    SIM_FAULT_RESET,
    SIM_FAULT_HOLE,
    SIM_FAULT_SLOW_READER,
    SIM_FAULT_WORKER_HOLE,
    SIM_FAULT_WORKER_CRASH,
    SIM_FAULT_DRAIN,
    SIM_FAULT_DRAIN_ORDERED,
    SIM_FAULT_SERVER,
    SIM_FAULT_SERVER_HOLE,
    SIM_FAULT_STORAGE,
    SIM_FAULT_WORKER_STORAGE,
    SIM_FAULT_JOB_CRASH,
    SIM_FAULTS,
};

struct sim_rules {
    bool quiet;
    int64_t delay_least_ns, delay_most_ns;
    int64_t fault_gap_ns, stagger_ns; /* stagger: ranks of a launch start within it */
    int duplicate_permille, rpc_loss_permille, reset_permille;
    int weights[SIM_FAULTS];
    struct scheduler_cluster_options cluster;
};

struct sim_world {
    uint64_t seed, events, frames;
    bool trace, failed;
    char verdict[400];
    struct sim_random random;
    struct sim_queue queue;
    struct sim_memory memory;
    struct sim_frame *free_frames;
    int64_t now_ns;
    struct sim_rules rules;
    int64_t faults_until_ns, storage_ns, server_hole_ns, progress_ns;
    bool calm; /* faults are over */
    uint64_t items;
    struct sim_candidate candidates[SIM_CANDIDATES];
    int candidate_count;
    int together_percent; /* of the cost alone: what siblings' blocks cost together */
    uint64_t together;    /* blocks that siblings took along */
    struct sim_worker workers[SIM_WORKERS];
    int worker_count;
    struct sim_job jobs[SIM_JOBS];
    int job_count, jobs_done;
    struct sim_server server;
    struct sim_link *links;
    uint64_t remade[WORKER_CAUSES], rows_made, extents;
    int gone;         /* workers that do not come back */
    int64_t ended_ns; /* the last job has ended; 0: not yet */
};

struct sim_result {
    bool failed;
    char verdict[400];
    uint64_t events, together;
    int64_t virtual_ns;
};
void sim_world_run(uint64_t seed, bool trace, struct sim_result *result);

int64_t sim_delay_ns(struct sim_world *world);
void sim_at(struct sim_world *world, int64_t at_ns, sim_run *run, void *who, uint64_t what);
/* An invariant is broken: the first one ends the run. */
void sim_fail(struct sim_world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_trace(struct sim_world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
