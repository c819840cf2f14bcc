/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/machine.h"

#include "base/clock.h"

#include <string.h>

/* ---- lists ---- */

static void join_block(struct worker_core *core, uint32_t index, uint32_t block_index)
{
    struct worker_request *request = worker_request_at(core, index);
    struct worker_block *block = worker_block_at(core, block_index);
    request->block = block_index;
    request->block_before = WORKER_NONE;
    request->block_next = block->first_waiter;
    if (block->first_waiter != WORKER_NONE)
        worker_request_at(core, block->first_waiter)->block_before = index;
    block->first_waiter = index;
    block->waiters++;
    core->counts.waiting++;
}

static void leave_block(struct worker_core *core, uint32_t index)
{
    struct worker_request *request = worker_request_at(core, index);
    struct worker_block *block = worker_block_at(core, request->block);
    if (request->block_before == WORKER_NONE)
        block->first_waiter = request->block_next;
    else
        worker_request_at(core, request->block_before)->block_next = request->block_next;
    if (request->block_next != WORKER_NONE)
        worker_request_at(core, request->block_next)->block_before = request->block_before;
    block->waiters--;
    core->counts.waiting--;
}

static void join_connection(struct worker_core *core, uint32_t index)
{
    struct worker_request *request = worker_request_at(core, index);
    struct worker_connection *connection = worker_connection_at(core, request->connection);
    request->connection_before = WORKER_NONE;
    request->connection_next = connection->first_request;
    if (connection->first_request != WORKER_NONE)
        worker_request_at(core, connection->first_request)->connection_before = index;
    connection->first_request = index;
    connection->requests++;
    connection->handles[request->handle].inflight++;
}

static void leave_connection(struct worker_core *core, uint32_t index)
{
    struct worker_request *request = worker_request_at(core, index);
    struct worker_connection *connection = worker_connection_at(core, request->connection);
    if (request->connection_before == WORKER_NONE)
        connection->first_request = request->connection_next;
    else
        worker_request_at(core, request->connection_before)->connection_next = request->connection_next;
    if (request->connection_next != WORKER_NONE)
        worker_request_at(core, request->connection_next)->connection_before = request->connection_before;
    connection->requests--;
    connection->handles[request->handle].inflight--;
    connection->handles[request->handle].cancelled -= request->cancelled;
}

/* ---- ends ---- */

static struct worker_action answer(const struct worker_core *core, const struct worker_request *request,
                                   enum worker_action_kind kind)
{
    const struct worker_connection *connection = worker_connection_at(core, request->connection);
    const struct worker_stream *stream = core->streams[request->stream];
    return (struct worker_action){.kind = kind,
                                  .connection = worker_slots_handle(&core->connections, request->connection),
                                  .request = request->id,
                                  .handle = connection->handles[request->handle].number,
                                  .stream = stream->context,
                                  .plan = stream->plan_version};
}

void worker_request_end(struct worker_core *core, uint32_t index)
{
    struct worker_request *request = worker_request_at(core, index);
    if (request->sending) {
        worker_block_unpin(core, request->block);
        core->counts.sending--;
    } else if (request->block != WORKER_NONE) {
        leave_block(core, index);
    }
    if (!request->orphan)
        leave_connection(core, index);
    worker_slots_put(&core->requests, index);
}

void worker_request_serve(struct worker_core *core, uint32_t index)
{
    struct worker_request *request = worker_request_at(core, index);
    const struct worker_block *block = worker_block_at(core, request->block);
    leave_block(core, index);
    request->sending = true;
    core->counts.sending++;
    core->counts.sent++;
    core->counts.sent_rows += request->to - request->from;
    worker_block_pin(core, request->block);
    struct worker_action action = answer(core, request, WORKER_SEND_DATA);
    action.send = worker_slots_handle(&core->requests, index);
    action.block = worker_slots_handle(&core->blocks, request->block);
    action.epoch = request->epoch;
    action.number = block->number;
    action.offset = block->offset;
    action.size_bytes = block->size_bytes;
    action.from = request->from;
    action.to = request->to;
    worker_core_act(core, &action);
}

void worker_request_wait(struct worker_core *core, const struct worker_request *request)
{
    const struct worker_block *block = worker_block_at(core, request->block);
    struct worker_action action = answer(core, request, WORKER_SEND_WAIT);
    action.making = block->state == WORKER_MAKING;
    action.queue = action.making ? 0 : block->heap_at;
    action.time_ms = worker_block_estimate_ms(core, request->block);
    core->counts.waits++;
    worker_core_act(core, &action);
}

void worker_request_retry(struct worker_core *core, uint32_t index, enum base_code code, uint32_t after_ms,
                          const char *text)
{
    struct worker_action action = answer(core, worker_request_at(core, index), WORKER_SEND_RETRY);
    action.code = code;
    action.time_ms = after_ms;
    action.text = text;
    core->counts.retried++;
    worker_core_act(core, &action);
    worker_request_end(core, index);
}

void worker_request_fail(struct worker_core *core, uint32_t index, enum base_code code, const char *text)
{
    struct worker_action action = answer(core, worker_request_at(core, index), WORKER_SEND_FAIL);
    action.code = code;
    action.text = text;
    core->counts.failed++;
    worker_core_act(core, &action);
    worker_request_end(core, index);
}

static void moved(struct worker_core *core, uint32_t index, uint64_t home)
{
    struct worker_action action = answer(core, worker_request_at(core, index), WORKER_SEND_MOVED);
    action.home = home;
    core->counts.moved++;
    worker_core_act(core, &action);
    worker_request_end(core, index);
}

/* ---- GET ---- */

/* What is wrong with it; NULL: nothing. */
static const char *check(const struct worker_stream *stream, const struct worker_get *get)
{
    if (get->block >= stream->blocks)
        return "block is behind the epoch's end";
    if (get->from >= get->to || get->to > worker_block_rows(stream, get->block))
        return "rows are not in the block";
    if (get->epoch > UINT64_MAX / 4 / stream->items)
        return "epoch is too large";
    return NULL;
}

static void note_front(struct worker_stream *stream, const struct worker_get *get)
{
    uint64_t start = worker_block_start(stream, 0, get->block);
    uint32_t epoch = get->epoch;
    if (!stream->uses_epoch) /* a block that the mark has passed is asked for the next round */
        epoch =
            get->mark_epoch + (start + worker_block_rows(stream, get->block) <= get->mark_position ? 1 : 0);
    bool later = !stream->asked || epoch > stream->front_epoch;
    if (later || (epoch == stream->front_epoch && start > stream->front_position)) {
        stream->front_epoch = epoch;
        stream->front_position = start;
    }
    stream->asked = true;
}

uint64_t worker_request_home(const struct worker_stream *stream, uint32_t epoch, uint64_t number)
{
    if (!stream->homes)
        return SCHEDULER_PLAN_NOBODY;
    return stream->homes[scheduler_plan_slot(stream->family, stream->uses_epoch, epoch, number)];
}

static enum worker_cause cause_of(const struct worker_stream *stream, const struct worker_get *get,
                                  bool elsewhere)
{
    bool pressed = false, insisted = elsewhere && get->insist;
    if (insisted && get->hedge)
        return WORKER_CAUSE_HEDGE;
    if (worker_history_was_made(&stream->history, stream->uses_epoch ? get->epoch : 0, get->block, &pressed))
        return pressed ? WORKER_CAUSE_PRESSURE : WORKER_CAUSE_LATE;
    if (insisted)
        return get->death ? WORKER_CAUSE_DEATH : WORKER_CAUSE_PLAN;
    return WORKER_CAUSE_FIRST;
}

/* The share of the job that asks. */
static uint32_t asker_of(const struct worker_core *core, uint32_t index)
{
    const struct worker_request *request = worker_request_at(core, index);
    const struct worker_connection *connection = worker_connection_at(core, request->connection);
    return core->streams[request->stream]->claims.items[connection->handles[request->handle].claim].share;
}

/* The block is absent: made here, or somebody else's. */
static void ask_absent(struct worker_core *core, int64_t now_ns, uint32_t index, const struct worker_get *get)
{
    uint32_t stream_index = worker_request_at(core, index)->stream;
    const struct worker_stream *stream = core->streams[stream_index];
    if (core->draining || !stream->live) {
        worker_request_retry(core, index, BASE_UNAVAILABLE, WORKER_REST_FIRST_MS,
                             core->draining ? "this worker is draining"
                                            : "this worker no longer serves the stream");
        return;
    }
    uint32_t epoch = stream->uses_epoch ? get->epoch : 0;
    uint64_t home = worker_request_home(stream, epoch, get->block);
    bool ours = home == core->options.worker || home == SCHEDULER_PLAN_NOBODY;
    if (!ours && !get->insist && stream->plan_version >= get->plan) {
        moved(core, index, home);
        return;
    }
    struct worker_block asked = {.stream = stream_index,
                                 .epoch = epoch,
                                 .number = get->block,
                                 .cause = cause_of(stream, get, home != core->options.worker),
                                 .since_ns = now_ns,
                                 .deadline_ns = now_ns + get->slack_ms * BASE_NS_PER_MS};
    uint32_t block = worker_block_queue(core, &asked, asker_of(core, index));
    if (block != WORKER_NONE)
        join_block(core, index, block);
}

static void ask_resting(struct worker_core *core, int64_t now_ns, uint32_t index, uint32_t block_index,
                        const struct worker_get *get)
{
    const struct worker_block *block = worker_block_at(core, block_index);
    const struct worker_stream *stream = core->streams[block->stream];
    int64_t left_ns = block->deadline_ns - now_ns;
    if (left_ns > 0 || core->draining || !stream->live) {
        uint32_t left_ms = left_ns > 0 ? (uint32_t)((left_ns + BASE_NS_PER_MS - 1) / BASE_NS_PER_MS) : 0;
        worker_request_retry(core, index, BASE_UNAVAILABLE, left_ms > 0 ? left_ms : WORKER_REST_FIRST_MS,
                             block->text ? block->text : "unavailable");
        return;
    }
    worker_block_requeue(core, block_index, now_ns, now_ns + get->slack_ms * BASE_NS_PER_MS,
                         asker_of(core, index));
    join_block(core, index, block_index);
}

static void ask(struct worker_core *core, int64_t now_ns, uint32_t index, const struct worker_get *get)
{
    uint32_t stream_index = worker_request_at(core, index)->stream;
    uint32_t epoch = core->streams[stream_index]->uses_epoch ? get->epoch : 0;
    uint32_t block = worker_block_find(core, stream_index, epoch, get->block);
    if (block == WORKER_NONE) {
        ask_absent(core, now_ns, index, get);
        return;
    }
    enum worker_block_state state = worker_block_at(core, block)->state;
    if (state == WORKER_RESTING) {
        ask_resting(core, now_ns, index, block, get);
        return;
    }
    join_block(core, index, block);
    if (state == WORKER_QUEUED)
        worker_share_offer(core, block, asker_of(core, index));
    else
        worker_share_ask(core, block, asker_of(core, index));
    if (state == WORKER_READY)
        worker_request_serve(core, index);
    else
        worker_block_hasten(core, block, now_ns + get->slack_ms * BASE_NS_PER_MS);
}

static uint32_t new_request(struct worker_core *core, uint32_t connection, uint32_t handle,
                            const struct worker_get *get)
{
    uint32_t index;
    struct worker_request *request = worker_slots_get(&core->requests, &index);
    if (!request) {
        core->broken = true;
        return WORKER_NONE;
    }
    request->id = get->request;
    request->connection = connection;
    request->handle = handle;
    request->stream = worker_connection_at(core, connection)->handles[handle].stream;
    request->block = WORKER_NONE;
    request->epoch = get->epoch;
    request->from = get->from;
    request->to = get->to;
    join_connection(core, index);
    return index;
}

static uint32_t find_request(const struct worker_core *core, const struct worker_connection *connection,
                             uint64_t id)
{
    uint32_t at = connection->first_request;
    while (at != WORKER_NONE && worker_request_at(core, at)->id != id)
        at = worker_request_at(core, at)->connection_next;
    return at;
}

static void refuse(struct worker_core *core, uint64_t connection, const struct worker_get *get,
                   const char *text)
{
    if (!worker_session_bear(core, (uint32_t)connection))
        return;
    core->counts.invalid++;
    core->counts.failed++;
    worker_core_act(core, &(struct worker_action){.kind = WORKER_SEND_FAIL,
                                                  .connection = connection,
                                                  .request = get->request,
                                                  .handle = get->handle,
                                                  .code = BASE_INVALID,
                                                  .text = text});
}

void worker_core_get(struct worker_core *core, int64_t now_ns, uint64_t connection_handle,
                     const struct worker_get *get)
{
    struct worker_connection *connection = worker_slots_find(&core->connections, connection_handle);
    if (!connection || connection->dropped)
        return;
    core->counts.requests++;
    struct worker_handle *handle = worker_session_handle(connection, get->handle);
    const char *wrong = handle ? check(core->streams[handle->stream], get) : "handle is not open";
    if (get->request == 0 || find_request(core, connection, get->request) != WORKER_NONE) {
        worker_session_drop(core, (uint32_t)connection_handle, BASE_INVALID,
                            "request number is 0 or in flight");
        return;
    }
    if (wrong) {
        refuse(core, connection_handle, get, wrong);
        return;
    }
    if (handle->inflight - handle->cancelled >= 2 * core->options.requests_max ||
        handle->cancelled >= WORKER_CANCELLED_MAX * core->options.requests_max) {
        worker_session_drop(core, (uint32_t)connection_handle, BASE_TOO_LARGE, "too many requests in flight");
        return;
    }
    note_front(core->streams[handle->stream], get);
    worker_session_move(core, now_ns, handle, get->mark_epoch, get->mark_position);
    uint32_t index =
        new_request(core, (uint32_t)connection_handle, (uint32_t)(handle - connection->handles), get);
    if (index == WORKER_NONE)
        return;
    uint64_t waits = worker_slots_handle(&core->requests, index);
    ask(core, now_ns, index, get);
    worker_block_admit(core, now_ns);
    const struct worker_request *request = worker_slots_find(&core->requests, waits);
    if (!request || core->broken) /* broken: it may wait for no block at all */
        return;
    worker_core_begin_tick(core, now_ns);
    if (!request->sending && worker_block_at(core, request->block)->state == WORKER_QUEUED)
        worker_request_wait(core, request);
}

/* Nobody waits for a queued block any more: it is not worth making. */
static void abandon(struct worker_core *core, uint32_t index)
{
    if (core->broken)
        return;
    const struct worker_block *block = worker_block_at(core, index);
    uint32_t stream = block->stream;
    if (block->state != WORKER_QUEUED || block->waiters > 0)
        return;
    worker_block_forget(core, index);
    worker_core_release_stream(core, stream);
}

void worker_core_cancel(struct worker_core *core, int64_t now_ns, uint64_t connection_handle, uint64_t id)
{
    const struct worker_connection *connection = worker_slots_find(&core->connections, connection_handle);
    if (!connection || connection->dropped)
        return;
    uint32_t index = find_request(core, connection, id);
    if (index == WORKER_NONE)
        return;
    struct worker_request *request = worker_request_at(core, index);
    if (request->sending) { /* it is sent to its end, and the client asks the next one meanwhile */
        connection->handles[request->handle].cancelled += !request->cancelled;
        request->cancelled = true;
        return;
    }
    uint32_t block = request->block;
    worker_request_end(core, index);
    core->counts.cancelled++;
    abandon(core, block);
    worker_block_admit(core, now_ns);
}

void worker_core_sent(struct worker_core *core, int64_t now_ns, uint64_t send, bool done)
{
    (void)done;
    const struct worker_request *request = worker_slots_find(&core->requests, send);
    if (!request || !request->sending)
        return;
    worker_request_end(core, (uint32_t)send);
    worker_block_admit(core, now_ns);
}

/* ---- the connection's end ---- */

void worker_request_abandon_all(struct worker_core *core, uint32_t connection_index)
{
    uint32_t next;
    for (uint32_t at = worker_connection_at(core, connection_index)->first_request; at != WORKER_NONE;
         at = next) {
        struct worker_request *request = worker_request_at(core, at);
        next = request->connection_next;
        if (request->sending) {
            leave_connection(core, at);
            request->orphan = true;
            continue;
        }
        uint32_t block = request->block;
        worker_request_end(core, at);
        abandon(core, block);
    }
}
