/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The product's machines in one process on virtual time: one server (scheduler/cluster.h), workers (worker/core.h),
 * jobs of some ranks (client/src/core.h), each with a clock of its own. Everything that happens is an event of one queue,
 * and every delay, loss and death is drawn from the seed, so that a seed is a history that can be run again. What is here
 * plays the programs (sockets, rpc, prep, trainers) and looks on. docs/simulation.md says how to use it.
 *
 *   queue.c    time: events; random numbers; memory of one world, freed at once
 *   process.c  a process: its clock, its pauses; who cannot reach whom
 *   model.c    what every row must be, and which positions a step has, told apart from the product
 *   plan.c     plans as they travel
 *   link.c     connections: ordered frames, delay, loss in the middle of a part, silence, slow readers
 *   arrive.c   what comes at either end of a connection
 *   worker.c   drives worker_core: staging, prep, syncs, drain, crash
 *   rank.c     drives client_core: takes steps
 *   job.c      launches of a job, checkpoints, the ledger of positions
 *   server.c   drives scheduler_cluster: long polls, what is stored, outages
 *   fault.c    faults, each with a number and random numbers of its own
 *   check.c    the invariants
 *   world.c    draws a world from a seed, its end
 *   shrink.c   the smallest history that fails as a seed does
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

enum { SIM_RANKS = 8, SIM_CANDIDATES = 3, SIM_BUILDS = 2, SIM_EPOCHS = 64, SIM_SLOTS = 4, SIM_CUTS = 4 };

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

/* Whose numbers: what one draws changes nobody else's. */
enum sim_draws {
    SIM_DRAWS_WORLD,
    SIM_DRAWS_FAULTS,
    SIM_DRAWS_FAULT,
    SIM_DRAWS_WORKER,
    SIM_DRAWS_JOB,
    SIM_DRAWS_RANK
};
struct sim_random sim_random_of(uint64_t seed, enum sim_draws draws, uint64_t index);

struct sim_process;
typedef void sim_run(void *who, uint64_t what);
struct sim_event {
    int64_t at_ns;
    uint64_t serial;
    struct sim_process *process; /* that handles it: not while it is stopped; NULL: the world */
    sim_run *run;
    void *who;
    uint64_t what;
};
struct sim_queue {
    struct sim_event *events; /* a heap; owned */
    size_t count, capacity;
    uint64_t serial;
};
void sim_queue_put(struct sim_queue *queue, const struct sim_event *event); /* its serial is set here */
bool sim_queue_take(struct sim_queue *queue, struct sim_event *event);
void sim_queue_fini(struct sim_queue *queue);

struct sim_chunk;
struct sim_memory {
    struct sim_chunk *chunks;
    size_t used;
};
void *sim_memory_get(struct sim_memory *memory, size_t size); /* zeroed; lives as long as the world */
void sim_memory_fini(struct sim_memory *memory);

/* ---- process.c ---- */

struct sim_process {
    struct sim_world *world;
    uint64_t number;           /* of its host: partitions go by it */
    struct sim_random random;  /* delays, costs */
    int64_t base_ns, local_ns; /* at base_ns of the world its monotonic clock said local_ns */
    int64_t drift_ppm;
    int64_t wall_ns;   /* error of its wall clock */
    int64_t paused_ns; /* stopped until then */
};
enum { SIM_HOST_SERVER = 0, SIM_HOST_WORKERS = 1, SIM_HOST_RANKS = 1 << 20 };
void sim_process_init(struct sim_process *process, struct sim_world *world, uint64_t host,
                      struct sim_random random);
int64_t sim_process_now_ns(const struct sim_process *process); /* what its clock says */
int64_t sim_process_when_ns(const struct sim_process *process,
                            int64_t local_ns); /* world time, now at the earliest */
int64_t sim_process_wall_ns(const struct sim_process *process);
void sim_process_jump(struct sim_process *process, int64_t by_ns);
bool sim_process_stopped(const struct sim_process *process);
/* An event of this process, at a time of the world. */
void sim_process_at(struct sim_process *process, int64_t at_ns, sim_run *run, void *who, uint64_t what);

/* Frames and calls from side 0 do not come to side 1, unless one-sided the other way neither; others are not touched. */
struct sim_cut {
    int64_t until_ns;
    uint64_t key;
    bool one_sided;
};
/* Until when nothing comes from one to the other; 0: it does. */
int64_t sim_process_cut_ns(const struct sim_process *from, const struct sim_process *to);

/* ---- plan.c ---- */

struct sim_plan { /* never changes once made */
    struct scheduler_plan plan;
    uint64_t *ids;
    int id_count;
    const struct sim_plan *next;
};

/* ---- model.c ---- */

struct sim_candidate;

/* A live stream: the bits that one build makes of a candidate. */
struct sim_stream {
    struct sim_candidate *candidate;
    int build;
    struct scheduler_stream identity; /* with its fingerprint */
    const struct sim_plan *plans;     /* the newest first */
    uint64_t rows_made;
    uint8_t *made;        /* [epochs * blocks]: times that it was made, up to 255 */
    bool dropped;         /* since its latest plan */
    uint64_t server_life; /* what new weights have moved in a minute of one life of the server */
    int64_t moves_since_ns;
    int moves;
};

/* What jobs can ask for. */
struct sim_candidate {
    struct sim_world *world;
    int index, stream_count;                         /* two, where the builds make different bits */
    struct sim_stream streams[SIM_BUILDS];           /* by build */
    struct scheduler_stream asked;                   /* without a fingerprint */
    char preset_text[SCHEDULER_PIPELINE_TEXT_BYTES]; /* all sections */
    struct scheduler_order *orders[SIM_EPOCHS];
    uint64_t block_bytes, blocks;
    int bad_permille;
    int64_t row_ns;
    bool seeded;         /* another seed than the dataset's */
    uint64_t gone_block; /* its file has been deleted; UINT64_MAX: none */
};
void sim_model_row(struct sim_stream *stream, uint32_t epoch, uint64_t position, struct wire_row *row);
uint64_t sim_model_payload(const struct sim_stream *stream, const struct wire_row *row); /* its pixels */

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

const struct sim_plan *sim_plan_keep(struct sim_stream *stream, const struct scheduler_plan *plan);

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
    uint32_t row, rows;                                           /* DATA: this chunk's rows of the part */
    bool first, last, insist, death, hedge, making, copy, spoilt; /* spoilt: bytes differ from those sent */
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

struct sim_link {
    struct sim_link *next; /* of all; of those to be used again */
    struct sim_world *world;
    struct sim_random random;
    struct sim_rank *rank;
    struct sim_worker *worker;
    uint64_t worker_life;
    bool client_open, worker_open; /* as each end sees it */
    bool closing;                  /* the worker lingers */
    int events;                    /* of the queue, that name it */
    uint64_t connection;
    uint64_t open_number;
    struct scheduler_cursor mark; /* the last that came to the worker */
    bool marked;
    uint32_t handle, cap, asked; /* client's view: asked and not answered, nor cancelled */
    uint64_t *cancelled;         /* may be answered all the same; owned */
    int cancelled_count, cancelled_room;
    struct sim_pipe up, down;
    int reset_after, spoil_after; /* frames until the connection breaks, until a frame is spoilt; -1: never */
    int64_t progress_ns, byte_ns;
    struct sim_send *sends; /* on their way; owned */
    int send_count, send_room;
    struct sim_get *gets; /* owned */
    int get_count, get_room;
    struct sim_frame *arriving; /* header of the part that comes */
    bool spoilt;                /* some of it was */
    enum client_placed placed;
    struct client_place place;
};
void sim_link_dial(struct sim_rank *rank, struct sim_worker *worker);
struct sim_frame *sim_link_frame(struct sim_world *world, enum sim_frame_kind kind);
void sim_link_send_up(struct sim_link *link, struct sim_frame *frame);
void sim_link_send_down(struct sim_link *link, struct sim_frame *frame);
void sim_link_close(struct sim_link *link);                           /* by the client */
void sim_link_asked(struct sim_link *link, uint64_t request);         /* a GET has come to the worker */
void sim_link_cancelled(struct sim_link *link, uint64_t request);     /* a CANCEL leaves the client */
bool sim_link_was_cancelled(struct sim_link *link, uint64_t request); /* and is not any more */
void sim_link_answered(struct sim_link *link, uint64_t request, const char *how); /* it ends there */
void sim_link_data(struct sim_link *link, const struct sim_frame *whole);         /* cut into chunks */
void sim_link_drop(struct sim_link *link, bool linger);                           /* by the worker */
void sim_link_reset(struct sim_link *link, bool silent);                          /* by the network */
void sim_link_worker_died(struct sim_worker *worker, bool silent);
void sim_link_sweep(struct sim_world *world); /* stalls, requests without an answer */
enum sim_direction { SIM_UP = 1, SIM_DOWN = 2, SIM_BOTH = 3 };
void sim_link_hold(struct sim_link *link, int64_t until_ns, enum sim_direction direction);
void sim_link_fini(struct sim_world *world);
/* for arrive.c */
bool sim_link_alive(const struct sim_link *link); /* the worker's life that it was dialled in goes on */
void sim_link_leave_worker(struct sim_link *link, bool sends_too);
void sim_link_end_send(struct sim_link *link, uint64_t send);
void sim_link_end_pipe(struct sim_link *link, struct sim_pipe *pipe);
void sim_link_lost(struct sim_link *link, const char *why); /* the client's end learns of it */
void sim_link_repeat(struct sim_link *link, const struct sim_frame *frame);
void sim_link_free_frame(struct sim_world *world, struct sim_frame *frame);

/* ---- arrive.c ---- */

void sim_arrive_up(struct sim_link *link, const struct sim_frame *frame);
void sim_arrive_down(struct sim_link *link, const struct sim_frame *frame);

/* ---- worker.c ---- */

struct sim_extent { /* of staging memory */
    uint64_t serial, offset, size, number, block;
    struct sim_stream *stream;
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
        struct sim_stream *stream;
        const struct sim_plan *plan; /* NULL: none yet */
        struct sim_job **jobs;       /* in `all` */
        int job_count;
    } streams[SIM_CANDIDATES];
    struct sim_job *all[];
};

struct sim_worker {
    struct sim_world *world;
    struct sim_process process;
    int build;
    uint64_t id, incarnation, life; /* life rises with every start and end */
    struct worker_core *core;       /* NULL: not running */
    bool draining, poll_out, news_out, news_wanted, away;
    double weight;
    uint64_t staging_bytes;
    uint32_t making_max, requests_max;
    uint32_t probed, probing, live;
    struct sim_orders *orders; /* owned */
    uint64_t seen_revision;
    int64_t again_ns, backoff_ns, wake_ns; /* wake_ns: of the world */
    int64_t hole_ns, storage_ns;           /* cut off until; its storage is away until */
    int64_t slow_ns, slow_net_ns;          /* it makes, it sends slowly until */
    int slow_times;
    struct sim_extent *extents; /* owned */
    int extent_count, extent_capacity;
    struct sim_link **links; /* by the index in their connection's handle; owned */
    uint32_t link_room;
    bool pumping, for_good; /* for_good: it does not come back */
};
void sim_worker_start(struct sim_worker *worker);
void sim_worker_stop(struct sim_worker *worker);  /* at the world's end: no traces */
void sim_worker_count(struct sim_worker *worker); /* its counts, into the world's */
void sim_worker_crash(struct sim_worker *worker, int64_t down_ns);
void sim_worker_drain(struct sim_worker *worker, int64_t leave_after_ns, int64_t away_ns);
void sim_worker_pump(struct sim_worker *worker);
void sim_worker_wake(struct sim_worker *worker); /* its clock has jumped */
/* Takes the orders over. */
void sim_worker_orders(struct sim_worker *worker, bool news, enum base_code code, struct sim_orders *orders);
struct sim_extent *sim_worker_extent(const struct sim_worker *worker, uint64_t serial);
void sim_worker_link(struct sim_worker *worker, struct sim_link *link); /* its connection has a handle */

/* ---- server.c ---- */

enum sim_call_kind { SIM_WORKER_SYNC, SIM_JOB_OPEN, SIM_JOB_SYNC, SIM_JOB_CLOSE };

struct sim_answer { /* JobAnswer */
    uint64_t revision;
    bool running;
    struct sim_stream *stream;
    const struct sim_plan *plan;
    struct scheduler_cursor start;
    uint32_t first_epoch;
};

struct sim_call {
    struct sim_call *next;
    int uses; /* events that name it, and its place among the parked */
    enum sim_call_kind kind;
    struct sim_world *world;
    struct sim_process *process; /* the caller's */
    struct sim_worker *worker;
    struct sim_rank *rank;
    uint64_t life; /* of the worker */
    bool news, done, parked, replied;
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

struct sim_stored_stream {
    bool used;
    struct scheduler_plan plan;
    uint64_t life; /* of the server that made the plan */
};

struct sim_server {
    struct sim_process process;
    struct scheduler_cluster *cluster; /* NULL: down */
    uint64_t life;
    struct sim_call *parked, *free_calls;
    uint64_t polled;             /* the revision that the parked have been looked at with */
    int64_t tick_ns, started_ns; /* of the world; of its clock */
    struct sim_stored_stream streams[SIM_CANDIDATES][SIM_BUILDS];
    struct sim_stored_job *jobs;
    struct scheduler_job_request *opened; /* the record that is kept with a job */
    struct scheduler_job_cursor *resumes;
};
void sim_server_start(struct sim_world *world);
void sim_server_stop(struct sim_world *world);
void sim_server_fini(struct sim_world *world); /* at the world's end */
void sim_server_wake(struct sim_world *world); /* its clock has jumped */
void sim_server_drain(struct sim_world *world, uint64_t worker);
struct sim_call *sim_server_call(struct sim_process *process, enum sim_call_kind kind);
void sim_server_send(struct sim_call *call, int64_t timeout_ns);

/* ---- rank.c ---- */

struct sim_launch;

struct sim_rank {
    struct sim_world *world;
    struct sim_process process;
    struct sim_job *job;
    struct sim_launch *launch;
    uint32_t rank;
    uint64_t generation;
    struct client_core *core; /* NULL: not open, or gone */
    bool dead, done, wanting, trying;
    struct sim_stream *stream; /* once it has begun */
    const struct sim_plan *plan;
    uint32_t first_epoch;
    struct scheduler_cursor at;  /* the step to be taken next */
    struct scheduler_cursor low; /* the first step that is not whole here */
    uint64_t taken, revision, serial;
    uint64_t requests, hedges;
    uint64_t seeks, seeks_told, told_life; /* told: to the server, in which of its lives */
    uint64_t broken, refused;              /* connections lost or given up; MOVED and RETRY that came */
    struct sim_call *sync;
    int64_t wake_ns, taken_ns;
    uint32_t held[SIM_SLOTS];
    uint32_t held_count;
    uint8_t *received;    /* [epochs * items] */
    uint64_t *payload;    /* [slots * batch] */
    struct sim_link **to; /* open ones, by worker */
};
void sim_rank_begin(struct sim_rank *rank);
void sim_rank_kill(struct sim_rank *rank);   /* its process ends */
void sim_rank_finish(struct sim_rank *rank); /* closes its job, then ends */
void sim_rank_drive(struct sim_rank *rank);
void sim_rank_wake(struct sim_rank *rank);                             /* its clock has jumped */
void sim_rank_try(struct sim_rank *rank);                              /* soon */
void sim_rank_seek(struct sim_rank *rank, struct scheduler_cursor to); /* its trainer goes on there */
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
    struct sim_stream *stream; /* once it has begun */
    struct sim_rank *ranks[SIM_RANKS];
    uint64_t whole; /* steps that all ranks have taken */
    struct scheduler_cursor whole_at;
};

struct sim_job {
    struct sim_world *world;
    struct sim_random random;
    int index;
    char name[16];
    struct sim_candidate *candidate;
    struct sim_stream *stream; /* that its chain of cursors is of */
    enum scheduler_join join;
    enum scheduler_tail tail;
    enum client_on_bad on_bad;
    uint32_t epochs, look_ahead, save_every, hold_most;
    int64_t pace_ns;
    double weight;
    bool lockstep, done, has_saved, spoilt; /* spoilt: ended by a bad sample, or by a deleted file */
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
void sim_job_crash(struct sim_job *job, struct sim_random *random, bool zombies);
void sim_job_seek(struct sim_job *job, struct sim_random *random); /* all its ranks go on elsewhere */
void sim_job_leave(struct sim_job *job); /* its user has seen enough: all ranks close */
void sim_job_started(struct sim_rank *rank);
void sim_job_took(struct sim_rank *rank, const struct client_step *step);
void sim_job_ended(struct sim_rank *rank);          /* this rank has no more steps */
bool sim_job_kept(const struct sim_launch *launch); /* the server owes its ranks their place */
void sim_job_fenced(struct sim_rank *rank);         /* the server says that it is over */
void sim_job_failed(struct sim_rank *rank);         /* its process ends: so does the launch */

/* ---- fault.c ---- */

struct sim_fault {
    uint32_t number; /* from 1, by time */
    int kind;
    int64_t at_ns;
};

/* While it is open, such a thing happens now and then. */
struct sim_window {
    int64_t until_ns;
    int permille;
};
enum sim_noise { SIM_NOISE_LOST_CALL, SIM_NOISE_TWICE, SIM_NOISE_LATE_CALL, SIM_NOISE_RESET, SIM_NOISES };

void sim_fault_draw(struct sim_world *world); /* all of them, but those that are left out */
bool sim_fault_noise(const struct sim_world *world, struct sim_random *random, enum sim_noise noise);

/* ---- world.c ---- */

struct sim_rules {
    bool quiet, large, mixed; /* mixed: of two builds */
    int64_t delay_least_ns, delay_most_ns;
    int64_t fault_gap_ns, stagger_ns; /* stagger: ranks of a launch start within it */
    bool ample;                       /* staging for everything, everywhere */
    bool clocks;                      /* that differ */
    bool unequal;                     /* for long some workers are slower than they say: slots move */
    int together_percent;             /* of the cost alone: what siblings' blocks cost together */
    struct scheduler_cluster_options cluster;
};

/* A history: the seed, and what of it is left out. */
struct sim_history {
    uint64_t seed;
    bool trace;
    bool some;              /* only these faults */
    const uint32_t *faults; /* numbers, rising */
    int fault_count;
    int workers, jobs, epochs; /* so many, epochs at most; 0: as the seed says */
};

/* What causes of remakes are held against: see sim_check_remade. */
struct sim_tally {
    uint64_t made, made_again, remade[WORKER_CAUSES];
    uint64_t lost, moved, evicted, elsewhere;            /* blocks; elsewhere: not made at their home */
    uint64_t requests, insisted, insisted_death, hedged; /* GETs; insisted: for no other reason */
    uint64_t together;                                   /* blocks that siblings took along */
    uint64_t plan_changes, reweighted;                   /* reweighted: slots */
};

struct sim_world {
    uint64_t seed, events, frames;
    const struct sim_history *history;
    bool trace, failed;
    const char *invariant; /* that is broken */
    char verdict[400];
    struct sim_random random;
    struct sim_queue queue;
    struct sim_memory memory;
    struct sim_frame *free_frames;
    struct sim_link *free_links;
    int64_t now_ns;
    struct sim_rules rules;
    struct sim_window noise[SIM_NOISES];
    struct sim_cut cuts[SIM_CUTS];
    int64_t faults_until_ns, storage_ns, server_hole_ns, progress_ns;
    bool calm; /* faults are over */
    uint64_t items;
    struct sim_candidate candidates[SIM_CANDIDATES];
    int candidate_count;
    struct sim_worker *workers;
    int worker_count;
    struct sim_job *jobs;
    int job_count, jobs_done;
    int target_workers, target_jobs; /* faults are aimed at so many: those left out stay targets */
    struct sim_server server;
    struct sim_link *links;
    struct sim_tally tally;
    uint64_t extents;
    struct sim_fault *faults; /* owned; those that happen */
    int fault_count, faults_done;
    int64_t ended_ns;   /* the last job has ended; 0: not yet */
    int64_t longest_ns; /* that a job took no step, after the faults */
};

struct sim_result {
    bool failed;
    const char *invariant;
    char verdict[400];
    uint64_t events;
    int64_t virtual_ns, longest_ns;
    int workers, jobs, epochs; /* that there were */
    struct sim_tally tally;
    uint32_t *faults; /* of a failed one, that had happened; malloc'd, the caller's */
    int fault_count;
};
void sim_world_run(const struct sim_history *history, struct sim_result *result);

int64_t sim_delay_ns(struct sim_world *world, struct sim_random *random);
void sim_at(struct sim_world *world, int64_t at_ns, sim_run *run, void *who, uint64_t what);
/* An invariant is broken: the first one ends the run. `invariant`: its name. */
void sim_fail(struct sim_world *world, const char *invariant, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void sim_trace(struct sim_world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- shrink.c ---- */

/* Makes the history smaller as long as it fails by the same invariant; *last: of the smallest. The history's faults are
 * malloc'd, and the caller's. Ends after so many events. */
void sim_shrink(struct sim_history *history, struct sim_result *last, uint64_t most_events);

#endif
