/* SPDX-License-Identifier: Apache-2.0 */
/* Which stream a job gets, where in it it begins, and the words for both. */
#include "scheduler/cluster_state.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NAMES_MAX = 4 }; /* jobs named in a text */

int cluster_cursor_compare(struct scheduler_cursor a, struct scheduler_cursor b)
{
    if (a.epoch != b.epoch)
        return a.epoch < b.epoch ? -1 : 1;
    return a.position < b.position ? -1 : a.position > b.position;
}

const char *scheduler_job_state_name(enum scheduler_job_state state)
{
    static const char *const names[] = {"preparing", "waiting", "running", "lost", "closed", "refused"};
    return (unsigned)state < sizeof names / sizeof names[0] ? names[state] : "unknown";
}

static bool is_over(enum scheduler_job_state state)
{
    return state >= SCHEDULER_JOB_LOST;
}

static void set_state(struct scheduler_cluster *cluster, struct cluster_job *job,
                      enum scheduler_job_state state)
{
    if (job->view.state == state)
        return;
    bool lived = cluster_job_live(job);
    if (is_over(state))
        job->ended_ns = cluster->now_ns;
    else
        job->ended_ns = CLUSTER_NEVER_NS;
    if (state == SCHEDULER_JOB_CLOSED || state == SCHEDULER_JOB_REFUSED) {
        cluster_gone_push(cluster, job->view.id, NULL);
        cluster_list_remove(&job->unstored);
        cluster_list_remove(&job->moved);
    } else if (is_over(job->view.state)) {
        cluster_job_unstored(cluster, job);
    }
    if (state == SCHEDULER_JOB_LOST)
        snprintf(job->view.reason, sizeof job->view.reason, "no rank has been heard of for %lld s",
                 (long long)(cluster->options.lease_ms / 1000));
    if (state == SCHEDULER_JOB_CLOSED)
        snprintf(job->view.reason, sizeof job->view.reason, "all its ranks are closed");
    cluster_line(cluster, "job %s is %s", job->view.id, scheduler_job_state_name(state));
    job->view.state = state;
    cluster_job_touch(cluster, job);
    cluster_job_words(cluster, job);
    cluster_job_wait(cluster, job);
    if (job->stream) /* its workers are told who lives */
        cluster_stream_mark(cluster, job->stream);
    if (lived != cluster_job_live(job) && job->candidate)
        cluster_candidate_mark(cluster, job->candidate);
}

/* ---- which stream ---- */

static void refuse(struct scheduler_cluster *cluster, struct cluster_job *job,
                   struct cluster_candidate *candidate)
{
    char theirs[CLUSTER_SHORT_CHARS], ours[CLUSTER_SHORT_CHARS] = "none";
    uint8_t offered[16];
    cluster_short(job->pin, theirs);
    if (cluster_fingerprint_choose(cluster, candidate, offered))
        cluster_short(offered, ours);
    snprintf(
        job->view.reason, sizeof job->view.reason,
        "the cursor's bits have fingerprint %s, the workers make %s (accept_new_bits continues with theirs)",
        theirs, ours);
    cluster->counts.refused++;
    cluster_line(cluster, "job %s: %s", job->view.id, job->view.reason);
    set_state(cluster, job, SCHEDULER_JOB_REFUSED);
}

/* What the cursor asks for, where a worker has it; else what others read or most workers make. */
static bool choose_fingerprint(const struct scheduler_cluster *cluster, const struct cluster_job *job,
                               struct cluster_candidate *candidate, uint8_t *fingerprint)
{
    const uint8_t *asked = job->has_pin ? job->pin : job->has_resume ? job->resume.fingerprint : NULL;
    if (asked && cluster_fingerprint_offered(candidate, asked)) {
        memcpy(fingerprint, asked, sizeof job->pin);
        return true;
    }
    return !job->has_pin && cluster_fingerprint_choose(cluster, candidate, fingerprint);
}

/* Nothing that happens says when there is memory again, or room. */
static void look_again(struct scheduler_cluster *cluster)
{
    cluster->retry_ns = cluster->now_ns + BASE_NS_PER_S;
}

static void find_stream(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    struct cluster_candidate *candidate = NULL;
    uint8_t fingerprint[sizeof job->pin];
    if (cluster_candidate_get(cluster, &job->wanted, &candidate, NULL)) {
        look_again(cluster);
        return;
    }
    cluster_job_set_candidate(cluster, job, candidate);
    candidate->sought = true;
    if (!choose_fingerprint(cluster, job, candidate, fingerprint)) {
        if (job->has_pin && cluster_candidate_settled(cluster, candidate))
            refuse(cluster, job, candidate);
        return;
    }
    struct cluster_stream *stream = cluster_stream_get(cluster, candidate, fingerprint);
    if (!stream) {
        look_again(cluster);
        return;
    }
    cluster_job_set_stream(cluster, job, stream);
    job->has_pin = true; /* from now on these bits and no others */
    memcpy(job->pin, fingerprint, sizeof job->pin);
    cluster_job_unstored(cluster, job);
    if (job->view.has_start)
        cluster_stream_advance(cluster, stream, job->view.at);
    cluster_job_touch(cluster, job);
}

/* ---- where in it ---- */

static bool lowest_front(const struct cluster_job *job, struct scheduler_cursor *lowest)
{
    bool any = false;
    for (const struct cluster_job *other = cluster_list_first(&job->stream->jobs); other;
         other = cluster_list_next(&other->reads)) {
        if (other == job || !cluster_job_reads(other))
            continue;
        if (!any || cluster_cursor_compare(other->view.at, *lowest) < 0)
            *lowest = other->view.at;
        any = true;
    }
    return any;
}

static bool read_by_others(const struct cluster_job *job)
{
    for (const struct cluster_job *other = cluster_list_first(&job->stream->jobs); other;
         other = cluster_list_next(&other->reads))
        if (other != job && cluster_job_reads(other))
            return true;
    return false;
}

static void begin(struct scheduler_cluster *cluster, struct cluster_job *job, struct scheduler_cursor start,
                  uint32_t first_epoch)
{
    cluster->counts.jobs_shared += read_by_others(job);
    job->view.has_start = true;
    job->view.start = job->view.at = start;
    job->view.first_epoch = first_epoch;
    job->has_baseline = false;
    for (uint32_t i = 0; i < job->view.shape.world; i++)
        job->ranks[i].at = start;
    job->last_ranks = job->view.shape.world;
    cluster_job_unstored(cluster, job);
    cluster_stream_advance(cluster, job->stream, start);
    cluster_stream_mark(cluster, job->stream);
    cluster_job_touch(cluster, job);
}

/* The next whole step boundary not before the slowest reader. */
static void begin_partial(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    struct scheduler_cursor at = {0, 0};
    uint64_t step = (uint64_t)job->view.shape.world * job->view.shape.batch;
    if (lowest_front(job, &at)) {
        at.position = (at.position / step + (at.position % step != 0)) * step;
        at = scheduler_cursor_normal(&job->view.shape, at);
    }
    begin(cluster, job, at, at.epoch);
    job->view.short_first_epoch = at.position > 0;
}

static void begin_next(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    const struct cluster_stream *stream = job->stream;
    if (!stream->view.identity.uses_epoch || !read_by_others(job)) {
        begin(cluster, job, (struct scheduler_cursor){0, 0}, 0);
        return;
    }
    if (!job->has_baseline) {
        job->has_baseline = true;
        job->baseline_epoch = stream->front.epoch;
    }
    if (stream->front.epoch > job->baseline_epoch)
        begin(cluster, job, (struct scheduler_cursor){stream->front.epoch, 0}, stream->front.epoch);
}

static void find_start(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    if (job->has_resume) {
        struct scheduler_cursor start = scheduler_cursor_normal(&job->view.shape, job->resume.at);
        begin(cluster, job, start, job->resume.first_epoch);
    } else if (job->join == SCHEDULER_JOIN_NEXT) {
        begin_next(cluster, job);
    } else if (job->join == SCHEDULER_JOIN_PARTIAL) {
        begin_partial(cluster, job);
    } else {
        begin(cluster, job, (struct scheduler_cursor){0, 0}, 0);
    }
}

/* After a restart of the server ranks that have not been heard of yet may read on. */
static enum scheduler_job_state resting_state(const struct cluster_job *job)
{
    bool closed = false, awaited = false;
    for (uint32_t i = 0; i < job->view.shape.world; i++) {
        closed |= job->ranks[i].state == CLUSTER_RANK_CLOSED;
        awaited |= job->loaded && !job->ranks[i].known;
    }
    return job->view.ranks_open == 0 && closed && !awaited ? SCHEDULER_JOB_CLOSED : SCHEDULER_JOB_LOST;
}

void cluster_join_advance(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    if (job->view.state == SCHEDULER_JOB_REFUSED)
        return;
    if (job->view.ranks_live == 0) {
        set_state(cluster, job, resting_state(job));
        return;
    }
    if (!job->stream)
        find_stream(cluster, job);
    if (job->view.state == SCHEDULER_JOB_REFUSED)
        return;
    if (job->stream && !job->view.has_start)
        find_start(cluster, job);
    set_state(cluster, job,
              !job->stream          ? SCHEDULER_JOB_PREPARING
              : job->view.has_start ? SCHEDULER_JOB_RUNNING
                                    : SCHEDULER_JOB_WAITING);
}

/* ---- words ---- */

struct words {
    char text[SCHEDULER_WORDS_CHARS];
    size_t used;
};

__attribute__((format(printf, 2, 3))) static void say(struct words *words, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int size = vsnprintf(words->text + words->used, sizeof words->text - words->used, format, args);
    va_end(args);
    if (size > 0)
        words->used += (size_t)size;
    if (words->used >= sizeof words->text)
        words->used = sizeof words->text - 1;
}

/* "a, b and others"; how many were named. */
static int say_readers(const struct cluster_job *job, struct words *words)
{
    int count = 0;
    for (const struct cluster_job *other = cluster_list_first(&job->stream->jobs);
         other && count <= NAMES_MAX; other = cluster_list_next(&other->reads)) {
        if (other == job || !cluster_job_reads(other))
            continue;
        if (count < NAMES_MAX)
            say(words, "%s%.60s", count ? ", " : "", other->view.id);
        count++;
    }
    if (count > NAMES_MAX)
        say(words, " and others"); /* how many would be news to all of them with each */
    return count;
}

static void say_preparing(const struct scheduler_cluster *cluster, const struct cluster_job *job,
                          struct words *words)
{
    char version[CLUSTER_SHORT_CHARS];
    struct cluster_candidate *candidate = job->candidate;
    cluster_short(job->wanted.dataset_version, version);
    if (!candidate) {
        say(words, "waits: the server keeps as many streams as it can");
        return;
    }
    if (cluster->ready_count == 0)
        say(words, "waits for a worker: none is ready");
    else if (candidate->eligible == 0)
        say(words, "waits for a worker that can read %s (version %s): none of %d can", job->dataset, version,
            cluster->ready_count);
    else if (candidate->silent > 0 || candidate->made > 0)
        say(words, "waits for the fingerprints of %d of %d workers", candidate->silent, candidate->eligible);
    else
        say(words, "waits for a worker that can make it: none of %d can", candidate->eligible);
    if (candidate->eligible > 0 && candidate->failed_worker != 0)
        say(words, "; worker %" PRIu64 ": %s", candidate->failed_worker, candidate->failed_error);
    const char *error = NULL;
    const struct cluster_member *member =
        candidate->eligible == 0 ? cluster_version_refuser(candidate->version, &error) : NULL;
    if (member)
        say(words, "; worker %" PRIu64 ": %s", member->view.id, error);
}

/* Whose work with the same images is shared, or why not. */
static void say_siblings(const struct scheduler_cluster *cluster, const struct cluster_stream *stream,
                         struct words *words)
{
    char name[CLUSTER_SHORT_CHARS];
    const struct cluster_stream *sibling = cluster_stream_sibling(cluster, stream);
    const struct cluster_stream *apart = sibling ? NULL : cluster_stream_apart(cluster, stream);
    if (sibling) {
        cluster_short(sibling->view.identity.hash, name);
        say(words, "; shares decoding with stream %s", name);
    } else if (apart) {
        cluster_short(apart->view.identity.hash, name);
        say(words, "; shares no decoding with stream %s: its blocks have %d rows, these %d", name,
            (int)apart->view.identity.pipeline.block_rows, (int)stream->view.identity.pipeline.block_rows);
    }
}

static void say_running(const struct scheduler_cluster *cluster, const struct cluster_job *job,
                        struct words *words)
{
    char name[CLUSTER_SHORT_CHARS];
    struct words readers = {.used = 0};
    const struct cluster_stream *stream = job->stream;
    int count = say_readers(job, &readers);
    cluster_short(stream->view.identity.hash, name);
    if (job->view.state == SCHEDULER_JOB_WAITING)
        say(words, "waits for the next epoch of stream %s, read by %s", name, readers.text);
    else if (count > 0)
        say(words, "shares stream %s with %s", name, readers.text);
    else
        say(words, "reads stream %s alone", name);
    say_siblings(cluster, stream, words);
    if (!stream->view.planned)
        say(words, "; its workers are coming back after the server's restart");
    else if (stream->view.plan.primary[0] == SCHEDULER_PLAN_NOBODY)
        say(words, "; no live worker makes it");
    if (job->has_resume && job->accept_new_bits &&
        memcmp(job->resume.fingerprint, job->pin, sizeof job->pin) != 0)
        say(words, "; its bits are not the cursor's");
}

void cluster_join_words(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    struct words words = {.used = 0};
    switch (job->view.state) {
    case SCHEDULER_JOB_PREPARING:
        say_preparing(cluster, job, &words);
        break;
    case SCHEDULER_JOB_WAITING:
    case SCHEDULER_JOB_RUNNING:
        say_running(cluster, job, &words);
        break;
    case SCHEDULER_JOB_LOST:
    case SCHEDULER_JOB_CLOSED:
    case SCHEDULER_JOB_REFUSED:
        return; /* said when it was */
    }
    if (strcmp(words.text, job->view.reason) == 0)
        return;
    memcpy(job->view.reason, words.text, sizeof words.text);
    cluster_job_touch(cluster, job);
}

/* ---- near misses ---- */

static bool only_seed_differs(const struct scheduler_stream *a, const struct scheduler_stream *b)
{
    return a->seed != b->seed && a->items == b->items && a->shuffle == b->shuffle &&
           memcmp(a->dataset_version, b->dataset_version, BASE_SHA256_BYTES) == 0 &&
           strcmp(a->sample_text, b->sample_text) == 0;
}

void cluster_join_near_miss(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    char name[CLUSTER_SHORT_CHARS];
    for (int i = 0; i < cluster->candidate_count; i++) {
        const struct scheduler_stream *other = &cluster->candidates[i]->identity;
        const uint8_t *hash = other->hash;
        if (!only_seed_differs(&job->wanted, other))
            continue;
        for (int s = 0; s < cluster->stream_count; s++)
            if (memcmp(cluster->streams[s]->view.key, other->hash, BASE_SHA256_BYTES) == 0)
                hash = cluster->streams[s]->view.identity.hash;
        cluster_short(hash, name);
        snprintf(job->view.note, sizeof job->view.note,
                 "differs from stream %s only in seed (%" PRIu64 ", not %" PRIu64
                 "): nothing is shared with it",
                 name, job->wanted.seed, other->seed);
        cluster_line(cluster, "job %s %s", job->view.id, job->view.note);
        cluster->counts.near_misses++;
        return;
    }
}
