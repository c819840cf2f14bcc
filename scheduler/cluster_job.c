/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/cluster_state.h"

#include "base/clock.h"
#include "base/grow.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cluster_job_touch(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    job->view.revision = ++cluster->revision;
    cluster_list_add(&cluster->woken_jobs, &job->woken, job);
}

void cluster_job_mark(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    cluster_list_add(&cluster->dirty_jobs, &job->dirty, job);
}

void cluster_job_words(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    cluster_list_add(&cluster->words, &job->words, job);
}

void cluster_job_unstored(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    cluster_list_remove(&job->moved);
    cluster_list_add(&cluster->unstored_jobs, &job->unstored, job);
}

static bool same_id(const void *item, const void *key)
{
    return strcmp(((const struct cluster_job *)item)->view.id, key) == 0;
}

static uint64_t hash_id(const char *id)
{
    return base_hash_xxh3(id, strlen(id));
}

struct cluster_job *cluster_job_find(const struct scheduler_cluster *cluster, const char *id)
{
    return cluster_index_find(&cluster->by_job, hash_id(id), same_id, id);
}

void cluster_job_destroy(struct cluster_job *job)
{
    if (!job)
        return;
    free(job->pipeline_text);
    free(job->ranks);
    free(job);
}

bool cluster_job_live(const struct cluster_job *job)
{
    return job->view.ranks_live > 0 && job->view.state != SCHEDULER_JOB_REFUSED;
}

bool cluster_job_reads(const struct cluster_job *job)
{
    return job->stream && cluster_job_live(job) && job->view.has_start;
}

/* One that was lost and is heard of again has not, though its state is not settled yet. */
static bool has_ended(const struct cluster_job *job)
{
    return job->ended_ns != CLUSTER_NEVER_NS && !cluster_job_live(job);
}

/* Whether it is live, runs or asks for something may have changed. */
static void mark_all(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    cluster_job_mark(cluster, job);
    cluster_job_words(cluster, job);
    if (job->stream)
        cluster_stream_mark(cluster, job->stream);
    if (job->candidate)
        cluster_candidate_mark(cluster, job->candidate);
}

void cluster_job_set_stream(struct scheduler_cluster *cluster, struct cluster_job *job,
                            struct cluster_stream *stream)
{
    cluster_list_remove(&job->reads);
    if (job->stream)
        cluster_stream_mark(cluster, job->stream);
    job->stream = stream;
    job->view.stream = stream ? &stream->view : NULL;
    if (stream)
        cluster_list_add(&stream->jobs, &job->reads, job);
    mark_all(cluster, job);
}

void cluster_job_set_candidate(struct scheduler_cluster *cluster, struct cluster_job *job,
                               struct cluster_candidate *candidate)
{
    if (job->candidate == candidate)
        return;
    cluster_list_remove(&job->wants);
    if (job->candidate)
        cluster_candidate_mark(cluster, job->candidate);
    job->candidate = candidate;
    if (candidate) {
        cluster_list_add(&candidate->jobs, &job->wants, job);
        cluster_candidate_mark(cluster, candidate);
    }
}

static void count_ranks(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    bool was = cluster_job_live(job);
    job->view.ranks_open = job->view.ranks_live = 0;
    job->check_ns = CLUSTER_NEVER_NS;
    job->view.at = job->ranks[0].at;
    job->last_ranks = 0;
    for (uint32_t i = 0; i < job->view.shape.world; i++) {
        const struct cluster_rank *rank = &job->ranks[i];
        int order = cluster_cursor_compare(rank->at, job->view.at);
        job->view.ranks_open += rank->state == CLUSTER_RANK_OPEN;
        job->view.ranks_live += rank->live;
        if (rank->live && rank->lease_until_ns < job->check_ns)
            job->check_ns = rank->lease_until_ns;
        if (order < 0)
            job->view.at = rank->at;
        job->last_ranks = order < 0 ? 1 : job->last_ranks + (order == 0);
    }
    cluster_job_wait(cluster, job);
    if (was != cluster_job_live(job))
        mark_all(cluster, job);
    cluster_job_mark(cluster, job);
}

/* ---- what an open asks for ---- */

static enum base_code check_id(const char *id, struct base_error *error)
{
    size_t size = id ? strnlen(id, SCHEDULER_JOB_CHARS) : 0;
    if (size == 0 || size == SCHEDULER_JOB_CHARS)
        return base_error_set(error, BASE_INVALID, "job: its id must have 1 to %d bytes",
                              SCHEDULER_JOB_CHARS - 1);
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)id[i] <= ' ' || id[i] == 127)
            return base_error_set(error, BASE_INVALID, "job: byte 0x%02x in its id, offset %zu",
                                  (unsigned char)id[i], i);
    return BASE_OK;
}

static enum base_code check_shape(const struct scheduler_job_request *request, struct base_error *error)
{
    uint64_t step = (uint64_t)request->world * request->batch;
    if (request->world < 1 || request->world > SCHEDULER_WORLD_MAX || request->rank >= request->world)
        return base_error_set(error, BASE_INVALID, "job %s: rank %u of %u: a world has 1 to %d ranks",
                              request->job, request->rank, request->world, SCHEDULER_WORLD_MAX);
    if (request->batch < 1 || request->batch > SCHEDULER_BATCH_MAX)
        return base_error_set(error, BASE_INVALID, "job %s: batch %u, must be 1 to %d", request->job,
                              request->batch, SCHEDULER_BATCH_MAX);
    if (request->weight != 0 &&
        !(request->weight >= SCHEDULER_WEIGHT_LEAST && request->weight <= SCHEDULER_WEIGHT_MOST))
        return base_error_set(error, BASE_INVALID, "job %s: weight %g, must be %g to %g", request->job,
                              request->weight, SCHEDULER_WEIGHT_LEAST, SCHEDULER_WEIGHT_MOST);
    if ((unsigned)request->tail > SCHEDULER_TAIL_EXACT || (unsigned)request->join > SCHEDULER_JOIN_PARTIAL)
        return base_error_set(error, BASE_INVALID, "job %s: unknown tail or join", request->job);
    if (request->tail == SCHEDULER_TAIL_DROP && request->items < step)
        return base_error_set(error, BASE_INVALID,
                              "job %s: %" PRIu64
                              " items are less than one step of %u x %u, and tail is drop: a smaller "
                              "batch, or tail pad or exact",
                              request->job, request->items, request->world, request->batch);
    return BASE_OK;
}

static enum base_code check_resume(const struct cluster_job *asked,
                                   const struct scheduler_job_request *request, struct base_error *error)
{
    static const uint8_t zeros[BASE_SHA256_BYTES];
    const struct scheduler_job_cursor *resume = request->resume;
    char theirs[CLUSTER_SHORT_CHARS], ours[CLUSTER_SHORT_CHARS];
    if (memcmp(resume->dataset_version, request->dataset_version, BASE_SHA256_BYTES) != 0) {
        cluster_short(resume->dataset_version, theirs);
        cluster_short(request->dataset_version, ours);
        return base_error_set(error, BASE_CONFLICT,
                              "job %s: the cursor is of dataset version %s, %s has version %s", request->job,
                              theirs, asked->dataset, ours);
    }
    if (resume->at.epoch == UINT32_MAX || resume->first_epoch > resume->at.epoch)
        return base_error_set(error, BASE_INVALID, "job %s: cursor at epoch %u with first epoch %u",
                              request->job, resume->at.epoch, resume->first_epoch);
    if (resume->at.position > request->items)
        return base_error_set(error, BASE_INVALID, "job %s: cursor at position %" PRIu64 " of %" PRIu64,
                              request->job, resume->at.position, request->items);
    if (request->accept_new_bits || memcmp(resume->stream, zeros, BASE_SHA256_BYTES) == 0)
        return BASE_OK;
    struct scheduler_stream same = asked->wanted;
    memcpy(same.fingerprint, resume->fingerprint, sizeof same.fingerprint);
    enum base_code code = scheduler_stream_seal(&same, error);
    if (code || memcmp(same.hash, resume->stream, sizeof same.hash) == 0)
        return code;
    cluster_short(resume->stream, theirs);
    cluster_short(same.hash, ours);
    return base_error_set(
        error, BASE_CONFLICT,
        "job %s: the cursor is of stream %s; this pipeline, sampler and seed make stream %s "
        "(accept_new_bits continues in it)",
        request->job, theirs, ours);
}

static void fill_asked(struct cluster_job *asked, const struct scheduler_job_request *request)
{
    snprintf(asked->view.id, sizeof asked->view.id, "%s", request->job);
    snprintf(asked->dataset, sizeof asked->dataset, "%s",
             request->dataset ? request->dataset : "the dataset");
    asked->view.shape =
        (struct scheduler_shape){request->items, request->world, 0, request->batch, request->tail};
    asked->view.weight = request->weight != 0 ? request->weight : 1;
    asked->view.state = SCHEDULER_JOB_PREPARING;
    asked->join = request->join;
    asked->accept_new_bits = request->accept_new_bits;
    asked->has_resume = request->resume != NULL;
    if (request->resume)
        asked->resume = *request->resume;
    asked->ended_ns = asked->check_ns = CLUSTER_NEVER_NS;
    asked->timer.kind = CLUSTER_TIMER_JOB;
    asked->wanted.items = request->items;
    asked->wanted.shuffle = request->shuffle;
    memcpy(asked->wanted.dataset_version, request->dataset_version, BASE_SHA256_BYTES);
    asked->wanted.seed =
        request->has_seed ? request->seed : scheduler_stream_default_seed(request->dataset_version);
}

/* A launch as the request asks for it, no rank open yet. The caller's. */
static enum base_code make_asked(const struct scheduler_job_request *request, struct cluster_job **out,
                                 struct base_error *error)
{
    static const uint8_t zeros[16];
    struct cluster_job *asked = NULL;
    enum base_code code = check_id(request->job, error);
    *out = NULL;
    if (!code)
        code = check_shape(request, error);
    if (code)
        return code;
    const char *sample = request->sample_text ? request->sample_text : "";
    if (strlen(sample) >= sizeof asked->wanted.sample_text)
        return base_error_set(error, BASE_TOO_LARGE, "job %s: its sample section is over %d bytes",
                              request->job, SCHEDULER_PIPELINE_TEXT_BYTES - 1);
    asked = calloc(1, sizeof *asked);
    if (asked) {
        fill_asked(asked, request);
        strcpy(asked->wanted.sample_text, sample);
        asked->pipeline_text = strdup(request->pipeline_text ? request->pipeline_text : "");
        asked->ranks = calloc(request->world, sizeof *asked->ranks);
    }
    if (!asked || !asked->pipeline_text || !asked->ranks)
        code = base_error_set(error, BASE_NO_MEMORY, "job %s: no memory", request->job);
    else if ((code = scheduler_stream_seal(&asked->wanted, error)))
        base_error_prefix(error, code, "job %s", request->job);
    else if (request->resume)
        code = check_resume(asked, request, error);
    if (code) {
        cluster_job_destroy(asked);
        return code;
    }
    memcpy(asked->view.key, asked->wanted.hash, sizeof asked->view.key);
    asked->has_pin = request->resume && !request->accept_new_bits &&
                     memcmp(request->resume->fingerprint, zeros, sizeof zeros) != 0;
    if (asked->has_pin)
        memcpy(asked->pin, request->resume->fingerprint, sizeof asked->pin);
    *out = asked;
    return BASE_OK;
}

static const char *tail_name(enum scheduler_tail tail)
{
    static const char *const names[] = {"drop", "pad", "exact"};
    return names[tail];
}

static void describe_start(const struct cluster_job *job, char *text, size_t room)
{
    static const char *const joins[] = {"now", "next", "partial"};
    if (job->has_resume)
        snprintf(text, room, "cursor (epoch %u, position %" PRIu64 ", first epoch %u)", job->resume.at.epoch,
                 job->resume.at.position, job->resume.first_epoch);
    else
        snprintf(text, room, "join %s", joins[job->join]);
}

/* Describes what two ranks of one launch ask for differently; false: nothing. */
static bool differs(const struct cluster_job *a, const struct cluster_job *b, char mine[160],
                    char theirs[160])
{
    const struct scheduler_shape *x = &a->view.shape, *y = &b->view.shape;
    if (x->world != y->world || x->batch != y->batch || x->tail != y->tail) {
        snprintf(mine, 160, "world %u, batch %u, tail %s", x->world, x->batch, tail_name(x->tail));
        snprintf(theirs, 160, "world %u, batch %u, tail %s", y->world, y->batch, tail_name(y->tail));
        return true;
    }
    if (a->view.weight != b->view.weight) {
        snprintf(mine, 160, "weight %g", a->view.weight);
        snprintf(theirs, 160, "weight %g", b->view.weight);
        return true;
    }
    if (memcmp(a->view.key, b->view.key, sizeof a->view.key) != 0) {
        char one[CLUSTER_SHORT_CHARS], other[CLUSTER_SHORT_CHARS];
        cluster_short(a->view.key, one);
        cluster_short(b->view.key, other);
        snprintf(mine, 160, "stream candidate %s (seed %" PRIu64 ")", one, a->wanted.seed);
        snprintf(theirs, 160, "%s (seed %" PRIu64 ")", other, b->wanted.seed);
        return true;
    }
    bool same_start = a->has_resume == b->has_resume && (a->has_resume || a->join == b->join);
    if (same_start && a->has_resume)
        same_start = cluster_cursor_compare(a->resume.at, b->resume.at) == 0 &&
                     a->resume.first_epoch == b->resume.first_epoch;
    if (!same_start) {
        describe_start(a, mine, 160);
        describe_start(b, theirs, 160);
        return true;
    }
    if (a->has_resume &&
        memcmp(a->resume.fingerprint, b->resume.fingerprint, sizeof a->resume.fingerprint) != 0) {
        char one[CLUSTER_SHORT_CHARS], other[CLUSTER_SHORT_CHARS];
        cluster_short(a->resume.fingerprint, one);
        cluster_short(b->resume.fingerprint, other);
        snprintf(mine, 160, "a cursor of fingerprint %s", one);
        snprintf(theirs, 160, "of %s", other);
        return true;
    }
    snprintf(mine, 160, "pipeline %.140s", a->pipeline_text);
    snprintf(theirs, 160, "pipeline %.140s", b->pipeline_text);
    return strcmp(a->pipeline_text, b->pipeline_text) != 0 || a->accept_new_bits != b->accept_new_bits;
}

/* ---- opening ---- */

/* Opened after the rank that is replaced was last heard of: its process may well be of the new launch, of which it came
 * first. Only if the launches cannot differ in where they start. */
static bool may_be_of_new_launch(const struct scheduler_cluster *cluster, const struct cluster_job *job,
                                 const struct cluster_rank *rank, const struct cluster_rank *replaced)
{
    int64_t heard_ns = replaced->lease_until_ns - cluster->options.lease_ms * BASE_NS_PER_MS;
    return rank != replaced && rank->state == CLUSTER_RANK_OPEN && rank->live && rank->opened_ns > heard_ns &&
           (job->has_resume || job->join == SCHEDULER_JOIN_NOW);
}

/* The ranks of the launch that stay when one of its ranks is replaced; their cursors are the new launch's. */
static void keep_ranks(const struct scheduler_cluster *cluster, const struct cluster_job *job,
                       struct cluster_job *asked, uint32_t replaced)
{
    char mine[160], theirs[160];
    if (differs(asked, job, mine, theirs))
        return;
    for (uint32_t i = 0; i < job->view.shape.world; i++) {
        const struct cluster_rank *rank = &job->ranks[i];
        if (may_be_of_new_launch(cluster, job, rank, &job->ranks[replaced])) {
            struct scheduler_cursor at = asked->ranks[i].at;
            asked->ranks[i] = *rank;
            asked->ranks[i].at = at;
            asked->ranks[i].kept = true;
        }
    }
}

/* Out of everything that finds it. */
static void unlink_job(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    cluster_job_set_stream(cluster, job, NULL);
    cluster_job_set_candidate(cluster, job, NULL);
    cluster_timer_set(cluster, &job->timer, CLUSTER_NEVER_NS);
    cluster_list_remove(&job->dirty);
    cluster_list_remove(&job->words);
    cluster_list_remove(&job->unstored);
    cluster_list_remove(&job->moved);
    cluster_list_remove(&job->woken);
}

/* The new launch takes the old one's place; ranks keep the generation that they must exceed while the lease of its process may run,
 * unless clocks do not tell it. */
static void replace_launch(struct scheduler_cluster *cluster, struct cluster_job *job,
                           struct cluster_job *asked, const struct scheduler_job_request *request)
{
    unlink_job(cluster, job);
    struct cluster_job old = *job;
    uint32_t replaced = request->rank;
    uint32_t both =
        old.view.shape.world < asked->view.shape.world ? old.view.shape.world : asked->view.shape.world;
    bool ordered = replaced >= both || request->generation >= old.ranks[replaced].generation;
    for (uint32_t i = 0; ordered && i < both; i++) {
        asked->ranks[i].known = old.ranks[i].known;
        asked->ranks[i].generation = old.ranks[i].generation;
        asked->ranks[i].lease_until_ns = old.ranks[i].lease_until_ns;
    }
    keep_ranks(cluster, job, asked, replaced);
    *job = *asked;
    *asked = old;
    job->view.revision = old.view.revision;
    job->timer.owner = job;
    cluster_job_touch(cluster, job);
    cluster_line(cluster, "job %s: a new start of it begins", job->view.id);
}

static void remove_job(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    int index = 0;
    unlink_job(cluster, job);
    cluster_index_remove(&cluster->by_job, hash_id(job->view.id), job);
    while (cluster->jobs[index] != job)
        index++;
    memmove(&cluster->jobs[index], &cluster->jobs[index + 1],
            (size_t)(--cluster->job_count - index) * sizeof *cluster->jobs);
    cluster_gone_push(cluster, job->view.id, NULL);
    cluster_job_destroy(job);
    cluster->revision++;
}

/* One that has ended makes room: rather one that cannot come back, of these the longest ended. */
static bool forget_ended(struct scheduler_cluster *cluster)
{
    struct cluster_job *best = NULL;
    for (int i = 0; i < cluster->job_count; i++) {
        struct cluster_job *job = cluster->jobs[i];
        bool lost = job->view.state == SCHEDULER_JOB_LOST;
        bool best_lost = best && best->view.state == SCHEDULER_JOB_LOST;
        if (has_ended(job) && (!best || (lost == best_lost ? job->ended_ns < best->ended_ns : best_lost)))
            best = job;
    }
    if (best)
        remove_job(cluster, best);
    return best != NULL;
}

static enum base_code insert_job(struct scheduler_cluster *cluster, struct cluster_job *asked,
                                 struct base_error *error)
{
    if (cluster->job_count == SCHEDULER_JOBS_MAX && !forget_ended(cluster))
        return base_error_set(error, BASE_BUSY, "job %s: there are %d jobs, the most that one server keeps",
                              asked->view.id, SCHEDULER_JOBS_MAX);
    if (!cluster_index_reserve(&cluster->by_job) || !cluster_timer_reserve(cluster) ||
        !base_grow(&cluster->jobs, (size_t)cluster->job_count, sizeof *cluster->jobs))
        return base_error_set(error, BASE_NO_MEMORY, "job %s: no memory", asked->view.id);
    asked->timer.owner = asked;
    cluster_index_put(&cluster->by_job, hash_id(asked->view.id), asked);
    cluster->jobs[cluster->job_count++] = asked;
    return BASE_OK;
}

static void open_rank(struct scheduler_cluster *cluster, struct cluster_job *job, uint32_t index,
                      uint64_t generation)
{
    struct cluster_rank *rank = &job->ranks[index];
    rank->state = CLUSTER_RANK_OPEN;
    rank->live = rank->known = true;
    rank->kept = rank->attached = false;
    if (rank->generation != generation)
        rank->seeks = 0;
    rank->opened_ns = cluster->now_ns;
    rank->generation = generation;
    rank->lease_until_ns = cluster->now_ns + cluster->options.lease_ms * BASE_NS_PER_MS;
    count_ranks(cluster, job);
}

static enum base_code fenced(struct scheduler_cluster *cluster, const char *job, uint32_t rank,
                             struct base_error *error)
{
    cluster->counts.fenced++;
    return base_error_set(error, BASE_CONFLICT, "job %s: rank %u belongs to a later start of it", job, rank);
}

static enum base_code refused(const struct cluster_job *job, struct base_error *error)
{
    return base_error_set(error, BASE_CONFLICT, "job %s: %s", job->view.id, job->view.reason);
}

static bool launch_complete(const struct cluster_job *job)
{
    for (uint32_t i = 0; i < job->view.shape.world; i++)
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): ranks is made with the job */
        if (job->ranks[i].state == CLUSTER_RANK_ABSENT)
            return false;
    return true;
}

/* After a restart: other ranks of this start may read on without knowing that the server was away. */
static bool may_come_back(const struct scheduler_cluster *cluster, const struct cluster_job *job)
{
    return job->loaded && job->view.has_start && job->view.shape.world > 1 &&
           cluster->now_ns - cluster->options.lease_ms * BASE_NS_PER_MS <
               job->ended_ns; /* it may be about to end */
}

/* After a restart: its ranks have come further than where one that opens would begin: who does is of a later start. */
static bool is_further(const struct cluster_job *job)
{
    struct scheduler_cursor start = {0, 0};
    if (job->has_resume)
        start = scheduler_cursor_normal(&job->view.shape, job->resume.at);
    return job->loaded && job->view.has_start && (job->has_resume || job->join == SCHEDULER_JOIN_NOW) &&
           cluster_cursor_compare(job->view.start, start) != 0;
}

enum verdict { VERDICT_JOIN, VERDICT_REPLACE, VERDICT_REFUSE };

/* How an open meets the launch that is there (see the header). */
static enum verdict judge(struct scheduler_cluster *cluster, const struct cluster_job *job,
                          const struct cluster_job *asked, const struct scheduler_job_request *request,
                          struct base_error *error)
{
    char mine[160], theirs[160];
    bool other = differs(asked, job, mine, theirs);
    const struct cluster_rank *rank =
        request->rank < job->view.shape.world ? &job->ranks[request->rank] : NULL;
    bool opened = rank && rank->state != CLUSTER_RANK_ABSENT;
    bool live = job->view.ranks_live > 0, over = !live && !may_come_back(cluster, job);
    bool guarded = rank && rank->known && (opened || cluster->now_ns < rank->lease_until_ns);
    if (rank && rank->known && over && request->generation < rank->generation)
        return VERDICT_REPLACE; /* of the old start nobody lives: this host's clock is behind */
    if (guarded &&
        (request->generation < rank->generation || (!opened && request->generation == rank->generation))) {
        fenced(cluster, request->job, request->rank, error);
        return VERDICT_REFUSE;
    }
    if (opened && request->generation > rank->generation && (other || !rank->kept))
        return VERDICT_REPLACE;
    if (!opened && !other && (live ? is_further(job) : !over)) {
        base_error_set(
            error, BASE_UNAVAILABLE,
            "job %s: its other ranks are waited for until their leases end: the server has restarted",
            request->job);
        return VERDICT_REFUSE;
    }
    if (!opened && !live && (other || job->loaded))
        return VERDICT_REPLACE;
    if (!other && job->view.state == SCHEDULER_JOB_REFUSED) {
        refused(job, error);
        return VERDICT_REFUSE;
    }
    if (!other)
        return VERDICT_JOIN;
    if (!opened && (launch_complete(job) || job->loaded || (rank && rank->known)))
        base_error_set(
            error, BASE_UNAVAILABLE,
            "job %s: rank %u asks for %s, while an earlier start of it (%s) is alive until its leases end",
            request->job, request->rank, mine, theirs);
    else
        base_error_set(error, BASE_CONFLICT, "job %s: rank %u asks for %s, the ranks before it for %s",
                       request->job, request->rank, mine, theirs);
    return VERDICT_REFUSE;
}

enum base_code scheduler_cluster_job_open(struct scheduler_cluster *cluster, int64_t now_ns,
                                          const struct scheduler_job_request *request,
                                          struct base_error *error)
{
    struct cluster_job *asked = NULL;
    struct cluster_candidate *candidate = NULL;
    struct base_error why = {0};
    scheduler_cluster_tick(cluster, now_ns);
    enum base_code code = make_asked(request, &asked, error);
    if (code)
        return code;
    struct cluster_job *job = cluster_job_find(cluster, request->job);
    enum verdict verdict = job ? judge(cluster, job, asked, request, &why) : VERDICT_REPLACE;
    if (verdict == VERDICT_REFUSE)
        code = base_error_set(error, why.code, "%s", why.text);
    else
        code = cluster_candidate_get(cluster, &asked->wanted, &candidate, error);
    if (!code && !job)
        code = insert_job(cluster, asked, error);
    if (code) {
        cluster_job_destroy(asked); /* and a candidate that nobody wants when settling */
        cluster_settle(cluster);
        return code;
    }
    if (job && verdict == VERDICT_REPLACE)
        replace_launch(cluster, job, asked, request);
    if (job)
        cluster_job_destroy(asked);
    else
        job = asked;
    if (verdict == VERDICT_REPLACE)
        cluster_join_near_miss(cluster, job);
    cluster_job_set_candidate(cluster, job, candidate);
    open_rank(cluster, job, request->rank, request->generation);
    cluster_job_unstored(cluster, job);
    cluster_settle(cluster);
    return job->view.state == SCHEDULER_JOB_REFUSED ? refused(job, error) : BASE_OK;
}

/* ---- syncing and closing ---- */

/* The rank that a report may speak for; else NULL and the error. */
static struct cluster_rank *find_rank(struct scheduler_cluster *cluster,
                                      const struct scheduler_job_report *report, struct cluster_job **job,
                                      struct base_error *error)
{
    *job = cluster_job_find(cluster, report->job);
    if (!*job) {
        base_error_set(error, BASE_NOT_FOUND, "job %.*s: not known here", SCHEDULER_JOB_CHARS, report->job);
        return NULL;
    }
    if (report->rank >= (*job)->view.shape.world) {
        fenced(cluster, report->job, report->rank, error);
        return NULL;
    }
    struct cluster_rank *rank = &(*job)->ranks[report->rank];
    bool first = rank->state == CLUSTER_RANK_ABSENT && !rank->known;
    if ((*job)->loaded && (first || (rank->attached && report->generation > rank->generation))) {
        rank->at = (*job)->view.start; /* not where a zombie says that it is */
        open_rank(cluster, *job, report->rank, report->generation);
        rank->attached = true;
        if ((*job)->stream)
            cluster_stream_fall(cluster, (*job)->stream);
        return rank;
    }
    if (rank->state == CLUSTER_RANK_ABSENT || report->generation != rank->generation) {
        fenced(cluster, report->job, report->rank, error);
        return NULL;
    }
    return rank;
}

/* The job is where the last of its ranks is. */
static void take_least(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    struct scheduler_cursor least = job->ranks[0].at, before = job->view.at;
    job->last_ranks = 0;
    for (uint32_t i = 0; i < job->view.shape.world; i++) {
        int order = cluster_cursor_compare(job->ranks[i].at, least);
        least = order < 0 ? job->ranks[i].at : least;
        job->last_ranks = order < 0 ? 1 : job->last_ranks + (order == 0);
    }
    job->view.at = least;
    if (!job->unstored.after)
        cluster_list_add(&cluster->moved_jobs, &job->moved, job);
    if (job->stream && cluster_cursor_compare(least, before) < 0)
        cluster_stream_fall(cluster, job->stream);
    else if (job->stream)
        cluster_stream_advance(cluster, job->stream, least);
}

/* Reports may come in another order than they were sent. */
static void take_cursor(struct scheduler_cluster *cluster, struct cluster_job *job, struct cluster_rank *rank,
                        const struct scheduler_job_report *report)
{
    struct scheduler_cursor before = rank->at;
    bool elsewhere = report->seeks > rank->seeks;
    if (!job->view.has_start || report->seeks < rank->seeks ||
        (!elsewhere && cluster_cursor_compare(report->at, before) <= 0))
        return;
    rank->at = report->at;
    rank->seeks = report->seeks;
    if (elsewhere)
        job->view.first_epoch = report->first_epoch;
    else if (cluster_cursor_compare(before, job->view.at) != 0 || --job->last_ranks > 0)
        return; /* another rank is the last */
    take_least(cluster, job);
}

static enum base_code check_report(const struct cluster_job *job, const struct scheduler_job_report *report,
                                   struct base_error *error)
{
    if (report->has_cursor && report->at.position > job->view.shape.positions)
        return base_error_set(error, BASE_INVALID, "job %s: rank %u is at position %" PRIu64 " of %" PRIu64,
                              report->job, report->rank, report->at.position, job->view.shape.positions);
    if (report->has_cursor && report->seeks > 0 && report->first_epoch > report->at.epoch)
        return base_error_set(error, BASE_INVALID, "job %s: rank %u is at epoch %u with first epoch %u",
                              report->job, report->rank, report->at.epoch, report->first_epoch);
    if (report->has_cursor && report->at.epoch == UINT32_MAX)
        return base_error_set(error, BASE_INVALID, "job %s: rank %u is at epoch %u, beyond the last",
                              report->job, report->rank, report->at.epoch);
    return BASE_OK;
}

enum base_code scheduler_cluster_job_sync(struct scheduler_cluster *cluster, int64_t now_ns,
                                          const struct scheduler_job_report *report, struct base_error *error)
{
    struct cluster_job *job = NULL;
    struct base_error why = {0};
    cluster->now_ns = now_ns > cluster->now_ns ? now_ns : cluster->now_ns;
    struct cluster_rank *rank = find_rank(cluster, report, &job, &why);
    if (rank && rank->state == CLUSTER_RANK_CLOSED)
        base_error_set(&why, BASE_CONFLICT, "job %s: rank %u is closed", report->job, report->rank);
    else if (rank && job->view.state == SCHEDULER_JOB_REFUSED)
        refused(job, &why);
    else if (rank && !check_report(job, report, &why)) {
        rank->lease_until_ns = cluster->now_ns + cluster->options.lease_ms * BASE_NS_PER_MS;
        if (!rank->live) {
            rank->live = true;
            count_ranks(cluster, job);
        }
        if (report->has_cursor)
            take_cursor(cluster, job, rank, report);
    }
    scheduler_cluster_tick(cluster, now_ns);
    if (!why.code && job->view.state == SCHEDULER_JOB_REFUSED)
        refused(job, &why);
    return why.code ? base_error_set(error, why.code, "%s", why.text) : BASE_OK;
}

enum base_code scheduler_cluster_job_close(struct scheduler_cluster *cluster, int64_t now_ns,
                                           const struct scheduler_job_report *report,
                                           struct base_error *error)
{
    struct cluster_job *job = NULL;
    struct base_error why = {0};
    cluster->now_ns = now_ns > cluster->now_ns ? now_ns : cluster->now_ns;
    struct cluster_rank *rank = find_rank(cluster, report, &job, &why);
    if (rank && rank->state == CLUSTER_RANK_OPEN) {
        if (report->has_cursor && !check_report(job, report, NULL))
            take_cursor(cluster, job, rank, report);
        rank->state = CLUSTER_RANK_CLOSED;
        rank->live = false;
        count_ranks(cluster, job);
        if (job->view.ranks_live == 0) /* to be stored before the answer, whatever else waits to be settled */
            cluster_join_advance(cluster, job);
    }
    scheduler_cluster_tick(cluster, now_ns);
    return why.code ? base_error_set(error, why.code, "%s", why.text) : BASE_OK;
}

/* ---- time ---- */

static int64_t forget_ns(const struct scheduler_cluster *cluster, const struct cluster_job *job)
{
    if (!has_ended(job))
        return CLUSTER_NEVER_NS;
    return job->ended_ns + cluster->options.keep_ms * BASE_NS_PER_MS;
}

static void expire_ranks(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    for (uint32_t i = 0; i < job->view.shape.world; i++)
        if (job->ranks[i].live && cluster->now_ns >= job->ranks[i].lease_until_ns) {
            job->ranks[i].live = false;
            cluster_line(cluster, "job %s: rank %u is lost", job->view.id, i);
        }
    count_ranks(cluster, job);
}

void cluster_job_wait(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    int64_t forget = forget_ns(cluster, job);
    cluster_timer_set(cluster, &job->timer, job->check_ns < forget ? job->check_ns : forget);
}

void cluster_job_expire(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    if (cluster->now_ns >= job->check_ns)
        expire_ranks(cluster, job);
    if (cluster->now_ns >= forget_ns(cluster, job))
        remove_job(cluster, job);
}

/* ---- after a restart ---- */

enum base_code scheduler_cluster_load_job(struct scheduler_cluster *cluster, int64_t now_ns,
                                          const struct scheduler_job_request *request,
                                          const struct scheduler_job_stored *stored, struct base_error *error)
{
    struct cluster_job *job = NULL;
    struct scheduler_job_request then = *request;
    struct cluster_stream *live = cluster_stream_find(cluster, stored->stream);
    cluster->now_ns = now_ns > cluster->now_ns ? now_ns : cluster->now_ns;
    if (live) { /* the dataset may have a later version by now */
        memcpy(then.dataset_version, live->view.identity.dataset_version, sizeof then.dataset_version);
        then.items = live->view.identity.items;
    }
    enum base_code code = make_asked(&then, &job, error);
    if (!code && cluster_job_find(cluster, job->view.id))
        code = base_error_set(error, BASE_EXISTS, "job %s is loaded already", job->view.id);
    if (!code)
        code = insert_job(cluster, job, error);
    if (code) {
        cluster_job_destroy(job);
        return base_error_prefix(error, code, "loading a job");
    }
    job->loaded = true;
    job->view.state = SCHEDULER_JOB_LOST;
    snprintf(job->view.reason, sizeof job->view.reason,
             "no rank has been heard of since the server's restart");
    job->ended_ns = cluster->now_ns;
    if (live && memcmp(live->view.key, job->view.key, sizeof job->view.key) == 0) {
        cluster_job_set_stream(cluster, job, live);
        job->view.has_start = job->has_pin = true;
        job->view.start = stored->at;
        job->view.first_epoch = stored->first_epoch;
        memcpy(job->pin, live->view.identity.fingerprint, sizeof job->pin);
        for (uint32_t i = 0; i < job->view.shape.world; i++)
            job->ranks[i].at = stored->at;
    }
    count_ranks(cluster, job);
    cluster_settle(cluster);
    cluster_job_touch(cluster, job);
    return BASE_OK;
}
