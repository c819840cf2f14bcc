/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim.h"

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
    int64_t cost_ns;
    struct make_block {
        uint64_t handle, extent;
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

static bool overlap(const struct sim_extent *a, const struct sim_extent *b)
{
    return a->offset < b->offset + b->size && b->offset < a->offset + a->size;
}

/* What lay there before is gone; nothing that is made or sent may have lain there. */
static void claim_memory(struct sim_worker *worker, const struct sim_extent *wanted)
{
    int kept = 0;
    if (wanted->offset + wanted->size > worker->staging_bytes)
        sim_fail(worker->world, "worker %u: block %llu at %llu + %llu is over the budget of %llu bytes",
                 (unsigned)worker->id, (unsigned long long)wanted->number, (unsigned long long)wanted->offset,
                 (unsigned long long)wanted->size, (unsigned long long)worker->staging_bytes);
    for (int i = 0; i < worker->extent_count; i++) {
        const struct sim_extent *extent = &worker->extents[i];
        if (!overlap(extent, wanted)) {
            worker->extents[kept++] = *extent;
            continue;
        }
        if (extent->pins > 0 || !extent->made)
            sim_fail(worker->world, "worker %u: block %llu takes the memory of block %llu, which is being %s",
                     (unsigned)worker->id, (unsigned long long)wanted->number,
                     (unsigned long long)extent->number, extent->made ? "sent" : "made");
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

static void end_block(struct sim_worker *worker, const struct make *make, const struct make_block *block)
{
    struct sim_world *world = worker->world;
    struct sim_extent *extent = sim_worker_extent(worker, block->extent);
    struct worker_made made = {.code = BASE_OK, .cost_ns = make->cost_ns, .cpu_ns = make->cost_ns};
    if (is_away(worker, extent)) {
        made.code = BASE_UNAVAILABLE;
        made.text = "item 7: the storage is away";
        *extent = worker->extents[--worker->extent_count];
    } else {
        extent->made = true;
        if (extent->number % 3 == 1) /* ragged rows: less than was reserved */
            made.used_bytes = (uint64_t)sim_random_between(&world->random, 1, (int64_t)extent->size);
        if (made.used_bytes > 0)
            extent->size = worker_arena_round(made.used_bytes);
        world->rows_made += make->rows;
        extent->candidate->rows_made += make->rows;
    }
    worker_core_made(worker->core, world->now_ns, block->handle, &made);
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
        if (sim_random_chance(&worker->world->random,
                              500)) /* what the first one gives is done now, or later */
            sim_worker_pump(worker);
    }
    sim_worker_pump(worker);
}

/* One block of an action: its memory is its own from now on. */
static void begin_block(struct make *make, const struct worker_action *action,
                        const struct worker_sibling *block)
{
    struct sim_worker *worker = make->worker;
    struct sim_world *world = worker->world;
    struct sim_candidate *candidate = block->stream;
    struct sim_extent extent = {.serial = ++world->extents,
                                .offset = block->offset,
                                .size = worker_arena_round(block->size_bytes),
                                .number = action->number,
                                .block = block->block,
                                .candidate = candidate,
                                .epoch = action->epoch};
    for (int i = 0; i < worker->extent_count; i++)
        if (!worker->extents[i].made && worker->extents[i].candidate == candidate &&
            worker->extents[i].epoch == action->epoch && worker->extents[i].number == action->number)
            sim_fail(world, "worker %u makes block %llu twice at once", (unsigned)worker->id,
                     (unsigned long long)action->number);
    if (action->rows != scheduler_stream_block_rows(&candidate->stream, action->number) ||
        block->size_bytes != candidate->block_bytes)
        sim_fail(world, "worker %u: MAKE of block %llu of stream %d with %u rows", (unsigned)worker->id,
                 (unsigned long long)action->number, candidate->index, action->rows);
    claim_memory(worker, &extent);
    if (block->cause != WORKER_CAUSE_FIRST)
        world->remade[block->cause]++;
    sim_trace(world, "worker %u makes block %llu of epoch %u of stream %d (%s)%s", (unsigned)worker->id,
              (unsigned long long)action->number, action->epoch, candidate->index,
              worker_cause_name(block->cause), make->count > 0 ? ", together" : "");
    make->cost_ns += candidate->row_ns * action->rows;
    make->blocks[make->count++] = (struct make_block){block->block, extent.serial};
}

static void begin_make(struct sim_worker *worker, const struct worker_action *action)
{
    struct sim_world *world = worker->world;
    const struct sim_candidate *candidate = action->stream;
    struct worker_sibling first = {action->stream,     action->block, action->offset,
                                   action->size_bytes, action->cause, action->jobs};
    struct make *make = sim_memory_get(&world->memory, sizeof *make);
    *make = (struct make){.worker = worker, .life = worker->life, .rows = action->rows};
    begin_block(make, action, &first);
    for (int i = 0; i < action->sibling_count; i++) {
        const struct sim_candidate *sibling = action->siblings[i].stream;
        if (memcmp(sibling->stream.family, candidate->stream.family, BASE_SHA256_BYTES) != 0)
            sim_fail(world, "worker %u makes blocks of streams %d and %d together", (unsigned)worker->id,
                     candidate->index, sibling->index);
        begin_block(make, action, &action->siblings[i]);
    }
    world->together += (uint64_t)action->sibling_count;
    if (action->sibling_count > 0)
        make->cost_ns = make->cost_ns * world->together_percent / 100;
    make->cost_ns = sim_random_between(&world->random, make->cost_ns / 2 + 1, 2 * make->cost_ns + 1);
    sim_at(world, world->now_ns + make->cost_ns, on_made, make, 0);
}

/* ---- answers ---- */

static struct sim_link *find_link(const struct sim_worker *worker, uint64_t connection)
{
    for (struct sim_link *link = worker->world->links; link; link = link->next)
        if (link->worker == worker && link->worker_life == worker->life && link->worker_open &&
            link->connection == connection)
            return link;
    return NULL;
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
    const struct sim_candidate *candidate = link->rank->candidate;
    uint32_t key = candidate->stream.uses_epoch ? action->epoch : 0;
    if (!found || found->candidate != candidate || found->number != action->number || found->epoch != key) {
        sim_fail(worker->world, "worker %u sends %s as block %llu of epoch %u", (unsigned)worker->id,
                 found ? "another block" : "no block's memory", (unsigned long long)action->number,
                 action->epoch);
        return;
    }
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
        sim_fail(worker->world, "worker %u says FAIL to %s/%u: %s", (unsigned)worker->id,
                 link->rank->job->name, link->rank->rank, action->text);
    sim_link_send_down(link, frame);
}

static void answer(struct sim_worker *worker, const struct worker_action *action)
{
    struct sim_link *link = find_link(worker, action->connection);
    bool ends = action->kind == WORKER_SEND_DATA || action->kind == WORKER_SEND_MOVED ||
                (action->kind == WORKER_SEND_RETRY && link && action->request != link->open_number);
    if (!link) {
        if (action->kind == WORKER_SEND_DATA)
            worker_core_sent(worker->core, worker->world->now_ns, action->send, false);
        return;
    }
    if (ends)
        sim_link_answered(link, action->request,
                          action->kind == WORKER_SEND_DATA ? "DATA" : "MOVED or RETRY");
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
    worker_core_tick(worker->core, worker->world->now_ns);
    sim_worker_pump(worker);
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
        worker->live &= ~(1u << ((struct sim_candidate *)action->stream)->index);
        break;
    default:
        answer(worker, action);
    }
}

static void check_counts(struct sim_worker *worker)
{
    struct worker_counts counts;
    worker_core_counts(worker->core, worker->world->now_ns, &counts);
    if (counts.staged_bytes > worker->staging_bytes)
        sim_fail(worker->world, "worker %u stages %llu of %llu bytes", (unsigned)worker->id,
                 (unsigned long long)counts.staged_bytes, (unsigned long long)worker->staging_bytes);
    if (counts.blocks_making - counts.blocks_riding > worker->making_max)
        sim_fail(worker->world, "worker %u makes %llu blocks at once", (unsigned)worker->id,
                 (unsigned long long)counts.blocks_making);
    if (worker_core_broken(worker->core))
        sim_fail(worker->world, "worker %u is broken", (unsigned)worker->id);
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
    check_counts(worker);
    int64_t wake_ns = worker_core_wake_ns(worker->core);
    if (wake_ns == INT64_MAX || worker->wake_ns <= wake_ns)
        return;
    worker->wake_ns = wake_ns > world->now_ns ? wake_ns : world->now_ns;
    sim_at(world, worker->wake_ns, on_wake, worker, worker->life);
}

/* ---- orders ---- */

bool sim_worker_serves(const struct sim_worker *worker, const struct sim_candidate *candidate)
{
    return worker->core && worker->live >> candidate->index & 1;
}

static void order_stream(struct sim_worker *worker, int at)
{
    struct sim_candidate *candidate = worker->orders->streams[at].candidate;
    int64_t now_ns = worker->world->now_ns;
    struct base_error error;
    void *context = candidate;
    if (!(worker->probed >> candidate->index & 1))
        return;
    if (worker_core_stream_add(worker->core, now_ns, &candidate->stream, candidate->block_bytes, &context,
                               &error) != BASE_OK) {
        sim_fail(worker->world, "worker %u refuses stream %d: %s", (unsigned)worker->id, candidate->index,
                 error.text);
        return;
    }
    worker->live |= 1u << candidate->index;
    if (worker->orders->streams[at].plan)
        worker_core_stream_plan(worker->core, now_ns, candidate->stream.hash,
                                &worker->orders->streams[at].plan->plan);
    struct worker_live_job jobs[SIM_JOBS];
    for (int i = 0; i < worker->orders->streams[at].job_count; i++)
        jobs[i] = (struct worker_live_job){worker->orders->streams[at].jobs[i], 1};
    worker_core_stream_jobs(worker->core, now_ns, candidate->stream.hash, jobs,
                            worker->orders->streams[at].job_count);
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
        sim_at(world, world->now_ns + sim_random_between(&world->random, SIM_MS, 200 * SIM_MS), on_probed,
               worker, worker->life << 8 | 1u << i);
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
        ordered |= 1u << orders->streams[i].candidate->index;
        probe(worker, 1u << orders->streams[i].candidate->index);
        order_stream(worker, i);
    }
    for (int i = 0; i < worker->world->candidate_count; i++)
        if (worker->live >> i & 1 && !(ordered >> i & 1))
            worker_core_stream_remove(worker->core, worker->world->now_ns,
                                      worker->world->candidates[i].stream.hash);
    if (orders->drain && !worker->draining)
        sim_worker_drain(worker, sim_random_between(&worker->world->random, SIM_S, 5 * SIM_S),
                         sim_random_between(&worker->world->random, SIM_S, 10 * SIM_S));
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
    struct sim_call *call = sim_server_call(world, SIM_WORKER_SYNC);
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
                                                    .datasets = call->held,
                                                    .dataset_count = 1,
                                                    .probes = call->probes,
                                                    .fronts = call->fronts};
    call->held[0].eligible = true;
    memcpy(call->held[0].version, world->candidates[0].stream.dataset_version, BASE_SHA256_BYTES);
    for (int i = 0; i < world->candidate_count; i++) {
        if (!(worker->probed >> i & 1))
            continue;
        struct scheduler_probe_result *result = &call->probes[call->report.probe_count++];
        memcpy(result->key, world->candidates[i].key, BASE_SHA256_BYTES);
        memcpy(result->fingerprint, world->candidates[i].stream.fingerprint, sizeof result->fingerprint);
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

void sim_worker_orders(struct sim_worker *worker, bool news, enum base_code code,
                       const struct sim_orders *orders)
{
    struct sim_world *world = worker->world;
    *(news ? &worker->news_out : &worker->poll_out) = false;
    if (code == BASE_OK) {
        worker->away = false;
        worker->backoff_ns = BACKOFF_FIRST_NS;
        worker->again_ns = 0;
        if (!worker->orders || orders->revision >= worker->orders->revision) {
            worker->orders = orders;
            worker->seen_revision = orders->revision;
            order_all(worker);
        }
    } else {
        worker->away = true;
        worker->again_ns = world->now_ns + worker->backoff_ns;
        worker->backoff_ns =
            2 * worker->backoff_ns < BACKOFF_MOST_NS ? 2 * worker->backoff_ns : BACKOFF_MOST_NS;
        sim_at(world, worker->again_ns, on_tick, worker, worker->life);
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
    worker->incarnation = (uint64_t)world->now_ns + 1;
    worker->life++;
    worker->draining = worker->poll_out = worker->news_out = worker->news_wanted = worker->away = false;
    worker->probed = worker->probing = worker->live = 0;
    worker->orders = NULL;
    worker->seen_revision = 0;
    worker->again_ns = 0;
    worker->backoff_ns = BACKOFF_FIRST_NS;
    worker->wake_ns = INT64_MAX;
    worker->extent_count = 0;
    if (worker_core_create(&worker->core, &options, &error) != BASE_OK) {
        sim_fail(world, "worker core: %s", error.text);
        return;
    }
    sim_trace(world, "worker %u starts", (unsigned)worker->id);
    go_on(worker);
}

static void end_life(struct sim_worker *worker)
{
    worker_core_destroy(worker->core);
    worker->core = NULL;
    worker->life++;
    worker->extent_count = 0;
}

void sim_worker_stop(struct sim_worker *worker)
{
    end_life(worker);
    free(worker->extents);
    worker->extents = NULL;
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
    sim_link_worker_died(worker, sim_random_chance(&world->random, 300));
    end_life(worker);
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
    worker_core_drain(worker->core, world->now_ns);
    sim_at(world, world->now_ns + leave_after_ns, leave, worker,
           worker->life << 16 | (uint64_t)(away_ns / SIM_MS));
    sim_worker_pump(worker);
    go_on(worker);
}
