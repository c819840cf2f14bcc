/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/check.h"

#include "worker/arena.h"

#include <stdlib.h>
#include <string.h>

#define POLL_NS SIM_S /* as worker/control.c */
#define TIMEOUT_NS (5 * SIM_S)
#define BACKOFF_FIRST_NS (100 * SIM_MS)
#define BACKOFF_MOST_NS (2 * SIM_S)

struct make {
    struct sim_worker *worker;
    uint64_t life;
    uint32_t rows;
    bool elsewhere; /* not at its home */
    int64_t cost_ns;
    struct make_block {
        uint64_t handle, extent;
        enum worker_cause cause;
    } blocks[1 + WORKER_SIBLINGS];
    int count;
};

static void go_on(struct sim_worker *worker);

/* ---- staging ---- */

struct sim_extent *sim_worker_extent(const struct sim_worker *worker, uint64_t serial)
{
    for (int i = 0; i < worker->extent_count; i++)
        if (worker->extents[i].serial == serial)
            return &worker->extents[i];
    return NULL;
}

/* What lay there before is gone. */
static void claim_memory(struct sim_worker *worker, const struct sim_extent *wanted)
{
    int kept = 0;
    sim_check_memory(worker, wanted);
    for (int i = 0; i < worker->extent_count; i++) {
        const struct sim_extent *extent = &worker->extents[i];
        if (extent->offset >= wanted->offset + wanted->size ||
            wanted->offset >= extent->offset + extent->size)
            worker->extents[kept++] = *extent;
    }
    worker->extent_count = kept;
    if (kept == worker->extent_capacity) {
        worker->extent_capacity = kept ? 2 * kept : 16;
        worker->extents = realloc(worker->extents, (size_t)worker->extent_capacity * sizeof *worker->extents);
        if (!worker->extents)
            abort();
    }
    worker->extents[worker->extent_count++] = *wanted;
}

/* ---- prep ---- */

static bool is_away(const struct sim_worker *worker, const struct sim_extent *extent)
{
    const struct sim_world *world = worker->world;
    bool out = world->storage_ns > world->now_ns || worker->storage_ns > world->now_ns;
    uint64_t key[3] = {extent->number, extent->epoch, world->seed};
    return out && base_hash_xxh3(key, sizeof key) % 3 == 0;
}

/* Its file has been deleted. */
static bool is_gone(const struct sim_extent *extent)
{
    return extent->stream->candidate->gone_block == extent->number;
}

static void note_made(struct sim_world *world, const struct make *make, const struct make_block *block,
                      const struct sim_extent *extent)
{
    struct sim_stream *stream = extent->stream;
    uint64_t blocks = stream->candidate->blocks;
    stream->rows_made += make->rows;
    if (!stream->made)
        stream->made = sim_memory_get(&world->memory, SIM_EPOCHS * blocks);
    if (extent->epoch >= SIM_EPOCHS)
        return;
    uint8_t *times = &stream->made[extent->epoch * blocks + extent->number];
    world->tally.made++;
    world->tally.elsewhere += make->elsewhere;
    world->tally.made_again += *times > 0;
    world->tally.remade[block->cause]++;
    *times += *times < UINT8_MAX;
}

static void end_block(struct sim_worker *worker, const struct make *make, const struct make_block *block)
{
    struct sim_world *world = worker->world;
    struct sim_extent *extent = sim_worker_extent(worker, block->extent);
    struct worker_made made = {.code = BASE_OK, .cost_ns = make->cost_ns, .cpu_ns = make->cost_ns};
    if (is_away(worker, extent) || is_gone(extent)) {
        made.code = is_gone(extent) ? BASE_NOT_FOUND : BASE_UNAVAILABLE;
        made.text = is_gone(extent) ? "item 7: no such file" : "item 7: the storage is away";
        *extent = worker->extents[--worker->extent_count];
    } else {
        extent->made = true;
        if (extent->number % 3 == 1) /* ragged rows: less than was reserved */
            made.used_bytes = (uint64_t)sim_random_between(&worker->process.random, 1, (int64_t)extent->size);
        if (made.used_bytes > 0)
            extent->size = worker_arena_round(made.used_bytes);
        note_made(world, make, block, extent);
    }
    worker_core_made(worker->core, sim_process_now_ns(&worker->process), block->handle, &made);
}

static void on_made(void *who, uint64_t what)
{
    struct make *make = who;
    struct sim_worker *worker = make->worker;
    (void)what;
    if (worker->life != make->life || !worker->core)
        return;
    for (int i = 0; i < make->count; i++) {
        end_block(worker, make, &make->blocks[i]);
        if (sim_random_chance(&worker->process.random,
                              500)) /* what the first one gives is done now, or later */
            sim_worker_pump(worker);
    }
    sim_worker_pump(worker);
}

static bool is_home(const struct sim_worker *worker, const struct sim_stream *stream,
                    const struct worker_action *action)
{
    const struct scheduler_stream *of = &stream->identity;
    uint32_t slot = scheduler_plan_slot(of->family, of->uses_epoch, action->epoch, action->number);
    return stream->plans && stream->plans->plan.primary[slot] == worker->id;
}

/* One block of an action: its memory is its own from now on. */
static void begin_block(struct make *make, const struct worker_action *action,
                        const struct worker_sibling *block)
{
    struct sim_worker *worker = make->worker;
    struct sim_world *world = worker->world;
    struct sim_stream *stream = block->stream;
    struct sim_extent extent = {.serial = ++world->extents,
                                .offset = block->offset,
                                .size = worker_arena_round(block->size_bytes),
                                .number = action->number,
                                .block = block->block,
                                .stream = stream,
                                .epoch = action->epoch};
    sim_check_make(worker, action, block);
    claim_memory(worker, &extent);
    sim_trace(world, "worker %u makes block %llu of epoch %u of stream %d.%d (%s)%s", (unsigned)worker->id,
              (unsigned long long)action->number, action->epoch, stream->candidate->index, stream->build,
              worker_cause_name(block->cause), make->count > 0 ? ", together" : "");
    make->cost_ns += stream->candidate->row_ns * action->rows;
    make->elsewhere |= !is_home(worker, stream, action);
    make->blocks[make->count++] = (struct make_block){block->block, extent.serial, block->cause};
}

static void begin_make(struct sim_worker *worker, const struct worker_action *action)
{
    struct sim_world *world = worker->world;
    struct worker_sibling first = {action->stream,     action->block, action->offset,
                                   action->size_bytes, action->cause, action->jobs};
    struct make *make = sim_memory_get(&world->memory, sizeof *make);
    *make = (struct make){.worker = worker, .life = worker->life, .rows = action->rows};
    begin_block(make, action, &first);
    for (int i = 0; i < action->sibling_count; i++) {
        sim_check_sibling(worker, action->stream, action->siblings[i].stream);
        begin_block(make, action, &action->siblings[i]);
    }
    world->tally.together += (uint64_t)action->sibling_count;
    if (action->sibling_count > 0)
        make->cost_ns = make->cost_ns * world->rules.together_percent / 100;
    make->cost_ns = sim_random_between(&worker->process.random, make->cost_ns / 2 + 1, 2 * make->cost_ns + 1);
    if (worker->slow_ns > world->now_ns)
        make->cost_ns *= worker->slow_times;
    sim_process_at(&worker->process, world->now_ns + make->cost_ns, on_made, make, 0);
}

/* ---- answers ---- */

void sim_worker_link(struct sim_worker *worker, struct sim_link *link)
{
    uint32_t index = (uint32_t)link->connection;
    if (index >= worker->link_room) {
        uint32_t room = 2 * index + 16;
        worker->links = realloc(worker->links, room * sizeof *worker->links);
        if (!worker->links)
            abort();
        memset(worker->links + worker->link_room, 0, (room - worker->link_room) * sizeof *worker->links);
        worker->link_room = room;
    }
    worker->links[index] = link;
}

static struct sim_link *find_link(const struct sim_worker *worker, uint64_t connection)
{
    uint32_t index = (uint32_t)connection;
    struct sim_link *link = index < worker->link_room ? worker->links[index] : NULL;
    bool same = link && link->worker == worker && link->worker_life == worker->life && link->worker_open &&
                link->connection == connection;
    return same ? link : NULL;
}

static void send_data(struct sim_worker *worker, struct sim_link *link, const struct worker_action *action)
{
    struct sim_frame whole = {.kind = SIM_DATA,
                              .request = action->request,
                              .block = action->number,
                              .send = action->send,
                              .handle = action->handle,
                              .plan = action->plan,
                              .epoch = action->epoch,
                              .from = action->from,
                              .to = action->to};
    struct sim_extent *found = NULL;
    for (int i = 0; i < worker->extent_count; i++)
        if (worker->extents[i].offset == action->offset && worker->extents[i].made)
            found = &worker->extents[i];
    sim_check_sent(worker, link, action, found);
    if (!found)
        return;
    whole.extent = found->serial;
    found->pins++;
    sim_link_data(link, &whole);
}

static void send_answer(struct sim_worker *worker, struct sim_link *link, const struct worker_action *action)
{
    static const enum sim_frame_kind kinds[] = {
        [WORKER_SEND_OPENED] = SIM_OPEN, [WORKER_SEND_WAIT] = SIM_WAIT, [WORKER_SEND_MOVED] = SIM_MOVED,
        [WORKER_SEND_RETRY] = SIM_RETRY, [WORKER_SEND_FAIL] = SIM_FAIL, [WORKER_SEND_PING] = SIM_PING,
    };
    struct sim_frame *frame = sim_link_frame(worker->world, kinds[action->kind]);
    frame->request = action->request;
    frame->handle = action->handle;
    frame->plan = action->plan;
    frame->home = action->home;
    frame->code = action->code;
    frame->time_ms = action->time_ms;
    frame->making = action->making;
    frame->queue = action->queue;
    frame->requests_max = worker->requests_max;
    if (action->kind == WORKER_SEND_FAIL)
        sim_check_fail(worker, link, action);
    sim_link_send_down(link, frame);
}

static void answer(struct sim_worker *worker, const struct worker_action *action)
{
    struct sim_link *link = find_link(worker, action->connection);
    bool ends = action->kind == WORKER_SEND_DATA || action->kind == WORKER_SEND_MOVED ||
                ((action->kind == WORKER_SEND_RETRY || action->kind == WORKER_SEND_FAIL) && link &&
                 action->request != link->open_number && action->request != 0);
    if (!link) {
        if (action->kind == WORKER_SEND_DATA)
            worker_core_sent(worker->core, sim_process_now_ns(&worker->process), action->send, false);
        return;
    }
    if (ends)
        sim_link_answered(link, action->request,
                          action->kind == WORKER_SEND_DATA ? "DATA" : "MOVED, RETRY or FAIL");
    if (action->kind == WORKER_DROP)
        sim_link_drop(link, true);
    else if (action->kind == WORKER_SEND_DATA)
        send_data(worker, link, action);
    else
        send_answer(worker, link, action);
}

static void on_wake(void *who, uint64_t life)
{
    struct sim_worker *worker = who;
    if (worker->life != life || worker->world->now_ns < worker->wake_ns)
        return;
    worker->wake_ns = INT64_MAX;
    worker_core_tick(worker->core, sim_process_now_ns(&worker->process));
    sim_worker_pump(worker);
}

void sim_worker_wake(struct sim_worker *worker)
{
    if (!worker->core)
        return;
    worker->wake_ns = worker->world->now_ns;
    sim_process_at(&worker->process, worker->wake_ns, on_wake, worker, worker->life);
}

static void carry_out(struct sim_worker *worker, const struct worker_action *action)
{
    switch (action->kind) {
    case WORKER_MAKE:
        begin_make(worker, action);
        break;
    case WORKER_HASTEN:
        break;
    case WORKER_WANT_SYNC:
        worker->news_wanted = true;
        go_on(worker);
        break;
    case WORKER_STREAM_GONE:
        worker->live &= ~(1u << ((struct sim_stream *)action->stream)->candidate->index);
        break;
    default:
        answer(worker, action);
    }
}

void sim_worker_pump(struct sim_worker *worker)
{
    struct sim_world *world = worker->world;
    struct worker_action action;
    if (worker->pumping || !worker->core)
        return;
    worker->pumping = true;
    while (!world->failed && worker_core_next(worker->core, &action))
        carry_out(worker, &action);
    worker->pumping = false;
    sim_check_budget(worker);
    int64_t wake_ns = worker_core_wake_ns(worker->core);
    if (wake_ns == INT64_MAX)
        return;
    wake_ns = sim_process_when_ns(&worker->process, wake_ns);
    if (worker->wake_ns <= wake_ns)
        return;
    worker->wake_ns = wake_ns;
    sim_process_at(&worker->process, wake_ns, on_wake, worker, worker->life);
}

/* ---- orders ---- */

/* The bits of a candidate that this build makes. */
static struct sim_stream *own_stream(const struct sim_worker *worker, int candidate)
{
    struct sim_candidate *of = &worker->world->candidates[candidate];
    return &of->streams[worker->build < of->stream_count ? worker->build : 0];
}

static void order_jobs(struct sim_worker *worker, int at)
{
    const struct sim_stream *stream = worker->orders->streams[at].stream;
    int count = worker->orders->streams[at].job_count;
    struct worker_live_job *jobs = calloc((size_t)count + 1, sizeof *jobs);
    if (!jobs)
        abort();
    for (int i = 0; i < count; i++)
        jobs[i] = (struct worker_live_job){worker->orders->streams[at].jobs[i]->name,
                                           worker->orders->streams[at].jobs[i]->weight};
    worker_core_stream_jobs(worker->core, sim_process_now_ns(&worker->process), stream->identity.hash, jobs,
                            count);
    free(jobs);
}

static void order_stream(struct sim_worker *worker, int at)
{
    struct sim_stream *stream = worker->orders->streams[at].stream;
    struct sim_candidate *candidate = stream->candidate;
    int64_t now_ns = sim_process_now_ns(&worker->process);
    struct base_error error;
    void *context = stream;
    if (!(worker->probed >> candidate->index & 1))
        return;
    sim_check_served(worker, stream);
    if (worker_core_stream_add(worker->core, now_ns, &stream->identity, candidate->block_bytes, &context,
                               &error) != BASE_OK) {
        sim_fail(worker->world, "streams", "worker %u refuses stream %d: %s", (unsigned)worker->id,
                 candidate->index, error.text);
        return;
    }
    worker->live |= 1u << candidate->index;
    if (worker->orders->streams[at].plan)
        worker_core_stream_plan(worker->core, now_ns, stream->identity.hash,
                                &worker->orders->streams[at].plan->plan);
    order_jobs(worker, at);
}

static void order_all(struct sim_worker *worker);

static void on_probed(void *who, uint64_t what)
{
    struct sim_worker *worker = who;
    uint32_t bit = (uint32_t)what & 0xff;
    if (worker->life != what >> 8)
        return;
    worker->probed |= bit;
    worker->news_wanted = true;
    order_all(worker);
    go_on(worker);
}

static void probe(struct sim_worker *worker, uint32_t bits)
{
    struct sim_world *world = worker->world;
    for (int i = 0; i < world->candidate_count; i++) {
        if (!(bits >> i & 1) || worker->probing >> i & 1)
            continue;
        worker->probing |= 1u << i;
        sim_process_at(&worker->process,
                       world->now_ns + sim_random_between(&worker->process.random, SIM_MS, 200 * SIM_MS),
                       on_probed, worker, worker->life << 8 | 1u << i);
    }
}

static void order_all(struct sim_worker *worker)
{
    const struct sim_orders *orders = worker->orders;
    uint32_t ordered = 0;
    if (!orders)
        return;
    probe(worker, orders->probe);
    for (int i = 0; i < orders->stream_count; i++) {
        ordered |= 1u << orders->streams[i].stream->candidate->index;
        probe(worker, 1u << orders->streams[i].stream->candidate->index);
        order_stream(worker, i);
    }
    for (int i = 0; i < worker->world->candidate_count; i++)
        if (worker->live >> i & 1 && !(ordered >> i & 1))
            worker_core_stream_remove(worker->core, sim_process_now_ns(&worker->process),
                                      own_stream(worker, i)->identity.hash);
    if (orders->drain && !worker->draining)
        sim_worker_drain(worker, sim_random_between(&worker->process.random, SIM_S, 5 * SIM_S),
                         sim_random_between(&worker->process.random, SIM_S, 10 * SIM_S));
    sim_worker_pump(worker);
}

/* ---- syncs ---- */

static void note_front(void *context, const struct worker_front *front)
{
    struct sim_call *call = context;
    struct scheduler_front *to = &call->fronts[call->report.front_count++];
    memcpy(to->stream, front->stream, sizeof to->stream);
    to->epoch = front->epoch;
    to->position = front->position;
}

static void send_sync(struct sim_worker *worker, bool news)
{
    struct sim_world *world = worker->world;
    struct sim_call *call = sim_server_call(&worker->process, SIM_WORKER_SYNC);
    struct worker_counts counts;
    worker_core_counts(worker->core, sim_process_now_ns(&worker->process), &counts);
    call->worker = worker;
    call->life = worker->life;
    call->news = news;
    call->seen_revision = worker->seen_revision;
    call->wait_ns = news ? 0 : POLL_NS;
    call->report = (struct scheduler_worker_report){.id = worker->id,
                                                    .incarnation = worker->incarnation,
                                                    .addresses = "10.0.0.1:7",
                                                    .weight = worker->weight,
                                                    .staging_bytes = worker->staging_bytes,
                                                    .draining = worker->draining,
                                                    .queue_ms = counts.queue_ms,
                                                    .datasets = call->held,
                                                    .dataset_count = 1,
                                                    .probes = call->probes,
                                                    .fronts = call->fronts};
    call->held[0].eligible = true;
    memcpy(call->held[0].version, world->candidates[0].asked.dataset_version, BASE_SHA256_BYTES);
    for (int i = 0; i < world->candidate_count; i++) {
        if (!(worker->probed >> i & 1))
            continue;
        struct scheduler_probe_result *result = &call->probes[call->report.probe_count++];
        memcpy(result->key, world->candidates[i].asked.hash, BASE_SHA256_BYTES);
        memcpy(result->fingerprint, own_stream(worker, i)->identity.fingerprint, sizeof result->fingerprint);
    }
    worker_core_fronts(worker->core, note_front, call);
    *(news ? &worker->news_out : &worker->poll_out) = true;
    sim_server_send(call, TIMEOUT_NS);
}

static void on_tick(void *who, uint64_t life)
{
    struct sim_worker *worker = who;
    if (worker->life == life && worker->core)
        go_on(worker);
}

static void go_on(struct sim_worker *worker)
{
    if (!worker->core || worker->world->now_ns < worker->again_ns)
        return;
    if (!worker->poll_out) {
        worker->news_wanted = worker->news_wanted && worker->news_out;
        send_sync(worker, false);
    } else if (worker->news_wanted && !worker->news_out && !worker->away) {
        worker->news_wanted = false;
        send_sync(worker, true);
    }
}

static void keep_orders(struct sim_worker *worker, struct sim_orders *orders)
{
    worker->away = false;
    worker->backoff_ns = BACKOFF_FIRST_NS;
    worker->again_ns = 0;
    if (worker->orders && orders->revision < worker->orders->revision) {
        free(orders);
        return;
    }
    free(worker->orders);
    worker->orders = orders;
    worker->seen_revision = orders->revision;
    order_all(worker);
}

void sim_worker_orders(struct sim_worker *worker, bool news, enum base_code code, struct sim_orders *orders)
{
    struct sim_world *world = worker->world;
    *(news ? &worker->news_out : &worker->poll_out) = false;
    if (code == BASE_OK) {
        keep_orders(worker, orders);
    } else {
        worker->away = true;
        worker->again_ns = world->now_ns + worker->backoff_ns;
        worker->backoff_ns =
            2 * worker->backoff_ns < BACKOFF_MOST_NS ? 2 * worker->backoff_ns : BACKOFF_MOST_NS;
        sim_process_at(&worker->process, worker->again_ns, on_tick, worker, worker->life);
    }
    go_on(worker);
}

/* ---- life ---- */

void sim_worker_start(struct sim_worker *worker)
{
    struct sim_world *world = worker->world;
    struct worker_core_options options = {.worker = worker->id,
                                          .staging_bytes = worker->staging_bytes,
                                          .making_max = worker->making_max,
                                          .requests_max = worker->requests_max,
                                          .learn_blocks = 1, /* worlds are small */
                                          .learn_again = 20};
    struct base_error error;
    if (worker->core)
        return;
    worker->incarnation = (uint64_t)(sim_process_wall_ns(&worker->process) / SIM_MS);
    worker->life++;
    worker->draining = worker->poll_out = worker->news_out = worker->news_wanted = worker->away = false;
    worker->probed = worker->probing = worker->live = 0;
    worker->seen_revision = 0;
    worker->again_ns = 0;
    worker->backoff_ns = BACKOFF_FIRST_NS;
    worker->wake_ns = INT64_MAX;
    worker->extent_count = 0;
    if (worker_core_create(&worker->core, &options, &error) != BASE_OK) {
        sim_fail(world, "streams", "worker core: %s", error.text);
        return;
    }
    sim_trace(world, "worker %u starts", (unsigned)worker->id);
    go_on(worker);
}

void sim_worker_count(struct sim_worker *worker)
{
    struct worker_counts counts;
    if (!worker->core)
        return;
    worker_core_counts(worker->core, sim_process_now_ns(&worker->process), &counts);
    worker->world->tally.evicted += counts.blocks_evicted;
}

static void end_life(struct sim_worker *worker)
{
    sim_worker_count(worker);
    worker->world->tally.lost += (uint64_t)worker->extent_count;
    worker_core_destroy(worker->core);
    worker->core = NULL;
    worker->life++;
    worker->extent_count = 0;
    worker->process.paused_ns = 0;
    free(worker->orders);
    worker->orders = NULL;
}

void sim_worker_stop(struct sim_worker *worker)
{
    end_life(worker);
    free(worker->extents);
    free(worker->links);
    worker->extents = NULL;
    worker->links = NULL;
}

static void start_again(void *who, uint64_t life)
{
    struct sim_worker *worker = who;
    if (worker->life == life)
        sim_worker_start(worker);
}

void sim_worker_crash(struct sim_worker *worker, int64_t down_ns)
{
    struct sim_world *world = worker->world;
    if (!worker->core)
        return;
    sim_trace(world, "worker %u crashes", (unsigned)worker->id);
    sim_link_worker_died(worker, sim_random_chance(&worker->process.random, 300));
    end_life(worker);
    if (!worker->for_good)
        sim_at(world, world->now_ns + down_ns, start_again, worker, worker->life);
}

/* A drained one ends when its time is over; another start of it comes later. */
static void leave(void *who, uint64_t what)
{
    struct sim_worker *worker = who;
    struct sim_world *world = worker->world;
    uint64_t life = what >> 16;
    if (worker->life != life || !worker->core)
        return;
    sim_trace(world, "worker %u leaves", (unsigned)worker->id);
    sim_link_worker_died(worker, false);
    end_life(worker);
    sim_at(world, world->now_ns + (int64_t)(what & 0xffff) * SIM_MS, start_again, worker, worker->life);
}

void sim_worker_drain(struct sim_worker *worker, int64_t leave_after_ns, int64_t away_ns)
{
    struct sim_world *world = worker->world;
    if (!worker->core || worker->draining)
        return;
    sim_trace(world, "worker %u drains", (unsigned)worker->id);
    worker->draining = worker->news_wanted = true;
    worker_core_drain(worker->core, sim_process_now_ns(&worker->process));
    sim_process_at(&worker->process, world->now_ns + leave_after_ns, leave, worker,
                   worker->life << 16 | (uint64_t)(away_ns / SIM_MS));
    sim_worker_pump(worker);
    go_on(worker);
}
