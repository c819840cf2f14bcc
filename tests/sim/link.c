/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim.h"

#include <string.h>

#define STALL_NS SIM_S /* a send without progress: as in worker/connection.h */
#define UNANSWERED_NS (60 * SIM_S)

static void pump_up(void *who, uint64_t what);
static void pump_down(void *who, uint64_t what);

/* ---- pipes ---- */

struct sim_frame *sim_link_frame(struct sim_world *world, enum sim_frame_kind kind)
{
    struct sim_frame *frame = world->free_frames;
    if (frame)
        world->free_frames = frame->next;
    else
        frame = sim_memory_get(&world->memory, sizeof *frame);
    *frame = (struct sim_frame){.kind = kind};
    return frame;
}

static void free_frame(struct sim_world *world, struct sim_frame *frame)
{
    frame->next = world->free_frames;
    world->free_frames = frame;
}

static void schedule(struct sim_link *link, struct sim_pipe *pipe)
{
    if (!pipe->first)
        return;
    int64_t at_ns = pipe->first->arrive_ns > pipe->hold_ns ? pipe->first->arrive_ns : pipe->hold_ns;
    if (pipe->pump_ns <= at_ns)
        return;
    pipe->pump_ns = at_ns;
    sim_at(link->world, at_ns, pipe == &link->up ? pump_up : pump_down, link, 0);
}

static void put(struct sim_link *link, struct sim_pipe *pipe, struct sim_frame *frame, int64_t takes_ns)
{
    int64_t earliest_ns = link->world->now_ns + sim_delay_ns(link->world);
    pipe->last_ns = (pipe->last_ns > earliest_ns ? pipe->last_ns : earliest_ns) + takes_ns;
    frame->arrive_ns = pipe->last_ns;
    frame->next = NULL;
    if (pipe->first)
        pipe->last->next = frame;
    else
        pipe->first = frame;
    pipe->last = frame;
    schedule(link, pipe);
}

static void clear(struct sim_link *link, struct sim_pipe *pipe)
{
    while (pipe->first) {
        struct sim_frame *frame = pipe->first;
        pipe->first = frame->next;
        free_frame(link->world, frame);
    }
}

/* The next frame that arrives now; NULL: none yet. */
static struct sim_frame *arrived(struct sim_link *link, struct sim_pipe *pipe)
{
    struct sim_frame *frame = pipe->first;
    int64_t now_ns = link->world->now_ns;
    if (!frame || frame->arrive_ns > now_ns || pipe->hold_ns > now_ns)
        return NULL;
    pipe->first = frame->next;
    link->world->frames++;
    return frame;
}

void sim_link_send_up(struct sim_link *link, struct sim_frame *frame)
{
    put(link, &link->up, frame, 0);
}

void sim_link_send_down(struct sim_link *link, struct sim_frame *frame)
{
    put(link, &link->down, frame, 0);
}

static void end_pipe(struct sim_link *link, struct sim_pipe *pipe)
{
    put(link, pipe, sim_link_frame(link->world, SIM_END), 0);
}

/* ---- the worker's end ---- */

static bool alive(const struct sim_link *link)
{
    return link->worker->core && link->worker->life == link->worker_life;
}

static void end_send(struct sim_link *link, int index, bool done)
{
    struct sim_send send = link->sends[index];
    link->sends[index] = link->sends[--link->send_count];
    if (!alive(link))
        return;
    struct sim_extent *extent = sim_worker_extent(link->worker, send.extent);
    if (extent)
        extent->pins--;
    worker_core_sent(link->worker->core, link->world->now_ns, send.send, done);
}

static void end_sends(struct sim_link *link)
{
    while (link->send_count > 0)
        end_send(link, link->send_count - 1, false);
}

static void end_send_of(struct sim_link *link, uint64_t send)
{
    for (int i = 0; i < link->send_count; i++) {
        if (link->sends[i].send != send)
            continue;
        end_send(link, i, true);
        if (alive(link))
            sim_worker_pump(link->worker);
        return;
    }
}

/* The machine forgets the connection; pins may go before or after it. */
static void leave_worker(struct sim_link *link, bool sends_too)
{
    if (!link->worker_open)
        return;
    link->worker_open = false;
    link->get_count = 0;
    bool first = sim_random_chance(&link->world->random, 500);
    if (sends_too && first)
        end_sends(link);
    if (alive(link))
        worker_core_closed(link->worker->core, link->world->now_ns, link->connection);
    if (sends_too)
        end_sends(link);
    if (alive(link))
        sim_worker_pump(link->worker);
}

void sim_link_drop(struct sim_link *link, bool linger)
{
    sim_trace(link->world, "worker %u drops %s/%u%s", (unsigned)link->worker->id, link->rank->job->name,
              link->rank->rank, linger ? " (rules)" : " (stalled)");
    if (!linger)
        clear(link, &link->down);
    link->closing = true;
    leave_worker(link, !linger);
    end_pipe(link, &link->down);
}

void sim_link_worker_died(struct sim_worker *worker, bool silent)
{
    for (struct sim_link *link = worker->world->links; link; link = link->next) {
        if (link->worker != worker || link->worker_life != worker->life)
            continue;
        link->worker_open = false;
        link->send_count = link->get_count = 0;
        clear(link, &link->up);
        clear(link, &link->down);
        if (!silent)
            end_pipe(link, &link->down);
    }
}

void sim_link_asked(struct sim_link *link, uint64_t request)
{
    if (link->get_count == SIM_GETS)
        sim_fail(link->world, "too many requests in flight on a connection");
    else
        link->gets[link->get_count++] = (struct sim_get){request, link->world->now_ns, false};
}

void sim_link_answered(struct sim_link *link, uint64_t request, const char *how)
{
    for (int i = 0; i < link->get_count; i++) {
        if (link->gets[i].request != request)
            continue;
        link->gets[i] = link->gets[--link->get_count];
        return;
    }
    sim_fail(link->world, "worker %u answers request %llu of %s/%u with %s, which is not waiting",
             (unsigned)link->worker->id, (unsigned long long)request, link->rank->job->name, link->rank->rank,
             how);
}

void sim_link_data(struct sim_link *link, const struct sim_frame *whole)
{
    struct sim_world *world = link->world;
    uint32_t left = whole->to - whole->from, row = 0;
    uint32_t chunks = (uint32_t)sim_random_between(&world->random, 1, left < 4 ? left : 4);
    int64_t row_ns = (int64_t)link->rank->candidate->stream.pipeline.row_bytes * link->byte_ns;
    if (link->send_count == SIM_SENDS) {
        sim_fail(world, "too many sends on a connection");
        return;
    }
    if (link->send_count == 0)
        link->progress_ns = world->now_ns;
    link->sends[link->send_count++] = (struct sim_send){whole->send, whole->extent};
    for (uint32_t i = 0; i < chunks; i++) {
        uint32_t rows = i + 1 < chunks ? left / (chunks - i) : left;
        struct sim_frame *frame = sim_link_frame(world, SIM_DATA);
        *frame = *whole;
        frame->row = row;
        frame->rows = rows;
        frame->first = i == 0;
        frame->last = i + 1 == chunks;
        put(link, &link->down, frame, rows * row_ns);
        row += rows;
        left -= rows;
    }
}

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
    worker_core_get(link->worker->core, link->world->now_ns, link->connection, &get);
}

static void on_open(const struct sim_link *link, const struct sim_frame *frame)
{
    const struct scheduler_stream *stream = &link->rank->candidate->stream;
    struct worker_open open = {.request = frame->request,
                               .handle = frame->handle,
                               .rank = link->rank->rank,
                               .stream = stream->hash,
                               .fingerprint = stream->fingerprint,
                               .job = link->rank->job->name};
    worker_core_open(link->worker->core, link->world->now_ns, link->connection, &open);
}

static void on_cancel(struct sim_link *link, uint64_t request)
{
    for (int i = 0; i < link->get_count; i++)
        if (link->gets[i].request == request)
            link->gets[i].cancelled = true;
    worker_core_cancel(link->worker->core, link->world->now_ns, link->connection, request);
}

static void on_hello(struct sim_link *link)
{
    link->worker_life = link->worker->life;
    link->connection = worker_core_connected(link->worker->core);
    link->worker_open = true;
    sim_link_send_down(link, sim_link_frame(link->world, SIM_HELLO));
}

static void take_up(struct sim_link *link, const struct sim_frame *frame)
{
    struct sim_world *world = link->world;
    switch (frame->kind) {
    case SIM_OPEN:
        on_open(link, frame);
        break;
    case SIM_GET:
        on_get(link, frame);
        break;
    case SIM_MARK:
        worker_core_mark(link->worker->core, world->now_ns, link->connection, frame->handle,
                         frame->mark.epoch, frame->mark.position);
        break;
    case SIM_CANCEL:
        on_cancel(link, frame->request);
        break;
    default:
        break;
    }
}

static void deliver_up(struct sim_link *link, const struct sim_frame *frame)
{
    struct sim_world *world = link->world;
    bool known = alive(link) && link->worker_open;
    if (frame->kind == SIM_END) {
        leave_worker(link, true);
        return;
    }
    if (frame->kind == SIM_HELLO && link->worker->core)
        on_hello(link);
    else if (!known && !link->closing) /* nobody is there, or somebody who does not know it: reset */
        end_pipe(link, &link->down);
    else if (known)
        take_up(link, frame);
    bool twice = frame->kind == SIM_MARK || frame->kind == SIM_CANCEL;
    if (known && twice && sim_random_chance(&world->random, world->rules.duplicate_permille))
        take_up(link, frame);
    if (link->worker->core)
        sim_worker_pump(link->worker);
}

/* ---- the client's end ---- */

static void forget_at_client(struct sim_link *link)
{
    link->client_open = false;
    link->arriving = NULL;
    link->placed = CLIENT_PLACED_SCRATCH;
    if (link->rank->to[link->worker->id - 1] == link)
        link->rank->to[link->worker->id - 1] = NULL;
}

void sim_link_close(struct sim_link *link)
{
    forget_at_client(link);
    if (sim_random_chance(&link->world->random, 500))
        clear(link, &link->up);
    end_pipe(link, &link->up);
}

static void lost_at_client(struct sim_link *link, const char *why)
{
    if (!link->client_open)
        return;
    sim_trace(link->world, "%s/%u loses worker %u: %s", link->rank->job->name, link->rank->rank,
              (unsigned)link->worker->id, why);
    forget_at_client(link);
    end_pipe(link, &link->up);
    client_core_lost(link->rank->core, link->world->now_ns, link->worker->id, why);
}

/* One writer a slot range, and never into what the trainer holds. */
static void check_place(struct sim_link *link, const struct sim_frame *frame)
{
    const struct sim_rank *rank = link->rank;
    uint32_t rows = frame->to - frame->from;
    for (uint32_t i = 0; i < rank->held_count; i++)
        if (rank->held[i] == link->place.slot)
            sim_fail(link->world, "%s/%u: a part is received into slot %u, which the trainer holds",
                     rank->job->name, rank->rank, link->place.slot);
    if (link->place.row + rows > rank->launch->shape.batch)
        sim_fail(link->world, "%s/%u: a part of %u rows goes to row %u of %u", rank->job->name, rank->rank,
                 rows, link->place.row, rank->launch->shape.batch);
    for (int i = 0; i < SIM_WORKERS; i++) {
        const struct sim_link *other = rank->to[i];
        if (!other || other == link || other->placed != CLIENT_PLACED_SLOT || !other->arriving ||
            other->place.slot != link->place.slot)
            continue;
        uint32_t theirs = other->arriving->to - other->arriving->from;
        if (link->place.row < other->place.row + theirs && other->place.row < link->place.row + rows)
            sim_fail(link->world, "%s/%u: two writers of slot %u, rows %u and %u", rank->job->name,
                     rank->rank, link->place.slot, link->place.row, other->place.row);
    }
}

static void place(struct sim_link *link, const struct sim_frame *frame)
{
    struct sim_world *world = link->world;
    struct client_arrival arrival = {frame->request, frame->block, frame->epoch, frame->from, frame->to};
    link->placed =
        client_core_place(link->rank->core, world->now_ns, link->worker->id, &arrival, &link->place);
    if (link->placed == CLIENT_PLACED_WRONG)
        sim_fail(world, "%s/%u did not ask worker %u for block %llu [%u, %u) of epoch %u under %llu",
                 link->rank->job->name, link->rank->rank, (unsigned)link->worker->id,
                 (unsigned long long)frame->block, frame->from, frame->to, frame->epoch,
                 (unsigned long long)frame->request);
    if (link->placed != CLIENT_PLACED_SLOT)
        return;
    link->arriving = sim_link_frame(world, SIM_DATA);
    *link->arriving = *frame;
    check_place(link, frame);
}

/* What the worker's memory holds now at the part's row `row`. */
static bool read_staging(const struct sim_link *link, const struct sim_frame *frame, uint32_t row,
                         struct wire_row *made)
{
    const struct sim_extent *extent = sim_worker_extent(link->worker, frame->extent);
    if (!extent || !extent->made)
        return false;
    uint32_t k = extent->candidate->stream.pipeline.block_rows;
    sim_model_row(extent->candidate, extent->epoch, extent->number * k + frame->from + row, made);
    return true;
}

static void take_chunk(struct sim_link *link, const struct sim_frame *frame)
{
    struct sim_rank *rank = link->rank;
    struct wire_row rows[WIRE_ROWS_MAX];
    if (alive(link) && link->placed == CLIENT_PLACED_SLOT) {
        for (uint32_t i = 0; i < frame->rows; i++) {
            if (!read_staging(link, frame, frame->row + i, &rows[0])) {
                sim_fail(link->world, "worker %u: memory of block %llu went away while it was sent",
                         (unsigned)link->worker->id, (unsigned long long)frame->block);
                return;
            }
            rank->payload[(uint64_t)link->place.slot * rank->launch->shape.batch + link->place.row +
                          frame->row + i] = sim_model_payload(rank->candidate, &rows[0]);
        }
    }
    if (!frame->last || link->placed != CLIENT_PLACED_SLOT)
        return;
    for (uint32_t i = 0; i < frame->to - frame->from; i++)
        read_staging(link, frame, i, &rows[i]);
    client_core_data(rank->core, link->world->now_ns, link->worker->id, frame->request, rows);
    sim_rank_received(rank, frame);
}

static void on_data(struct sim_link *link, const struct sim_frame *frame)
{
    if (frame->first)
        place(link, frame);
    take_chunk(link, frame);
    if (!frame->last)
        return;
    if (link->arriving)
        free_frame(link->world, link->arriving);
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
        lost_at_client(link, "worker says FAIL");
    else if (frame->kind == SIM_FAIL)
        client_core_fail(core, link->world->now_ns, link->worker->id, frame->request, &cause);
    else if (opening)
        client_core_not_opened(core, link->world->now_ns, link->worker->id, frame->time_ms);
    else
        client_core_retry(core, link->world->now_ns, link->worker->id, frame->request, frame->time_ms,
                          &cause);
}

static void take_down(struct sim_link *link, const struct sim_frame *frame)
{
    struct client_core *core = link->rank->core;
    int64_t now_ns = link->world->now_ns;
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
        client_core_moved(core, now_ns, worker, frame->request, frame->home);
        break;
    case SIM_RETRY:
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

/* It comes again, behind what is on its way: an answer to an old number by then. */
static void repeat(struct sim_link *link, const struct sim_frame *frame)
{
    struct sim_world *world = link->world;
    bool may = frame->kind == SIM_WAIT || frame->kind == SIM_PING || frame->kind == SIM_MOVED ||
               (frame->kind == SIM_RETRY && frame->request != link->open_number);
    if (!may || frame->copy || !link->client_open ||
        !sim_random_chance(&world->random, world->rules.duplicate_permille))
        return;
    struct sim_frame *copy = sim_link_frame(world, frame->kind);
    *copy = *frame;
    copy->copy = true;
    put(link, &link->down, copy, sim_random_between(&world->random, 0, 400 * SIM_MS));
}

static bool was_cancelled(struct sim_link *link, uint64_t request)
{
    for (int i = 0; i < link->cancelled_count; i++)
        if (link->cancelled[i] == request) {
            link->cancelled[i] = link->cancelled[--link->cancelled_count];
            return true;
        }
    return false;
}

void sim_link_cancelled(struct sim_link *link, uint64_t request)
{
    if (link->cancelled_count == SIM_GETS) /* of the oldest no answer came */
        memmove(link->cancelled, link->cancelled + 1,
                (size_t)--link->cancelled_count * sizeof link->cancelled[0]);
    link->cancelled[link->cancelled_count++] = request;
    link->asked--;
}

static void deliver_down(struct sim_link *link, const struct sim_frame *frame)
{
    struct sim_world *world = link->world;
    if (frame->kind == SIM_DATA)
        link->progress_ns = world->now_ns;
    if (link->client_open && frame->kind == SIM_END) {
        lost_at_client(link, "connection reset");
        sim_rank_drive(link->rank);
    } else if (link->client_open) {
        client_core_heard(link->rank->core, world->now_ns, link->worker->id, frame->plan);
        if (!frame->copy && is_final(link, frame) && !was_cancelled(link, frame->request) &&
            link->asked-- == 0)
            sim_fail(world, "%s/%u gets more answers than it asked for", link->rank->job->name,
                     link->rank->rank);
        take_down(link, frame);
        repeat(link, frame);
        sim_rank_drive(link->rank);
    }
    if (frame->kind == SIM_DATA && frame->last)
        end_send_of(link, frame->send);
}

/* ---- the network ---- */

static bool breaks(struct sim_link *link)
{
    if (link->reset_after < 0 || link->reset_after-- > 0)
        return false;
    sim_link_reset(link, sim_random_chance(&link->world->random, 200));
    return true;
}

static void pump(struct sim_link *link, struct sim_pipe *pipe)
{
    struct sim_frame *frame;
    pipe->pump_ns = INT64_MAX;
    while (!link->world->failed && (frame = arrived(link, pipe))) {
        if (frame->kind != SIM_END && breaks(link)) {
            free_frame(link->world, frame);
            break;
        }
        if (pipe == &link->up)
            deliver_up(link, frame);
        else
            deliver_down(link, frame);
        free_frame(link->world, frame);
    }
    schedule(link, pipe);
}

static void pump_up(void *who, uint64_t what)
{
    struct sim_link *link = who;
    (void)what;
    if (link->up.pump_ns <= link->world->now_ns)
        pump(link, &link->up);
}

static void pump_down(void *who, uint64_t what)
{
    struct sim_link *link = who;
    (void)what;
    if (link->down.pump_ns <= link->world->now_ns)
        pump(link, &link->down);
}

void sim_link_hold(struct sim_link *link, int64_t until_ns, bool both)
{
    if (both && link->up.hold_ns < until_ns)
        link->up.hold_ns = until_ns;
    if (link->down.hold_ns < until_ns)
        link->down.hold_ns = until_ns;
}

void sim_link_reset(struct sim_link *link, bool silent)
{
    struct sim_world *world = link->world;
    sim_trace(world, "connection of %s/%u and worker %u breaks%s", link->rank->job->name, link->rank->rank,
              (unsigned)link->worker->id, silent ? " silently" : "");
    link->reset_after = -1;
    clear(link, &link->up);
    clear(link, &link->down);
    if (silent)
        sim_link_hold(link, world->now_ns + sim_random_between(&world->random, SIM_S, 6 * SIM_S), true);
    end_pipe(link, &link->up);
    end_pipe(link, &link->down);
}

void sim_link_dial(struct sim_rank *rank, struct sim_worker *worker)
{
    struct sim_world *world = rank->world;
    struct sim_link *link = sim_memory_get(&world->memory, sizeof *link);
    *link = (struct sim_link){.world = world,
                              .rank = rank,
                              .worker = worker,
                              .worker_life = worker->life,
                              .client_open = true,
                              .reset_after = -1,
                              .byte_ns = sim_random_between(&world->random, 1, world->rules.quiet ? 2 : 10),
                              .placed = CLIENT_PLACED_SCRATCH};
    link->up.pump_ns = link->down.pump_ns = INT64_MAX;
    if (!world->calm && sim_random_chance(&world->random, world->rules.reset_permille))
        link->reset_after = (int)sim_random_between(&world->random, 0, 200);
    link->next = world->links;
    world->links = link;
    rank->to[worker->id - 1] = link;
    if (worker->hole_ns > world->now_ns)
        sim_link_hold(link, worker->hole_ns, true);
    sim_link_send_up(link, sim_link_frame(world, SIM_HELLO));
}

static bool is_over(const struct sim_link *link)
{
    return !link->client_open && !link->worker_open && !link->up.first && !link->down.first &&
           link->up.pump_ns == INT64_MAX && link->down.pump_ns == INT64_MAX;
}

static void check_age(const struct sim_link *link)
{
    for (int i = 0; i < link->get_count && link->worker_open && link->client_open; i++)
        if (link->world->calm && !link->gets[i].cancelled &&
            link->world->now_ns - link->gets[i].since_ns > UNANSWERED_NS)
            sim_fail(link->world, "worker %u: request %llu of %s/%u has no answer after a minute",
                     (unsigned)link->worker->id, (unsigned long long)link->gets[i].request,
                     link->rank->job->name, link->rank->rank);
}

void sim_link_sweep(struct sim_world *world)
{
    for (struct sim_link *link = world->links; link; link = link->next) {
        check_age(link);
        if (link->send_count > 0 && alive(link) && world->now_ns - link->progress_ns > STALL_NS)
            sim_link_drop(link, false);
    }
    for (struct sim_link **at = &world->links; *at;) {
        if (is_over(*at))
            *at = (*at)->next;
        else
            at = &(*at)->next;
    }
}
