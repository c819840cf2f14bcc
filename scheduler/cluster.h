/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server's machine: who is in the cluster, which streams live, who makes what, which jobs read what.
 * (now_ns, event) -> state, which the server reads. No I/O, no clock, no threads: one caller at a time.
 * now_ns is monotonic and never goes back.
 *
 *   events   worker_sync, worker_leave, worker_drain, job_open, job_sync, job_close, tick
 *   outputs  revisions (a long poll answers when its worker's or job's revision is not the one it has seen),
 *            what a worker shall probe and serve, a job's answer, plans, what to store, lines for the log
 * After each event: take what is to be stored (store it before answering), take the log lines, look at the revisions
 * of waiting calls, set the timer to scheduler_cluster_deadline_ns.
 *
 * A worker:  (none) -> READY <-> DRAINING -> left; no sync for lease_ms: LOST, out of all plans, forgotten after
 * keep_ms; a sync brings it back.
 *
 * A stream: jobs name a candidate (version, items, sampler, seed, sample ops). Eligible workers probe it and report
 * their fingerprint of it. When all of them have, or settle_ms after the first, the candidate has a live stream:
 *     the fingerprint of a resumed cursor if a live worker has it; else that of a stream being read; else the
 *     one with the most weight of workers behind it.
 * Its plan admits the live, eligible, not draining workers of its fingerprint. With no live job for grace_ms it is
 * dropped.
 *
 * A job, by the ranks of its latest start ("launch"):
 *
 *   job_open --> PREPARING --stream live--> WAITING (join next) --epoch begins--> RUNNING --all ranks closed--> CLOSED
 *                    |                          \--no other job reads it--> ^  \
 *                    +--> REFUSED (no worker makes the cursor's bits)            \--all leases over--> LOST --sync--> back
 * REFUSED, LOST and CLOSED are forgotten after keep_ms.
 *
 * Ranks and generations: a process names its generation, which rises with each start of it. An open of a rank with a
 * higher generation than that rank had begins a new launch: all ranks of the old one are fenced (their calls fail
 * CONFLICT), each must open again with a higher generation. Not fenced are those that opened after the replaced rank was last
 * heard of: they are of the new launch, whose ranks come in any order. Ranks of one launch must ask for the same (world, batch,
 * tail, weight, stream, cursor, join, pipeline): else CONFLICT, naming both. After a restart of the server any generation's sync
 * attaches a rank that has none yet, or one that attached with a lower generation: a zombie; until the leases of those that are
 * attached end, none begins that would not begin where they are. Generations and incarnations are taken from clocks: where no lease of the earlier start runs
 * any more, a lower one begins a new launch, too.
 */
#ifndef SCHEDULER_CLUSTER_H
#define SCHEDULER_CLUSTER_H

#include "scheduler/plan.h"
#include "scheduler/steps.h"
#include "scheduler/stream.h"

#define SCHEDULER_JOB_CHARS 128
#define SCHEDULER_ADDRESSES_CHARS 1024
#define SCHEDULER_WORDS_CHARS 512
#define SCHEDULER_WORLD_MAX 16384
#define SCHEDULER_BATCH_MAX 1048576
#define SCHEDULER_WEIGHT_LEAST 0.01 /* of a job */
#define SCHEDULER_WEIGHT_MOST 100.0
#define SCHEDULER_WORKERS_MAX 16384
#define SCHEDULER_MOVES_MOST 51 /* slots that a stream's plan moves in a minute because of new weights: 5% */
#define SCHEDULER_JOBS_MAX 4096 /* live ones: BUSY; ended ones are forgotten earlier when there is no room */
#define SCHEDULER_STREAMS_MAX 1024 /* candidates, and live streams; more: BUSY */

struct scheduler_cluster;

struct scheduler_cluster_options { /* zeros: the defaults */
    int64_t lease_ms;              /* 10000 */
    int64_t grace_ms;              /* 60000: an unread stream lives on */
    int64_t settle_ms;             /* 1000: waiting for the other workers' fingerprints after the first one */
    int64_t
        restart_ms;  /* 3000: streams loaded without homes have no plan before: workers come back meanwhile */
    int64_t keep_ms; /* 3600000: lost workers and ended jobs stay listed */
    uint64_t
        first_revision; /* over all that an earlier server used, by 2^40 or more: plans begin anew over theirs, too */
};

enum base_code scheduler_cluster_create(struct scheduler_cluster **cluster,
                                        const struct scheduler_cluster_options *options,
                                        struct base_error *error);
void scheduler_cluster_destroy(struct scheduler_cluster *cluster);
int64_t scheduler_cluster_lease_ms(
    const struct scheduler_cluster *cluster); /* sync at least thrice as often */

/* ---- events ---- */

struct scheduler_dataset_held {
    uint8_t version[BASE_SHA256_BYTES];
    bool eligible;
    const char *error; /* why not; may be NULL */
};
struct scheduler_probe_result {
    uint8_t key[BASE_SHA256_BYTES]; /* the candidate's hash (with a zero fingerprint) */
    uint8_t fingerprint[16];
    const char *error; /* NULL or "": it has a fingerprint */
};
struct scheduler_front {
    uint8_t stream[BASE_SHA256_BYTES];
    uint32_t epoch; /* latest epoch with a request */
    uint64_t position;
};

struct scheduler_worker_report {
    uint64_t id, incarnation;
    const char *addresses; /* one a line */
    double weight;         /* cores; not over 0: 1 */
    uint64_t staging_bytes;
    bool draining;
    double
        queue_ms; /* how long a block waits before it is made, smoothed; at least four reports a minute count */
    const struct scheduler_dataset_held *datasets; /* all that it holds: what is not named is held no more */
    int dataset_count;
    const struct scheduler_probe_result
        *probes; /* new ones, or all: they add up until the incarnation rises */
    int probe_count;
    const struct scheduler_front *fronts; /* those that changed, or all */
    int front_count;
};

/* Renews the lease. CONFLICT: a later incarnation of this worker has synced. BUSY: too many workers
 * (the longest lost is forgotten for a new one). */
enum base_code scheduler_cluster_worker_sync(struct scheduler_cluster *cluster, int64_t now_ns,
                                             const struct scheduler_worker_report *report,
                                             struct base_error *error);
/* It has said goodbye: out of all plans at once, forgotten. An unknown or later one: nothing happens. */
void scheduler_cluster_worker_leave(struct scheduler_cluster *cluster, int64_t now_ns, uint64_t id,
                                    uint64_t incarnation);
/* An operator wants it drained: out of all plans, `drain` in its orders, until its incarnation rises. */
enum base_code scheduler_cluster_worker_drain(struct scheduler_cluster *cluster, int64_t now_ns, uint64_t id,
                                              struct base_error *error);

enum scheduler_join { SCHEDULER_JOIN_NOW, SCHEDULER_JOIN_NEXT, SCHEDULER_JOIN_PARTIAL };

/* What a saved cursor carries. */
struct scheduler_job_cursor {
    struct scheduler_cursor at;
    uint8_t dataset_version[BASE_SHA256_BYTES];
    uint8_t fingerprint[16];
    uint8_t stream[BASE_SHA256_BYTES]; /* zeros: not known */
    uint32_t first_epoch;              /* e0: stream epoch of the job's epoch 0 */
};

struct scheduler_job_request {
    const char *job; /* id, under SCHEDULER_JOB_CHARS */
    uint32_t rank, world, batch;
    enum scheduler_tail tail;
    const char *dataset; /* its name, for texts only */
    uint8_t dataset_version[BASE_SHA256_BYTES];
    uint64_t items;
    bool shuffle;
    bool has_seed; /* else scheduler_stream_default_seed */
    uint64_t seed;
    const char *sample_text;                   /* canonical sample section */
    const char *pipeline_text;                 /* canonical, all sections: must be equal on all ranks */
    enum scheduler_join join;                  /* not looked at when resuming */
    const struct scheduler_job_cursor *resume; /* NULL: a new run */
    bool accept_new_bits;
    double weight; /* of its share of the workers; 0: 1; else 0.01 to 100 */
    uint64_t generation;
};

/* Opens one rank; the same again (same generation) changes nothing but the lease. Refusals change nothing
 * (but a job REFUSED for its cursor's fingerprint is listed):
 *   INVALID   shape, rank, weight, stream parts, epoch at its end (2^32 - 1), drop with less than a step in the epoch
 *   CONFLICT  fenced; ranks that ask for different things; a cursor of another dataset version, fingerprint or stream
 *             (the latter two: unless accept_new_bits), both sides named
 *   UNAVAILABLE  an earlier launch of another shape still holds its leases, or, after a restart, others of this launch may
 *             still come back: again when they are over
 *   BUSY      too many jobs or streams
 * The job's answer is then in scheduler_cluster_job(). */
enum base_code scheduler_cluster_job_open(struct scheduler_cluster *cluster, int64_t now_ns,
                                          const struct scheduler_job_request *request,
                                          struct base_error *error);

struct scheduler_job_report {
    const char *job;
    uint32_t rank;
    uint64_t generation;
    bool has_cursor;            /* else only the lease is renewed */
    struct scheduler_cursor at; /* after the batches handed over */
    uint64_t seeks; /* since the open: one more, and the cursor counts wherever it is; one less: not at all */
    uint32_t first_epoch; /* of the latest seek; may differ from that before */
};
/* Renews the rank's lease. NOT_FOUND: no such job (open again). CONFLICT: fenced, or REFUSED (its reason). */
enum base_code scheduler_cluster_job_sync(struct scheduler_cluster *cluster, int64_t now_ns,
                                          const struct scheduler_job_report *report,
                                          struct base_error *error);
/* This rank is done; its last cursor counts if given. Unknown or fenced: an error, nothing happens. */
enum base_code scheduler_cluster_job_close(struct scheduler_cluster *cluster, int64_t now_ns,
                                           const struct scheduler_job_report *report,
                                           struct base_error *error);

/* Rises with every change that a worker or a job can see. */
uint64_t scheduler_cluster_revision(const struct scheduler_cluster *cluster);
/* Workers and jobs whose revisions have risen since they were last taken, each once; false: none is left. */
bool scheduler_cluster_take_woken_worker(struct scheduler_cluster *cluster, uint64_t *id);
bool scheduler_cluster_take_woken_job(struct scheduler_cluster *cluster, char id[SCHEDULER_JOB_CHARS]);

/* Leases, settling, grace, forgetting. Early ticks are harmless. */
void scheduler_cluster_tick(struct scheduler_cluster *cluster, int64_t now_ns);
/* When tick has something to do at the earliest; INT64_MAX: never. */
int64_t scheduler_cluster_deadline_ns(const struct scheduler_cluster *cluster);

/* ---- workers: valid until the next event ---- */

enum scheduler_worker_state { SCHEDULER_WORKER_READY, SCHEDULER_WORKER_DRAINING, SCHEDULER_WORKER_LOST };
const char *scheduler_worker_state_name(enum scheduler_worker_state state); /* "ready" */

struct scheduler_worker {
    uint64_t id, incarnation;
    uint64_t revision; /* of its orders: probes, streams, plans, live jobs, drain */
    enum scheduler_worker_state state;
    bool drain_ordered;
    double weight;
    uint64_t staging_bytes;
    char addresses[SCHEDULER_ADDRESSES_CHARS]; /* one a line */
    int64_t seen_ns;                           /* last sync */
};

int scheduler_cluster_worker_count(const struct scheduler_cluster *cluster); /* lost ones, too */
const struct scheduler_worker *scheduler_cluster_worker_at(const struct scheduler_cluster *cluster,
                                                           int index);
const struct scheduler_worker *scheduler_cluster_worker(const struct scheduler_cluster *cluster, uint64_t id);
/* Whether a worker, lost or not, is eligible for a dataset version; *error ("" or the reason) may be NULL. */
bool scheduler_cluster_eligible(const struct scheduler_cluster *cluster, uint64_t worker,
                                const uint8_t version[BASE_SHA256_BYTES], const char **error);

/* ---- streams: valid until the next event ---- */

struct scheduler_live_stream {
    struct scheduler_stream identity; /* sealed, with its fingerprint */
    uint8_t key[BASE_SHA256_BYTES];   /* of its candidate */
    bool planned;                     /* else `plan` is not to be told yet (loaded, homes are coming back) */
    struct scheduler_plan plan;       /* ids of workers; versions rise, over a restart, too */
    int jobs;                         /* live ones that read it or wait for it */
    uint64_t plan_revision,
        revision; /* of the cluster, when its plan, its plan or its live jobs last changed */
};

int scheduler_cluster_stream_count(const struct scheduler_cluster *cluster);
const struct scheduler_live_stream *scheduler_cluster_stream_at(const struct scheduler_cluster *cluster,
                                                                int index);
const struct scheduler_live_stream *scheduler_cluster_stream(const struct scheduler_cluster *cluster,
                                                             const uint8_t hash[BASE_SHA256_BYTES]);
/* A worker's orders: the index-th candidate that it shall probe, the index-th live stream that it serves (it is
 * eligible and of the stream's fingerprint; draining or not). NULL after the last. */
const struct scheduler_stream *scheduler_cluster_probe_at(const struct scheduler_cluster *cluster,
                                                          uint64_t worker, int index);
const struct scheduler_live_stream *scheduler_cluster_served_at(const struct scheduler_cluster *cluster,
                                                                uint64_t worker, int index);
/* Whether one that it serves has changed after `revision`. */
bool scheduler_cluster_served_since(const struct scheduler_cluster *cluster, uint64_t worker,
                                    uint64_t revision);

/* ---- jobs: valid until the next event ---- */

enum scheduler_job_state {
    SCHEDULER_JOB_PREPARING,
    SCHEDULER_JOB_WAITING,
    SCHEDULER_JOB_RUNNING,
    SCHEDULER_JOB_LOST,
    SCHEDULER_JOB_CLOSED,
    SCHEDULER_JOB_REFUSED,
};
const char *scheduler_job_state_name(enum scheduler_job_state state); /* "preparing" */

struct scheduler_job {
    char id[SCHEDULER_JOB_CHARS];
    uint64_t revision; /* of its answer: state, stream, plan, start */
    enum scheduler_job_state state;
    char reason
        [SCHEDULER_WORDS_CHARS]; /* in words: what it waits for, with whom it shares, why it was refused */
    char note[SCHEDULER_WORDS_CHARS]; /* "" or the near miss: "differs from stream X only in seed" */
    struct scheduler_shape shape;     /* of rank 0 */
    double weight;
    uint8_t key[BASE_SHA256_BYTES];             /* of its candidate */
    const struct scheduler_live_stream *stream; /* NULL while PREPARING or REFUSED, and when dropped */
    bool has_start;                             /* RUNNING, or was */
    struct scheduler_cursor start;              /* where this launch begins */
    uint32_t first_epoch;                       /* e0 */
    bool short_first_epoch;                     /* joined `partial` within an epoch */
    struct scheduler_cursor at;                 /* the least of its ranks' */
    int ranks_open, ranks_live;                 /* of this launch */
};

int scheduler_cluster_job_count(const struct scheduler_cluster *cluster);
const struct scheduler_job *scheduler_cluster_job_at(const struct scheduler_cluster *cluster, int index);
const struct scheduler_job *scheduler_cluster_job(const struct scheduler_cluster *cluster, const char *id);
/* The jobs of a live stream, live or not, the one after `after` (NULL: the first). NULL after the last. */
const struct scheduler_job *scheduler_cluster_reader_next(const struct scheduler_live_stream *stream,
                                                          const struct scheduler_job *after);

/* ---- what must outlive the server ---- */

/* The next stream or job whose stored record is out of date; false: none. *gone: remove the record. Of a stream, the
 * identity and the plan are stored; of a job, its request (any rank's), stream hash (if has_start), first_epoch and
 * at. Cursors alone make new records, all jobs' together, no more often than once a second. */
bool scheduler_cluster_take_stream(struct scheduler_cluster *cluster, uint8_t hash[BASE_SHA256_BYTES],
                                   bool *gone);
bool scheduler_cluster_take_job(struct scheduler_cluster *cluster, char id[SCHEDULER_JOB_CHARS], bool *gone);
/* What was taken was not stored: all streams and jobs are out of date again, ended ones, too. (Records of forgotten ones stay too
 * long.) */
void scheduler_cluster_store_again(struct scheduler_cluster *cluster);

/* Refills a new cluster, before any event. The stream is live; it has a plan as soon as all homes of `plan` serve it again, or
 * some worker does and their leases, from now on, are over (`plan` without homes: restart_ms): a later version, in which whoever
 * is back keeps its slots. `identity`: its given parts; it is sealed here. */
enum base_code scheduler_cluster_load_stream(struct scheduler_cluster *cluster, int64_t now_ns,
                                             const struct scheduler_stream *identity,
                                             const struct scheduler_plan *plan, struct base_error *error);
/* After the streams. LOST until a rank syncs (any generation) or opens. */
struct scheduler_job_stored {
    uint8_t stream[BASE_SHA256_BYTES]; /* zeros, or one that is not loaded: it gets one anew */
    uint32_t first_epoch;
    struct scheduler_cursor at;
};
/* `request`: of the launch, whatever rank's. Dataset version and items are the stream's when it is loaded. */
enum base_code scheduler_cluster_load_job(struct scheduler_cluster *cluster, int64_t now_ns,
                                          const struct scheduler_job_request *request,
                                          const struct scheduler_job_stored *stored,
                                          struct base_error *error);

/* ---- for the log and the metrics ---- */

/* The next line that the log should have; false: none. Up to 256 wait; then the oldest go. */
bool scheduler_cluster_take_line(struct scheduler_cluster *cluster, char line[SCHEDULER_WORDS_CHARS]);

struct scheduler_cluster_counts {
    uint64_t workers_lost, plan_changes, slots_moved, streams_made, streams_dropped, jobs_shared, near_misses,
        fenced, refused;
};
struct scheduler_cluster_counts scheduler_cluster_counts(const struct scheduler_cluster *cluster);

#endif
