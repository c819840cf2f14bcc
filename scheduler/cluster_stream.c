/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/cluster_state.h"

#include "base/clock.h"
#include "base/grow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void cluster_stream_mark(struct scheduler_cluster *cluster, struct cluster_stream *stream)
{
    cluster_list_add(&cluster->dirty_streams, &stream->dirty, stream);
}

void cluster_stream_unstored(struct scheduler_cluster *cluster, struct cluster_stream *stream)
{
    cluster_list_add(&cluster->unstored_streams, &stream->unstored, stream);
}

static bool same_hash(const void *item, const void *key)
{
    return memcmp(((const struct cluster_stream *)item)->view.identity.hash, key, BASE_SHA256_BYTES) == 0;
}

struct cluster_stream *cluster_stream_find(const struct scheduler_cluster *cluster, const uint8_t *hash)
{
    return cluster_index_find(&cluster->by_stream, cluster_hash_bytes(hash), same_hash, hash);
}

bool cluster_stream_serves(const struct scheduler_cluster *cluster, const struct cluster_stream *stream,
                           int seat)
{
    const struct cluster_candidate *candidate = stream->candidate;
    return candidate->print[seat] == stream->print && stream->print >= CLUSTER_PRINT_FIRST &&
           cluster_bit(candidate->version->eligible, seat) &&
           cluster->seats[seat].state < SCHEDULER_WORKER_LOST;
}

void cluster_stream_touch_makers(struct scheduler_cluster *cluster, const struct cluster_stream *stream)
{
    for (int i = 0; i < cluster->seat_count; i++)
        if (cluster_stream_serves(cluster, stream, i))
            cluster_member_touch(cluster, cluster->seats[i].member);
}

void cluster_stream_touch_chosen(struct scheduler_cluster *cluster, const struct cluster_stream *stream)
{
    for (int byte = 0; byte < (cluster->seat_count + 7) / 8; byte++)
        for (int bit = 0; stream->chosen[byte] >> bit; bit++)
            if (stream->chosen[byte] >> bit & 1 && cluster->seats[8 * byte + bit].member)
                cluster_member_touch(cluster, cluster->seats[8 * byte + bit].member);
}

void cluster_stream_touch_jobs(struct scheduler_cluster *cluster, const struct cluster_stream *stream)
{
    for (struct cluster_job *job = cluster_list_first(&stream->jobs); job;
         job = cluster_list_next(&job->reads))
        cluster_job_touch(cluster, job);
}

void cluster_stream_wait(struct scheduler_cluster *cluster, struct cluster_stream *stream)
{
    int64_t least = CLUSTER_NEVER_NS, now = cluster->now_ns;
    if (stream->unread_ns != CLUSTER_NEVER_NS)
        least = stream->unread_ns + cluster->options.grace_ms * BASE_NS_PER_MS;
    if (stream->plan_from_ns > now && stream->plan_from_ns < least)
        least = stream->plan_from_ns;
    if (stream->replan_wanted && stream->plan_after_ns > now && stream->plan_after_ns < least)
        least = stream->plan_after_ns;
    cluster_timer_set(cluster, &stream->timer, least > now ? least : CLUSTER_NEVER_NS);
}

static struct cluster_stream *make_stream(struct scheduler_cluster *cluster,
                                          const struct scheduler_stream *identity,
                                          struct cluster_candidate *candidate)
{
    if (cluster->stream_count == SCHEDULER_STREAMS_MAX || !cluster_index_reserve(&cluster->by_stream) ||
        !cluster_index_reserve(&cluster->by_family) || !cluster_timer_reserve(cluster) ||
        !base_grow(&cluster->streams, (size_t)cluster->stream_count, sizeof *cluster->streams))
        return NULL;
    struct cluster_stream *stream = calloc(1, sizeof *stream);
    uint8_t print = stream ? cluster_candidate_print(candidate, identity->fingerprint) : CLUSTER_PRINT_FAILED;
    if (print == CLUSTER_PRINT_FAILED) {
        free(stream);
        return NULL;
    }
    stream->view.identity = *identity;
    memcpy(stream->view.key, candidate->identity.hash, sizeof stream->view.key);
    stream->view.plan.version = cluster->plan_floor;
    stream->candidate = candidate;
    stream->print = print;
    candidate->streams++;
    stream->plan_from_ns = INT64_MIN;
    stream->unread_ns = cluster->now_ns;
    stream->moves = SCHEDULER_MOVES_MOST;
    stream->least_score = -INFINITY;
    stream->timer.kind = CLUSTER_TIMER_STREAM;
    stream->timer.owner = stream;
    cluster_list_init(&stream->jobs);
    cluster_index_put(&cluster->by_stream, cluster_hash_bytes(identity->hash), stream);
    cluster_index_put(&cluster->by_family, cluster_hash_bytes(identity->family), stream);
    cluster->streams[cluster->stream_count++] = stream;
    stream->view.revision = stream->view.plan_revision = ++cluster->revision;
    cluster_stream_mark(cluster, stream);
    return stream;
}

struct cluster_stream *cluster_stream_get(struct scheduler_cluster *cluster,
                                          struct cluster_candidate *candidate, const uint8_t *fingerprint)
{
    struct scheduler_stream identity = candidate->identity;
    char name[CLUSTER_SHORT_CHARS];
    memcpy(identity.fingerprint, fingerprint, sizeof identity.fingerprint);
    if (scheduler_stream_seal(&identity, NULL))
        return NULL; /* cannot be: the candidate was sealed */
    struct cluster_stream *stream = cluster_stream_find(cluster, identity.hash);
    if (stream)
        return stream;
    stream = make_stream(cluster, &identity, candidate);
    if (!stream)
        return NULL;
    cluster_stream_unstored(cluster, stream);
    cluster->counts.streams_made++;
    cluster_short(identity.hash, name);
    cluster_line(cluster, "stream %s is live", name);
    cluster_plan_first(cluster, stream);
    cluster_stream_touch_makers(cluster, stream);
    return stream;
}

/* ---- siblings ---- */

static bool same_family(const struct scheduler_stream *a, const struct scheduler_stream *b)
{
    return a != b && memcmp(a->family, b->family, sizeof a->family) == 0 && a->uses_epoch == b->uses_epoch;
}

/* Workers may make their blocks together (worker/siblings.c). */
static bool is_read_sibling(const void *item, const void *key)
{
    const struct cluster_stream *stream = item;
    const struct scheduler_stream *own = key;
    return stream->readers > 0 && same_family(&stream->view.identity, own) &&
           stream->view.identity.pipeline.block_rows == own->pipeline.block_rows;
}

static bool is_read_apart(const void *item, const void *key)
{
    const struct cluster_stream *stream = item;
    const struct scheduler_stream *own = key;
    return stream->readers > 0 && same_family(&stream->view.identity, own) &&
           stream->view.identity.pipeline.block_rows != own->pipeline.block_rows;
}

const struct cluster_stream *cluster_stream_sibling(const struct scheduler_cluster *cluster,
                                                    const struct cluster_stream *stream)
{
    const struct scheduler_stream *identity = &stream->view.identity;
    return cluster_index_find(&cluster->by_family, cluster_hash_bytes(identity->family), is_read_sibling,
                              identity);
}

const struct cluster_stream *cluster_stream_apart(const struct scheduler_cluster *cluster,
                                                  const struct cluster_stream *stream)
{
    const struct scheduler_stream *identity = &stream->view.identity;
    return cluster_index_find(&cluster->by_family, cluster_hash_bytes(identity->family), is_read_apart,
                              identity);
}

static void mark_words(struct scheduler_cluster *cluster, const struct cluster_stream *stream)
{
    for (struct cluster_job *job = cluster_list_first(&stream->jobs); job;
         job = cluster_list_next(&job->reads))
        cluster_job_words(cluster, job);
}

/* What they share with it, or no longer, is in their words. */
static void mark_siblings(struct scheduler_cluster *cluster, const struct cluster_stream *stream)
{
    for (int i = 0; i < cluster->stream_count; i++)
        if (same_family(&cluster->streams[i]->view.identity, &stream->view.identity))
            mark_words(cluster, cluster->streams[i]);
}

/* ---- fronts ---- */

/* Live jobs; readers among them, and the furthest of these. */
static int count_jobs(const struct cluster_stream *stream, int *readers, struct scheduler_cursor *furthest)
{
    int jobs = 0;
    *readers = 0;
    for (const struct cluster_job *job = cluster_list_first(&stream->jobs); job;
         job = cluster_list_next(&job->reads)) {
        jobs += cluster_job_live(job);
        if (!cluster_job_reads(job))
            continue;
        if (*readers == 0 || cluster_cursor_compare(job->view.at, *furthest) > 0)
            *furthest = job->view.at;
        ++*readers;
    }
    return jobs;
}

static void mark_waiting(struct scheduler_cluster *cluster, const struct cluster_stream *stream)
{
    for (struct cluster_job *job = cluster_list_first(&stream->jobs); job;
         job = cluster_list_next(&job->reads))
        if (!job->view.has_start && cluster_job_live(job))
            cluster_job_mark(cluster, job);
}

void cluster_stream_tell(struct scheduler_cluster *cluster, struct cluster_stream *stream,
                         struct scheduler_cursor at)
{
    struct scheduler_cursor furthest = {0};
    int readers = 0;
    if (stream->has_front && cluster_cursor_compare(at, stream->front) <= 0)
        return;
    count_jobs(stream, &readers, &furthest);
    if (readers > 0 && at.epoch <= furthest.epoch + 1)
        cluster_stream_advance(cluster, stream, at);
}

void cluster_stream_advance(struct scheduler_cluster *cluster, struct cluster_stream *stream,
                            struct scheduler_cursor at)
{
    if (stream->has_front && cluster_cursor_compare(at, stream->front) <= 0)
        return;
    if (!stream->has_front || at.epoch > stream->front.epoch)
        mark_waiting(cluster, stream); /* somebody may have waited for this epoch */
    stream->front = at;
    stream->has_front = true;
}

void cluster_stream_fall(struct scheduler_cluster *cluster, struct cluster_stream *stream)
{
    stream->front_fell = true;
    cluster_stream_mark(cluster, stream);
}

/* With one reader less, or behind, the furthest epoch is that of those left: whoever waits for a later one waits from there. */
static void settle_front(struct scheduler_cluster *cluster, struct cluster_stream *stream, int readers,
                         struct scheduler_cursor furthest)
{
    if (readers == 0) {
        stream->has_front = false;
        return;
    }
    if (readers >= stream->readers && !stream->front_fell) {
        cluster_stream_advance(cluster, stream, furthest);
        return;
    }
    stream->has_front = true;
    stream->front = furthest;
    for (struct cluster_job *job = cluster_list_first(&stream->jobs); job;
         job = cluster_list_next(&job->reads))
        if (job->has_baseline && job->baseline_epoch > furthest.epoch)
            job->baseline_epoch = furthest.epoch;
}

/* ---- settling ---- */

static void drop_stream(struct scheduler_cluster *cluster, struct cluster_stream *stream)
{
    struct cluster_job *job;
    char name[CLUSTER_SHORT_CHARS];
    int at = 0;
    cluster_short(stream->view.identity.hash, name);
    cluster_line(cluster, "stream %s is dropped: no job has used it for %lld s", name,
                 (long long)(cluster->options.grace_ms / 1000));
    cluster->counts.streams_dropped++;
    cluster_stream_touch_makers(cluster, stream);
    cluster_stream_touch_jobs(cluster, stream);
    while ((job = cluster_list_first(&stream->jobs)))
        cluster_job_set_stream(cluster, job, NULL);
    cluster_gone_push(cluster, NULL, stream->view.identity.hash);
    stream->candidate->streams--;
    cluster_candidate_release(stream->candidate, stream->print);
    cluster_candidate_mark(cluster, stream->candidate);
    cluster_index_remove(&cluster->by_stream, cluster_hash_bytes(stream->view.identity.hash), stream);
    cluster_index_remove(&cluster->by_family, cluster_hash_bytes(stream->view.identity.family), stream);
    cluster_timer_set(cluster, &stream->timer, CLUSTER_NEVER_NS);
    cluster_list_remove(&stream->dirty);
    cluster_list_remove(&stream->unstored);
    cluster_list_remove(&stream->replan);
    while (cluster->streams[at] != stream)
        at++;
    cluster->streams[at] = cluster->streams[--cluster->stream_count];
    cluster->revision++;
    free(stream);
}

void cluster_stream_settle(struct scheduler_cluster *cluster, struct cluster_stream *stream)
{
    struct scheduler_cursor furthest = {0};
    int readers = 0, jobs = count_jobs(stream, &readers, &furthest);
    stream->view.revision = ++cluster->revision;
    cluster_stream_touch_chosen(cluster, stream);
    settle_front(cluster, stream, readers, furthest);
    stream->front_fell = false;
    stream->view.jobs = jobs;
    if ((stream->readers > 0) != (readers > 0))
        mark_siblings(cluster, stream);
    stream->readers = readers;
    if (stream->candidate->sought)
        cluster_candidate_mark(cluster, stream->candidate);
    mark_waiting(cluster, stream);
    mark_words(cluster, stream);
    if (jobs > 0)
        stream->unread_ns = CLUSTER_NEVER_NS;
    else if (stream->unread_ns == CLUSTER_NEVER_NS)
        stream->unread_ns = cluster->now_ns;
    else if (cluster->now_ns - stream->unread_ns >= cluster->options.grace_ms * BASE_NS_PER_MS) {
        drop_stream(cluster, stream);
        return;
    }
    cluster_stream_wait(cluster, stream);
}

void cluster_stream_expire(struct scheduler_cluster *cluster, struct cluster_stream *stream)
{
    if (stream->unread_ns != CLUSTER_NEVER_NS)
        cluster_stream_mark(cluster, stream); /* for too long, perhaps */
    if (stream->replan_wanted || stream->plan_from_ns != INT64_MIN)
        cluster_plan_want(cluster, stream, false);
    cluster_stream_wait(cluster, stream);
}

enum base_code scheduler_cluster_load_stream(struct scheduler_cluster *cluster, int64_t now_ns,
                                             const struct scheduler_stream *identity,
                                             const struct scheduler_plan *plan, struct base_error *error)
{
    struct scheduler_stream sealed = *identity, wanted = *identity;
    struct cluster_candidate *candidate = NULL;
    cluster->now_ns = now_ns > cluster->now_ns ? now_ns : cluster->now_ns;
    memset(wanted.fingerprint, 0, sizeof wanted.fingerprint);
    enum base_code code = scheduler_stream_seal(&sealed, error);
    if (!code)
        code = scheduler_stream_seal(&wanted, error);
    if (!code && cluster_stream_find(cluster, sealed.hash))
        code = base_error_set(error, BASE_EXISTS, "the stream is loaded already");
    if (!code)
        code = cluster_candidate_get(cluster, &wanted, &candidate, error);
    if (code)
        return base_error_prefix(error, code, "loading a stream");
    struct cluster_stream *stream = make_stream(cluster, &sealed, candidate);
    if (!stream)
        return base_error_set(error, BASE_NO_MEMORY, "loading a stream: no memory");
    bool homes = plan->primary[0] != SCHEDULER_PLAN_NOBODY;
    stream->view.plan = *plan;
    stream->plan_from_ns =
        now_ns + (homes ? cluster->options.lease_ms : cluster->options.restart_ms) * BASE_NS_PER_MS;
    stream->replan_wanted = true;
    cluster_stream_wait(cluster, stream);
    if (plan->version > cluster->plan_floor)
        cluster->plan_floor = plan->version;
    cluster_settle(cluster);
    return BASE_OK;
}
