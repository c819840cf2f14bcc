/* SPDX-License-Identifier: Apache-2.0 */
#include "server/jobs.h"

#include "base/clock.h"
#include "base/hash.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define RATE_NS (2 * BASE_NS_PER_S)

static void job_destroy(struct server_job *job)
{
    if (!job)
        return;
    free(job->dataset);
    free(job->pipeline_text);
    free(job->record);
    free(job->ranks);
    free(job);
}

void server_jobs_fini(struct server_jobs *jobs)
{
    while (jobs->first) {
        struct server_job *next = jobs->first->next;
        job_destroy(jobs->first);
        jobs->first = next;
    }
}

static size_t chain_of(const char *id)
{
    return base_hash_xxh3(id, strlen(id)) % SERVER_JOB_CHAINS;
}

struct server_job *server_jobs_find(const struct server_jobs *jobs, const char *id)
{
    struct server_job *job = jobs->chains[chain_of(id)];
    while (job && strcmp(job->id, id))
        job = job->next_in_chain;
    return job;
}

static void insert_job(struct server_jobs *jobs, struct server_job *job)
{
    struct server_job **chain = &jobs->chains[chain_of(job->id)];
    job->next = jobs->first;
    job->next_in_chain = *chain;
    jobs->first = *chain = job;
}

void server_jobs_remove(struct server_jobs *jobs, const char *id)
{
    struct server_job *gone = server_jobs_find(jobs, id);
    if (!gone)
        return;
    struct server_job **at = &jobs->first, **link = &jobs->chains[chain_of(id)];
    while (*at != gone)
        at = &(*at)->next;
    while (*link != gone)
        link = &(*link)->next_in_chain;
    *at = gone->next;
    *link = gone->next_in_chain;
    job_destroy(gone);
}

/* What of it an open says: the dataset, the pipeline, the record. False: no memory, nothing changed. */
static bool describe(struct server_job *job, const Millrace__V1__JobOpen *open, const char *pipeline_text)
{
    size_t size = millrace__v1__job_open__get_packed_size(open);
    char *dataset = strdup(open->dataset), *text = strdup(pipeline_text);
    uint8_t *record = malloc(size ? size : 1);
    if (!dataset || !text || !record) {
        free(dataset);
        free(text);
        free(record);
        return false;
    }
    millrace__v1__job_open__pack(open, record);
    free(job->dataset);
    free(job->pipeline_text);
    free(job->record);
    job->dataset = dataset;
    job->pipeline_text = text;
    job->record = record;
    job->record_size = size;
    return true;
}

static struct server_job *job_create(const Millrace__V1__JobOpen *open, const char *pipeline_text)
{
    struct server_job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    memcpy(job->id, open->job, strlen(open->job) + 1);
    job->world = open->world;
    job->ranks = calloc(open->world, sizeof *job->ranks);
    if (!job->ranks || !describe(job, open, pipeline_text)) {
        job_destroy(job);
        return NULL;
    }
    return job;
}

struct server_job *server_jobs_opened(struct server_jobs *jobs, const Millrace__V1__JobOpen *open,
                                      const char *pipeline_text, int64_t now_ns)
{
    struct server_job *job = server_jobs_find(jobs, open->job);
    if (job && job->world == open->world) { /* perhaps a new start of it, which may ask for other things */
        if (!describe(job, open, pipeline_text))
            return NULL;
    } else {
        struct server_job *fresh = job_create(open, pipeline_text);
        if (!fresh)
            return NULL;
        server_jobs_remove(jobs, open->job);
        insert_job(jobs, fresh);
        job = fresh;
    }
    struct server_rank *rank = &job->ranks[open->rank];
    if (rank->generation !=
        open->generation) { /* counts of two launches may not be added: the living tell theirs again */
        for (uint32_t i = 0; i < job->world; i++)
            job->ranks[i].epoch_count = 0;
        if (!open->resume) /* a new run under an old name */
            job->certificate_count = 0;
        *rank =
            (struct server_rank){.generation = open->generation, .opened_ns = now_ns, .reported_ns = now_ns};
    }
    return job;
}

static void measure_rate(struct server_job *job, int64_t now_ns)
{
    uint64_t rows = server_jobs_totals(job).rows;
    if (!job->rate_ns || rows < job->rate_rows) {
        job->rate_ns = now_ns;
        job->rate_rows = rows;
    } else if (now_ns - job->rate_ns >= RATE_NS) {
        job->rows_per_s = (double)(rows - job->rate_rows) * BASE_NS_PER_S / (double)(now_ns - job->rate_ns);
        job->rate_ns = now_ns;
        job->rate_rows = rows;
    }
}

void server_jobs_report(struct server_job *job, const Millrace__V1__JobSync *sync, int64_t now_ns)
{
    if (sync->rank >= job->world)
        return;
    struct server_rank *rank = &job->ranks[sync->rank];
    if (!rank->opened_ns)
        rank->opened_ns = now_ns;
    rank->generation = sync->generation;
    rank->rows = sync->rows;
    rank->stall_us = sync->stall_us;
    rank->ready_steps = sync->ready_steps;
    rank->substituted = sync->substituted;
    rank->skipped = sync->skipped;
    rank->reported_ns = now_ns;
    measure_rate(job, now_ns);
}

struct server_job_totals server_jobs_totals(const struct server_job *job)
{
    struct server_job_totals totals = {.ready_steps = UINT32_MAX};
    for (uint32_t i = 0; i < job->world; i++) {
        const struct server_rank *rank = &job->ranks[i];
        totals.rows += rank->rows;
        totals.substituted += rank->substituted;
        totals.skipped += rank->skipped;
        totals.stall_s += (double)rank->stall_us * 1e-6;
        if (rank->reported_ns > rank->opened_ns)
            totals.stall_share +=
                (double)rank->stall_us * 1000 / (double)(rank->reported_ns - rank->opened_ns) / job->world;
        if (rank->ready_steps < totals.ready_steps)
            totals.ready_steps = rank->ready_steps;
    }
    return totals;
}

/* ---- requests ---- */

static enum base_code check_id(const char *id, struct base_error *error)
{
    size_t length = strlen(id);
    if (!length || length >= SCHEDULER_JOB_CHARS)
        return base_error_set(error, BASE_INVALID, "job '%.40s': a job's name has 1 to %d characters", id,
                              SCHEDULER_JOB_CHARS - 1);
    for (const char *at = id; *at; at++) {
        if (!isalnum((unsigned char)*at) && !strchr("-_.:", *at))
            return base_error_set(
                error, BASE_INVALID,
                "job '%s': only letters, digits, '-', '_', '.' and ':' may stand in a job's name", id);
    }
    return BASE_OK;
}

/* The index of `word` among `words`, "" being the first; -1: INVALID. */
static int word_of(const char *word, const char *const *words, const char *what, struct base_error *error)
{
    for (int i = 0; words[i]; i++) {
        if (!strcmp(word, words[i]) || (!word[0] && !i))
            return i;
    }
    base_error_set(error, BASE_INVALID, "%s '%.60s' is not known", what, word);
    return -1;
}

static enum base_code read_cursor(const Millrace__V1__JobCursor *from, struct scheduler_job_cursor *cursor,
                                  struct base_error *error)
{
    if (!from->at || from->dataset_version.len != BASE_SHA256_BYTES || from->fingerprint.len != 16 ||
        from->stream.len != BASE_SHA256_BYTES)
        return base_error_set(error, BASE_INVALID, "resume: the cursor lacks parts");
    *cursor = (struct scheduler_job_cursor){
        .at = {.epoch = from->at->epoch, .position = from->at->position},
        .first_epoch = from->first_epoch,
    };
    memcpy(cursor->dataset_version, from->dataset_version.data, BASE_SHA256_BYTES);
    memcpy(cursor->fingerprint, from->fingerprint.data, 16);
    memcpy(cursor->stream, from->stream.data, BASE_SHA256_BYTES);
    return BASE_OK;
}

static enum base_code read_pipeline(const Millrace__V1__JobOpen *open, struct server_job_parts *parts,
                                    struct base_error *error)
{
    const char *text = open->pipeline[0] ? open->pipeline : "imagenet_train";
    if (open->n_options > 64)
        return base_error_set(error, BASE_TOO_LARGE, "pipeline: %zu options, at most 64", open->n_options);
    enum base_code code = scheduler_pipeline_parse(text, (const char *const *)open->options,
                                                   (int)open->n_options, &parts->pipeline, error);
    if (!code)
        code = scheduler_pipeline_print(&parts->pipeline, NULL, parts->text, sizeof parts->text, error);
    if (!code)
        code =
            scheduler_pipeline_print(&parts->pipeline, "sample", parts->sample, sizeof parts->sample, error);
    return code;
}

enum base_code server_jobs_request(const Millrace__V1__JobOpen *open, struct server_job_parts *parts,
                                   struct scheduler_job_request *request, struct base_error *error)
{
    static const char *const tails[] = {"drop", "pad", "exact", NULL};
    static const char *const joins[] = {"now", "next", "partial", NULL};
    static const char *const samplers[] = {"pipeline", "shuffle", "sequential", NULL};
    enum base_code code = check_id(open->job, error);
    if (!code)
        code = read_pipeline(open, parts, error);
    if (!code && open->resume)
        code = read_cursor(open->resume, &parts->resume, error);
    if (code)
        return code;
    int tail = word_of(open->tail, tails, "tail", error), join = word_of(open->join, joins, "join", error);
    int sampler = word_of(open->sampler, samplers, "sampler", error);
    if (tail < 0 || join < 0 || sampler < 0)
        return BASE_INVALID;
    if (!open->world || open->world > SCHEDULER_WORLD_MAX || open->rank >= open->world)
        return base_error_set(error, BASE_INVALID, "job %s: rank %u of %u is no rank", open->job, open->rank,
                              open->world);
    *request = (struct scheduler_job_request){
        .job = open->job,
        .rank = open->rank,
        .world = open->world,
        .batch = open->batch,
        .tail = (enum scheduler_tail)tail,
        .dataset = open->dataset,
        .shuffle = sampler ? sampler == 1 : parts->pipeline.shuffle,
        .has_seed = open->seed_case_case == MILLRACE__V1__JOB_OPEN__SEED_CASE_SEED,
        .seed = open->seed_case_case == MILLRACE__V1__JOB_OPEN__SEED_CASE_SEED ? open->seed : 0,
        .sample_text = parts->sample,
        .pipeline_text = parts->text,
        .join = (enum scheduler_join)join,
        .resume = open->resume ? &parts->resume : NULL,
        .accept_new_bits = open->accept_new_bits,
        .weight = open->weight,
        .generation = open->generation,
    };
    return BASE_OK;
}
