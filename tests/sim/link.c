/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/check.h"

#include <stdlib.h>

#define STALL_NS SIM_S /* a send without progress: as in worker/connection.h */

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

void sim_link_free_frame(struct sim_world *world, struct sim_frame *frame)
{
    frame->next = world->free_frames;
    world->free_frames = frame;
}

static void schedule(struct sim_link *link, struct sim_pipe *pipe)
{
    bool up = pipe == &link->up;
    if (!pipe->first)
        return;
    int64_t at_ns = pipe->first->arrive_ns > pipe->hold_ns ? pipe->first->arrive_ns : pipe->hold_ns;
    if (pipe->pump_ns <= at_ns)
        return;
    pipe->pump_ns = at_ns;
    link->events++;
    sim_process_at(up ? &link->worker->process : &link->rank->process, at_ns, up ? pump_up : pump_down, link,
                   0);
}

static void put(struct sim_link *link, struct sim_pipe *pipe, struct sim_frame *frame, int64_t takes_ns)
{
    int64_t earliest_ns = link->world->now_ns + sim_delay_ns(link->world, &link->random);
    if (link->worker->slow_net_ns > link->world->now_ns)
        earliest_ns += sim_random_between(&link->random, 10 * SIM_MS, 200 * SIM_MS);
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
        sim_link_free_frame(link->world, frame);
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

void sim_link_end_pipe(struct sim_link *link, struct sim_pipe *pipe)
{
    put(link, pipe, sim_link_frame(link->world, SIM_END), 0);
}

/* It comes again, behind what is on its way: an answer to an old number by then. */
void sim_link_repeat(struct sim_link *link, const struct sim_frame *frame)
{
    struct sim_world *world = link->world;
    bool may = frame->kind == SIM_WAIT || frame->kind == SIM_PING || frame->kind == SIM_MOVED ||
               (frame->kind == SIM_RETRY && frame->request != link->open_number);
    if (!may || frame->copy || !link->client_open || !sim_fault_noise(world, &link->random, SIM_NOISE_TWICE))
        return;
    struct sim_frame *copy = sim_link_frame(world, frame->kind);
    *copy = *frame;
    copy->copy = true;
    put(link, &link->down, copy, sim_random_between(&link->random, 0, 400 * SIM_MS));
}

/* ---- the worker's end ---- */

bool sim_link_alive(const struct sim_link *link)
{
    return link->worker->core && link->worker->life == link->worker_life;
}

static void end_send(struct sim_link *link, int index, bool done)
{
    struct sim_send send = link->sends[index];
    link->sends[index] = link->sends[--link->send_count];
    if (!sim_link_alive(link))
        return;
    struct sim_extent *extent = sim_worker_extent(link->worker, send.extent);
    if (extent)
        extent->pins--;
    worker_core_sent(link->worker->core, sim_process_now_ns(&link->worker->process), send.send, done);
}

static void end_sends(struct sim_link *link)
{
    while (link->send_count > 0)
        end_send(link, link->send_count - 1, false);
}

static void on_sent(void *who, uint64_t send)
{
    struct sim_link *link = who;
    link->events--;
    sim_link_end_send(link, send);
}

/* The worker's kernel has sent it all; the worker hears of it when it runs. */
void sim_link_end_send(struct sim_link *link, uint64_t send)
{
    if (sim_process_stopped(&link->worker->process)) {
        link->events++;
        sim_process_at(&link->worker->process, link->world->now_ns, on_sent, link, send);
        return;
    }
    for (int i = 0; i < link->send_count; i++) {
        if (link->sends[i].send != send)
            continue;
        end_send(link, i, true);
        if (sim_link_alive(link))
            sim_worker_pump(link->worker);
        return;
    }
}

/* The machine forgets the connection; pins may go before or after it. */
void sim_link_leave_worker(struct sim_link *link, bool sends_too)
{
    if (!link->worker_open)
        return;
    link->worker_open = false;
    link->get_count = 0;
    bool first = sim_random_chance(&link->random, 500);
    if (sends_too && first)
        end_sends(link);
    if (sim_link_alive(link))
        worker_core_closed(link->worker->core, sim_process_now_ns(&link->worker->process), link->connection);
    if (sends_too)
        end_sends(link);
    if (sim_link_alive(link))
        sim_worker_pump(link->worker);
}

void sim_link_drop(struct sim_link *link, bool linger)
{
    sim_trace(link->world, "worker %u drops %s/%u%s", (unsigned)link->worker->id, link->rank->job->name,
              link->rank->rank, linger ? " (rules)" : " (stalled)");
    if (!linger)
        clear(link, &link->down);
    link->closing = true;
    sim_link_leave_worker(link, !linger);
    sim_link_end_pipe(link, &link->down);
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
            sim_link_end_pipe(link, &link->down);
    }
}

static void *room(void *list, int count, int *room, size_t size)
{
    if (count < *room)
        return list;
    *room = *room ? 2 * *room : 4;
    list = realloc(list, (size_t)*room * size);
    if (!list)
        abort();
    return list;
}

void sim_link_asked(struct sim_link *link, uint64_t request)
{
    link->gets = room(link->gets, link->get_count, &link->get_room, sizeof *link->gets);
    link->gets[link->get_count++] = (struct sim_get){request, link->world->now_ns, false};
}

void sim_link_cancelled(struct sim_link *link, uint64_t request)
{
    link->cancelled =
        room(link->cancelled, link->cancelled_count, &link->cancelled_room, sizeof *link->cancelled);
    link->cancelled[link->cancelled_count++] = request;
    link->asked--;
}

bool sim_link_was_cancelled(struct sim_link *link, uint64_t request)
{
    for (int i = 0; i < link->cancelled_count; i++) {
        if (link->cancelled[i] != request)
            continue;
        link->cancelled[i] = link->cancelled[--link->cancelled_count];
        return true;
    }
    return false;
}

void sim_link_answered(struct sim_link *link, uint64_t request, const char *how)
{
    sim_check_waiting(link, request, how);
    for (int i = 0; i < link->get_count; i++) {
        if (link->gets[i].request != request)
            continue;
        link->gets[i] = link->gets[--link->get_count];
        return;
    }
}

void sim_link_data(struct sim_link *link, const struct sim_frame *whole)
{
    struct sim_world *world = link->world;
    uint32_t left = whole->to - whole->from, row = 0;
    uint32_t chunks = (uint32_t)sim_random_between(&link->random, 1, left < 4 ? left : 4);
    int64_t row_ns = (int64_t)link->rank->stream->identity.pipeline.row_bytes * link->byte_ns;
    if (link->worker->slow_net_ns > world->now_ns)
        row_ns *= link->worker->slow_times;
    if (link->send_count == 0)
        link->progress_ns = world->now_ns;
    link->sends = room(link->sends, link->send_count, &link->send_room, sizeof *link->sends);
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
    if (sim_random_chance(&link->random, 500))
        clear(link, &link->up);
    sim_link_end_pipe(link, &link->up);
}

void sim_link_lost(struct sim_link *link, const char *why)
{
    if (!link->client_open)
        return;
    sim_trace(link->world, "%s/%u loses worker %u: %s", link->rank->job->name, link->rank->rank,
              (unsigned)link->worker->id, why);
    link->rank->broken++;
    forget_at_client(link);
    sim_link_end_pipe(link, &link->up);
    client_core_lost(link->rank->core, sim_process_now_ns(&link->rank->process), link->worker->id, why);
}

/* ---- the network ---- */

static bool breaks(struct sim_link *link)
{
    if (link->reset_after < 0 || link->reset_after-- > 0)
        return false;
    sim_link_reset(link, sim_random_chance(&link->random, 200));
    return true;
}

static void spoil(struct sim_link *link, struct sim_frame *frame)
{
    if (frame->kind == SIM_END || link->spoil_after < 0 || link->spoil_after-- > 0)
        return;
    sim_trace(link->world, "a frame of %s/%u and worker %u is spoilt", link->rank->job->name,
              link->rank->rank, (unsigned)link->worker->id);
    frame->spoilt = true;
}

static void pump(struct sim_link *link, struct sim_pipe *pipe)
{
    struct sim_frame *frame;
    pipe->pump_ns = INT64_MAX;
    while (!link->world->failed && (frame = arrived(link, pipe))) {
        if (frame->kind != SIM_END && breaks(link)) {
            sim_link_free_frame(link->world, frame);
            break;
        }
        spoil(link, frame);
        if (pipe == &link->up)
            sim_arrive_up(link, frame);
        else
            sim_arrive_down(link, frame);
        sim_link_free_frame(link->world, frame);
    }
    schedule(link, pipe);
}

static void pump_up(void *who, uint64_t what)
{
    struct sim_link *link = who;
    (void)what;
    link->events--;
    if (link->up.pump_ns <= link->world->now_ns)
        pump(link, &link->up);
}

static void pump_down(void *who, uint64_t what)
{
    struct sim_link *link = who;
    (void)what;
    link->events--;
    if (link->down.pump_ns <= link->world->now_ns)
        pump(link, &link->down);
}

void sim_link_hold(struct sim_link *link, int64_t until_ns, enum sim_direction direction)
{
    if (direction & SIM_UP && link->up.hold_ns < until_ns)
        link->up.hold_ns = until_ns;
    if (direction & SIM_DOWN && link->down.hold_ns < until_ns)
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
        sim_link_hold(link, world->now_ns + sim_random_between(&link->random, SIM_S, 6 * SIM_S), SIM_BOTH);
    sim_link_end_pipe(link, &link->up);
    sim_link_end_pipe(link, &link->down);
}

/* ---- life ---- */

static struct sim_link *take_link(struct sim_world *world)
{
    struct sim_link *link = world->free_links;
    if (!link)
        return sim_memory_get(&world->memory, sizeof *link);
    world->free_links = link->next;
    return link;
}

void sim_link_dial(struct sim_rank *rank, struct sim_worker *worker)
{
    struct sim_world *world = rank->world;
    struct sim_link *link = take_link(world);
    struct sim_random random = {sim_random_word(&rank->process.random) ^ worker->id};
    *link = (struct sim_link){.world = world,
                              .rank = rank,
                              .worker = worker,
                              .worker_life = worker->life,
                              .client_open = true,
                              .reset_after = -1,
                              .spoil_after = -1,
                              .random = random,
                              .sends = link->sends,
                              .send_room = link->send_room,
                              .gets = link->gets,
                              .get_room = link->get_room,
                              .cancelled = link->cancelled,
                              .cancelled_room = link->cancelled_room,
                              .placed = CLIENT_PLACED_SCRATCH};
    link->byte_ns = sim_random_between(&link->random, 1, world->rules.quiet ? 2 : 10);
    link->up.pump_ns = link->down.pump_ns = INT64_MAX;
    if (sim_fault_noise(world, &link->random, SIM_NOISE_RESET))
        link->reset_after = (int)sim_random_between(&link->random, 0, 200);
    link->next = world->links;
    world->links = link;
    rank->to[worker->id - 1] = link;
    if (worker->hole_ns > world->now_ns)
        sim_link_hold(link, worker->hole_ns, SIM_BOTH);
    sim_link_hold(link, sim_process_cut_ns(&rank->process, &worker->process), SIM_UP);
    sim_link_hold(link, sim_process_cut_ns(&worker->process, &rank->process), SIM_DOWN);
    sim_link_send_up(link, sim_link_frame(world, SIM_HELLO));
}

static bool is_over(const struct sim_link *link)
{
    return !link->client_open && !link->worker_open && !link->up.first && !link->down.first &&
           link->events == 0;
}

void sim_link_sweep(struct sim_world *world)
{
    for (struct sim_link *link = world->links; link; link = link->next) {
        if (sim_process_stopped(&link->worker->process))
            continue;
        sim_check_age(link);
        if (link->send_count > 0 && sim_link_alive(link) && world->now_ns - link->progress_ns > STALL_NS)
            sim_link_drop(link, false);
    }
    for (struct sim_link **at = &world->links; *at;) {
        struct sim_link *link = *at;
        if (!is_over(link)) {
            at = &link->next;
            continue;
        }
        *at = link->next;
        link->next = world->free_links;
        world->free_links = link;
    }
}

static void free_lists(struct sim_link *links)
{
    for (; links; links = links->next) {
        free(links->sends);
        free(links->gets);
        free(links->cancelled);
    }
}

void sim_link_fini(struct sim_world *world)
{
    free_lists(world->links);
    free_lists(world->free_links);
}
