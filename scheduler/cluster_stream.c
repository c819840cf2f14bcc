/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/cluster_state.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum { PRINTS_REMEMBERED = 8 }; /* a cluster has a few builds, not as many as workers */

void cluster_short(const uint8_t *hash, char text[CLUSTER_SHORT_CHARS])
{
    base_hash_to_hex(hash, (CLUSTER_SHORT_CHARS - 1) / 2, text);
}

/* ---- candidates ---- */

struct cluster_candidate *cluster_candidate_find(const struct scheduler_cluster *cluster, const uint8_t *key)
{
    for (int i = 0; i < cluster->candidate_count; i++)
        if (memcmp(cluster->candidates[i]->identity.hash, key, BASE_SHA256_BYTES) == 0)
            return cluster->candidates[i];
    return NULL;
}

/* Workers that can read the dataset learn that there is something to probe. */
static void touch_readers(struct scheduler_cluster *cluster, const struct scheduler_stream *candidate)
{
    for (int i = 0; i < cluster->member_count; i++)
        if (cluster_member_reads(cluster->members[i], candidate))
            cluster_member_touch(cluster, cluster->members[i]);
}

enum base_code cluster_candidate_get(struct scheduler_cluster *cluster, const struct scheduler_stream *wanted,
                                     struct cluster_candidate **candidate, struct base_error *error)
{
    *candidate = cluster_candidate_find(cluster, wanted->hash);
    if (*candidate)
        return BASE_OK;
    if (cluster->candidate_count == SCHEDULER_STREAMS_MAX)
        return base_error_set(error, BASE_BUSY, "there are %d streams, the most that one server keeps",
                              SCHEDULER_STREAMS_MAX);
    struct cluster_candidate *made = calloc(1, sizeof *made);
    if (!made || !cluster_grow(&cluster->candidates, cluster->candidate_count, sizeof *cluster->candidates)) {
        free(made);
        return base_error_set(error, BASE_NO_MEMORY, "no memory for a stream");
    }
    made->identity = *wanted;
    made->first_print_ns = CLUSTER_NEVER_NS;
    cluster->candidates[cluster->candidate_count++] = made;
    *candidate = made;
    touch_readers(cluster, &made->identity);
    return BASE_OK;
}

static bool votes(const struct cluster_member *member, const struct scheduler_stream *candidate)
{
    return member->view.state == SCHEDULER_WORKER_READY && cluster_member_reads(member, candidate);
}

static int64_t settled_ns(const struct scheduler_cluster *cluster, const struct cluster_candidate *candidate)
{
    if (candidate->first_print_ns == CLUSTER_NEVER_NS)
        return CLUSTER_NEVER_NS;
    return candidate->first_print_ns + cluster->options.settle_ms * BASE_NS_PER_MS;
}

bool cluster_candidate_settled(const struct scheduler_cluster *cluster,
                               const struct cluster_candidate *candidate)
{
    bool all = true, any = false;
    for (int i = 0; i < cluster->member_count; i++) {
        const struct cluster_member *member = cluster->members[i];
        if (!votes(member, &candidate->identity))
            continue;
        const struct cluster_print *print = cluster_member_print(member, candidate->identity.hash);
        all = all && print;
        any = any || (print && !print->failed);
    }
    return any && (all || cluster->now_ns >= settled_ns(cluster, candidate));
}

/* Weight of the workers that stand behind a fingerprint. */
static double weight_behind(const struct scheduler_cluster *cluster,
                            const struct cluster_candidate *candidate, const uint8_t *fingerprint)
{
    double sum = 0;
    for (int i = 0; i < cluster->member_count; i++) {
        const struct cluster_member *member = cluster->members[i];
        const struct cluster_print *print = cluster_member_print(member, candidate->identity.hash);
        if (print && !print->failed && votes(member, &candidate->identity) &&
            memcmp(print->fingerprint, fingerprint, sizeof print->fingerprint) == 0)
            sum += member->view.weight;
    }
    return sum;
}

bool cluster_fingerprint_offered(const struct scheduler_cluster *cluster,
                                 const struct cluster_candidate *candidate, const uint8_t *fingerprint)
{
    return weight_behind(cluster, candidate, fingerprint) > 0;
}

static bool choose_being_read(const struct scheduler_cluster *cluster,
                              const struct cluster_candidate *candidate, uint8_t *fingerprint)
{
    int most = 0;
    for (int i = 0; i < cluster->stream_count; i++) {
        const struct scheduler_live_stream *stream = &cluster->streams[i]->view;
        if (stream->jobs <= most || memcmp(stream->key, candidate->identity.hash, sizeof stream->key) != 0 ||
            !cluster_fingerprint_offered(cluster, candidate, stream->identity.fingerprint))
            continue;
        most = stream->jobs;
        memcpy(fingerprint, stream->identity.fingerprint, sizeof stream->identity.fingerprint);
    }
    return most > 0;
}

static bool contains_print(uint8_t (*prints)[16], int count, const uint8_t *print)
{
    for (int i = 0; i < count; i++)
        if (memcmp(prints[i], print, sizeof prints[i]) == 0)
            return true;
    return false;
}

bool cluster_fingerprint_choose(const struct scheduler_cluster *cluster,
                                const struct cluster_candidate *candidate, uint8_t *fingerprint)
{
    double most = 0;
    if (choose_being_read(cluster, candidate, fingerprint))
        return true;
    if (!cluster_candidate_settled(cluster, candidate))
        return false;
    uint8_t weighed[PRINTS_REMEMBERED][sizeof candidate->identity.fingerprint];
    int count = 0;
    for (int i = 0; i < cluster->member_count; i++) { /* by id: ties go to the lowest */
        const struct cluster_print *print =
            cluster_member_print(cluster->members[i], candidate->identity.hash);
        if (!print || print->failed || contains_print(weighed, count, print->fingerprint))
            continue;
        if (count < PRINTS_REMEMBERED)
            memcpy(weighed[count++], print->fingerprint, sizeof print->fingerprint);
        double weight = weight_behind(cluster, candidate, print->fingerprint);
        if (weight > most) {
            most = weight;
            memcpy(fingerprint, print->fingerprint, sizeof print->fingerprint);
        }
    }
    return most > 0;
}

/* ---- live streams ---- */

struct cluster_stream *cluster_stream_find(const struct scheduler_cluster *cluster, const uint8_t *hash)
{
    for (int i = 0; i < cluster->stream_count; i++)
        if (memcmp(cluster->streams[i]->view.identity.hash, hash, BASE_SHA256_BYTES) == 0)
            return cluster->streams[i];
    return NULL;
}

struct cluster_stream *cluster_stream_of(const struct scheduler_cluster *cluster,
                                         const struct cluster_job *job)
{
    return job->view.stream ? cluster_stream_find(cluster, job->view.stream->identity.hash) : NULL;
}

void cluster_stream_touch(struct scheduler_cluster *cluster, const struct cluster_stream *stream)
{
    for (int i = 0; i < cluster->member_count; i++)
        if (cluster_member_print(cluster->members[i], stream->view.key))
            cluster_member_touch(cluster, cluster->members[i]);
    for (int i = 0; i < cluster->job_count; i++)
        if (cluster->jobs[i]->view.stream == &stream->view)
            cluster_job_touch(cluster, cluster->jobs[i]);
}

static int list_homes(const struct scheduler_cluster *cluster, const struct cluster_stream *stream,
                      struct scheduler_plan_worker *workers)
{
    int count = 0;
    for (int i = 0; i < cluster->member_count; i++) {
        const struct cluster_member *member = cluster->members[i];
        if (member->view.state == SCHEDULER_WORKER_READY && cluster_member_serves(member, &stream->view))
            workers[count++] = (struct scheduler_plan_worker){member->view.id, member->view.weight};
    }
    return count;
}

static void take_plan(struct scheduler_cluster *cluster, struct cluster_stream *stream,
                      const struct scheduler_plan *next, int workers)
{
    char name[CLUSTER_SHORT_CHARS];
    int moved = 0;
    for (int slot = 0; slot < SCHEDULER_PLAN_SLOTS; slot++)
        moved += next->primary[slot] != stream->view.plan.primary[slot];
    stream->view.plan = *next;
    stream->view.planned = stream->unstored = true;
    if (next->version > cluster->plan_floor)
        cluster->plan_floor = next->version;
    cluster->counts.plan_changes++;
    cluster->counts.slots_moved += (uint64_t)moved;
    cluster_short(stream->view.identity.hash, name);
    cluster_line(cluster, "stream %s: plan %u, %d workers, %d slots moved", name, next->version, workers,
                 moved);
    cluster_stream_touch(cluster, stream);
}

void cluster_stream_plan(struct scheduler_cluster *cluster, struct cluster_stream *stream)
{
    struct scheduler_plan_worker workers[SCHEDULER_PLAN_WORKERS];
    struct scheduler_plan next;
    if (cluster->now_ns < stream->plan_from_ns)
        return;
    int count = list_homes(cluster, stream, workers);
    stream->plan_from_ns = INT64_MIN;
    if (count == 0 && !stream->view.planned)
        return; /* after a restart clients do better with the plan that they have */
    uint64_t homes = base_hash_xxh3(workers, (size_t)count * sizeof workers[0]);
    if (stream->view.planned && homes == stream->homes)
        return; /* a plan costs much more than this look */
    stream->homes = homes;
    scheduler_plan_next(&stream->view.plan, workers, count, NULL, &next);
    if (next.version != stream->view.plan.version)
        take_plan(cluster, stream, &next, count);
}

static struct cluster_stream *make_stream(struct scheduler_cluster *cluster,
                                          const struct scheduler_stream *identity, const uint8_t *key)
{
    if (cluster->stream_count == SCHEDULER_STREAMS_MAX ||
        !cluster_grow(&cluster->streams, cluster->stream_count, sizeof *cluster->streams))
        return NULL;
    struct cluster_stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return NULL;
    stream->view.identity = *identity;
    memcpy(stream->view.key, key, sizeof stream->view.key);
    stream->view.plan.version = cluster->plan_floor;
    stream->plan_from_ns = INT64_MIN;
    stream->unread_ns = cluster->now_ns;
    stream->unstored = true;
    cluster->streams[cluster->stream_count++] = stream;
    return stream;
}

struct cluster_stream *cluster_stream_get(struct scheduler_cluster *cluster,
                                          const struct cluster_candidate *candidate,
                                          const uint8_t *fingerprint)
{
    struct scheduler_stream identity = candidate->identity;
    char name[CLUSTER_SHORT_CHARS];
    memcpy(identity.fingerprint, fingerprint, sizeof identity.fingerprint);
    if (scheduler_stream_seal(&identity, NULL))
        return NULL; /* cannot be: the candidate was sealed */
    struct cluster_stream *stream = cluster_stream_find(cluster, identity.hash);
    if (stream)
        return stream;
    stream = make_stream(cluster, &identity, candidate->identity.hash);
    if (!stream)
        return NULL;
    cluster->counts.streams_made++;
    cluster_short(identity.hash, name);
    cluster_line(cluster, "stream %s is live", name);
    cluster_stream_plan(cluster, stream);
    return stream;
}

static int count_jobs(const struct scheduler_cluster *cluster, const struct cluster_stream *stream,
                      int *readers, struct scheduler_cursor *furthest)
{
    int jobs = 0;
    *readers = 0;
    for (int i = 0; i < cluster->job_count; i++) {
        const struct cluster_job *job = cluster->jobs[i];
        jobs += job->view.stream == &stream->view && cluster_job_live(job);
        if (!cluster_job_reads(job, stream))
            continue;
        if (*readers == 0 || cluster_cursor_compare(job->view.at, *furthest) > 0)
            *furthest = job->view.at;
        ++*readers;
    }
    return jobs;
}

void cluster_stream_tell(struct scheduler_cluster *cluster, struct cluster_stream *stream,
                         struct scheduler_cursor at)
{
    struct scheduler_cursor furthest = {0};
    int readers = 0;
    count_jobs(cluster, stream, &readers, &furthest);
    if (readers > 0 && at.epoch <= furthest.epoch + 1)
        cluster_stream_advance(cluster, stream, at);
}

void cluster_stream_advance(struct scheduler_cluster *cluster, struct cluster_stream *stream,
                            struct scheduler_cursor at)
{
    if (stream->has_front && cluster_cursor_compare(at, stream->front) <= 0)
        return;
    if (!stream->has_front || at.epoch > stream->front.epoch)
        cluster->jobs_changed = true; /* somebody may have waited for this epoch */
    stream->front = at;
    stream->has_front = true;
}

/* ---- settling ---- */

/* With one reader less, the furthest epoch is that of those left: whoever waits for a later one waits from there. */
static void settle_front(struct scheduler_cluster *cluster, struct cluster_stream *stream, int readers,
                         struct scheduler_cursor furthest, bool fewer)
{
    if (readers == 0) {
        stream->has_front = false;
        return;
    }
    if (!fewer) {
        cluster_stream_advance(cluster, stream, furthest);
        return;
    }
    stream->has_front = true;
    stream->front = furthest;
    for (int i = 0; i < cluster->job_count; i++) {
        struct cluster_job *job = cluster->jobs[i];
        if (job->view.stream == &stream->view && job->has_baseline && job->baseline_epoch > furthest.epoch)
            job->baseline_epoch = furthest.epoch;
    }
}

static void drop_stream(struct scheduler_cluster *cluster, int index)
{
    struct cluster_stream *stream = cluster->streams[index];
    char name[CLUSTER_SHORT_CHARS];
    cluster_short(stream->view.identity.hash, name);
    cluster_line(cluster, "stream %s is dropped: no job has used it for %lld s", name,
                 (long long)(cluster->options.grace_ms / 1000));
    cluster->counts.streams_dropped++;
    cluster_stream_touch(cluster, stream);
    for (int i = 0; i < cluster->job_count; i++)
        if (cluster->jobs[i]->view.stream == &stream->view)
            cluster->jobs[i]->view.stream = NULL;
    cluster_gone_push(cluster, NULL, stream->view.identity.hash);
    cluster->streams[index] = cluster->streams[--cluster->stream_count];
    free(stream);
}

static bool candidate_wanted(const struct scheduler_cluster *cluster,
                             const struct cluster_candidate *candidate)
{
    for (int i = 0; i < cluster->stream_count; i++)
        if (memcmp(cluster->streams[i]->view.key, candidate->identity.hash, BASE_SHA256_BYTES) == 0)
            return true;
    for (int i = 0; i < cluster->job_count; i++)
        if (cluster_job_live(cluster->jobs[i]) &&
            memcmp(cluster->jobs[i]->view.key, candidate->identity.hash, BASE_SHA256_BYTES) == 0)
            return true;
    return false;
}

static void drop_candidates(struct scheduler_cluster *cluster)
{
    for (int i = cluster->candidate_count - 1; i >= 0; i--) {
        struct cluster_candidate *candidate = cluster->candidates[i];
        if (candidate_wanted(cluster, candidate))
            continue;
        touch_readers(cluster, &candidate->identity);
        cluster_member_forget_key(cluster, candidate->identity.hash);
        cluster->candidates[i] = cluster->candidates[--cluster->candidate_count];
        free(candidate);
    }
}

void cluster_stream_settle(struct scheduler_cluster *cluster)
{
    for (int i = cluster->stream_count - 1; i >= 0; i--) {
        struct cluster_stream *stream = cluster->streams[i];
        struct scheduler_cursor furthest = {0};
        int readers = 0, jobs = count_jobs(cluster, stream, &readers, &furthest);
        if (jobs != stream->view.jobs)
            cluster_stream_touch(cluster, stream);
        settle_front(cluster, stream, readers, furthest, readers < stream->readers);
        stream->view.jobs = jobs;
        stream->readers = readers;
        if (jobs > 0)
            stream->unread_ns = CLUSTER_NEVER_NS;
        else if (stream->unread_ns == CLUSTER_NEVER_NS)
            stream->unread_ns = cluster->now_ns;
        else if (cluster->now_ns - stream->unread_ns >= cluster->options.grace_ms * BASE_NS_PER_MS)
            drop_stream(cluster, i);
    }
    drop_candidates(cluster);
    for (int i = 0; i < cluster->candidate_count; i++)
        if (cluster->now_ns >= settled_ns(cluster, cluster->candidates[i]))
            cluster->candidates[i]->waited = true;
}

int64_t cluster_stream_deadline_ns(const struct scheduler_cluster *cluster)
{
    int64_t least = CLUSTER_NEVER_NS;
    for (int i = 0; i < cluster->stream_count; i++) {
        const struct cluster_stream *stream = cluster->streams[i];
        if (stream->unread_ns != CLUSTER_NEVER_NS &&
            stream->unread_ns + cluster->options.grace_ms * BASE_NS_PER_MS < least)
            least = stream->unread_ns + cluster->options.grace_ms * BASE_NS_PER_MS;
        if (stream->plan_from_ns != INT64_MIN && stream->plan_from_ns < least)
            least = stream->plan_from_ns;
    }
    for (int i = 0; i < cluster->candidate_count; i++) {
        int64_t at = settled_ns(cluster, cluster->candidates[i]);
        if (!cluster->candidates[i]->waited && at < least)
            least = at;
    }
    return least;
}

enum base_code scheduler_cluster_load_stream(struct scheduler_cluster *cluster, int64_t now_ns,
                                             const struct scheduler_stream *identity, uint32_t plan_version,
                                             struct base_error *error)
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
    struct cluster_stream *stream = make_stream(cluster, &sealed, wanted.hash);
    if (!stream)
        return base_error_set(error, BASE_NO_MEMORY, "loading a stream: no memory");
    stream->view.plan.version = plan_version;
    stream->plan_from_ns = now_ns + cluster->options.restart_ms * BASE_NS_PER_MS;
    stream->unstored = false;
    if (plan_version > cluster->plan_floor)
        cluster->plan_floor = plan_version;
    return BASE_OK;
}
