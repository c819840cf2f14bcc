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

static bool is_over(enum scheduler_job_state state)
{
    return state >= SCHEDULER_JOB_LOST;
}

static bool set_state(struct scheduler_cluster *cluster, struct cluster_job *job,
                      enum scheduler_job_state state)
{
    if (job->view.state == state)
        return false;
    if (is_over(state))
        job->ended_ns = cluster->now_ns;
    else
        job->ended_ns = CLUSTER_NEVER_NS;
    if (state == SCHEDULER_JOB_CLOSED || state == SCHEDULER_JOB_REFUSED) {
        cluster_gone_push(cluster, job->view.id, NULL);
        job->unstored = job->moved = false;
    } else if (is_over(job->view.state)) {
        job->unstored = true;
    }
    if (state == SCHEDULER_JOB_LOST)
        snprintf(job->view.reason, sizeof job->view.reason, "no rank has been heard of for %lld s",
                 (long long)(cluster->options.lease_ms / 1000));
    if (state == SCHEDULER_JOB_CLOSED)
        snprintf(job->view.reason, sizeof job->view.reason, "all its ranks are closed");
    cluster_line(cluster, "job %s is %s", job->view.id, scheduler_job_state_name(state));
    job->view.state = state;
    cluster_job_touch(cluster, job);
    return true;
}

/* ---- which stream ---- */

static bool refuse(struct scheduler_cluster *cluster, struct cluster_job *job,
                   const struct cluster_candidate *candidate)
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
    return set_state(cluster, job, SCHEDULER_JOB_REFUSED);
}

/* What the cursor asks for, where a worker has it; else what others read or most workers make. */
static bool choose_fingerprint(const struct scheduler_cluster *cluster, const struct cluster_job *job,
                               const struct cluster_candidate *candidate, uint8_t *fingerprint)
{
    const uint8_t *asked = job->has_pin ? job->pin : job->has_resume ? job->resume.fingerprint : NULL;
    if (asked && cluster_fingerprint_offered(cluster, candidate, asked)) {
        memcpy(fingerprint, asked, sizeof job->pin);
        return true;
    }
    return !job->has_pin && cluster_fingerprint_choose(cluster, candidate, fingerprint);
}

/* Nothing that happens says when there is memory again, or room. */
static bool look_again(struct scheduler_cluster *cluster)
{
    cluster->retry_ns = cluster->now_ns + BASE_NS_PER_S;
    return false;
}

static bool find_stream(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    struct cluster_candidate *candidate = NULL;
    uint8_t fingerprint[sizeof job->pin];
    if (cluster_candidate_get(cluster, &job->wanted, &candidate, NULL))
        return look_again(cluster);
    if (!choose_fingerprint(cluster, job, candidate, fingerprint)) {
        if (job->has_pin && cluster_candidate_settled(cluster, candidate))
            return refuse(cluster, job, candidate);
        return false;
    }
    struct cluster_stream *stream = cluster_stream_get(cluster, candidate, fingerprint);
    if (!stream)
        return look_again(cluster);
    job->view.stream = &stream->view;
    job->has_pin = true; /* from now on these bits and no others */
    memcpy(job->pin, fingerprint, sizeof job->pin);
    job->unstored = true;
    if (job->view.has_start)
        cluster_stream_advance(cluster, stream, job->view.at);
    cluster_job_touch(cluster, job);
    return true;
}

/* ---- where in it ---- */

static bool lowest_front(const struct scheduler_cluster *cluster, const struct cluster_job *job,
                         const struct cluster_stream *stream, struct scheduler_cursor *lowest)
{
    bool any = false;
    for (int i = 0; i < cluster->job_count; i++) {
        const struct cluster_job *other = cluster->jobs[i];
        if (other == job || !cluster_job_reads(other, stream))
            continue;
        if (!any || cluster_cursor_compare(other->view.at, *lowest) < 0)
            *lowest = other->view.at;
        any = true;
    }
    return any;
}

static void begin(struct scheduler_cluster *cluster, struct cluster_job *job, struct cluster_stream *stream,
                  struct scheduler_cursor start, uint32_t first_epoch)
{
    struct scheduler_cursor ignored;
    if (lowest_front(cluster, job, stream, &ignored))
        cluster->counts.jobs_shared++;
    job->view.has_start = true;
    job->view.start = job->view.at = start;
    job->view.first_epoch = first_epoch;
    job->has_baseline = false;
    for (uint32_t i = 0; i < job->view.shape.world; i++)
        job->ranks[i].at = start;
    job->unstored = true;
    cluster_stream_advance(cluster, stream, start);
    cluster_job_touch(cluster, job);
}

/* The next whole step boundary not before the slowest reader. */
static void begin_partial(struct scheduler_cluster *cluster, struct cluster_job *job,
                          struct cluster_stream *stream)
{
    struct scheduler_cursor at = {0, 0};
    uint64_t step = (uint64_t)job->view.shape.world * job->view.shape.batch;
    if (lowest_front(cluster, job, stream, &at)) {
        at.position = (at.position / step + (at.position % step != 0)) * step;
        at = scheduler_cursor_normal(&job->view.shape, at);
    }
    begin(cluster, job, stream, at, at.epoch);
    job->view.short_first_epoch = at.position > 0;
}

static bool begin_next(struct scheduler_cluster *cluster, struct cluster_job *job,
                       struct cluster_stream *stream)
{
    struct scheduler_cursor lowest;
    if (!stream->view.identity.uses_epoch || !lowest_front(cluster, job, stream, &lowest)) {
        begin(cluster, job, stream, (struct scheduler_cursor){0, 0}, 0);
        return true;
    }
    if (!job->has_baseline) {
        job->has_baseline = true;
        job->baseline_epoch = stream->front.epoch;
    }
    if (stream->front.epoch <= job->baseline_epoch)
        return false;
    begin(cluster, job, stream, (struct scheduler_cursor){stream->front.epoch, 0}, stream->front.epoch);
    return true;
}

static bool find_start(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    struct cluster_stream *stream = cluster_stream_of(cluster, job);
    if (job->has_resume) {
        struct scheduler_cursor start = scheduler_cursor_normal(&job->view.shape, job->resume.at);
        begin(cluster, job, stream, start, job->resume.first_epoch);
    } else if (job->join == SCHEDULER_JOIN_NEXT) {
        return begin_next(cluster, job, stream);
    } else if (job->join == SCHEDULER_JOIN_PARTIAL) {
        begin_partial(cluster, job, stream);
    } else {
        begin(cluster, job, stream, (struct scheduler_cursor){0, 0}, 0);
    }
    return true;
}

static enum scheduler_job_state resting_state(const struct cluster_job *job)
{
    bool closed = false;
    for (uint32_t i = 0; i < job->view.shape.world; i++)
        closed |= job->ranks[i].state == CLUSTER_RANK_CLOSED;
    return job->view.ranks_open == 0 && closed ? SCHEDULER_JOB_CLOSED : SCHEDULER_JOB_LOST;
}

bool cluster_join_advance(struct scheduler_cluster *cluster, struct cluster_job *job)
{
    if (job->view.state == SCHEDULER_JOB_REFUSED)
        return false;
    if (job->view.ranks_live == 0)
        return set_state(cluster, job, resting_state(job));
    bool moved = !job->view.stream && find_stream(cluster, job);
    if (job->view.state == SCHEDULER_JOB_REFUSED)
        return true;
    if (job->view.stream && !job->view.has_start)
        moved |= find_start(cluster, job);
    enum scheduler_job_state state = !job->view.stream     ? SCHEDULER_JOB_PREPARING
                                     : job->view.has_start ? SCHEDULER_JOB_RUNNING
                                                           : SCHEDULER_JOB_WAITING;
    return set_state(cluster, job, state) || moved;
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

/* "a, b and 3 more"; how many there are. */
static int say_readers(const struct scheduler_cluster *cluster, const struct cluster_job *job,
                       const struct cluster_stream *stream, struct words *words)
{
    int count = 0;
    for (int i = 0; i < cluster->job_count; i++) {
        const struct cluster_job *other = cluster->jobs[i];
        if (other == job || !cluster_job_reads(other, stream))
            continue;
        if (count < NAMES_MAX)
            say(words, "%s%.60s", count ? ", " : "", other->view.id);
        count++;
    }
    if (count > NAMES_MAX)
        say(words, " and %d more", count - NAMES_MAX);
    return count;
}

static void say_preparing(const struct scheduler_cluster *cluster, const struct cluster_job *job,
                          struct words *words)
{
    char version[CLUSTER_SHORT_CHARS];
    const struct cluster_candidate *candidate = cluster_candidate_find(cluster, job->view.key);
    const char *error = "", *probe_error = "";
    uint64_t who = 0;
    int live = 0, eligible = 0, silent = 0, made = 0;
    for (int i = 0; i < cluster->member_count; i++) {
        const struct cluster_member *member = cluster->members[i];
        if (member->view.state != SCHEDULER_WORKER_READY)
            continue;
        const char *why = "";
        const struct cluster_print *print = cluster_member_print(member, job->view.key);
        live++;
        if (!cluster_member_eligible(member, job->wanted.dataset_version, &why)) {
            if (why[0])
                error = why, who = member->view.id;
            continue;
        }
        eligible++;
        silent += !print;
        made += print && !print->failed;
        if (print && print->failed)
            probe_error = print->error, who = member->view.id;
    }
    cluster_short(job->wanted.dataset_version, version);
    if (!candidate)
        say(words, "waits: the server keeps as many streams as it can");
    else if (eligible == 0)
        say(words, "waits for a worker that can read %s (version %s): none of %d can", job->dataset, version,
            live);
    else if (silent > 0 || made > 0)
        say(words, "waits for the fingerprints of %d of %d workers", silent, eligible);
    else
        say(words, "waits for a worker that can make it: none of %d can", eligible);
    if (eligible == 0 ? error[0] : probe_error[0])
        say(words, "; worker %" PRIu64 ": %s", who, eligible == 0 ? error : probe_error);
}

static void say_running(const struct scheduler_cluster *cluster, const struct cluster_job *job,
                        struct words *words)
{
    char name[CLUSTER_SHORT_CHARS];
    struct words readers = {.used = 0};
    const struct cluster_stream *stream = cluster_stream_of(cluster, job);
    int count = say_readers(cluster, job, stream, &readers);
    cluster_short(stream->view.identity.hash, name);
    if (job->view.state == SCHEDULER_JOB_WAITING)
        say(words, "waits for the next epoch of stream %s, read by %s", name, readers.text);
    else if (count > 0)
        say(words, "shares stream %s with %s", name, readers.text);
    else
        say(words, "reads stream %s alone", name);
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
