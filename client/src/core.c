/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/core.h"

#include "base/clock.h"
#include "client/src/core_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FETCH_NS BASE_NS_PER_S
#define RETRY_FAILED_NS (100 * BASE_NS_PER_MS)
#define LATE_NS (100 * BASE_NS_PER_MS) /* called so much later than asked: it was us who slept */

/* ---- life ---- */

static enum base_code check_options(const struct client_core_options *options, struct base_error *error)
{
    const struct scheduler_shape *shape = &options->shape;
    uint64_t step = (uint64_t)shape->world * shape->batch;
    if (shape->batch == 0 || shape->rank >= shape->world || options->look_ahead == 0 ||
        options->look_ahead > 65535 || options->block_rows == 0 || options->block_rows > 256 ||
        options->stall_ns <= 0 || options->unavailable_ns <= 0)
        return base_error_set(error, BASE_INVALID,
                              "job: batch %u, rank %u of %u, look-ahead %u, blocks of %u rows", shape->batch,
                              shape->rank, shape->world, options->look_ahead, options->block_rows);
    if (shape->positions == 0 || (shape->tail == SCHEDULER_TAIL_DROP && shape->positions < step))
        return base_error_set(error, BASE_INVALID,
                              "an epoch of %llu positions has no whole step of %llu rows (tail drop)",
                              (unsigned long long)shape->positions, (unsigned long long)step);
    if (options->start.position > shape->positions || options->start.epoch < options->first_epoch)
        return base_error_set(error, BASE_INVALID,
                              "cursor (epoch %u, position %llu) outside: first epoch %u, %llu positions",
                              options->start.epoch, (unsigned long long)options->start.position,
                              options->first_epoch, (unsigned long long)shape->positions);
    return BASE_OK;
}

static enum base_code allocate(struct client_core *core)
{
    uint32_t batch = core->options.shape.batch, k = core->options.block_rows;
    uint32_t runs = batch / k + 4; /* two runs of positions at most (padding wraps), two cut ends each */
    core->slot_count = core->options.look_ahead + 1;
    core->parts_max = runs < batch ? runs : batch;
    size_t slots = core->slot_count;
    core->slots = calloc(slots, sizeof *core->slots);
    core->queue = calloc(slots, sizeof *core->queue);
    core->parts = calloc(slots * core->parts_max, sizeof *core->parts);
    core->rows = calloc(slots * batch, sizeof *core->rows);
    core->valid = calloc(slots * batch, sizeof *core->valid);
    if (!core->slots || !core->queue || !core->parts || !core->rows || !core->valid)
        return BASE_NO_MEMORY;
    for (size_t i = 0; i < slots; i++) {
        core->slots[i].parts = core->parts + i * core->parts_max;
        core->slots[i].rows = core->rows + i * batch;
        core->slots[i].valid = core->valid + i * batch;
    }
    return BASE_OK;
}

enum base_code client_core_create(struct client_core **out, const struct client_core_options *options,
                                  struct base_error *error)
{
    enum base_code code = check_options(options, error);
    if (code != BASE_OK)
        return code;
    struct client_core *core = calloc(1, sizeof *core);
    if (!core)
        return base_error_set(error, BASE_NO_MEMORY, "no memory for a job");
    core->options = *options;
    core->dirty = true;
    core->wake_ns = core->hedges.due_ns = INT64_MAX;
    core->next = core->cursor = scheduler_cursor_normal(&options->shape, options->start);
    if (allocate(core) != BASE_OK) {
        client_core_destroy(core);
        return base_error_set(error, BASE_NO_MEMORY, "no memory for the steps of a job");
    }
    *out = core;
    return BASE_OK;
}

void client_core_destroy(struct client_core *core)
{
    if (!core)
        return;
    free(core->slots);
    free(core->queue);
    free(core->parts);
    free(core->rows);
    free(core->valid);
    free(core->peers);
    free(core);
}

/* ---- what to do ---- */

/* What came while we slept is not read yet: nobody is judged for it before we had a moment to. */
static void forgive_sleep(struct client_core *core)
{
    int64_t late_ns = core->wake_ns == INT64_MAX ? 0 : core->now_ns - core->wake_ns;
    if (late_ns < LATE_NS)
        return;
    core->woke_ns = core->now_ns;
    for (int i = 0; i < core->peer_count; i++)
        client_peer_forgive(core, &core->peers[i], late_ns);
}

static void begin_round(struct client_core *core)
{
    forgive_sleep(core);
    for (int i = 0; i < core->peer_count; i++)
        client_peer_tick(core, &core->peers[i]);
    client_peer_sweep(core);
    client_abandon_sweep(core);
    client_step_refill(core);
    core->mark = client_core_mark(core);
    core->scan = (struct client_scan){0};
    core->dirty = false;
}

static bool act_peers(struct client_core *core, struct client_action *action)
{
    for (; core->scan.peer < core->peer_count; core->scan.peer++)
        if (client_peer_act(core, &core->peers[core->scan.peer], action))
            return true;
    return false;
}

static bool act_plan(struct client_core *core, struct client_action *action)
{
    bool due = core->fetched_ns == 0 || core->now_ns - core->fetched_ns >= FETCH_NS;
    if (core->plan_seen <= core->plan.version || !due)
        return false;
    core->fetched_ns = core->now_ns;
    *action = (struct client_action){.kind = CLIENT_ACTION_FETCH_PLAN, .plan = core->plan_seen};
    return true;
}

static bool act_ready(struct client_core *core, struct client_action *action)
{
    for (uint32_t i = 0; i < core->queued; i++) {
        struct client_slot *slot = &core->slots[core->queue[i]];
        *action = (struct client_action){.kind = CLIENT_ACTION_READY, .slot = core->queue[i]};
        if (slot->state == CLIENT_SLOT_READY && slot->verdict.code == BASE_OK && !slot->told_ready) {
            slot->told_ready = true;
            return true;
        }
    }
    return false;
}

/* Only what holds up the next step is worth an error: what is ready before it is handed over first. */
static bool act_error(struct client_core *core, struct client_action *action)
{
    struct client_slot *front = core->queued > 0 ? &core->slots[core->queue[0]] : NULL;
    if (!front || front->told_error)
        return false;
    if (front->verdict.code == BASE_OK && !client_step_overdue(core, front, NULL))
        return false;
    front->told_error = true;
    *action = (struct client_action){.kind = CLIENT_ACTION_ERROR, .slot = core->queue[0]};
    return true;
}

static bool cancel(struct client_core *core, struct client_slot *slot, struct client_request *request,
                   struct client_action *action)
{
    *action = (struct client_action){
        .kind = CLIENT_ACTION_CANCEL, .worker = request->worker, .request = request->number};
    bool asked = client_request_in_flight(request) && request->state != CLIENT_REQUEST_RECEIVING;
    client_request_drop(core, slot, request);
    return asked;
}

static bool sendable(const struct client_core *core, const struct client_request *request)
{
    switch (request->state) {
    case CLIENT_REQUEST_PLANNED:
    case CLIENT_REQUEST_MOVED:
    case CLIENT_REQUEST_LOST:
        return true;
    case CLIENT_REQUEST_RETRY:
        return core->now_ns >= request->due_ns;
    default:
        return false;
    }
}

static bool send(struct client_core *core, struct client_slot *slot, struct client_request *request,
                 struct client_action *action)
{
    if (slot->unsent == 0 || !sendable(core, request))
        return false;
    struct client_peer *peer = client_request_choose(core, request);
    if (!peer)
        return false;
    client_request_send(core, slot, request, peer, action);
    action->slack_ms = client_step_slack_ms(core, core->scan.slot);
    return true;
}

/* Requests in the order of steps; when the job is over: their ends. */
static bool act_requests(struct client_core *core, struct client_action *action)
{
    struct client_scan *scan = &core->scan;
    bool over = core->over.code != BASE_OK;
    for (; scan->slot < core->queued; scan->slot++, scan->part = 0) {
        struct client_slot *slot = &core->slots[core->queue[scan->slot]];
        if (slot->unsent == 0 && !over)
            continue;
        while (scan->part < slot->part_count) {
            struct client_request *request = &slot->parts[scan->part++];
            if (over ? cancel(core, slot, request, action) : send(core, slot, request, action))
                return true;
        }
    }
    return false;
}

static int64_t next_wake_ns(const struct client_core *core)
{
    int64_t wake_ns = core->hedges.due_ns, since_ns;
    for (int i = 0; i < core->peer_count; i++)
        wake_ns = base_clock_earlier(wake_ns, client_peer_wake_ns(core, &core->peers[i]));
    for (uint32_t i = 0; i < core->queued; i++) {
        const struct client_slot *slot = &core->slots[core->queue[i]];
        if (slot->retrying == 0)
            continue;
        for (uint32_t p = 0; p < slot->part_count; p++)
            if (slot->parts[p].state == CLIENT_REQUEST_RETRY && slot->parts[p].due_ns > core->now_ns)
                wake_ns = base_clock_earlier(wake_ns, slot->parts[p].due_ns);
        client_step_overdue(core, slot, &since_ns);
        if (i == 0 && !slot->told_error && since_ns != INT64_MAX)
            wake_ns = base_clock_earlier(wake_ns, since_ns + core->options.unavailable_ns);
    }
    if (core->plan_seen > core->plan.version)
        wake_ns = base_clock_earlier(wake_ns, core->fetched_ns + FETCH_NS);
    return wake_ns;
}

bool client_core_act(struct client_core *core, int64_t now_ns, struct client_action *action)
{
    if (core->dirty || now_ns != core->now_ns || now_ns >= core->wake_ns) {
        core->now_ns = now_ns;
        begin_round(core);
        core->wake_ns = INT64_MAX;
    }
    if (act_peers(core, action) || act_plan(core, action) || client_abandon_act(core, action) ||
        act_ready(core, action) || act_error(core, action) || client_hedge_act_cancel(core, action) ||
        act_requests(core, action) || client_hedge_act(core, action))
        return true;
    core->wake_ns = next_wake_ns(core);
    return false;
}

int64_t client_core_wake_ns(const struct client_core *core)
{
    return core->wake_ns;
}

/* ---- what happened ---- */

enum base_code client_core_plan(struct client_core *core, int64_t now_ns, const struct scheduler_plan *plan,
                                const uint64_t *workers, int count, struct base_error *error)
{
    core->now_ns = now_ns;
    if (plan->version <= core->plan.version)
        return BASE_OK;
    enum base_code code = client_peer_update(core, workers, count, error);
    if (code != BASE_OK)
        return code;
    core->plan = *plan;
    if (core->plan_seen < plan->version)
        core->plan_seen = plan->version;
    core->dirty = true;
    return BASE_OK;
}

uint32_t client_core_plan_version(const struct client_core *core)
{
    return core->plan.version;
}

/* The request that an event is about; NULL: nobody waits for it any more. */
static struct client_request *event(struct client_core *core, int64_t now_ns, uint64_t worker,
                                    uint64_t number, struct client_slot **slot)
{
    struct client_request *request = client_request_find(core, worker, number, slot);
    core->now_ns = now_ns;
    core->dirty = core->dirty || request != NULL;
    if (!request)
        client_peer_note_stray(core, worker);
    return request;
}

void client_core_wait(struct client_core *core, int64_t now_ns, uint64_t worker, uint64_t number, bool making,
                      uint32_t queue)
{
    struct client_slot *slot;
    struct client_request *request = client_request_find(core, worker, number, &slot);
    core->now_ns = now_ns;
    if (request && request->number == number)
        client_request_wait(core, request, making, queue);
}

void client_core_moved(struct client_core *core, int64_t now_ns, uint64_t worker, uint64_t number,
                       uint64_t home)
{
    struct client_slot *slot;
    struct client_request *request = event(core, now_ns, worker, number, &slot);
    if (request && request->hedge.number == number)
        client_hedge_end(core, request);
    else if (request)
        client_request_moved(core, slot, request, home);
}

void client_core_retry(struct client_core *core, int64_t now_ns, uint64_t worker, uint64_t number,
                       uint32_t after_ms, const struct base_error *cause)
{
    struct client_slot *slot;
    struct client_request *request = event(core, now_ns, worker, number, &slot);
    if (request && request->hedge.number == number) {
        client_hedge_note_throttle(core);
        client_hedge_end(core, request);
    } else if (request)
        client_request_retry(core, slot, request, after_ms * BASE_NS_PER_MS, cause);
}

void client_core_fail(struct client_core *core, int64_t now_ns, uint64_t worker, uint64_t number,
                      const struct base_error *cause)
{
    struct client_slot *slot;
    struct client_request *request = event(core, now_ns, worker, number, &slot);
    if (!request)
        return;
    if (request->hedge.number == number) { /* whom it was asked of first answers for it */
        client_hedge_end(core, request);
        return;
    }
    if (base_error_class(cause->code) == BASE_CLASS_RETRYABLE) {
        client_request_retry(core, slot, request, RETRY_FAILED_NS, cause);
        return;
    }
    /* A code that is no error at all would leave the step waiting for ever; a bad sample is never said so. */
    bool known = base_error_class(cause->code) == BASE_CLASS_PERMANENT;
    client_request_drop(core, slot, request);
    if (slot->verdict.code == BASE_OK)
        base_error_set(&slot->verdict, known ? cause->code : BASE_INTERNAL, "worker %llu: %s",
                       (unsigned long long)worker, cause->text);
}

enum client_placed client_core_place(struct client_core *core, int64_t now_ns, uint64_t worker,
                                     const struct client_arrival *arrival, struct client_place *place)
{
    struct client_slot *slot;
    struct client_request *request = client_request_find(core, worker, arrival->request, &slot);
    core->now_ns = now_ns;
    if (!request) {
        client_peer_note_stray(core, worker);
        return CLIENT_PLACED_SCRATCH;
    }
    uint32_t epoch = core->options.uses_epoch ? slot->begin.epoch : 0;
    if (arrival->block != request->block || arrival->from != request->from || arrival->to != request->to ||
        arrival->epoch != epoch || !client_request_receive(core, request, arrival->request))
        return CLIENT_PLACED_WRONG;
    place->slot = (uint32_t)(slot - core->slots);
    place->row = request->row;
    return CLIENT_PLACED_SLOT;
}

void client_core_data(struct client_core *core, int64_t now_ns, uint64_t worker, uint64_t number,
                      const struct wire_row *rows)
{
    struct client_slot *slot;
    struct client_request *request = client_request_find(core, worker, number, &slot);
    core->now_ns = now_ns;
    if (!request || request->state != CLIENT_REQUEST_RECEIVING)
        return;
    core->dirty = true;
    memcpy(slot->rows + request->row, rows, (request->to - request->from) * sizeof *rows);
    client_request_done(core, slot, request);
    if (slot->undone == 0 && slot->state == CLIENT_SLOT_FILLING)
        client_step_complete(core, slot);
}

/* ---- looking in ---- */

static const struct client_request *first_open(const struct client_slot *slot)
{
    for (uint32_t i = 0; i < slot->part_count; i++)
        if (slot->parts[i].state != CLIENT_REQUEST_DONE)
            return &slot->parts[i];
    return NULL;
}

void client_core_why(const struct client_core *core, char *text, size_t text_bytes)
{
    const struct client_slot *slot = core->queued > 0 ? &core->slots[core->queue[0]] : NULL;
    const struct client_request *request = slot ? first_open(slot) : NULL;
    const struct client_peer *down = NULL;
    int up = 0;
    for (int i = 0; i < core->peer_count; i++) {
        up += core->peers[i].state == CLIENT_PEER_UP;
        if (core->peers[i].state != CLIENT_PEER_UP && (!down || core->peers[i].why[0] != 0))
            down = &core->peers[i];
    }
    int used = snprintf(text, text_bytes, "%d of %d workers up", up, core->peer_count);
    if (down && used > 0 && (size_t)used < text_bytes)
        used += snprintf(text + used, text_bytes - (size_t)used, " (worker %llu: %s)",
                         (unsigned long long)down->id, down->why[0] != 0 ? down->why : "connecting");
    if (request && used > 0 && (size_t)used < text_bytes)
        used += snprintf(text + used, text_bytes - (size_t)used, "; block %llu %s at worker %llu",
                         (unsigned long long)request->block, client_request_state_name(request->state),
                         (unsigned long long)request->worker);
    if (slot && slot->retrying > 0 && used > 0 && (size_t)used < text_bytes)
        snprintf(text + used, text_bytes - (size_t)used, ": %s", slot->cause.text);
}

struct client_core_stats client_core_stats(const struct client_core *core)
{
    struct client_core_stats stats = core->stats;
    client_step_count(core, &stats);
    for (int i = 0; i < core->peer_count; i++) {
        stats.in_flight += core->peers[i].in_flight;
        stats.peers_up += core->peers[i].state == CLIENT_PEER_UP;
    }
    stats.peers = (uint32_t)core->peer_count;
    return stats;
}
