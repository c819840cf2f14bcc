/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the server knows of a job beside the scheduler's machine: how it was opened (to be stored), what its ranks report for operators.
 * Loop thread only.
 */
#ifndef SERVER_JOBS_H
#define SERVER_JOBS_H

#include "proto/schema/millrace.pb-c.h"
#include "scheduler/cluster.h"

#define SERVER_CERTIFICATES 4 /* epochs remembered of a job, the last ones */

/* What was handed over of an epoch, to a rank or to all: certificates.h. */
struct server_epoch {
    uint32_t epoch, stream_epoch; /* epoch: the job's own */
    uint64_t positions, hash;
    bool whole;
};

struct server_certificate {
    struct server_epoch is;
    bool made;
    uint8_t stream[BASE_SHA256_BYTES], hash[8]; /* hash: as `is.hash`, big-endian */
};

struct server_rank {
    uint64_t generation;
    uint64_t rows, stall_us, substituted, skipped;
    uint32_t ready_steps;
    int64_t opened_ns, reported_ns;
    struct server_epoch epochs[SERVER_CERTIFICATES]; /* as it said last */
    int epoch_count;
};

struct server_job {
    char id[SCHEDULER_JOB_CHARS];
    char *dataset;
    char *pipeline_text; /* canonical */
    uint8_t *record;     /* packed JobOpen */
    size_t record_size;
    struct server_rank *ranks;
    uint32_t world;
    double rows_per_s; /* smoothed over some seconds */
    uint64_t rate_rows;
    int64_t rate_ns;
    struct server_certificate certificates[SERVER_CERTIFICATES]; /* in order of epochs */
    int certificate_count;
    struct server_job *next, *next_in_chain;
};

#define SERVER_JOB_CHAINS 1024

struct server_jobs { /* zeroed: none */
    struct server_job *first;
    struct server_job *chains[SERVER_JOB_CHAINS]; /* by hash of their names */
};

void server_jobs_fini(struct server_jobs *jobs);
struct server_job *server_jobs_find(const struct server_jobs *jobs, const char *id);
/* Makes or replaces what is known of an opened job; NULL: no memory. */
struct server_job *server_jobs_opened(struct server_jobs *jobs, const Millrace__V1__JobOpen *open,
                                      const char *pipeline_text, int64_t now_ns);
void server_jobs_report(struct server_job *job, const Millrace__V1__JobSync *sync, int64_t now_ns);
void server_jobs_remove(struct server_jobs *jobs, const char *id);

/* Sums over ranks. */
struct server_job_totals {
    uint64_t rows, substituted, skipped;
    double stall_share; /* of the time since the ranks opened, their mean */
    double stall_s;
    uint32_t ready_steps; /* the least */
};
struct server_job_totals server_jobs_totals(const struct server_job *job);

/* A JobOpen as the scheduler's request. `pipeline` and `text`, `sample` are filled and referenced by the request: they must outlive
 * it. The dataset's parts are the caller's to set. */
struct server_job_parts {
    struct scheduler_pipeline pipeline;
    char text[3 * SCHEDULER_PIPELINE_TEXT_BYTES], sample[SCHEDULER_PIPELINE_TEXT_BYTES];
    struct scheduler_job_cursor resume;
};
enum base_code server_jobs_request(const Millrace__V1__JobOpen *open, struct server_job_parts *parts,
                                   struct scheduler_job_request *request, struct base_error *error);

#endif
