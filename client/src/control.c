/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/control.h"

#include "base/clock.h"
#include "base/log.h"

#include <event2/event.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OPEN_TRY_MS 3000   /* one call of Open */
#define OPEN_PAUSE_MS 100  /* between two of them */
#define SYNC_WAIT_MS 1000  /* a long poll; shorter when the lease is */
#define SYNC_GRACE_MS 2000 /* beyond that no answer comes */
#define SYNC_PAUSE_MS 50   /* a server that answers at once each time */
#define SYNC_AGAIN_MS 500  /* after a failure */
#define CLOSE_MS 250

#define JOBS (&millrace__v1__jobs__descriptor)

/* A call under way may outlive its job: it cannot be called back. */
struct client_call {
    struct mr_job *job; /* NULL: closed meanwhile */
    bool opens;         /* it opens again what the server forgot */
};

static ProtobufCBinaryData bytes_of(const uint8_t *bytes, size_t size)
{
    union {
        const uint8_t *in;
        uint8_t *out; /* protobuf-c has no const; packing only reads */
    } both = {.in = bytes};
    return (ProtobufCBinaryData){.len = size, .data = both.out};
}

static char *text_of(const char *text)
{
    union {
        const char *in;
        char *out;
    } both = {.in = text ? text : ""};
    return both.out;
}

/* ---- plan ---- */

static void set_endpoint(struct client_endpoint *endpoint, const Millrace__V1__Endpoint *from)
{
    *endpoint = (struct client_endpoint){.worker = from->worker};
    for (size_t i = 0; i < from->n_addresses && endpoint->count < CLIENT_ADDRESSES; i++)
        if (strlen(from->addresses[i]) < BASE_ADDRESS_CHARS)
            snprintf(endpoint->addresses[endpoint->count++], BASE_ADDRESS_CHARS, "%s", from->addresses[i]);
}

static bool set_endpoints(struct mr_job *job, const Millrace__V1__Plan *plan)
{
    struct client_endpoint *endpoints = calloc(plan->n_workers + 1, sizeof *endpoints);
    if (!endpoints)
        return false;
    for (size_t i = 0; i < plan->n_workers; i++)
        set_endpoint(&endpoints[i], plan->workers[i]);
    free(job->endpoints);
    job->endpoints = endpoints;
    job->endpoint_count = (int)plan->n_workers;
    return true;
}

static bool set_slots(const Millrace__V1__Plan *plan, const ProtobufCBinaryData *indices, uint64_t *workers)
{
    if (indices->len != 2 * SCHEDULER_PLAN_SLOTS)
        return false;
    for (int slot = 0; slot < SCHEDULER_PLAN_SLOTS; slot++) {
        size_t index = base_get_u16(indices->data + 2 * slot);
        if (index != UINT16_MAX && index >= plan->n_workers)
            return false;
        workers[slot] = index == UINT16_MAX ? SCHEDULER_PLAN_NOBODY : plan->workers[index]->worker;
    }
    return true;
}

void client_control_plan(struct mr_job *job, const Millrace__V1__Plan *plan)
{
    struct scheduler_plan next;
    uint64_t ids[SCHEDULER_PLAN_WORKERS];
    if (!plan || plan->n_workers > SCHEDULER_PLAN_WORKERS)
        return;
    next.version = plan->version;
    if (!set_slots(plan, &plan->primary, next.primary) ||
        !set_slots(plan, &plan->secondary, next.secondary)) {
        base_log(BASE_LOG_WARN, "plan_malformed", "job=%s plan=%u", job->name, plan->version);
        return;
    }
    for (size_t i = 0; i < plan->n_workers; i++)
        ids[i] = plan->workers[i]->worker;
    if (!set_endpoints(job, plan)) /* addresses may change without a new version */
        return;
    client_core_plan(job->core, base_clock_now_ns(), &next, ids, (int)plan->n_workers, NULL);
}

/* ---- opening ---- */

static const char *const tails[] = {"drop", "pad", "exact"};
static const char *const joins[] = {"now", "next", "partial"};
static const char *const policies[] = {"error", "skip", "replace"};
static const char *const samplers[] = {"", "shuffle", "sequential"};

static enum base_code pack_open(struct mr_job *job, const struct mr_job_options *options,
                                struct base_error *error)
{
    Millrace__V1__JobOpen open = MILLRACE__V1__JOB_OPEN__INIT;
    Millrace__V1__JobCursor resume = MILLRACE__V1__JOB_CURSOR__INIT;
    Millrace__V1__Cursor at = MILLRACE__V1__CURSOR__INIT;
    char *texts[64];
    open.job = job->name;
    open.rank = options->rank;
    open.world = options->world;
    open.batch = options->batch;
    open.tail = text_of(tails[options->tail]);
    open.dataset = text_of(options->dataset);
    open.pipeline = text_of(options->pipeline);
    for (; options->options && options->options[open.n_options]; open.n_options++) {
        if (open.n_options == sizeof texts / sizeof texts[0])
            return base_error_set(error, BASE_TOO_LARGE, "job: more than %zu pipeline options",
                                  open.n_options);
        texts[open.n_options] = text_of(options->options[open.n_options]);
    }
    open.options = texts;
    if (options->seed) {
        open.seed_case_case = MILLRACE__V1__JOB_OPEN__SEED_CASE_SEED;
        open.seed = *options->seed;
    }
    open.sampler = text_of(samplers[options->sampler]);
    open.join = text_of(joins[options->join]);
    open.accept_new_bits = options->accept_new_bits != 0;
    open.on_bad = text_of(policies[options->on_bad]);
    open.generation = job->generation;
    open.epochs = options->epochs;
    open.weight = options->weight;
    if (options->resume && !options->start_epoch) {
        at.epoch = options->resume->epoch;
        at.position = options->resume->position;
        resume.at = &at;
        resume.dataset_version = bytes_of(options->resume->dataset_version, 32);
        resume.fingerprint = bytes_of(options->resume->fingerprint, 16);
        resume.stream = bytes_of(options->resume->stream, 32);
        resume.first_epoch = options->resume->first_epoch;
        open.resume = &resume;
    }
    job->open_size = millrace__v1__job_open__get_packed_size(&open);
    job->open_bytes = malloc(job->open_size + 1);
    if (!job->open_bytes)
        return base_error_set(error, BASE_NO_MEMORY, "no memory for a job");
    millrace__v1__job_open__pack(&open, job->open_bytes);
    return BASE_OK;
}

static enum base_code ask_open(struct mr_job *job, int64_t timeout_ms, Millrace__V1__JobAnswer **answer,
                               struct base_error *error)
{
    ProtobufCMessage *reply = NULL;
    Millrace__V1__JobOpen *open = millrace__v1__job_open__unpack(NULL, job->open_size, job->open_bytes);
    if (!open)
        return base_error_set(error, BASE_NO_MEMORY, "no memory for a job");
    enum base_code code = rpc_call_wait(
        job->client->channel, &(struct rpc_request){JOBS, "Open", &open->base, timeout_ms}, &reply, error);
    millrace__v1__job_open__free_unpacked(open, NULL);
    *answer = (Millrace__V1__JobAnswer *)(void *)reply;
    return code;
}

static void pause_ms(int64_t ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * BASE_NS_PER_MS};
    nanosleep(&time, NULL);
}

/* Until the answer says running, or the deadline. *known: the server may know of the job. */
static enum base_code keep_asking(struct mr_job *job, int64_t deadline_ns, Millrace__V1__JobAnswer **answer,
                                  bool *known, struct base_error *error)
{
    char reason[300] = "";
    for (;;) {
        int64_t left_ms = (deadline_ns - base_clock_now_ns()) / BASE_NS_PER_MS;
        int64_t try_ms = left_ms < 1 ? 1 : left_ms < OPEN_TRY_MS ? left_ms : OPEN_TRY_MS;
        *answer = NULL;
        enum base_code code = ask_open(job, try_ms, answer, error);
        *known = *known || code == BASE_OK || code == BASE_TIMEOUT;
        if (code != BASE_OK && base_error_class(code) != BASE_CLASS_RETRYABLE)
            return code;
        if (code == BASE_OK && strcmp((*answer)->state, "running") == 0)
            return BASE_OK;
        /* A last try that had no time would hide what the job waits for. */
        bool cut = code == BASE_TIMEOUT && try_ms < OPEN_TRY_MS && reason[0];
        if (code == BASE_OK)
            snprintf(reason, sizeof reason, "%.20s: %.250s", (*answer)->state, (*answer)->reason);
        else if (!cut)
            snprintf(reason, sizeof reason, "server %.100s: %.150s", job->client->server, error->text);
        if (*answer)
            millrace__v1__job_answer__free_unpacked(*answer, NULL);
        *answer = NULL;
        if (base_clock_now_ns() + OPEN_PAUSE_MS * BASE_NS_PER_MS >= deadline_ns)
            return base_error_set(error, BASE_TIMEOUT, "job %s on dataset %s: %s", job->name, job->dataset,
                                  reason);
        pause_ms(OPEN_PAUSE_MS);
    }
}

enum base_code client_control_open(struct mr_job *job, const struct mr_job_options *options,
                                   int64_t deadline_ns, Millrace__V1__JobAnswer **answer,
                                   struct base_error *error)
{
    bool known = false;
    enum base_code code = pack_open(job, options, error);
    if (code == BASE_OK)
        code = keep_asking(job, deadline_ns, answer, &known, error);
    if (code != BASE_OK && known) /* nobody will sync it: else it stays until its lease is over */
        client_control_close(job);
    return code;
}

/* ---- staying in sync ---- */

static void sync_later(struct mr_job *job, int64_t after_ms)
{
    struct timeval after = {after_ms / 1000, after_ms % 1000 * 1000};
    event_add(job->sync_timer, &after);
}

/* Every answer about the job, whatever it was asked by. */
static void take_answer(struct mr_job *job, const Millrace__V1__JobAnswer *answer)
{
    if (answer->stream && answer->stream->hash.len == BASE_SHA256_BYTES &&
        memcmp(answer->stream->hash.data, job->stream.hash, BASE_SHA256_BYTES) != 0) {
        base_error_set(&job->over, BASE_CONFLICT, "job %s: the server now gives it another stream: %s",
                       job->name, answer->reason);
        job->news = true;
        return;
    }
    job->revision = answer->revision;
    job->sync_wait_ms =
        answer->lease_ms > 0 && answer->lease_ms / 4 < SYNC_WAIT_MS ? answer->lease_ms / 4 : SYNC_WAIT_MS;
    client_control_plan(job, answer->plan);
}

static void reopen(struct mr_job *job);

/* `call` has ended; the job is locked and still there. */
static void take_result(struct mr_job *job, bool opened, enum base_code code, const char *text,
                        const ProtobufCMessage *reply)
{
    if (code == BASE_OK) {
        take_answer(job, (const Millrace__V1__JobAnswer *)(const void *)reply);
        client_job_drive(job);
        return;
    }
    base_log(BASE_LOG_DEBUG, "sync_failed", "job=%s rank=%u code=%s", job->name, job->rank,
             base_error_name(code));
    if (code == BASE_CONFLICT) { /* a later start of this rank, or refused: not for us any more */
        base_error_set(&job->over, code, "%s", text);
        job->news = true;
    }
    if (code == BASE_NOT_FOUND && !opened) /* nor the dataset, if that was an Open: then after a while */
        reopen(job);
}

static void on_synced(void *context, enum base_code code, const char *text, const ProtobufCMessage *reply)
{
    struct client_call *call = context;
    struct mr_job *job = call->job;
    bool opened = call->opens;
    free(call);
    if (!job)
        return;
    pthread_mutex_lock(&job->mutex);
    job->sync = NULL;
    take_result(job, opened, code, text, reply);
    if (job->over.code == BASE_OK && !job->sync)
        sync_later(job, code == BASE_OK ? SYNC_PAUSE_MS : SYNC_AGAIN_MS);
    client_job_unlock(job);
}

static struct client_call *new_call(struct mr_job *job)
{
    struct client_call *call = calloc(1, sizeof *call);
    if (!call) {
        sync_later(job, SYNC_AGAIN_MS);
        return NULL;
    }
    call->job = job;
    job->sync = call;
    return call;
}

static void start_call(struct mr_job *job, struct client_call *call, const char *method,
                       const ProtobufCMessage *message, int64_t timeout_ms)
{
    if (rpc_call_start(job->client->channel, &(struct rpc_request){JOBS, method, message, timeout_ms},
                       on_synced, call))
        return;
    job->sync = NULL;
    free(call);
    sync_later(job, SYNC_AGAIN_MS);
}

/* What a message refers to: to live as long as it. */
struct sync_parts {
    Millrace__V1__Cursor at;
    Millrace__V1__EpochCount counts[CLIENT_CERTIFICATES], *list[CLIENT_CERTIFICATES];
};

static void fill_counts(const struct client_certificates *from, Millrace__V1__JobSync *sync,
                        struct sync_parts *parts)
{
    sync->epochs = parts->list;
    for (; sync->n_epochs < (size_t)from->finished_count; sync->n_epochs++) {
        const struct client_certificate *epoch = &from->finished[sync->n_epochs];
        Millrace__V1__EpochCount *to = parts->list[sync->n_epochs] = &parts->counts[sync->n_epochs];
        millrace__v1__epoch_count__init(to);
        to->epoch = epoch->epoch;
        to->stream_epoch = epoch->stream_epoch;
        to->positions = epoch->positions;
        to->hash = epoch->hash;
        to->whole = epoch->whole;
    }
}

/* Where the job is and what it was handed. */
static void fill_sync(struct mr_job *job, Millrace__V1__JobSync *sync, struct sync_parts *parts)
{
    Millrace__V1__Cursor *at = &parts->at;
    millrace__v1__cursor__init(at);
    fill_counts(&job->certificates, sync, parts);
    struct client_core_stats stats = client_core_stats(job->core);
    struct scheduler_cursor cursor = client_core_cursor(job->core);
    at->epoch = cursor.epoch;
    at->position = cursor.position;
    sync->job = job->name;
    sync->rank = job->rank;
    sync->generation = job->generation;
    sync->seen_revision = job->revision;
    sync->at = at;
    sync->rows = stats.rows;
    sync->stall_us = job->stall_ns / 1000;
    sync->ready_steps = stats.ready;
    sync->substituted = stats.substituted;
    sync->skipped = stats.skipped;
    sync->seeks = job->seeks;
    sync->first_epoch = job->first_epoch;
}

static void call_sync(struct mr_job *job, uint32_t wait_ms)
{
    Millrace__V1__JobSync sync = MILLRACE__V1__JOB_SYNC__INIT;
    struct sync_parts parts;
    struct client_call *call = new_call(job);
    if (!call)
        return;
    fill_sync(job, &sync, &parts);
    sync.wait_ms = wait_ms;
    start_call(job, call, "Sync", &sync.base, wait_ms + SYNC_GRACE_MS);
}

static void on_sync_timer(evutil_socket_t fd, short what, void *context)
{
    struct mr_job *job = context;
    (void)fd;
    (void)what;
    pthread_mutex_lock(&job->mutex);
    if (!job->sync)
        call_sync(job, job->sync_wait_ms);
    client_job_unlock(job);
}

/* The server does not know the job: it lost its state, or forgot us while we were cut off. We go on where we are. */
static void reopen(struct mr_job *job)
{
    Millrace__V1__JobOpen *open = millrace__v1__job_open__unpack(NULL, job->open_size, job->open_bytes);
    struct client_call *call = open ? new_call(job) : NULL;
    Millrace__V1__JobCursor resume = MILLRACE__V1__JOB_CURSOR__INIT, *before;
    Millrace__V1__Cursor at = MILLRACE__V1__CURSOR__INIT;
    if (!call) {
        if (open)
            millrace__v1__job_open__free_unpacked(open, NULL);
        return;
    }
    call->opens = true;
    struct scheduler_cursor cursor = client_core_cursor(job->core);
    at.epoch = cursor.epoch;
    at.position = cursor.position;
    resume.at = &at;
    resume.dataset_version = bytes_of(job->stream.dataset_version, 32);
    resume.fingerprint = bytes_of(job->stream.fingerprint, 16);
    resume.stream = bytes_of(job->stream.hash, 32);
    resume.first_epoch = job->first_epoch;
    before = open->resume;
    open->resume = &resume;
    start_call(job, call, "Open", &open->base, OPEN_TRY_MS);
    open->resume = before;
    millrace__v1__job_open__free_unpacked(open, NULL);
}

enum base_code client_control_start(struct mr_job *job, struct base_error *error)
{
    job->sync_timer = evtimer_new(client_loop_base(job->client->loop), on_sync_timer, job);
    if (!job->sync_timer)
        return base_error_set(error, BASE_NO_MEMORY, "no memory for a job");
    job->sync_wait_ms = job->sync_wait_ms > 0 ? job->sync_wait_ms : SYNC_WAIT_MS;
    call_sync(job, job->sync_wait_ms);
    return BASE_OK;
}

void client_control_stop(struct mr_job *job)
{
    if (job->sync)
        job->sync->job = NULL;
    job->sync = NULL;
    if (job->sync_timer)
        event_free(job->sync_timer);
    job->sync_timer = NULL;
}

/* The long poll under way goes on without us; its answer would tell nothing that the new one does not. */
void client_control_fetch(struct mr_job *job)
{
    if (!job->sync_timer)
        return;
    if (job->sync)
        job->sync->job = NULL;
    job->sync = NULL;
    call_sync(job, 0);
}

void client_control_close(struct mr_job *job)
{
    struct base_error ignored;
    Millrace__V1__JobClose end = MILLRACE__V1__JOB_CLOSE__INIT;
    Millrace__V1__JobSync last = MILLRACE__V1__JOB_SYNC__INIT;
    struct sync_parts parts;
    ProtobufCMessage *reply = NULL;
    end.job = job->name;
    end.rank = job->rank;
    end.generation = job->generation;
    if (job->core) {
        fill_sync(job, &last, &parts);
        end.at = &parts.at;
        end.last = &last;
    }
    if (rpc_call_wait(job->client->channel, &(struct rpc_request){JOBS, "Close", &end.base, CLOSE_MS}, &reply,
                      &ignored) == BASE_OK)
        protobuf_c_message_free_unpacked(reply, NULL);
}
