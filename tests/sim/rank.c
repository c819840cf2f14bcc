/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/check.h"

#include <string.h>

#define OPEN_NS (3 * SIM_S) /* as client/src/control.c */
#define OPEN_PAUSE_NS (100 * SIM_MS)
#define SYNC_NS SIM_S
#define SYNC_GRACE_NS (2 * SIM_S)
#define SYNC_PAUSE_NS (50 * SIM_MS)
#define SYNC_AGAIN_NS (500 * SIM_MS)
#define UNAVAILABLE_NS (10 * SIM_S)
#define STALL_NS SIM_S
#define OWN_NUMBER (UINT64_C(1) << 63)

static int64_t now_of(const struct sim_rank *rank)
{
    return sim_process_now_ns(&rank->process);
}

/* ---- opening and syncing ---- */

static void send_open(struct sim_rank *rank)
{
    struct sim_launch *launch = rank->launch;
    struct sim_job *job = rank->job;
    const struct scheduler_stream *stream = &job->candidate->asked;
    struct sim_call *call = sim_server_call(&rank->process, SIM_JOB_OPEN);
    call->rank = rank;
    call->open = (struct scheduler_job_request){.job = job->name,
                                                .rank = rank->rank,
                                                .world = launch->shape.world,
                                                .batch = launch->shape.batch,
                                                .tail = launch->shape.tail,
                                                .dataset = "mini",
                                                .items = stream->items,
                                                .shuffle = stream->shuffle,
                                                .has_seed = job->candidate->seeded,
                                                .seed = stream->seed,
                                                .sample_text = stream->sample_text,
                                                .pipeline_text = job->candidate->preset_text,
                                                .join = job->join,
                                                .weight = job->weight,
                                                .generation = rank->generation};
    memcpy(call->open.dataset_version, stream->dataset_version, BASE_SHA256_BYTES);
    if (launch->resumes || rank->core)
        call->open.resume = &call->resume;
    call->resume = launch->resume;
    if (rank->core) { /* the server has forgotten us: we go on where we are */
        call->resume.at = client_core_cursor(rank->core);
        call->resume.first_epoch = rank->first_epoch;
        memcpy(call->resume.dataset_version, stream->dataset_version, BASE_SHA256_BYTES);
        memcpy(call->resume.fingerprint, rank->stream->identity.fingerprint, sizeof call->resume.fingerprint);
        memcpy(call->resume.stream, rank->stream->identity.hash, BASE_SHA256_BYTES);
    }
    rank->sync = call;
    sim_server_send(call, OPEN_NS);
}

static struct scheduler_job_report report_of(const struct sim_rank *rank)
{
    return (struct scheduler_job_report){.job = rank->job->name,
                                         .rank = rank->rank,
                                         .generation = rank->generation,
                                         .has_cursor = true,
                                         .at = client_core_cursor(rank->core),
                                         .seeks = rank->seeks,
                                         .first_epoch = rank->first_epoch};
}

static void send_sync(struct sim_rank *rank, int64_t wait_ns)
{
    struct sim_call *call = sim_server_call(&rank->process, SIM_JOB_SYNC);
    call->rank = rank;
    call->seen_revision = rank->revision;
    call->wait_ns = wait_ns;
    call->job = report_of(rank);
    rank->sync = call;
    sim_server_send(call, SYNC_GRACE_NS);
}

static void on_time(void *who, uint64_t what)
{
    struct sim_rank *rank = who;
    (void)what;
    if (rank->dead || rank->done || rank->sync)
        return;
    if (rank->core)
        send_sync(rank, SYNC_NS);
    else
        send_open(rank);
}

static void later(struct sim_rank *rank, int64_t after_ns)
{
    sim_process_at(&rank->process, rank->world->now_ns + after_ns, on_time, rank, 0);
}

static void take_plan(struct sim_rank *rank, const struct sim_answer *answer)
{
    rank->revision = answer->revision;
    if (answer->plan && (!rank->plan || answer->plan->plan.version > rank->plan->plan.version))
        rank->plan = answer->plan;
    if (answer->plan)
        client_core_plan(rank->core, now_of(rank), &answer->plan->plan, answer->plan->ids,
                         answer->plan->id_count, NULL);
}

static void start_core(struct sim_rank *rank, const struct sim_answer *answer)
{
    struct sim_world *world = rank->world;
    struct sim_launch *launch = rank->launch;
    const struct scheduler_stream *stream = &answer->stream->identity;
    struct client_core_options options = {.shape = {.positions = stream->items,
                                                    .world = launch->shape.world,
                                                    .rank = rank->rank,
                                                    .batch = launch->shape.batch,
                                                    .tail = launch->shape.tail},
                                          .uses_epoch = stream->uses_epoch,
                                          .block_rows = stream->pipeline.block_rows,
                                          .start = answer->start,
                                          .first_epoch = answer->first_epoch,
                                          .epochs = rank->job->epochs,
                                          .look_ahead = rank->job->look_ahead,
                                          .on_bad = rank->job->on_bad,
                                          .stall_ns = STALL_NS,
                                          .unavailable_ns = UNAVAILABLE_NS};
    struct base_error error;
    memcpy(options.family, stream->family, sizeof options.family);
    if (client_core_create(&rank->core, &options, &error) != BASE_OK) {
        sim_fail(world, "start", "%s/%u: %s", rank->job->name, rank->rank, error.text);
        return;
    }
    rank->stream = answer->stream;
    rank->to = sim_memory_get(&world->memory, (size_t)world->worker_count * sizeof(struct sim_link *));
    size_t items = (size_t)rank->job->epochs * stream->items;
    rank->received = sim_memory_get(&world->memory, items);
    rank->payload =
        sim_memory_get(&world->memory, (rank->job->look_ahead + 1) * (size_t)launch->shape.batch * 8);
    rank->first_epoch = answer->first_epoch;
    rank->at = rank->low = answer->start;
    sim_trace(world, "%s/%u of launch %u begins at epoch %u, position %llu", rank->job->name, rank->rank,
              launch->number, answer->start.epoch, (unsigned long long)answer->start.position);
    sim_job_started(rank);
}

static void on_opened(struct sim_rank *rank, const struct sim_call *call)
{
    if (call->code != BASE_OK && base_error_class(call->code) != BASE_CLASS_RETRYABLE) {
        sim_trace(rank->world, "%s/%u may not open", rank->job->name, rank->rank);
        sim_job_failed(rank);
        return;
    }
    if (call->code != BASE_OK || !call->answer.running) {
        later(rank, OPEN_PAUSE_NS);
        return;
    }
    start_core(rank, &call->answer);
    if (!rank->core)
        return;
    take_plan(rank, &call->answer);
    rank->wanting = true;
    send_sync(rank, SYNC_NS);
    sim_rank_try(rank);
    sim_rank_drive(rank);
}

void sim_rank_answer(struct sim_rank *rank, struct sim_call *call)
{
    if (rank->sync != call)
        return;
    rank->sync = NULL;
    if (rank->dead || rank->done)
        return;
    if (!rank->core) {
        on_opened(rank, call);
        return;
    }
    /* A long poll may be answered with what a later start of the job was given: client/src/control.c ends, too. */
    bool another = call->code == BASE_OK && call->answer.stream && call->answer.stream != rank->stream;
    if (call->code == BASE_OK && !another) {
        take_plan(rank, &call->answer);
        sim_rank_drive(rank);
    } else if (call->code == BASE_CONFLICT || another) {
        sim_trace(rank->world, "%s/%u is told that it is over", rank->job->name, rank->rank);
        sim_job_fenced(rank);
        return;
    } else if (call->code == BASE_NOT_FOUND) {
        send_open(rank);
        return;
    }
    if (!rank->sync)
        later(rank, call->code == BASE_OK ? SYNC_PAUSE_NS : SYNC_AGAIN_NS);
}

void sim_rank_received(struct sim_rank *rank, const struct sim_frame *header)
{
    uint32_t k = rank->stream->identity.pipeline.block_rows;
    if (!rank->stream->identity.uses_epoch)
        return;
    size_t epoch = header->epoch - rank->first_epoch;
    for (uint32_t row = header->from; row < header->to; row++)
        rank->received[epoch * rank->launch->shape.items + header->block * k + row] = 1;
}

/* ---- actions ---- */

static void count_insisted(struct sim_tally *tally, const struct client_action *action)
{
    tally->hedged += action->hedge;
    tally->insisted_death += action->death;
    tally->insisted += action->insist && !action->death && !action->hedge;
}

static void ask(struct sim_rank *rank, struct sim_link *link, const struct client_action *action)
{
    struct sim_frame *frame = sim_link_frame(rank->world, SIM_GET);
    link->asked++;
    sim_trace(rank->world, "%s/%u asks worker %u for block %llu [%u, %u) of epoch %u%s%s%s", rank->job->name,
              rank->rank, (unsigned)action->worker, (unsigned long long)action->block, action->from,
              action->to, action->epoch, action->insist ? ", insists" : "", action->death ? ", death" : "",
              action->hedge ? ", hedge" : "");
    rank->world->tally.requests++;
    count_insisted(&rank->world->tally, action);
    sim_check_in_flight(rank, link, action);
    rank->requests++;
    rank->hedges += action->hedge;
    sim_check_insist(rank, action);
    sim_check_hedge(rank);
    sim_check_mark(rank, action->mark);
    frame->request = action->request;
    frame->handle = link->handle;
    frame->plan = action->plan;
    frame->epoch = action->epoch;
    frame->block = action->block;
    frame->from = action->from;
    frame->to = action->to;
    frame->insist = action->insist;
    frame->death = action->death;
    frame->hedge = action->hedge;
    frame->time_ms = action->slack_ms;
    frame->mark = action->mark;
    sim_link_send_up(link, frame);
}

static void send(struct sim_rank *rank, const struct client_action *action)
{
    struct sim_link *link = rank->to[action->worker - 1];
    struct sim_frame *frame;
    switch (action->kind) {
    case CLIENT_ACTION_GET:
        ask(rank, link, action);
        return;
    case CLIENT_ACTION_OPEN:
        frame = sim_link_frame(rank->world, SIM_OPEN);
        frame->request = link->open_number = OWN_NUMBER | ++rank->serial;
        link->handle++;
        break;
    case CLIENT_ACTION_MARK:
        frame = sim_link_frame(rank->world, SIM_MARK);
        sim_check_mark(rank, action->mark);
        frame->mark = action->mark;
        break;
    default:
        frame = sim_link_frame(rank->world, SIM_CANCEL);
        frame->request = action->request;
        sim_link_cancelled(link, action->request);
    }
    frame->handle = link->handle;
    sim_link_send_up(link, frame);
}

static void carry_out(struct sim_rank *rank, const struct client_action *action)
{
    struct sim_world *world = rank->world;
    sim_check_connection(rank, action);
    if (world->failed)
        return;
    switch (action->kind) {
    case CLIENT_ACTION_CONNECT:
        sim_link_dial(rank, &world->workers[action->worker - 1]);
        break;
    case CLIENT_ACTION_CLOSE:
        rank->broken++;
        if (rank->to[action->worker - 1])
            sim_link_close(rank->to[action->worker - 1]);
        break;
    case CLIENT_ACTION_READY:
    case CLIENT_ACTION_ERROR:
        sim_rank_try(rank);
        break;
    case CLIENT_ACTION_FETCH_PLAN:
        send_sync(rank, 0); /* the long poll under way goes on without us */
        break;
    default:
        send(rank, action);
    }
}

static void on_wake(void *who, uint64_t what)
{
    struct sim_rank *rank = who;
    (void)what;
    if (!rank->core || rank->world->now_ns < rank->wake_ns)
        return;
    rank->wake_ns = INT64_MAX;
    sim_rank_drive(rank);
}

void sim_rank_wake(struct sim_rank *rank)
{
    rank->wake_ns = rank->world->now_ns;
    sim_process_at(&rank->process, rank->wake_ns, on_wake, rank, 0);
}

void sim_rank_drive(struct sim_rank *rank)
{
    struct sim_world *world = rank->world;
    struct client_action action;
    if (!rank->core)
        return;
    for (int i = 0; !world->failed && client_core_act(rank->core, now_of(rank), &action); i++) {
        carry_out(rank, &action);
        if (i > 100000)
            sim_fail(world, "actions", "%s/%u acts without an end", rank->job->name, rank->rank);
    }
    int64_t wake_ns = client_core_wake_ns(rank->core);
    if (wake_ns == INT64_MAX)
        return;
    wake_ns = sim_process_when_ns(&rank->process, wake_ns);
    if (rank->wake_ns <= wake_ns && rank->wake_ns > world->now_ns)
        return;
    rank->wake_ns = wake_ns > world->now_ns ? wake_ns : world->now_ns + 1000;
    sim_process_at(&rank->process, rank->wake_ns, on_wake, rank, 0);
}

/* ---- the trainer ---- */

static void on_try(void *who, uint64_t what);

void sim_rank_try(struct sim_rank *rank)
{
    if (rank->trying || !rank->wanting)
        return;
    rank->trying = true;
    sim_process_at(&rank->process, rank->world->now_ns, on_try, rank, 0);
}

static void release_oldest(struct sim_rank *rank)
{
    client_core_release(rank->core, now_of(rank), rank->held[0]);
    rank->held_count--;
    memmove(rank->held, rank->held + 1, rank->held_count * sizeof rank->held[0]);
}

static void on_paced(void *who, uint64_t what)
{
    struct sim_rank *rank = who;
    (void)what;
    if (!rank->core)
        return;
    while (rank->held_count >= rank->job->hold_most)
        release_oldest(rank);
    rank->wanting = true;
    sim_rank_drive(rank);
    sim_rank_try(rank);
}

static void took(struct sim_rank *rank, const struct client_step *step)
{
    struct sim_world *world = rank->world;
    rank->held[rank->held_count++] = step->slot;
    rank->wanting = false;
    sim_job_took(rank, step);
    int64_t pace_ns = rank->job->pace_ns;
    sim_process_at(&rank->process,
                   world->now_ns + sim_random_between(&rank->process.random, pace_ns / 2, pace_ns * 3 / 2),
                   on_paced, rank, 0);
}

static void refused(struct sim_rank *rank, enum base_code code, const struct base_error *error)
{
    if (code == BASE_TIMEOUT)
        return;
    sim_check_told(rank, code, error);
    if (code == BASE_UNAVAILABLE) {
        sim_process_at(&rank->process, rank->world->now_ns + 100 * SIM_MS, on_try, rank, 0);
        rank->trying = true;
        return;
    }
    sim_trace(rank->world, "%s/%u: %s", rank->job->name, rank->rank, error->text);
    rank->job->spoilt = rank->launch == rank->job->launch && !rank->launch->over;
    sim_job_failed(rank);
}

static void on_try(void *who, uint64_t what)
{
    struct sim_rank *rank = who;
    struct client_step step;
    struct base_error error = {0};
    (void)what;
    rank->trying = false;
    if (!rank->core || !rank->wanting || (rank->job->lockstep && rank->taken > rank->launch->whole))
        return;
    enum base_code code = client_core_take(rank->core, now_of(rank), &step, &error);
    if (code == BASE_OK) {
        took(rank, &step);
    } else if (code == BASE_CLOSED) {
        sim_job_ended(rank);
        return;
    } else {
        refused(rank, code, &error);
    }
    sim_rank_drive(rank);
}

/* What was fetched ahead from there on stays; else nothing is here any more. Plans may be fetched just before and after: then
 * what the server is told of it comes in any order. */
void sim_rank_seek(struct sim_rank *rank, struct scheduler_cursor to)
{
    struct base_error error = {0};
    bool stays = to.epoch == rank->at.epoch && to.position == rank->at.position;
    bool fetches = sim_random_chance(&rank->process.random, 500);
    if (fetches)
        send_sync(rank, 0);
    if (client_core_seek(rank->core, now_of(rank), rank->first_epoch, to, &error) != BASE_OK)
        sim_fail(rank->world, "seek", "%s/%u cannot seek: %s", rank->job->name, rank->rank, error.text);
    rank->seeks++;
    if (!stays)
        memset(rank->received, 0, (size_t)rank->job->epochs * rank->stream->identity.items);
    rank->low = stays ? rank->low : to;
    rank->at = to;
    if (fetches)
        send_sync(rank, 0);
    sim_rank_drive(rank);
    sim_rank_try(rank);
}

/* ---- life ---- */

void sim_rank_begin(struct sim_rank *rank)
{
    rank->generation = (uint64_t)sim_process_wall_ns(&rank->process);
    rank->wake_ns = INT64_MAX;
    send_open(rank);
}

static void close_links(struct sim_rank *rank)
{
    for (int i = 0; rank->to && i < rank->world->worker_count; i++)
        if (rank->to[i])
            sim_link_close(rank->to[i]);
    client_core_destroy(rank->core);
    rank->core = NULL;
    rank->sync = NULL;
}

void sim_rank_kill(struct sim_rank *rank)
{
    if (rank->dead || rank->done)
        return;
    rank->dead = true;
    close_links(rank);
}

void sim_rank_finish(struct sim_rank *rank)
{
    struct sim_call *call = sim_server_call(&rank->process, SIM_JOB_CLOSE);
    call->rank = rank;
    call->job = report_of(rank);
    sim_server_send(call, 250 * SIM_MS);
    rank->done = true;
    close_links(rank);
}
