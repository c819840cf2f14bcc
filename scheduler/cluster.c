/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/cluster.h"

#include "scheduler/cluster_state.h"

#include "base/clock.h"
#include "base/grow.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEP_WORK = 300000 };

static int64_t or_default(int64_t value, int64_t standard)
{
    return value > 0 ? value : standard;
}

enum base_code scheduler_cluster_create(struct scheduler_cluster **cluster,
                                        const struct scheduler_cluster_options *options,
                                        struct base_error *error)
{
    struct scheduler_cluster *made = calloc(1, sizeof *made);
    *cluster = NULL;
    if (made)
        made->lines = calloc(CLUSTER_LINES, sizeof *made->lines);
    if (!made || !made->lines) {
        free(made);
        return base_error_set(error, BASE_NO_MEMORY, "cluster: no memory");
    }
    if (options)
        made->options = *options;
    made->options.lease_ms = or_default(made->options.lease_ms, 10000);
    made->options.grace_ms = or_default(made->options.grace_ms, 60000);
    made->options.settle_ms = or_default(made->options.settle_ms, 1000);
    made->options.restart_ms = or_default(made->options.restart_ms, 3000);
    made->options.keep_ms = or_default(made->options.keep_ms, 3600000);
    cluster_list_init(&made->dirty_candidates);
    cluster_list_init(&made->dirty_streams);
    cluster_list_init(&made->dirty_jobs);
    cluster_list_init(&made->dead_plans);
    cluster_list_init(&made->plans);
    cluster_list_init(&made->words);
    cluster_list_init(&made->unstored_streams);
    cluster_list_init(&made->unstored_jobs);
    cluster_list_init(&made->moved_jobs);
    cluster_list_init(&made->woken_members);
    cluster_list_init(&made->woken_jobs);
    made->step_work = STEP_WORK;
    made->retry_ns = CLUSTER_NEVER_NS;
    made->revision = made->options.first_revision;
    made->plan_floor = (uint32_t)(made->options.first_revision >> 40)
                       << 16; /* over those of streams dropped before */
    *cluster = made;
    return BASE_OK;
}

void scheduler_cluster_destroy(struct scheduler_cluster *cluster)
{
    if (!cluster)
        return;
    for (int i = 0; i < cluster->member_count; i++)
        cluster_member_destroy(cluster->members[i]);
    for (int i = 0; i < cluster->candidate_count; i++)
        cluster_candidate_destroy(cluster->candidates[i]);
    for (int i = 0; i < cluster->stream_count; i++)
        free(cluster->streams[i]);
    for (int i = 0; i < cluster->job_count; i++)
        cluster_job_destroy(cluster->jobs[i]);
    for (int i = 0; i < cluster->by_version.room; i++)
        free(cluster->by_version.entries[i].item);
    struct cluster_index *indexes[] = {&cluster->by_worker, &cluster->by_version, &cluster->by_key,
                                       &cluster->by_stream, &cluster->by_family,  &cluster->by_job};
    for (size_t i = 0; i < sizeof indexes / sizeof *indexes; i++)
        free(indexes[i]->entries);
    base_heap_fini(&cluster->timers);
    free(cluster->members);
    free(cluster->seats);
    free(cluster->free_seats);
    free(cluster->candidates);
    free(cluster->streams);
    free(cluster->jobs);
    free(cluster->gone_streams);
    free(cluster->gone_jobs);
    free(cluster->lines);
    free(cluster);
}

int64_t scheduler_cluster_lease_ms(const struct scheduler_cluster *cluster)
{
    return cluster->options.lease_ms;
}

void cluster_line(struct scheduler_cluster *cluster, const char *format, ...)
{
    if (cluster->line_count == CLUSTER_LINES) {
        cluster->line_first = (cluster->line_first + 1) % CLUSTER_LINES;
        cluster->line_count--;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(cluster->lines[(cluster->line_first + cluster->line_count++) % CLUSTER_LINES],
              SCHEDULER_WORDS_CHARS, format, args);
    va_end(args);
}

bool scheduler_cluster_take_line(struct scheduler_cluster *cluster, char line[SCHEDULER_WORDS_CHARS])
{
    if (cluster->line_count == 0)
        return false;
    memcpy(line, cluster->lines[cluster->line_first], SCHEDULER_WORDS_CHARS);
    cluster->line_first = (cluster->line_first + 1) % CLUSTER_LINES;
    cluster->line_count--;
    return true;
}

struct scheduler_cluster_counts scheduler_cluster_counts(const struct scheduler_cluster *cluster)
{
    return cluster->counts;
}

/* ---- settling and time ---- */

enum { COST_MARK = 200, COST_STATE = 2000, COST_WORDS = 1500 }; /* about in ns */

static int candidate_work(struct scheduler_cluster *cluster)
{
    struct cluster_candidate *candidate = cluster_list_take(&cluster->dirty_candidates);
    if (candidate)
        cluster_candidate_settle(cluster, candidate);
    return candidate ? COST_MARK : 0;
}

static int stream_work(struct scheduler_cluster *cluster)
{
    struct cluster_stream *stream = cluster_list_take(&cluster->dirty_streams);
    if (stream)
        cluster_stream_settle(cluster, stream);
    return stream ? COST_MARK + 4 * cluster->seat_count : 0;
}

/* A job without a stream looks at what all workers say. */
static int job_work(struct scheduler_cluster *cluster)
{
    struct cluster_job *job = cluster_list_take(&cluster->dirty_jobs);
    if (!job)
        return 0;
    int cost = job->stream ? COST_MARK : COST_STATE + 3 * cluster->seat_count;
    cluster_join_advance(cluster, job);
    cost += cluster->first_cost;
    cluster->first_cost = 0;
    return cost;
}

static int death_work(struct scheduler_cluster *cluster)
{
    struct cluster_stream *stream = cluster_list_first(&cluster->dead_plans);
    return stream ? cluster_plan_make(cluster, stream) : 0;
}

static int plan_work(struct scheduler_cluster *cluster)
{
    struct cluster_stream *stream = cluster_list_first(&cluster->plans);
    return stream ? cluster_plan_make(cluster, stream) : 0;
}

static int words_work(struct scheduler_cluster *cluster)
{
    struct cluster_job *job = cluster_list_take(&cluster->words);
    if (job)
        cluster_join_words(cluster, job);
    return job ? COST_WORDS : 0;
}

void cluster_settle(struct scheduler_cluster *cluster)
{
    static int (*const kinds[])(struct scheduler_cluster *) = {death_work, candidate_work, stream_work,
                                                               job_work,   plan_work,      words_work};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    int kind = 0;
    for (int left = cluster->step_work; left > 0 && kind < KINDS;) {
        int cost = kinds[kind](cluster);
        left -= cost;
        kind = cost > 0 ? 0 : kind + 1; /* it may have marked something that comes earlier */
    }
}

static bool unsettled(const struct scheduler_cluster *cluster)
{
    return !cluster_list_empty(&cluster->dirty_candidates) || !cluster_list_empty(&cluster->dirty_streams) ||
           !cluster_list_empty(&cluster->dirty_jobs) || !cluster_list_empty(&cluster->dead_plans) ||
           !cluster_list_empty(&cluster->plans) || !cluster_list_empty(&cluster->words);
}

uint64_t scheduler_cluster_revision(const struct scheduler_cluster *cluster)
{
    return cluster->revision;
}

bool scheduler_cluster_take_woken_worker(struct scheduler_cluster *cluster, uint64_t *id)
{
    const struct cluster_member *member = cluster_list_take(&cluster->woken_members);
    if (member)
        *id = member->view.id;
    return member != NULL;
}

bool scheduler_cluster_take_woken_job(struct scheduler_cluster *cluster, char id[SCHEDULER_JOB_CHARS])
{
    const struct cluster_job *job = cluster_list_take(&cluster->woken_jobs);
    if (job)
        memcpy(id, job->view.id, SCHEDULER_JOB_CHARS);
    return job != NULL;
}

bool cluster_timer_reserve(struct scheduler_cluster *cluster)
{
    return base_heap_reserve(&cluster->timers, cluster->member_count + cluster->candidate_count +
                                                   cluster->stream_count + cluster->job_count + 1);
}

void cluster_timer_set(struct scheduler_cluster *cluster, struct cluster_timer *timer, int64_t at_ns)
{
    if (at_ns == CLUSTER_NEVER_NS)
        base_heap_remove(&cluster->timers, &timer->node);
    else
        base_heap_set(&cluster->timers, &timer->node, at_ns);
}

/* Each sets its timer anew, to later than now. */
static void expire(struct scheduler_cluster *cluster, struct cluster_timer *timer)
{
    cluster_timer_set(cluster, timer, CLUSTER_NEVER_NS);
    switch (timer->kind) {
    case CLUSTER_TIMER_MEMBER:
        cluster_member_expire(cluster, timer->owner);
        break;
    case CLUSTER_TIMER_CANDIDATE:
        cluster_candidate_mark(cluster, timer->owner);
        break;
    case CLUSTER_TIMER_STREAM:
        cluster_stream_expire(cluster, timer->owner);
        break;
    case CLUSTER_TIMER_JOB:
        cluster_job_expire(cluster, timer->owner);
        break;
    }
}

static void retry(struct scheduler_cluster *cluster)
{
    if (cluster->now_ns < cluster->retry_ns)
        return;
    cluster->retry_ns = CLUSTER_NEVER_NS;
    for (int i = 0; i < cluster->job_count; i++)
        if (!cluster->jobs[i]->stream && cluster_job_live(cluster->jobs[i]))
            cluster_job_mark(cluster, cluster->jobs[i]);
    for (int i = 0; i < cluster->stream_count; i++)
        if (cluster->streams[i]->starved)
            cluster_plan_want(cluster, cluster->streams[i], false);
}

void scheduler_cluster_tick(struct scheduler_cluster *cluster, int64_t now_ns)
{
    enum { EXPIRED_MOST = 64 }; /* of one step */
    struct base_heap_node *first;
    if (now_ns > cluster->now_ns)
        cluster->now_ns = now_ns;
    for (int i = 0;
         i < EXPIRED_MOST && (first = base_heap_first(&cluster->timers)) && first->key <= cluster->now_ns;
         i++)
        expire(cluster, (struct cluster_timer *)first);
    retry(cluster);
    cluster_load_balance(cluster);
    cluster_settle(cluster);
}

int64_t scheduler_cluster_deadline_ns(const struct scheduler_cluster *cluster)
{
    const struct base_heap_node *first = base_heap_first(&cluster->timers);
    int64_t least = first ? first->key : CLUSTER_NEVER_NS;
    if (unsettled(cluster))
        return cluster->now_ns;
    return cluster->retry_ns < least ? cluster->retry_ns : least;
}

/* ---- what must outlive the server ---- */

/* Without memory: a record too many in the store, loaded once more, dropped again. */
void cluster_gone_push(struct scheduler_cluster *cluster, const char *job, const uint8_t *stream)
{
    if (job && base_grow(&cluster->gone_jobs, (size_t)cluster->gone_job_count, sizeof *cluster->gone_jobs))
        snprintf(cluster->gone_jobs[cluster->gone_job_count++], SCHEDULER_JOB_CHARS, "%s", job);
    if (stream &&
        base_grow(&cluster->gone_streams, (size_t)cluster->gone_stream_count, sizeof *cluster->gone_streams))
        memcpy(cluster->gone_streams[cluster->gone_stream_count++], stream, BASE_SHA256_BYTES);
}

bool scheduler_cluster_take_stream(struct scheduler_cluster *cluster, uint8_t hash[BASE_SHA256_BYTES],
                                   bool *gone)
{
    *gone = cluster->gone_stream_count > 0;
    if (*gone) {
        memcpy(hash, cluster->gone_streams[--cluster->gone_stream_count], BASE_SHA256_BYTES);
        return true;
    }
    const struct cluster_stream *stream = cluster_list_take(&cluster->unstored_streams);
    if (stream)
        memcpy(hash, stream->view.identity.hash, BASE_SHA256_BYTES);
    return stream != NULL;
}

bool scheduler_cluster_take_job(struct scheduler_cluster *cluster, char id[SCHEDULER_JOB_CHARS], bool *gone)
{
    *gone = cluster->gone_job_count > 0;
    if (*gone) {
        memcpy(id, cluster->gone_jobs[--cluster->gone_job_count], SCHEDULER_JOB_CHARS);
        return true;
    }
    const struct cluster_job *job = cluster_list_take(&cluster->unstored_jobs);
    bool due = cluster->now_ns >= cluster->cursors_ns;
    if (!job && due)
        job = cluster_list_take(&cluster->moved_jobs);
    if (job)
        memcpy(id, job->view.id, SCHEDULER_JOB_CHARS);
    else if (due)
        cluster->cursors_ns = cluster->now_ns + BASE_NS_PER_S;
    return job != NULL;
}

void scheduler_cluster_store_again(struct scheduler_cluster *cluster)
{
    for (int i = 0; i < cluster->stream_count; i++)
        cluster_stream_unstored(cluster, cluster->streams[i]);
    for (int i = 0; i < cluster->job_count; i++) {
        enum scheduler_job_state state = cluster->jobs[i]->view.state;
        if (state != SCHEDULER_JOB_CLOSED && state != SCHEDULER_JOB_REFUSED)
            cluster_job_unstored(cluster, cluster->jobs[i]);
        else
            cluster_gone_push(cluster, cluster->jobs[i]->view.id, NULL);
    }
}

/* ---- queries ---- */

int scheduler_cluster_worker_count(const struct scheduler_cluster *cluster)
{
    return cluster->member_count;
}

const struct scheduler_worker *scheduler_cluster_worker_at(const struct scheduler_cluster *cluster, int index)
{
    return index >= 0 && index < cluster->member_count ? &cluster->members[index]->view : NULL;
}

const struct scheduler_worker *scheduler_cluster_worker(const struct scheduler_cluster *cluster, uint64_t id)
{
    const struct cluster_member *member = cluster_member_find(cluster, id);
    return member ? &member->view : NULL;
}

bool scheduler_cluster_eligible(const struct scheduler_cluster *cluster, uint64_t worker,
                                const uint8_t version[BASE_SHA256_BYTES], const char **error)
{
    const struct cluster_member *member = cluster_member_find(cluster, worker);
    if (error)
        *error = "";
    return member && cluster_held_eligible(cluster, member, version, error);
}

int scheduler_cluster_stream_count(const struct scheduler_cluster *cluster)
{
    return cluster->stream_count;
}

const struct scheduler_live_stream *scheduler_cluster_stream_at(const struct scheduler_cluster *cluster,
                                                                int index)
{
    return index >= 0 && index < cluster->stream_count ? &cluster->streams[index]->view : NULL;
}

const struct scheduler_live_stream *scheduler_cluster_stream(const struct scheduler_cluster *cluster,
                                                             const uint8_t hash[BASE_SHA256_BYTES])
{
    const struct cluster_stream *stream = cluster_stream_find(cluster, hash);
    return stream ? &stream->view : NULL;
}

int scheduler_cluster_job_count(const struct scheduler_cluster *cluster)
{
    return cluster->job_count;
}

const struct scheduler_job *scheduler_cluster_job_at(const struct scheduler_cluster *cluster, int index)
{
    return index >= 0 && index < cluster->job_count ? &cluster->jobs[index]->view : NULL;
}

const struct scheduler_job *scheduler_cluster_reader_next(const struct scheduler_live_stream *stream,
                                                          const struct scheduler_job *after)
{
    const struct cluster_job *job = after
                                        ? cluster_list_next(&((const struct cluster_job *)after)->reads)
                                        : cluster_list_first(&((const struct cluster_stream *)stream)->jobs);
    return job ? &job->view : NULL;
}

const struct scheduler_job *scheduler_cluster_job(const struct scheduler_cluster *cluster, const char *id)
{
    const struct cluster_job *job = cluster_job_find(cluster, id);
    return job ? &job->view : NULL;
}
