/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the cluster machine keeps, private to cluster*.c. Each event changes the tables and marks what may follow from that;
 * cluster_settle() then derives it (job states, live streams, plans, words) and lets revisions rise where an audience sees a
 * change. A step does a bounded amount of that: what is left is done at the next one, at once (scheduler_cluster_deadline_ns).
 *
 *   an event marks       settling, in this order
 *   a plan               that has a dead home, at once
 *   a candidate          wanted still? Workers' fingerprints have changed: its jobs without a stream are marked
 *   a stream             live jobs, readers, front; dropped when nobody used it for long; its jobs' words are marked
 *   a job                its state
 *   a plan               any other, when the last one is old enough for its size
 *   words                a job's reason
 *
 * Workers have seats, small numbers that their state in other tables (prints, eligibility, plans) is found by.
 */
#ifndef SCHEDULER_CLUSTER_STATE_H
#define SCHEDULER_CLUSTER_STATE_H

#include "base/heap.h"
#include "scheduler/cluster.h"

#define CLUSTER_NEVER_NS INT64_MAX
#define CLUSTER_LINES 256
#define CLUSTER_SHORT_CHARS 13 /* of a hash in texts, terminator included */
#define CLUSTER_ERROR_CHARS 160
#define CLUSTER_SEATS SCHEDULER_WORKERS_MAX

/* ---- lists, timers, an index (cluster_index.c) ---- */

/* In a circular list; a list's head is one, too. Zeroed: in none. */
struct cluster_link {
    struct cluster_link *before, *after;
    void *owner; /* NULL: a head */
};

void cluster_list_init(struct cluster_link *head);
bool cluster_list_empty(const struct cluster_link *head);
/* At the end, unless it is in a list already. */
void cluster_list_add(struct cluster_link *head, struct cluster_link *link, void *owner);
void cluster_list_remove(struct cluster_link *link);       /* in none: nothing happens */
void *cluster_list_first(const struct cluster_link *head); /* its owner; NULL: empty */
void *cluster_list_next(const struct cluster_link *link);  /* NULL: after the last */
void *cluster_list_take(struct cluster_link *head);        /* the first, removed */

enum cluster_timer_kind {
    CLUSTER_TIMER_MEMBER,
    CLUSTER_TIMER_CANDIDATE,
    CLUSTER_TIMER_STREAM,
    CLUSTER_TIMER_JOB
};

struct cluster_timer {
    struct base_heap_node node; /* first */
    enum cluster_timer_kind kind;
    void *owner;
};

/* Items by hash; equal hashes are told apart by `same`. */
struct cluster_index {
    struct cluster_entry {
        uint64_t hash;
        void *item;
    } * entries;
    int used, room;
};

typedef bool cluster_index_same(const void *item, const void *key);
uint64_t cluster_hash_bytes(const uint8_t *hash);        /* of a hash: its first bytes */
bool cluster_index_reserve(struct cluster_index *index); /* room for one more; false: no memory */
void cluster_index_put(struct cluster_index *index, uint64_t hash, void *item);
void cluster_index_remove(struct cluster_index *index, uint64_t hash, const void *item);
/* NULL: none. same NULL: any with the hash. */
void *cluster_index_find(const struct cluster_index *index, uint64_t hash, cluster_index_same *same,
                         const void *key);

/* ---- workers (cluster_member.c), what they hold (cluster_held.c) ---- */

/* A dataset version that some worker has spoken of. */
struct cluster_version {
    uint8_t hash[BASE_SHA256_BYTES];
    int holders, eligible_count;          /* lists that name it; workers, lost or not */
    const struct cluster_member *refuser; /* the last that said why it cannot read it; NULL: none */
    uint8_t eligible[CLUSTER_SEATS / 8];  /* bits by seat */
};

struct cluster_held {
    struct cluster_version *version;
    bool eligible;
    char *error; /* owned; NULL: none */
};

/* The last front it told of a live stream: only a change is news. */
struct cluster_front {
    uint64_t stream; /* the first bytes of its hash, by which the list is sorted */
    struct scheduler_cursor at;
};

/* What its reports of this minute say of its load (cluster_load.c). */
struct cluster_load {
    double least_ms, most_ms; /* of the queue */
    int reports;
    double factor;         /* measured: its weight is that of its cores times this */
    double step;           /* of the next change, as a share of the factor */
    bool fresh;            /* nothing is known of it yet */
    int direction, steady; /* of the last change; minutes that have asked for the same since */
};

struct cluster_member {
    struct scheduler_worker view;
    int seat;
    bool self_draining;
    struct cluster_held *held;
    struct cluster_front *fronts;
    int held_count, front_count;
    struct cluster_load load;
    struct cluster_timer timer; /* its lease; lost: until it is forgotten */
    struct cluster_link woken;
    struct { /* where scheduler_cluster_probe_at and served_at have come to */
        uint64_t revision;
        int index, at;
    } probes, serves;
};

enum { CLUSTER_SEAT_FREE = 255 }; /* else enum scheduler_worker_state */

struct cluster_seat {
    struct cluster_member *member; /* NULL: free */
    uint64_t id;
    double weight; /* that of its cores times what was measured */
    uint8_t state;
};

/* ---- candidates (cluster_candidate.c) ---- */

enum { CLUSTER_PRINT_NONE, CLUSTER_PRINT_FAILED, CLUSTER_PRINT_FIRST, CLUSTER_PRINTS = 250 };

/* A fingerprint that workers or streams of a candidate have. */
struct cluster_print {
    uint8_t fingerprint[16];
    int users;       /* workers and streams; 0: to be used for another */
    uint64_t weight; /* of the workers that vote for it, in parts that add up exactly */
};

struct cluster_candidate {
    struct scheduler_stream identity; /* zero fingerprint; its hash is the key */
    struct cluster_version *version;
    int64_t first_print_ns;   /* CLUSTER_NEVER_NS: none yet */
    bool waited;              /* settle_ms after that have been seen to be over */
    bool sought;              /* a live job has no stream of it yet */
    int streams;              /* live ones of it */
    struct cluster_link jobs; /* that want it, live or not */
    struct cluster_link dirty;
    struct cluster_timer timer;
    uint64_t failed_worker; /* the last that could not make it, and why; 0: none */
    char failed_error[CLUSTER_ERROR_CHARS];
    int eligible, silent,
        made; /* READY workers: that read the dataset; of these: without a print, with one */
    struct cluster_print *prints; /* from CLUSTER_PRINT_FIRST on */
    int print_count;
    uint8_t print[CLUSTER_SEATS]; /* by seat */
};

/* ---- live streams (cluster_stream.c), their plans (cluster_plan.c) ---- */

struct cluster_stream {
    struct scheduler_live_stream view; /* first */
    struct cluster_candidate *candidate;
    uint8_t print;        /* of its fingerprint */
    int64_t plan_from_ns; /* loaded: no plan before, unless its homes are back; INT64_MIN: not or no longer */
    int homes_back;       /* loaded: slots, from the first on, whose homes serve it again */
    int64_t unread_ns;    /* since when no live job reads it; CLUSTER_NEVER_NS: one does */
    bool has_front, front_fell;    /* front_fell: a reader went back */
    struct scheduler_cursor front; /* the furthest that is known of live jobs */
    int readers;                   /* live RUNNING jobs, when last counted */
    struct cluster_link jobs;      /* live or not */
    struct cluster_link dirty, unstored;
    struct cluster_timer timer;
    /* its plan */
    struct cluster_link replan;
    bool starved;                      /* memory was out when it was to be planned */
    bool replan_wanted;                /* when plan_after_ns has come */
    int64_t plan_after_ns;             /* more changes are waited for until then, unless a home dies */
    uint64_t homes;                    /* hash of the workers that the plan was made for */
    int moves;                         /* slots that may still move in this minute for weights alone */
    bool unfinished;                   /* it would have moved more */
    double least_score;                /* of these workers; -INFINITY: all that serve it are */
    uint8_t chosen[CLUSTER_SEATS / 8]; /* these workers, bits by seat */
};

/* ---- jobs (cluster_job.c) ---- */

enum cluster_rank_state { CLUSTER_RANK_ABSENT, CLUSTER_RANK_OPEN, CLUSTER_RANK_CLOSED };

struct cluster_rank {
    enum cluster_rank_state state;
    bool live, known; /* known: `generation` is of this or an earlier launch */
    bool kept;        /* opened before the launch began, and taken for one of it */
    bool attached;    /* by a sync after a restart: one of a higher generation takes its place */
    uint64_t generation;
    int64_t lease_until_ns, opened_ns;
    struct scheduler_cursor at;
    uint64_t seeks; /* that `at` comes after */
};

struct cluster_job {
    struct scheduler_job view;
    /* what its launch asked for */
    struct scheduler_stream wanted; /* zero fingerprint */
    char *pipeline_text;            /* owned */
    char dataset[SCHEDULER_JOB_CHARS];
    enum scheduler_join join;
    bool has_resume, accept_new_bits;
    struct scheduler_job_cursor resume;
    struct cluster_rank *ranks; /* shape.world of them, owned */
    uint32_t last_ranks;        /* that are at view.at */
    bool loaded;                /* ranks may attach by syncing */
    bool has_pin;               /* these bits, no others */
    uint8_t pin[16];
    bool has_baseline;
    uint32_t baseline_epoch; /* WAITING: a later epoch than this must begin */
    int64_t check_ns;        /* no rank's lease ends before */
    int64_t ended_ns;        /* LOST, CLOSED, REFUSED since; CLUSTER_NEVER_NS: not */
    /* where it is: not part of a launch */
    struct cluster_candidate *candidate; /* NULL: it is gone */
    struct cluster_stream *stream;       /* of view.stream */
    struct cluster_link wants, reads, dirty, words, woken;
    struct cluster_link unstored, moved; /* moved: only its cursor is not stored */
    struct cluster_timer timer;
};

struct scheduler_cluster {
    struct scheduler_cluster_options options;
    int64_t now_ns; /* of the latest event */
    int64_t
        retry_ns; /* when jobs and streams that found no memory, or no room, look again; CLUSTER_NEVER_NS: none did */
    uint64_t revision;
    int step_work;                   /* what one step does of settling, about in ns */
    int first_cost;                  /* of new streams first plans, not yet counted as work of the step */
    int ready_count;                 /* workers */
    int64_t cursors_ns;              /* when moved jobs are stored at the earliest */
    int64_t balance_ns;              /* when loads are compared next */
    uint32_t plan_floor;             /* no new stream's versions begin below */
    struct cluster_member **members; /* by id */
    struct cluster_candidate **candidates;
    struct cluster_stream **streams;
    struct cluster_job **jobs; /* in the order of their first open */
    int member_count, candidate_count, stream_count, job_count;
    struct cluster_seat *seats;
    int *free_seats;
    int seat_count, free_count;
    struct cluster_index by_worker, by_version, by_key, by_stream, by_family, by_job;
    struct base_heap timers;
    struct cluster_link dirty_candidates, dirty_streams, dirty_jobs, dead_plans, plans,
        words; /* what settling has to do */
    struct cluster_link unstored_streams, unstored_jobs, moved_jobs;
    struct cluster_link woken_members, woken_jobs;
    uint8_t (*gone_streams)[BASE_SHA256_BYTES];
    char (*gone_jobs)[SCHEDULER_JOB_CHARS];
    int gone_stream_count, gone_job_count;
    char (*lines)[SCHEDULER_WORDS_CHARS];
    int line_first, line_count;
    struct scheduler_cluster_counts counts;
};

/* ---- cluster.c ---- */

void cluster_line(struct scheduler_cluster *cluster, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void cluster_gone_push(struct scheduler_cluster *cluster, const char *job, const uint8_t *stream);
/* Room for one more timer. */
bool cluster_timer_reserve(struct scheduler_cluster *cluster);
/* CLUSTER_NEVER_NS: removes it. */
void cluster_timer_set(struct scheduler_cluster *cluster, struct cluster_timer *timer, int64_t at_ns);
/* A bounded part of what follows from the marks at cluster->now_ns. */
void cluster_settle(struct scheduler_cluster *cluster);

static inline bool cluster_bit(const uint8_t *bits, int at)
{
    return bits[at / 8] >> at % 8 & 1;
}

static inline void cluster_bit_set(uint8_t *bits, int at, bool value)
{
    bits[at / 8] = (uint8_t)((bits[at / 8] & ~(1 << at % 8)) | value << at % 8);
}

/* ---- cluster_held.c ---- */

/* Finds or makes, for one more holder; NULL: no memory. */
struct cluster_version *cluster_version_hold(struct scheduler_cluster *cluster, const uint8_t *version);
void cluster_version_drop(struct scheduler_cluster *cluster,
                          struct cluster_version *version); /* one holder less */
/* All or nothing: false: no memory, and the old list stays. *changed: what the worker may read, or why not. */
bool cluster_held_take(struct scheduler_cluster *cluster, struct cluster_member *member,
                       const struct scheduler_worker_report *report, bool *changed);
/* A worker that cannot read it, and why; NULL: none has said. */
const struct cluster_member *cluster_version_refuser(const struct cluster_version *version,
                                                     const char **error);
void cluster_held_clear(struct scheduler_cluster *cluster, struct cluster_member *member);
bool cluster_held_eligible(const struct scheduler_cluster *cluster, const struct cluster_member *member,
                           const uint8_t *version, const char **error);

/* ---- cluster_member.c ---- */

void cluster_member_touch(struct scheduler_cluster *cluster, struct cluster_member *member);
struct cluster_member *cluster_member_find(const struct scheduler_cluster *cluster, uint64_t id);
void cluster_member_destroy(struct cluster_member *member);
/* Its weight in plans, from its cores and its load. */
void cluster_member_weigh(struct scheduler_cluster *cluster, struct cluster_member *member);
void cluster_member_expire(struct scheduler_cluster *cluster, struct cluster_member *member);

/* ---- cluster_load.c ---- */

void cluster_load_reset(struct cluster_load *load);
/* Of a worker that has just begun, once its cores are known. */
void cluster_load_begin(const struct scheduler_cluster *cluster, struct cluster_member *member);
void cluster_load_take(struct cluster_load *load, const struct scheduler_worker_report *report);
/* Compares loads when a minute is over. */
void cluster_load_balance(struct scheduler_cluster *cluster);

/* ---- cluster_candidate.c ---- */

void cluster_short(const uint8_t *hash, char text[CLUSTER_SHORT_CHARS]);
void cluster_candidate_mark(struct scheduler_cluster *cluster, struct cluster_candidate *candidate);
/* Whatever a candidate's counts depend on has changed. */
void cluster_candidate_mark_sought(struct scheduler_cluster *cluster);
struct cluster_candidate *cluster_candidate_find(const struct scheduler_cluster *cluster, const uint8_t *key);
/* Finds or makes. */
enum base_code cluster_candidate_get(struct scheduler_cluster *cluster, const struct scheduler_stream *wanted,
                                     struct cluster_candidate **candidate, struct base_error *error);
void cluster_candidate_destroy(struct cluster_candidate *candidate);
void cluster_candidate_settle(struct scheduler_cluster *cluster, struct cluster_candidate *candidate);
/* A worker's answer to a probe; false: no memory. *changed: it is news. */
bool cluster_candidate_take(struct scheduler_cluster *cluster, struct cluster_member *member,
                            const struct scheduler_probe_result *result, bool *changed);
void cluster_candidate_forget(struct scheduler_cluster *cluster, const struct cluster_member *member);
/* Of a fingerprint, for one more user; CLUSTER_PRINT_FAILED: no room. */
uint8_t cluster_candidate_print(struct cluster_candidate *candidate, const uint8_t *fingerprint);
void cluster_candidate_release(struct cluster_candidate *candidate, uint8_t print);
/* Counts anew if need be. */
/* A seat's votes are taken back before its state, its weight or what it may read changes, and counted after that.
 * version NULL: those of all candidates. */
void cluster_candidate_votes(struct scheduler_cluster *cluster, int seat,
                             const struct cluster_version *version, int sign);
/* All workers that can have told their fingerprint have, or the first of them long ago. */
bool cluster_candidate_settled(const struct scheduler_cluster *cluster, struct cluster_candidate *candidate);
bool cluster_fingerprint_offered(const struct cluster_candidate *candidate, const uint8_t *fingerprint);
/* The fingerprint that a new job gets; false: no worker has one. */
bool cluster_fingerprint_choose(const struct scheduler_cluster *cluster, struct cluster_candidate *candidate,
                                uint8_t *fingerprint);

/* ---- cluster_stream.c ---- */

void cluster_stream_mark(struct scheduler_cluster *cluster, struct cluster_stream *stream);
void cluster_stream_unstored(struct scheduler_cluster *cluster, struct cluster_stream *stream);
struct cluster_stream *cluster_stream_find(const struct scheduler_cluster *cluster, const uint8_t *hash);
/* Finds or makes; NULL: no memory, or too many. */
struct cluster_stream *cluster_stream_get(struct scheduler_cluster *cluster,
                                          struct cluster_candidate *candidate, const uint8_t *fingerprint);
bool cluster_stream_serves(const struct scheduler_cluster *cluster, const struct cluster_stream *stream,
                           int seat);
/* All that make its bits see a change; or those that are in its plan, and its jobs. */
void cluster_stream_touch_makers(struct scheduler_cluster *cluster, const struct cluster_stream *stream);
void cluster_stream_touch_chosen(struct scheduler_cluster *cluster, const struct cluster_stream *stream);
void cluster_stream_touch_jobs(struct scheduler_cluster *cluster, const struct cluster_stream *stream);
/* Somebody has come as far as `at`. */
void cluster_stream_advance(struct scheduler_cluster *cluster, struct cluster_stream *stream,
                            struct scheduler_cursor at);
/* A reader has gone back. */
void cluster_stream_fall(struct scheduler_cluster *cluster, struct cluster_stream *stream);
/* A worker has had a request for `at`. Epochs that no live reader can have come to are of jobs long gone. */
void cluster_stream_tell(struct scheduler_cluster *cluster, struct cluster_stream *stream,
                         struct scheduler_cursor at);
/* Another stream that is read and whose blocks are made together with its, perhaps; NULL: none. */
const struct cluster_stream *cluster_stream_sibling(const struct scheduler_cluster *cluster,
                                                    const struct cluster_stream *stream);
/* One that is read and would be a sibling, if its blocks had as many rows; NULL: none. */
const struct cluster_stream *cluster_stream_apart(const struct scheduler_cluster *cluster,
                                                  const struct cluster_stream *stream);
/* Job counts, its front when it lost a reader, dropping what nobody uses. */
void cluster_stream_settle(struct scheduler_cluster *cluster, struct cluster_stream *stream);
void cluster_stream_expire(struct scheduler_cluster *cluster, struct cluster_stream *stream);
/* Its timer, from what it waits for. */
void cluster_stream_wait(struct scheduler_cluster *cluster, struct cluster_stream *stream);

/* ---- cluster_plan.c ---- */

/* Whatever decides whether a worker is in plans may have changed; reweighed: its weight has. */
void cluster_plan_worker(struct scheduler_cluster *cluster, int seat, bool reweighed);
void cluster_plan_want(struct scheduler_cluster *cluster, struct cluster_stream *stream, bool death);
/* Of a new stream: at once, from a sibling's if it has one. */
void cluster_plan_first(struct scheduler_cluster *cluster, struct cluster_stream *stream);
/* What it cost, as work of a step. */
int cluster_plan_make(struct scheduler_cluster *cluster, struct cluster_stream *stream);

/* ---- cluster_job.c ---- */

void cluster_job_touch(struct scheduler_cluster *cluster, struct cluster_job *job);
void cluster_job_mark(struct scheduler_cluster *cluster, struct cluster_job *job);  /* its state */
void cluster_job_words(struct scheduler_cluster *cluster, struct cluster_job *job); /* its reason */
void cluster_job_unstored(struct scheduler_cluster *cluster, struct cluster_job *job);
struct cluster_job *cluster_job_find(const struct scheduler_cluster *cluster, const char *id);
void cluster_job_destroy(struct cluster_job *job);     /* in no list */
bool cluster_job_live(const struct cluster_job *job);  /* has a live rank and was not refused */
bool cluster_job_reads(const struct cluster_job *job); /* live and RUNNING */
void cluster_job_set_stream(struct scheduler_cluster *cluster, struct cluster_job *job,
                            struct cluster_stream *stream);
void cluster_job_set_candidate(struct scheduler_cluster *cluster, struct cluster_job *job,
                               struct cluster_candidate *candidate);
void cluster_job_wait(struct scheduler_cluster *cluster, struct cluster_job *job); /* its timer */
void cluster_job_expire(struct scheduler_cluster *cluster, struct cluster_job *job);

/* ---- cluster_join.c: which stream a job gets, and where it begins ---- */

/* Moves the job on as far as the tables allow. */
void cluster_join_advance(struct scheduler_cluster *cluster, struct cluster_job *job);
void cluster_join_words(struct scheduler_cluster *cluster, struct cluster_job *job);
void cluster_join_near_miss(struct scheduler_cluster *cluster, struct cluster_job *job);
int cluster_cursor_compare(struct scheduler_cursor a, struct scheduler_cursor b);

#endif
