/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/check.h"

static int64_t now_at_worker(const struct sim_link *link)
{
    return sim_process_now_ns(&link->worker->process);
}

static int64_t now_at_client(const struct sim_link *link)
{
    return sim_process_now_ns(&link->rank->process);
}

/* ---- at the worker ---- */

static void on_get(struct sim_link *link, const struct sim_frame *frame)
{
    struct worker_get get = {.request = frame->request,
                             .block = frame->block,
                             .handle = frame->handle,
                             .epoch = frame->epoch,
                             .plan = frame->plan,
                             .slack_ms = frame->time_ms,
                             .from = (uint16_t)frame->from,
                             .to = (uint16_t)frame->to,
                             .insist = frame->insist,
                             .death = frame->death,
                             .hedge = frame->hedge,
                             .mark_epoch = frame->mark.epoch,
                             .mark_position = frame->mark.position};
    sim_link_asked(link, frame->request);
    worker_core_get(link->worker->core, now_at_worker(link), link->connection, &get);
    sim_check_claim(link, frame);
    link->mark = frame->mark;
    link->marked = true;
}

static void on_open(const struct sim_link *link, const struct sim_frame *frame)
{
    const struct scheduler_stream *stream = &link->rank->stream->identity;
    struct worker_open open = {.request = frame->request,
                               .handle = frame->handle,
                               .rank = link->rank->rank,
                               .stream = stream->hash,
                               .fingerprint = stream->fingerprint,
                               .job = link->rank->job->name};
    worker_core_open(link->worker->core, now_at_worker(link), link->connection, &open);
}

static void on_cancel(struct sim_link *link, uint64_t request)
{
    for (int i = 0; i < link->get_count; i++)
        if (link->gets[i].request == request)
            link->gets[i].cancelled = true;
    worker_core_cancel(link->worker->core, now_at_worker(link), link->connection, request);
}

static void on_hello(struct sim_link *link)
{
    link->worker_life = link->worker->life;
    link->connection = worker_core_connected(link->worker->core);
    link->worker_open = true;
    sim_worker_link(link->worker, link);
    sim_link_send_down(link, sim_link_frame(link->world, SIM_HELLO));
}

static void take_up(struct sim_link *link, const struct sim_frame *frame)
{
    switch (frame->kind) {
    case SIM_OPEN:
        on_open(link, frame);
        break;
    case SIM_GET:
        on_get(link, frame);
        break;
    case SIM_MARK:
        link->mark = frame->mark;
        link->marked = true;
        worker_core_mark(link->worker->core, now_at_worker(link), link->connection, frame->handle,
                         frame->mark.epoch, frame->mark.position);
        break;
    case SIM_CANCEL:
        on_cancel(link, frame->request);
        break;
    default:
        break;
    }
}

/* A header that is not what its checksum says: its connection is dropped. */
static void spoilt_up(struct sim_link *link)
{
    if (sim_link_alive(link) && link->worker_open)
        sim_link_drop(link, false);
    else
        sim_link_end_pipe(link, &link->down);
}

void sim_arrive_up(struct sim_link *link, const struct sim_frame *frame)
{
    struct sim_world *world = link->world;
    bool known = sim_link_alive(link) && link->worker_open;
    if (frame->kind == SIM_END) {
        sim_link_leave_worker(link, true);
        return;
    }
    if (frame->spoilt) {
        spoilt_up(link);
        return;
    }
    if (frame->kind == SIM_HELLO && link->worker->core)
        on_hello(link);
    else if (!known && !link->closing) /* nobody is there, or somebody who does not know it: reset */
        sim_link_end_pipe(link, &link->down);
    else if (known)
        take_up(link, frame);
    bool twice = frame->kind == SIM_MARK || frame->kind == SIM_CANCEL;
    if (known && twice && sim_fault_noise(world, &link->random, SIM_NOISE_TWICE))
        take_up(link, frame);
    if (link->worker->core)
        sim_worker_pump(link->worker);
}

/* ---- at the client ---- */

static void place(struct sim_link *link, const struct sim_frame *frame)
{
    struct client_arrival arrival = {frame->request, frame->block, frame->epoch, frame->from, frame->to};
    link->spoilt = false;
    link->placed =
        client_core_place(link->rank->core, now_at_client(link), link->worker->id, &arrival, &link->place);
    sim_check_arrival(link, frame);
    if (link->placed != CLIENT_PLACED_SLOT)
        return;
    link->arriving = sim_link_frame(link->world, SIM_DATA);
    *link->arriving = *frame;
    sim_check_place(link, frame);
}

/* What the worker's memory holds now at the part's row `row`. */
static bool read_staging(const struct sim_link *link, const struct sim_frame *frame, uint32_t row,
                         struct wire_row *made)
{
    *made = (struct wire_row){0};
    const struct sim_extent *extent = sim_worker_extent(link->worker, frame->extent);
    if (!extent || !extent->made)
        return false;
    uint32_t k = extent->stream->identity.pipeline.block_rows;
    sim_model_row(extent->stream, extent->epoch, extent->number * k + frame->from + row, made);
    return true;
}

/* Its bytes go straight into the slot, as they are. */
static void receive(struct sim_link *link, const struct sim_frame *frame)
{
    struct sim_rank *rank = link->rank;
    uint64_t *slot = rank->payload + (uint64_t)link->place.slot * rank->launch->shape.batch + link->place.row;
    link->spoilt |= frame->spoilt;
    if (!sim_link_alive(link))
        return;
    sim_check_pinned(link, frame);
    for (uint32_t i = 0; i < frame->rows; i++) {
        struct wire_row row;
        if (read_staging(link, frame, frame->row + i, &row))
            slot[frame->row + i] = sim_model_payload(rank->stream, &row) ^ (frame->spoilt && i == 0);
    }
}

static void complete(struct sim_link *link, const struct sim_frame *frame)
{
    struct wire_row rows[WIRE_ROWS_MAX];
    if (link->spoilt) {
        sim_link_lost(link, "rows that do not match their hashes");
        return;
    }
    for (uint32_t i = 0; i < frame->to - frame->from; i++)
        read_staging(link, frame, i, &rows[i]);
    client_core_data(link->rank->core, now_at_client(link), link->worker->id, frame->request, rows);
    sim_rank_received(link->rank, frame);
}

static void on_data(struct sim_link *link, const struct sim_frame *frame)
{
    if (frame->first)
        place(link, frame);
    if (link->placed == CLIENT_PLACED_SLOT)
        receive(link, frame);
    if (!frame->last)
        return;
    if (link->placed == CLIENT_PLACED_SLOT)
        complete(link, frame);
    if (link->arriving)
        sim_link_free_frame(link->world, link->arriving);
    link->arriving = NULL;
    link->placed = CLIENT_PLACED_SCRATCH;
}

static void on_refused(struct sim_link *link, const struct sim_frame *frame)
{
    struct client_core *core = link->rank->core;
    struct base_error cause;
    base_error_set(&cause, frame->code, "as worker %u says", (unsigned)link->worker->id);
    bool opening = frame->request == link->open_number;
    if (frame->kind == SIM_FAIL && (frame->request == 0 || opening))
        sim_link_lost(link, "worker says FAIL");
    else if (frame->kind == SIM_FAIL)
        client_core_fail(core, now_at_client(link), link->worker->id, frame->request, &cause);
    else if (opening)
        client_core_not_opened(core, now_at_client(link), link->worker->id, frame->time_ms);
    else
        client_core_retry(core, now_at_client(link), link->worker->id, frame->request, frame->time_ms,
                          &cause);
}

static void take_down(struct sim_link *link, const struct sim_frame *frame)
{
    struct client_core *core = link->rank->core;
    int64_t now_ns = now_at_client(link);
    uint64_t worker = link->worker->id;
    switch (frame->kind) {
    case SIM_HELLO:
        client_core_connected(core, now_ns, worker);
        break;
    case SIM_OPEN:
        if (frame->request == link->open_number) {
            link->cap = frame->requests_max;
            client_core_opened(core, now_ns, worker, frame->requests_max);
        }
        break;
    case SIM_DATA:
        on_data(link, frame);
        break;
    case SIM_WAIT:
        client_core_wait(core, now_ns, worker, frame->request, frame->making, frame->queue);
        break;
    case SIM_MOVED:
        link->rank->refused++;
        sim_trace(link->world, "%s/%u is told MOVED to worker %u by worker %u", link->rank->job->name,
                  link->rank->rank, (unsigned)frame->home, (unsigned)worker);
        client_core_moved(core, now_ns, worker, frame->request, frame->home);
        break;
    case SIM_RETRY:
        link->rank->refused++;
        sim_trace(link->world, "%s/%u is told RETRY by worker %u", link->rank->job->name, link->rank->rank,
                  (unsigned)worker);
        on_refused(link, frame);
        break;
    case SIM_FAIL:
        on_refused(link, frame);
        break;
    default:
        break;
    }
}

static bool is_final(const struct sim_link *link, const struct sim_frame *frame)
{
    if (frame->kind == SIM_DATA)
        return frame->last;
    return frame->request != 0 && frame->request != link->open_number &&
           (frame->kind == SIM_MOVED || frame->kind == SIM_RETRY || frame->kind == SIM_FAIL);
}

static void take_frame(struct sim_link *link, const struct sim_frame *frame)
{
    bool header = frame->kind != SIM_DATA || frame->first;
    if (frame->spoilt && header) { /* as its checksum says; nothing of it is taken */
        sim_link_lost(link, "a header that does not match its hash");
        return;
    }
    client_core_heard(link->rank->core, now_at_client(link), link->worker->id, frame->plan);
    if (!frame->copy && is_final(link, frame) && !sim_link_was_cancelled(link, frame->request) &&
        link->asked-- == 0)
        sim_fail(link->world, "answers", "%s/%u gets more answers than it asked for", link->rank->job->name,
                 link->rank->rank);
    take_down(link, frame);
    sim_link_repeat(link, frame);
}

void sim_arrive_down(struct sim_link *link, const struct sim_frame *frame)
{
    bool open = link->client_open;
    uint64_t send = frame->send;
    bool sent = frame->kind == SIM_DATA && frame->last;
    if (frame->kind == SIM_DATA)
        link->progress_ns = link->world->now_ns;
    if (open && frame->kind == SIM_END)
        sim_link_lost(link, "connection reset");
    else if (open)
        take_frame(link, frame);
    if (open)
        sim_rank_drive(link->rank);
    if (sent)
        sim_link_end_send(link, send);
}
