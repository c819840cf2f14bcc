/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/job.h"

#include "base/clock.h"
#include "base/log.h"
#include "client/src/control.h"
#include "client/src/draw.h"
#include "client/src/error.h"
#include "client/src/session.h"

#include <event2/event.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_AHEAD 2
#define STALL_MS 1000
#define UNAVAILABLE_MS 10000
#define WEIGHT_LEAST 0.01 /* as the scheduler has it */
#define WEIGHT_MOST 100

/* ---- the loop's side ---- */

static void carry_out(struct mr_job *job, const struct client_action *action)
{
    switch (action->kind) {
    case CLIENT_ACTION_CONNECT:
        client_session_start(job, action->worker);
        break;
    case CLIENT_ACTION_CLOSE:
        client_session_close(job, action->worker);
        break;
    case CLIENT_ACTION_OPEN:
    case CLIENT_ACTION_GET:
    case CLIENT_ACTION_CANCEL:
    case CLIENT_ACTION_MARK:
        client_session_send(job, action);
        break;
    case CLIENT_ACTION_READY:
    case CLIENT_ACTION_ERROR:
        job->news = true;
        break;
    case CLIENT_ACTION_FETCH_PLAN:
        client_control_fetch(job);
        break;
    }
}

void client_job_drive(struct mr_job *job)
{
    struct client_action action;
    int64_t now_ns = base_clock_now_ns();
    if (job->has_left)
        carry_out(job, &job->left);
    job->has_left = false;
    while (client_core_act(job->core, now_ns, &action))
        carry_out(job, &action);
}

static void set_timer(struct mr_job *job, int64_t wake_ns)
{
    int64_t now_ns = base_clock_now_ns();
    int64_t after_us = wake_ns > now_ns ? (wake_ns - now_ns + 999) / 1000 : 0;
    struct timeval after = {after_us / 1000000, after_us % 1000000};
    event_add(job->timer, &after);
}

static void flush(struct mr_job *job)
{
    client_session_flush_all(job);
    pthread_mutex_lock(&job->mutex);
    job->flushing = false;
    pthread_mutex_unlock(&job->mutex);
}

void client_job_unlock(struct mr_job *job)
{
    int64_t wake_ns = client_core_wake_ns(job->core);
    bool flushes = client_session_frames_wait(job, &wake_ns);
    /* A timer that is early does no harm, and mostly the time has not changed. */
    bool sets = wake_ns < job->timer_ns && job->timer;
    bool news = job->news;
    job->flushing = flushes;
    job->timer_ns = sets ? wake_ns : job->timer_ns;
    job->news = false;
    pthread_mutex_unlock(&job->mutex);
    if (news) /* it is still there: only this thread takes it apart */
        pthread_cond_broadcast(&job->changed);
    if (flushes)
        flush(job);
    if (sets)
        set_timer(job, wake_ns);
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    struct mr_job *job = context;
    (void)fd;
    (void)what;
    pthread_mutex_lock(&job->mutex);
    job->timer_ns = INT64_MAX;
    client_job_drive(job);
    client_job_unlock(job);
}

static void on_poke(struct base_message *message)
{
    struct mr_job *job = (struct mr_job *)(void *)((char *)message - offsetof(struct mr_job, poke));
    pthread_mutex_lock(&job->mutex);
    job->poked = false;
    if (job->page.wanted && !job->page.here && job->page.number == 0)
        client_session_ask_page(job, job->page.index);
    client_job_drive(job);
    client_job_unlock(job);
}

void client_job_poke(struct mr_job *job)
{
    if (job->poked)
        return;
    job->poked = true;
    base_mailbox_post(client_loop_mailbox(job->client->loop), &job->poke);
}

/* What only the loop can do is left to it. */
static bool is_the_loops(const struct client_action *action)
{
    return action->kind == CLIENT_ACTION_CONNECT || action->kind == CLIENT_ACTION_CLOSE ||
           action->kind == CLIENT_ACTION_FETCH_PLAN;
}

bool client_job_ask(struct mr_job *job)
{
    int64_t now_ns = base_clock_now_ns(), wake_ns;
    if (job->flushing || job->has_left)
        return false;
    while (!job->has_left && client_core_act(job->core, now_ns, &job->left))
        if (is_the_loops(&job->left))
            job->has_left = true;
        else
            carry_out(job, &job->left);
    if (job->has_left)
        return false;
    wake_ns = client_core_wake_ns(job->core);
    if (client_session_frames_wait(job, &wake_ns))
        client_session_write_all(job);
    return !client_session_frames_wait(job, &wake_ns) && wake_ns >= job->timer_ns;
}

void client_job_unlock_poking(struct mr_job *job)
{
    bool poked = job->poked;
    job->poked = true;
    if (!poked)
        atomic_fetch_add(&job->posting, 1);
    pthread_mutex_unlock(&job->mutex);
    if (poked)
        return;
    base_mailbox_post(client_loop_mailbox(job->client->loop), &job->poke);
    atomic_fetch_sub(&job->posting, 1);
}

struct attach {
    struct mr_job *job;
    const Millrace__V1__JobAnswer *answer;
    enum base_code code;
    struct base_error error;
};

static void attach(void *context)
{
    struct attach *attach = context;
    struct mr_job *job = attach->job;
    pthread_mutex_lock(&job->mutex);
    job->timer_ns = INT64_MAX;
    job->timer = evtimer_new(client_loop_base(job->client->loop), on_timer, job);
    attach->code =
        job->timer ? BASE_OK : base_error_set(&attach->error, BASE_NO_MEMORY, "no memory for a job");
    job->revision = attach->answer->revision;
    client_control_plan(job, attach->answer->plan);
    if (attach->code == BASE_OK)
        attach->code = client_control_start(job, &attach->error);
    client_job_drive(job);
    client_job_unlock(job);
}

static void detach(void *context)
{
    struct mr_job *job = context;
    pthread_mutex_lock(&job->mutex);
    client_control_stop(job);
    client_session_close_all(job);
    if (job->timer)
        event_free(job->timer);
    job->timer = NULL;
    pthread_mutex_unlock(&job->mutex);
}

/* ---- opening ---- */

/* A program built with earlier headers has fewer of them. */
static bool known_size(size_t size)
{
    return size >= sizeof(struct mr_job_options) || size == offsetof(struct mr_job_options, ledger) ||
           size == offsetof(struct mr_job_options, weight) ||
           size == offsetof(struct mr_job_options, sockets_only);
}

static enum mr_code take_options(const struct mr_job_options *given, struct mr_job_options *options,
                                 struct mr_error *error)
{
    if (!given || !known_size(given->size))
        return client_error_set(error, BASE_INVALID, "job: options.size is %zu, not %zu",
                                given ? given->size : 0, sizeof *options);
    memcpy(options, given, given->size < sizeof *options ? given->size : sizeof *options);
    options->world = options->world > 0 ? options->world : 1;
    options->pipeline = options->pipeline ? options->pipeline : "imagenet_train";
    options->look_ahead = options->look_ahead > 0 ? options->look_ahead : LOOK_AHEAD;
    return MR_OK;
}

static enum mr_code check_options(const struct mr_job_options *options, struct mr_error *error)
{
    if (!options->dataset || !*options->dataset || strlen(options->dataset) >= 256)
        return client_error_set(error, BASE_INVALID, "job: a dataset's name is needed");
    if (options->batch < 1 || options->batch > 65535)
        return client_error_set(error, BASE_INVALID, "job: batch is %u, must be 1 to 65535", options->batch);
    if (options->rank >= options->world)
        return client_error_set(error, BASE_INVALID, "job: rank %u of %u", options->rank, options->world);
    if (!options->job && options->world > 1)
        return client_error_set(error, BASE_INVALID, "job: several ranks need one job name to meet under");
    if (options->job && (!*options->job || strlen(options->job) >= CLIENT_JOB_CHARS))
        return client_error_set(error, BASE_INVALID, "job: its name must have 1 to %d bytes",
                                CLIENT_JOB_CHARS - 1);
    if ((unsigned)options->tail > MR_TAIL_EXACT || (unsigned)options->on_bad > MR_ON_BAD_REPLACE ||
        (unsigned)options->join > MR_JOIN_PARTIAL || (unsigned)options->sampler > MR_SAMPLER_SEQUENTIAL)
        return client_error_set(error, BASE_INVALID,
                                "job: tail, on_bad, join or sampler is none of its values");
    if (options->look_ahead > 1024)
        return client_error_set(error, BASE_INVALID, "job: look_ahead is %u, at most 1024",
                                options->look_ahead);
    if (options->weight != 0 && !(options->weight >= WEIGHT_LEAST && options->weight <= WEIGHT_MOST))
        return client_error_set(error, BASE_INVALID, "job: weight is %g, must be %g to %d", options->weight,
                                WEIGHT_LEAST, WEIGHT_MOST);
    if (!options->slot_allocate != !options->slot_free)
        return client_error_set(error, BASE_INVALID, "job: slot_allocate and slot_free go together");
    return MR_OK;
}

static void name_job(struct mr_job *job, const struct mr_job_options *options)
{
    char host[64] = "host";
    if (options->job) {
        snprintf(job->name, sizeof job->name, "%s", options->job);
        return;
    }
    gethostname(host, sizeof host - 1);
    snprintf(job->name, sizeof job->name, "%s-%d-%u-%llx", host, (int)getpid(),
             atomic_fetch_add(&job->client->serial, 1) + 1, (unsigned long long)job->generation);
}

static enum base_code job_create(struct mr_job **out, struct mr_client *client,
                                 const struct mr_job_options *options, struct base_error *error)
{
    struct mr_job *job = calloc(1, sizeof *job);
    const char *sockets = getenv("MILLRACE_SOCKETS_ONLY");
    pthread_condattr_t attributes;
    if (!job)
        return base_error_set(error, BASE_NO_MEMORY, "no memory for a job");
    job->client = client;
    job->poke.run = on_poke;
    job->rank = options->rank;
    job->generation = (uint64_t)base_clock_wall_ns();
    job->sockets_only = options->sockets_only || (sockets && strcmp(sockets, "1") == 0);
    name_job(job, options);
    snprintf(job->dataset, sizeof job->dataset, "%s", options->dataset);
    pthread_mutex_init(&job->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&job->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    base_buffer_init(&job->page.bytes);
    *out = job;
    return BASE_OK;
}

static void job_destroy(struct mr_job *job)
{
    manifest_remote_destroy(&job->manifest);
    client_ledger_close(&job->ledger);
    client_core_destroy(job->core);
    client_items_fini(&job->items);
    client_slots_fini(&job->slots);
    for (uint32_t i = 0; i < job->class_count; i++)
        free(job->classes[i]);
    free(job->classes);
    free(job->endpoints);
    free(job->open_bytes);
    base_buffer_fini(&job->page.bytes);
    pthread_cond_destroy(&job->changed);
    pthread_mutex_destroy(&job->mutex);
    free(job);
}

/* The stream that the server gave, proved by its hash: both sides mean the same bits. */
static enum base_code take_stream(struct mr_job *job, const Millrace__V1__JobAnswer *answer,
                                  struct base_error *error)
{
    const Millrace__V1__Stream *given = answer->stream;
    struct scheduler_stream *stream = &job->stream;
    if (!given || !answer->start || !answer->start->at || given->dataset_version.len != BASE_SHA256_BYTES ||
        given->fingerprint.len != sizeof stream->fingerprint || given->hash.len != BASE_SHA256_BYTES ||
        strlen(given->sample_text) >= sizeof stream->sample_text)
        return base_error_set(error, BASE_CORRUPT, "server's answer lacks the stream or the start");
    memcpy(stream->dataset_version, given->dataset_version.data, BASE_SHA256_BYTES);
    memcpy(stream->fingerprint, given->fingerprint.data, sizeof stream->fingerprint);
    stream->items = given->items;
    stream->shuffle = given->shuffle;
    stream->seed = given->seed;
    snprintf(stream->sample_text, sizeof stream->sample_text, "%s", given->sample_text);
    enum base_code code = scheduler_stream_seal(stream, error);
    if (code != BASE_OK)
        return code;
    if (memcmp(stream->hash, given->hash.data, BASE_SHA256_BYTES) != 0)
        return base_error_set(error, BASE_CONFLICT,
                              "the server names this stream by another hash: another version of Millrace");
    return scheduler_pipeline_parse(answer->pipeline_text, NULL, 0, &job->pipeline, error);
}

static enum base_code take_words(struct mr_job *job, const Millrace__V1__JobAnswer *answer,
                                 struct base_error *error)
{
    size_t used = (size_t)snprintf(job->note, sizeof job->note, "%s", answer->reason);
    for (size_t i = 0; i < answer->n_notes && used < sizeof job->note; i++)
        used += (size_t)snprintf(job->note + used, sizeof job->note - used, "%s%s", used > 0 ? "; " : "",
                                 answer->notes[i]);
    snprintf(job->pipeline_text, sizeof job->pipeline_text, "%s", answer->pipeline_text);
    job->classes = calloc(answer->n_classes + 1, sizeof *job->classes);
    if (!job->classes)
        return base_error_set(error, BASE_NO_MEMORY, "no memory for %zu classes", answer->n_classes);
    for (size_t i = 0; i < answer->n_classes; i++) {
        job->classes[i] = strdup(answer->classes[i]);
        if (!job->classes[i])
            return base_error_set(error, BASE_NO_MEMORY, "no memory for %zu classes", answer->n_classes);
        job->class_count++;
    }
    return BASE_OK;
}

static enum base_code make_core(struct mr_job *job, const struct mr_job_options *options,
                                const Millrace__V1__JobAnswer *answer, struct base_error *error)
{
    struct client_core_options core = {
        .shape = {.positions = job->stream.items,
                  .world = options->world,
                  .rank = options->rank,
                  .batch = options->batch,
                  .tail = (enum scheduler_tail)options->tail},
        .uses_epoch = job->stream.uses_epoch,
        .block_rows = job->stream.pipeline.block_rows,
        .start = {answer->start->at->epoch, answer->start->at->position},
        .first_epoch = answer->start->first_epoch,
        .epochs = options->epochs,
        .look_ahead = job->look_ahead,
        .on_bad = (enum client_on_bad)options->on_bad,
        .stall_ns = (options->stall_ms > 0 ? options->stall_ms : STALL_MS) * BASE_NS_PER_MS,
        .unavailable_ns =
            (options->unavailable_ms > 0 ? options->unavailable_ms : UNAVAILABLE_MS) * BASE_NS_PER_MS,
    };
    memcpy(core.family, job->stream.family, sizeof core.family);
    if (options->start_epoch) {
        core.start = (struct scheduler_cursor){*options->start_epoch, options->start_position};
        core.first_epoch = *options->start_epoch;
    }
    job->first_epoch = core.first_epoch;
    job->shape = core.shape;
    return client_core_create(&job->core, &core, error);
}

void client_job_ledger_start(const struct mr_job *job, bool resumed, uint64_t generation,
                             struct ledger_start *start)
{
    struct scheduler_cursor at = client_core_cursor(job->core);
    *start = (struct ledger_start){.rank = job->rank,
                                   .world = job->shape.world,
                                   .batch = job->shape.batch,
                                   .tail = (uint8_t)job->shape.tail,
                                   .resumed = resumed,
                                   .uses_epoch = job->stream.uses_epoch,
                                   .generation = generation,
                                   .items = job->stream.items,
                                   .first_epoch = job->first_epoch,
                                   .epoch = at.epoch,
                                   .position = at.position};
    snprintf(start->job, sizeof start->job, "%s", job->name);
    memcpy(start->dataset_version, job->stream.dataset_version, sizeof start->dataset_version);
    memcpy(start->stream, job->stream.hash, sizeof start->stream);
    memcpy(start->fingerprint, job->stream.fingerprint, sizeof start->fingerprint);
}

static enum base_code open_ledger(struct mr_job *job, const struct mr_job_options *options,
                                  struct base_error *error)
{
    struct ledger_start start;
    if (!options->ledger)
        return BASE_OK;
    client_job_ledger_start(job, options->resume && !options->start_epoch, job->generation, &start);
    return client_ledger_open(&job->ledger, options->ledger, &start, error);
}

static enum base_code set_up(struct mr_job *job, const struct mr_job_options *options,
                             const Millrace__V1__JobAnswer *answer, struct base_error *error)
{
    struct client_slots_options slots = {
        .job = options, .pipeline = &job->pipeline, .finish = &job->finish, .count = job->look_ahead + 1};
    enum base_code code = take_stream(job, answer, error);
    client_items_init(&job->items, &job->stream);
    if (code == BASE_OK)
        code = take_words(job, answer, error);
    if (code == BASE_OK)
        code = client_draw_finish(&job->finish, &job->pipeline, job->class_count, job->stream.seed, error);
    if (code == BASE_OK)
        code = client_slots_init(&job->slots, &slots, error);
    if (code == BASE_OK)
        code = make_core(job, options, answer, error);
    if (code == BASE_OK)
        code = open_ledger(job, options, error);
    if (code != BASE_OK)
        return code;
    struct attach attached = {.job = job, .answer = answer};
    client_loop_call(job->client->loop, attach, &attached);
    if (attached.code != BASE_OK && error)
        *error = attached.error;
    return attached.code;
}

static void leave_server(struct mr_job *job)
{
    client_loop_call(job->client->loop, detach, job);
    client_control_close(job);
}

enum mr_code mr_job_open(struct mr_job **out, struct mr_client *client, const struct mr_job_options *given,
                         int64_t timeout_ms, struct mr_error *error)
{
    int64_t deadline_ns = base_clock_deadline_ns(timeout_ms);
    Millrace__V1__JobAnswer *answer = NULL;
    struct base_error why = {0};
    struct mr_job *job = NULL;
    if (!client || !client_usable(client))
        return client_error_set(error, BASE_CLOSED,
                                "client: closed, or opened by the parent of this process");
    struct mr_job_options options = {0};
    enum mr_code bad = take_options(given, &options, error);
    if (bad == MR_OK)
        bad = check_options(&options, error);
    if (bad != MR_OK)
        return bad;
    enum base_code code = job_create(&job, client, &options, &why);
    if (code != BASE_OK)
        return client_error_pass(error, code, &why);
    atomic_fetch_add(&client->jobs, 1);
    job->look_ahead = options.look_ahead;
    code = client_control_open(job, &options, deadline_ns, &answer, &why);
    if (code == BASE_OK) {
        code = set_up(job, &options, answer, &why);
        millrace__v1__job_answer__free_unpacked(answer, NULL);
        if (code != BASE_OK)
            leave_server(job);
    }
    if (code != BASE_OK) {
        job_destroy(job);
        atomic_fetch_sub(&client->jobs, 1);
        return client_error_pass(error, code, &why);
    }
    *out = job;
    return MR_OK;
}

void mr_job_close(struct mr_job **pointer)
{
    struct mr_job *job = pointer ? *pointer : NULL;
    if (!job)
        return;
    *pointer = NULL;
    struct mr_client *client = job->client;
    if (!client_usable(client))
        return;
    pthread_mutex_lock(&job->mutex);
    job->closing = true;
    pthread_cond_broadcast(&job->changed);
    while (job->users > 0) /* they leave at once */
        pthread_cond_wait(&job->changed, &job->mutex);
    pthread_mutex_unlock(&job->mutex);
    while (atomic_load(&job->posting) > 0) /* so do they */
        sched_yield();
    leave_server(job);
    job_destroy(job);
    atomic_fetch_sub(&client->jobs, 1);
}
