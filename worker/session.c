/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/machine.h"

#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

#define HANDLES_MAX 256 /* of one connection; as the port has it */

uint64_t worker_core_connected(struct worker_core *core)
{
    uint32_t index;
    struct worker_connection *connection = worker_slots_get(&core->connections, &index);
    if (!connection) {
        core->broken = true;
        return 0;
    }
    connection->first_request = WORKER_NONE;
    core->counts.connections++;
    return worker_slots_handle(&core->connections, index);
}

static void close_handles(struct worker_core *core, struct worker_connection *connection)
{
    for (uint32_t i = 0; i < connection->handle_count; i++) {
        const struct worker_handle *handle = &connection->handles[i];
        struct worker_stream *stream = core->streams[handle->stream];
        core->counts.claims -= stream->claims.in_use;
        worker_claims_close(&stream->claims, handle->claim);
        worker_share_sweep(core, stream);
        core->counts.claims += stream->claims.in_use;
        stream->handle_count--;
        core->counts.handles--;
        worker_core_release_stream(core, handle->stream);
    }
    free(connection->handles);
    connection->handles = NULL;
    connection->handle_count = 0;
}

void worker_core_closed(struct worker_core *core, int64_t now_ns, uint64_t handle)
{
    struct worker_connection *connection = worker_slots_find(&core->connections, handle);
    if (!connection)
        return;
    worker_request_abandon_all(core, (uint32_t)handle);
    close_handles(core, connection);
    worker_slots_put(&core->connections, (uint32_t)handle);
    core->counts.connections--;
    worker_block_admit(core, now_ns);
}

void worker_session_drop(struct worker_core *core, uint32_t index, enum base_code code, const char *text)
{
    struct worker_connection *connection = worker_connection_at(core, index);
    uint64_t handle = worker_slots_handle(&core->connections, index);
    connection->dropped = true;
    core->counts.invalid++;
    core->counts.failed++;
    worker_core_act(core, &(struct worker_action){
                              .kind = WORKER_SEND_FAIL, .connection = handle, .code = code, .text = text});
    worker_core_act(core, &(struct worker_action){.kind = WORKER_DROP, .connection = handle});
    worker_request_abandon_all(core, index);
}

bool worker_session_bear(struct worker_core *core, uint32_t index)
{
    struct worker_connection *connection = worker_connection_at(core, index);
    if (connection->refusals++ < WORKER_REFUSALS_MAX)
        return true;
    worker_session_drop(core, index, BASE_INVALID, "too many requests that make no sense");
    return false;
}

struct worker_handle *worker_session_handle(const struct worker_connection *connection, uint32_t number)
{
    for (uint32_t i = 0; i < connection->handle_count; i++)
        if (connection->handles[i].number == number)
            return &connection->handles[i];
    return NULL;
}

/* ---- OPEN ---- */

static void refuse(struct worker_core *core, uint64_t connection, const struct worker_open *open,
                   enum base_code code, const char *text)
{
    bool retry = base_error_class(code) == BASE_CLASS_RETRYABLE;
    if (!retry && !worker_session_bear(core, (uint32_t)connection))
        return;
    core->counts.retried += retry ? 1 : 0;
    core->counts.failed += retry ? 0 : 1;
    core->counts.invalid += retry ? 0 : 1;
    worker_core_act(core, &(struct worker_action){.kind = retry ? WORKER_SEND_RETRY : WORKER_SEND_FAIL,
                                                  .connection = connection,
                                                  .request = open->request,
                                                  .handle = open->handle,
                                                  .time_ms = retry ? WORKER_UNKNOWN_STREAM_MS : 0,
                                                  .code = code,
                                                  .text = text});
}

static struct worker_handle *add_handle(struct worker_connection *connection)
{
    if (!base_grow(&connection->handles, connection->handle_count, sizeof *connection->handles))
        return NULL;
    return &connection->handles[connection->handle_count];
}

static void grant(struct worker_core *core, struct worker_connection *connection, uint32_t stream_index,
                  const struct worker_open *open)
{
    struct worker_stream *stream = core->streams[stream_index];
    struct worker_handle *handle = add_handle(connection);
    core->counts.claims -= stream->claims.in_use;
    int64_t claim = handle ? worker_claims_open(&stream->claims, open->job, open->rank) : -1;
    core->counts.claims += stream->claims.in_use;
    struct worker_claim *item = claim >= 0 ? &stream->claims.items[claim] : NULL;
    if (item && item->share == WORKER_NONE)
        item->share = worker_share_open(core, stream_index, &item->job_hash);
    if (!item || item->share == WORKER_NONE) {
        core->broken = true;
        return;
    }
    *handle =
        (struct worker_handle){.number = open->handle, .stream = stream_index, .claim = (uint32_t)claim};
    connection->handle_count++;
    stream->handle_count++;
    core->counts.handles++;
}

void worker_core_open(struct worker_core *core, int64_t now_ns, uint64_t connection_handle,
                      const struct worker_open *open)
{
    (void)now_ns;
    struct worker_connection *connection = worker_slots_find(&core->connections, connection_handle);
    if (!connection || connection->dropped)
        return;
    core->counts.opens++;
    uint32_t index;
    struct worker_stream *stream = worker_core_find_stream(core, open->stream, &index);
    if (open->request == 0 || worker_session_handle(connection, open->handle)) {
        worker_session_drop(core, (uint32_t)connection_handle, BASE_INVALID,
                            "handle is open already, or request is 0");
    } else if (connection->handle_count >= HANDLES_MAX) {
        refuse(core, connection_handle, open, BASE_TOO_LARGE, "too many handles on one connection");
    } else if (!stream || !stream->live) {
        refuse(core, connection_handle, open, BASE_UNAVAILABLE,
               "the server has not told this worker of the stream yet");
        worker_core_act(core, &(struct worker_action){.kind = WORKER_WANT_SYNC});
    } else if (stream->claims.in_use >= WORKER_CLAIMS_MAX) {
        refuse(core, connection_handle, open, BASE_BUSY, "too many jobs and ranks read this stream");
    } else if (memcmp(stream->fingerprint, open->fingerprint, sizeof stream->fingerprint) != 0) {
        refuse(core, connection_handle, open, BASE_CONFLICT, "fingerprint is not the stream's");
    } else {
        grant(core, connection, index, open);
        worker_core_act(core, &(struct worker_action){.kind = WORKER_SEND_OPENED,
                                                      .connection = connection_handle,
                                                      .request = open->request,
                                                      .handle = open->handle,
                                                      .stream = stream->context,
                                                      .plan = stream->plan_version});
    }
}

/* ---- low-water ---- */

void worker_session_move(struct worker_core *core, int64_t now_ns, const struct worker_handle *handle,
                         uint32_t epoch, uint64_t position)
{
    struct worker_stream *stream = core->streams[handle->stream];
    if (stream->uses_epoch && epoch > UINT64_MAX / 4 / stream->items)
        return;
    uint64_t within = position < stream->items ? position : stream->items;
    uint64_t low_water = stream->uses_epoch ? epoch * stream->items + within : within % stream->items;
    worker_claims_move(&stream->claims, handle->claim, now_ns, low_water);
}

void worker_core_mark(struct worker_core *core, int64_t now_ns, uint64_t connection_handle, uint32_t number,
                      uint32_t epoch, uint64_t position)
{
    const struct worker_connection *connection = worker_slots_find(&core->connections, connection_handle);
    const struct worker_handle *handle = connection ? worker_session_handle(connection, number) : NULL;
    if (handle)
        worker_session_move(core, now_ns, handle, epoch, position);
}
