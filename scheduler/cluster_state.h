/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the cluster machine keeps, private to cluster*.c. Each event changes the tables, then scheduler_cluster_settle()
 * derives the rest (plans, live streams, job states, words) and lets revisions rise where an audience sees a change.
 */
#ifndef SCHEDULER_CLUSTER_STATE_H
#define SCHEDULER_CLUSTER_STATE_H

#include "scheduler/cluster.h"

#define CLUSTER_NEVER_NS INT64_MAX
#define CLUSTER_LINES 256
#define CLUSTER_SHORT_CHARS 13 /* of a hash in texts, terminator included */

/* ---- workers (cluster_member.c) ---- */

struct cluster_held {
    uint8_t version[BASE_SHA256_BYTES];
    bool eligible;
    char error[160];
};

/* A worker's answer to a probe; at most one a candidate, gone with it. */
struct cluster_print {
    uint8_t key[BASE_SHA256_BYTES], fingerprint[16];
    bool failed;
    char error[160];
};

/* The last front it told of a live stream: only a change is news. */
struct cluster_front {
    uint8_t stream[BASE_SHA256_BYTES];
    struct scheduler_cursor at;
};

struct cluster_member {
    struct scheduler_worker view;
    bool self_draining;
    struct cluster_held *held;
    struct cluster_print *prints;
    struct cluster_front *fronts;
    int held_count, print_count, front_count;
};

/* ---- candidates and live streams (cluster_stream.c) ---- */

struct cluster_candidate {
    struct scheduler_stream identity; /* zero fingerprint; its hash is the key */
    int64_t first_print_ns;           /* CLUSTER_NEVER_NS: none yet */
    bool waited;                      /* settle_ms after that have been seen to be over */
};

struct cluster_stream {
    struct scheduler_live_stream view;
    int64_t plan_from_ns; /* loaded: no plan before; INT64_MIN: not or no longer */
    int64_t unread_ns;    /* since when no live job reads it; CLUSTER_NEVER_NS: one does */
    uint64_t homes;       /* hash of the workers that the plan was made for */
    bool has_front;
    struct scheduler_cursor front; /* the furthest that is known of live jobs */
    int readers;                   /* live RUNNING jobs, when last counted */
    bool unstored;
};

/* ---- jobs (cluster_job.c) ---- */

enum cluster_rank_state { CLUSTER_RANK_ABSENT, CLUSTER_RANK_OPEN, CLUSTER_RANK_CLOSED };

struct cluster_rank {
    enum cluster_rank_state state;
    bool live, known; /* known: `generation` is of this or an earlier launch */
    bool kept;        /* opened before the launch began, and taken for one of it */
    uint64_t generation;
    int64_t lease_until_ns, opened_ns;
    struct scheduler_cursor at;
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
    bool loaded;                /* ranks may attach by syncing */
    bool has_pin;               /* these bits, no others */
    uint8_t pin[16];
    bool has_baseline;
    uint32_t baseline_epoch; /* WAITING: a later epoch than this must begin */
    int64_t check_ns;        /* no rank's lease ends before */
    int64_t ended_ns;        /* LOST, CLOSED, REFUSED since; CLUSTER_NEVER_NS: not */
    bool unstored, moved;    /* moved: only its cursor is not stored */
};

struct cluster_gone {
    bool is_job;
    char id[SCHEDULER_JOB_CHARS];
    uint8_t hash[BASE_SHA256_BYTES];
};

struct scheduler_cluster {
    struct scheduler_cluster_options options;
    int64_t now_ns; /* of the latest event */
    int64_t
        retry_ns; /* when jobs that found no memory or room for a stream look again; CLUSTER_NEVER_NS: none did */
    uint64_t revision;
    int64_t cursors_ns;  /* when moved jobs are stored at the earliest */
    uint32_t plan_floor; /* no new stream's versions begin below */
    bool members_changed, jobs_changed;
    struct cluster_member **members; /* by id */
    struct cluster_candidate **candidates;
    struct cluster_stream **streams;
    struct cluster_job **jobs; /* in the order of their first open */
    struct cluster_gone *gone;
    int member_count, candidate_count, stream_count, job_count, gone_count;
    char (*lines)[SCHEDULER_WORDS_CHARS];
    int line_first, line_count;
    struct scheduler_cluster_counts counts;
};

/* ---- cluster.c ---- */

void cluster_line(struct scheduler_cluster *cluster, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Room for one more pointer or record at the end of a table; false: no memory. */
bool cluster_grow(void *table, int count, size_t record_bytes);
void cluster_gone_push(struct scheduler_cluster *cluster, const char *job, const uint8_t *stream);
/* Everything that follows from the tables at cluster->now_ns. */
void cluster_settle(struct scheduler_cluster *cluster);

/* ---- cluster_member.c ---- */

void cluster_member_touch(struct scheduler_cluster *cluster, struct cluster_member *member);
struct cluster_member *cluster_member_find(const struct scheduler_cluster *cluster, uint64_t id);
void cluster_member_destroy(struct cluster_member *member);
bool cluster_member_eligible(const struct cluster_member *member, const uint8_t *version, const char **error);
const struct cluster_print *cluster_member_print(const struct cluster_member *member, const uint8_t *key);
/* Live, eligible for the candidate's dataset. */
bool cluster_member_reads(const struct cluster_member *member, const struct scheduler_stream *candidate);
/* ... and makes the stream's bits. */
bool cluster_member_serves(const struct cluster_member *member, const struct scheduler_live_stream *stream);
void cluster_member_forget_key(struct scheduler_cluster *cluster, const uint8_t *key);
void cluster_member_expire(struct scheduler_cluster *cluster);
int64_t cluster_member_deadline_ns(const struct scheduler_cluster *cluster);

/* ---- cluster_stream.c ---- */

void cluster_short(const uint8_t *hash, char text[CLUSTER_SHORT_CHARS]);
struct cluster_candidate *cluster_candidate_find(const struct scheduler_cluster *cluster, const uint8_t *key);
/* Finds or makes. */
enum base_code cluster_candidate_get(struct scheduler_cluster *cluster, const struct scheduler_stream *wanted,
                                     struct cluster_candidate **candidate, struct base_error *error);
/* All workers that can have told their fingerprint have, or the first of them long ago. */
bool cluster_candidate_settled(const struct scheduler_cluster *cluster,
                               const struct cluster_candidate *candidate);
bool cluster_fingerprint_offered(const struct scheduler_cluster *cluster,
                                 const struct cluster_candidate *candidate, const uint8_t *fingerprint);
/* The fingerprint that a new job gets; false: no worker has one. */
bool cluster_fingerprint_choose(const struct scheduler_cluster *cluster,
                                const struct cluster_candidate *candidate, uint8_t *fingerprint);
struct cluster_stream *cluster_stream_find(const struct scheduler_cluster *cluster, const uint8_t *hash);
/* Finds or makes; NULL: no memory, or too many. */
struct cluster_stream *cluster_stream_get(struct scheduler_cluster *cluster,
                                          const struct cluster_candidate *candidate,
                                          const uint8_t *fingerprint);
struct cluster_stream *cluster_stream_of(const struct scheduler_cluster *cluster,
                                         const struct cluster_job *job);
/* Its workers and its jobs see a change. */
void cluster_stream_touch(struct scheduler_cluster *cluster, const struct cluster_stream *stream);
void cluster_stream_plan(struct scheduler_cluster *cluster, struct cluster_stream *stream);
/* Somebody has come as far as `at`. */
void cluster_stream_advance(struct scheduler_cluster *cluster, struct cluster_stream *stream,
                            struct scheduler_cursor at);
/* A worker has had a request for `at`. Epochs that no live reader can have come to are of jobs long gone. */
void cluster_stream_tell(struct scheduler_cluster *cluster, struct cluster_stream *stream,
                         struct scheduler_cursor at);
/* Job counts, fronts of streams that lost a reader, dropping what nobody uses. */
void cluster_stream_settle(struct scheduler_cluster *cluster);
int64_t cluster_stream_deadline_ns(const struct scheduler_cluster *cluster);

/* ---- cluster_job.c ---- */

void cluster_job_touch(struct scheduler_cluster *cluster, struct cluster_job *job);
struct cluster_job *cluster_job_find(const struct scheduler_cluster *cluster, const char *id);
void cluster_job_destroy(struct cluster_job *job);
bool cluster_job_live(const struct cluster_job *job); /* has a live rank and was not refused */
bool cluster_job_reads(const struct cluster_job *job,
                       const struct cluster_stream *stream); /* live and RUNNING */
void cluster_job_expire(struct scheduler_cluster *cluster);
int64_t cluster_job_deadline_ns(const struct scheduler_cluster *cluster);

/* ---- cluster_join.c: which stream a job gets, and where it begins ---- */

/* Moves the job on as far as the tables allow; true: it moved. */
bool cluster_join_advance(struct scheduler_cluster *cluster, struct cluster_job *job);
void cluster_join_words(struct scheduler_cluster *cluster, struct cluster_job *job);
void cluster_join_near_miss(struct scheduler_cluster *cluster, struct cluster_job *job);
int cluster_cursor_compare(struct scheduler_cursor a, struct scheduler_cursor b);

#endif
