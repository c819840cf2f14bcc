/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/cluster.h"

#include "scheduler/cluster_state.h"

#include "base/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        free(cluster->candidates[i]);
    for (int i = 0; i < cluster->stream_count; i++)
        free(cluster->streams[i]);
    for (int i = 0; i < cluster->job_count; i++)
        cluster_job_destroy(cluster->jobs[i]);
    free(cluster->members);
    free(cluster->candidates);
    free(cluster->streams);
    free(cluster->jobs);
    free(cluster->gone);
    free(cluster->lines);
    free(cluster);
}

int64_t scheduler_cluster_lease_ms(const struct scheduler_cluster *cluster)
{
    return cluster->options.lease_ms;
}

bool cluster_grow(void *table, int count, size_t record_bytes)
{
    void *old = NULL;
    bool full = count == 0 || (count >= 4 && (count & (count - 1)) == 0); /* at 0, 4, 8, 16, ... */
    if (!full)
        return true;
    memcpy(&old, table, sizeof old);
    void *grown = realloc(old, (count < 4 ? 4 : 2 * (size_t)count) * record_bytes);
    if (grown)
        memcpy(table, &grown, sizeof grown);
    return grown != NULL;
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

/* Jobs only ever move forwards within one event, so this ends. */
void cluster_settle(struct scheduler_cluster *cluster)
{
    bool members_changed = cluster->members_changed;
    if (!members_changed && !cluster->jobs_changed)
        return;
    cluster->members_changed = cluster->jobs_changed = false;
    if (members_changed)
        for (int i = 0; i < cluster->stream_count; i++)
            cluster_stream_plan(cluster, cluster->streams[i]);
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < cluster->job_count; i++)
            moved |= cluster_join_advance(cluster, cluster->jobs[i]);
        cluster_stream_settle(cluster);
    }
    for (int i = 0; i < cluster->job_count; i++)
        cluster_join_words(cluster, cluster->jobs[i]);
    cluster->members_changed = cluster->jobs_changed = false;
}

uint64_t scheduler_cluster_revision(const struct scheduler_cluster *cluster)
{
    return cluster->revision;
}

void scheduler_cluster_tick(struct scheduler_cluster *cluster, int64_t now_ns)
{
    if (now_ns > cluster->now_ns)
        cluster->now_ns = now_ns;
    cluster_member_expire(cluster);
    cluster_job_expire(cluster);
    if (cluster->now_ns >= cluster_stream_deadline_ns(cluster))
        cluster->members_changed = true; /* settled, released from its restart, or unread for long */
    if (cluster->now_ns >= cluster->retry_ns) {
        cluster->retry_ns = CLUSTER_NEVER_NS;
        cluster->jobs_changed = true;
    }
    cluster_settle(cluster);
}

int64_t scheduler_cluster_deadline_ns(const struct scheduler_cluster *cluster)
{
    int64_t least = cluster_member_deadline_ns(cluster);
    int64_t jobs = cluster_job_deadline_ns(cluster), streams = cluster_stream_deadline_ns(cluster);
    least = jobs < least ? jobs : least;
    least = cluster->retry_ns < least ? cluster->retry_ns : least;
    return streams < least ? streams : least;
}

/* ---- what must outlive the server ---- */

void cluster_gone_push(struct scheduler_cluster *cluster, const char *job, const uint8_t *stream)
{
    if (!cluster_grow(&cluster->gone, cluster->gone_count, sizeof *cluster->gone))
        return; /* a record too many in the store: loaded once more, dropped again */
    struct cluster_gone *gone = &cluster->gone[cluster->gone_count++];
    memset(gone, 0, sizeof *gone);
    gone->is_job = job != NULL;
    if (job)
        snprintf(gone->id, sizeof gone->id, "%s", job);
    else
        memcpy(gone->hash, stream, sizeof gone->hash);
}

static bool take_gone(struct scheduler_cluster *cluster, bool is_job, struct cluster_gone *gone)
{
    for (int i = 0; i < cluster->gone_count; i++) {
        if (cluster->gone[i].is_job != is_job)
            continue;
        *gone = cluster->gone[i];
        memmove(&cluster->gone[i], &cluster->gone[i + 1], (size_t)(--cluster->gone_count - i) * sizeof *gone);
        return true;
    }
    return false;
}

bool scheduler_cluster_take_stream(struct scheduler_cluster *cluster, uint8_t hash[BASE_SHA256_BYTES],
                                   bool *gone)
{
    struct cluster_gone record;
    *gone = take_gone(cluster, false, &record);
    if (*gone) {
        memcpy(hash, record.hash, BASE_SHA256_BYTES);
        return true;
    }
    for (int i = 0; i < cluster->stream_count; i++) {
        if (!cluster->streams[i]->unstored)
            continue;
        cluster->streams[i]->unstored = false;
        memcpy(hash, cluster->streams[i]->view.identity.hash, BASE_SHA256_BYTES);
        return true;
    }
    return false;
}

bool scheduler_cluster_take_job(struct scheduler_cluster *cluster, char id[SCHEDULER_JOB_CHARS], bool *gone)
{
    struct cluster_gone record;
    *gone = take_gone(cluster, true, &record);
    if (*gone) {
        memcpy(id, record.id, SCHEDULER_JOB_CHARS);
        return true;
    }
    bool due = cluster->now_ns >= cluster->cursors_ns;
    for (int i = 0; i < cluster->job_count; i++) {
        struct cluster_job *job = cluster->jobs[i];
        if (!job->unstored && !(job->moved && due))
            continue;
        job->unstored = job->moved = false;
        memcpy(id, job->view.id, SCHEDULER_JOB_CHARS);
        return true;
    }
    if (due)
        cluster->cursors_ns = cluster->now_ns + BASE_NS_PER_S;
    return false;
}

void scheduler_cluster_store_again(struct scheduler_cluster *cluster)
{
    for (int i = 0; i < cluster->stream_count; i++)
        cluster->streams[i]->unstored = true;
    for (int i = 0; i < cluster->job_count; i++) {
        enum scheduler_job_state state = cluster->jobs[i]->view.state;
        cluster->jobs[i]->unstored = state != SCHEDULER_JOB_CLOSED && state != SCHEDULER_JOB_REFUSED;
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
    return member && cluster_member_eligible(member, version, error);
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

const struct scheduler_stream *scheduler_cluster_probe_at(const struct scheduler_cluster *cluster,
                                                          uint64_t worker, int index)
{
    const struct cluster_member *member = cluster_member_find(cluster, worker);
    for (int i = 0; member && i < cluster->candidate_count; i++) {
        const struct scheduler_stream *candidate = &cluster->candidates[i]->identity;
        if (member->view.state == SCHEDULER_WORKER_READY && cluster_member_reads(member, candidate) &&
            !cluster_member_print(member, candidate->hash) && index-- == 0)
            return candidate;
    }
    return NULL;
}

const struct scheduler_live_stream *scheduler_cluster_served_at(const struct scheduler_cluster *cluster,
                                                                uint64_t worker, int index)
{
    const struct cluster_member *member = cluster_member_find(cluster, worker);
    for (int i = 0; member && i < cluster->stream_count; i++)
        if (cluster_member_serves(member, &cluster->streams[i]->view) && index-- == 0)
            return &cluster->streams[i]->view;
    return NULL;
}

int scheduler_cluster_job_count(const struct scheduler_cluster *cluster)
{
    return cluster->job_count;
}

const struct scheduler_job *scheduler_cluster_job_at(const struct scheduler_cluster *cluster, int index)
{
    return index >= 0 && index < cluster->job_count ? &cluster->jobs[index]->view : NULL;
}

const struct scheduler_job *scheduler_cluster_job(const struct scheduler_cluster *cluster, const char *id)
{
    const struct cluster_job *job = cluster_job_find(cluster, id);
    return job ? &job->view : NULL;
}
