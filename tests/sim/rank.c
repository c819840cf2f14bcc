/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim.h"

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

/* ---- opening and syncing ---- */

static void send_open(struct sim_rank *rank)
{
    struct sim_launch *launch = rank->launch;
    struct sim_job *job = rank->job;
    const struct scheduler_stream *stream = &job->candidate->stream;
    struct sim_call *call = sim_server_call(rank->world, SIM_JOB_OPEN);
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
                                                .generation = rank->generation};
    memcpy(call->open.dataset_version, stream->dataset_version, BASE_SHA256_BYTES);
    if (launch->resumes || rank->core)
        call->open.resume = &call->resume;
    call->resume = launch->resume;
    if (rank->core) { /* the server has forgotten us: we go on where we are */
        call->resume.at = client_core_cursor(rank->core);
        call->resume.first_epoch = rank->first_epoch;
        memcpy(call->resume.dataset_version, stream->dataset_version, BASE_SHA256_BYTES);
        memcpy(call->resume.fingerprint, stream->fingerprint, sizeof stream->fingerprint);
        memcpy(call->resume.stream, stream->hash, BASE_SHA256_BYTES);
    }
    rank->sync = call;
    sim_server_send(call, OPEN_NS);
}

static void send_sync(struct sim_rank *rank, int64_t wait_ns)
{
    struct sim_call *call = sim_server_call(rank->world, SIM_JOB_SYNC);
    call->rank = rank;
    call->seen_revision = rank->revision;
    call->wait_ns = wait_ns;
    call->job = (struct scheduler_job_report){rank->job->name, rank->rank, rank->generation, true,
                                              client_core_cursor(rank->core)};
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
    sim_at(rank->world, rank->world->now_ns + after_ns, on_time, rank, 0);
}

static void take_plan(struct sim_rank *rank, const struct sim_answer *answer)
{
    rank->revision = answer->revision;
    if (answer->candidate && answer->candidate != rank->candidate)
        sim_fail(rank->world, "%s/%u is given another stream", rank->job->name, rank->rank);
    if (answer->plan)
        client_core_plan(rank->core, rank->world->now_ns, &answer->plan->plan, answer->plan->ids,
                         answer->plan->id_count, NULL);
}

static void start_core(struct sim_rank *rank, const struct sim_answer *answer)
{
    struct sim_world *world = rank->world;
    struct sim_launch *launch = rank->launch;
    const struct scheduler_stream *stream = &rank->candidate->stream;
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
        sim_fail(world, "%s/%u: %s", rank->job->name, rank->rank, error.text);
        return;
    }
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
    if (call->code == BASE_OK) {
        take_plan(rank, &call->answer);
        sim_rank_drive(rank);
    } else if (call->code == BASE_CONFLICT) {
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

/* ---- low-water ---- */

static uint64_t position_of(const struct sim_step *step, uint32_t row)
{
    return step->begin + (step->offset + row) % step->valid;
}

/* The least position of the step at `at` that is not here; UINT64_MAX: all are. */
static uint64_t least_missing(const struct sim_rank *rank, struct scheduler_cursor at)
{
    const struct sim_shape *shape = &rank->launch->shape;
    struct sim_step step = sim_model_step(shape, rank->rank, at.position);
    const uint8_t *received = rank->received + (size_t)(at.epoch - rank->first_epoch) * shape->items;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < step.rows && i < step.valid; i++)
        if (!received[position_of(&step, i)] && position_of(&step, i) < least)
            least = position_of(&step, i);
    return least;
}

static void check_mark(struct sim_rank *rank, struct scheduler_cursor mark)
{
    if (!rank->candidate->stream.uses_epoch)
        return; /* parts do not say of which epoch they are */
    while (rank->low.epoch - rank->first_epoch < rank->job->epochs) {
        uint64_t least = least_missing(rank, rank->low);
        if (least == UINT64_MAX) {
            rank->low = sim_model_next(&rank->launch->shape, rank->low);
            continue;
        }
        if (mark.epoch > rank->low.epoch || (mark.epoch == rank->low.epoch && mark.position > least))
            sim_fail(rank->world, "%s/%u: low-water (%u, %llu), though (%u, %llu) has not been received",
                     rank->job->name, rank->rank, mark.epoch, (unsigned long long)mark.position,
                     rank->low.epoch, (unsigned long long)least);
        return;
    }
}

void sim_rank_received(struct sim_rank *rank, const struct sim_frame *header)
{
    uint32_t k = rank->candidate->stream.pipeline.block_rows;
    if (!rank->candidate->stream.uses_epoch)
        return;
    size_t epoch = header->epoch - rank->first_epoch;
    for (uint32_t row = header->from; row < header->to; row++)
        rank->received[epoch * rank->launch->shape.items + header->block * k + row] = 1;
}

/* ---- actions ---- */

static void ask(struct sim_rank *rank, struct sim_link *link, const struct client_action *action)
{
    struct sim_frame *frame = sim_link_frame(rank->world, SIM_GET);
    uint32_t in_flight, most;
    client_core_load(rank->core, action->worker, &in_flight, &most);
    if (in_flight > most || ++link->asked > link->cap)
        sim_fail(rank->world, "%s/%u has %u requests in flight at worker %u, %u allowed", rank->job->name,
                 rank->rank, link->asked, (unsigned)action->worker, link->cap);
    check_mark(rank, action->mark);
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
    if (!link) {
        sim_fail(rank->world, "%s/%u sends to worker %u without a connection", rank->job->name, rank->rank,
                 (unsigned)action->worker);
        return;
    }
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
        check_mark(rank, action->mark);
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
    if (action->kind < CLIENT_ACTION_READY && (action->worker == 0 || action->worker > SIM_WORKERS)) {
        sim_fail(world, "%s/%u wants worker %llu", rank->job->name, rank->rank,
                 (unsigned long long)action->worker);
        return;
    }
    switch (action->kind) {
    case CLIENT_ACTION_CONNECT:
        if (rank->to[action->worker - 1])
            sim_fail(world, "%s/%u dials worker %u twice", rank->job->name, rank->rank,
                     (unsigned)action->worker);
        else
            sim_link_dial(rank, &world->workers[action->worker - 1]);
        break;
    case CLIENT_ACTION_CLOSE:
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

void sim_rank_drive(struct sim_rank *rank)
{
    struct sim_world *world = rank->world;
    struct client_action action;
    if (!rank->core)
        return;
    for (int i = 0; !world->failed && client_core_act(rank->core, world->now_ns, &action); i++) {
        carry_out(rank, &action);
        if (i > 100000)
            sim_fail(world, "%s/%u acts without an end", rank->job->name, rank->rank);
    }
    int64_t wake_ns = client_core_wake_ns(rank->core);
    if (wake_ns == INT64_MAX || (rank->wake_ns <= wake_ns && rank->wake_ns > world->now_ns))
        return;
    rank->wake_ns = wake_ns > world->now_ns ? wake_ns : world->now_ns + 1000;
    sim_at(world, rank->wake_ns, on_wake, rank, 0);
}

/* ---- the trainer ---- */

static void on_try(void *who, uint64_t what);

void sim_rank_try(struct sim_rank *rank)
{
    if (rank->trying || !rank->wanting)
        return;
    rank->trying = true;
    sim_at(rank->world, rank->world->now_ns, on_try, rank, 0);
}

static void release_oldest(struct sim_rank *rank)
{
    client_core_release(rank->core, rank->world->now_ns, rank->held[0]);
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
    sim_at(world, world->now_ns + sim_random_between(&world->random, pace_ns / 2, pace_ns * 3 / 2), on_paced,
           rank, 0);
}

static bool has_bad(const struct sim_rank *rank)
{
    struct sim_step step = sim_model_step(&rank->launch->shape, rank->rank, rank->at.position);
    for (uint32_t i = 0; i < step.rows && step.offset + i < step.valid; i++) {
        struct wire_row row;
        sim_model_row(rank->candidate, rank->at.epoch, position_of(&step, i), &row);
        if (row.status != WIRE_ROW_OK)
            return true;
    }
    return false;
}

static void refused(struct sim_rank *rank, enum base_code code, const struct base_error *error)
{
    struct sim_world *world = rank->world;
    if (code == BASE_UNAVAILABLE) {
        if (world->calm && world->now_ns - world->faults_until_ns > 30 * SIM_S)
            sim_fail(world, "%s/%u: %s", rank->job->name, rank->rank, error->text);
        sim_at(world, world->now_ns + 100 * SIM_MS, on_try, rank, 0);
        rank->trying = true;
    } else if (code == BASE_BAD_SAMPLE && rank->job->on_bad == CLIENT_ON_BAD_ERROR && has_bad(rank)) {
        sim_trace(world, "%s/%u: %s", rank->job->name, rank->rank, error->text);
        rank->job->spoilt = rank->launch == rank->job->launch && !rank->launch->over;
        sim_job_failed(rank);
    } else if (code != BASE_TIMEOUT) {
        sim_fail(world, "%s/%u is told %s: %s", rank->job->name, rank->rank, base_error_name(code),
                 error->text);
    }
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
    enum base_code code = client_core_take(rank->core, rank->world->now_ns, &step, &error);
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

/* ---- life ---- */

void sim_rank_begin(struct sim_rank *rank)
{
    rank->generation = (uint64_t)rank->world->now_ns + 1;
    rank->candidate = rank->job->candidate;
    rank->wake_ns = INT64_MAX;
    send_open(rank);
}

static void close_links(struct sim_rank *rank)
{
    for (int i = 0; i < SIM_WORKERS; i++)
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
    struct sim_call *call = sim_server_call(rank->world, SIM_JOB_CLOSE);
    call->rank = rank;
    call->job = (struct scheduler_job_report){rank->job->name, rank->rank, rank->generation, true,
                                              client_core_cursor(rank->core)};
    sim_server_send(call, 250 * SIM_MS);
    rank->done = true;
    close_links(rank);
}
