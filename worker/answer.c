/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/connection.h"

#include "base/clock.h"
#include "base/grow.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

/* A DATA frame on its way: the link's token. Small parts lie here, the rest in staging. */
struct sending {
    uint64_t send; /* 0: a page of a manifest, which lies here whole */
    uint8_t scratch[];
};

/* A connection that cannot take an answer does not read, or memory is out. */
static void check(struct connection *connection, enum base_code code, const struct base_error *error)
{
    if (code == BASE_TOO_LARGE)
        worker_connection_kill(connection, WORKER_METRIC_DROPPED_STALL, error->text);
    else if (code != BASE_OK)
        worker_connection_kill(connection, 0, NULL);
    else
        worker_connection_touch(connection);
}

static void send_small(struct connection *connection, const struct wire_header *header, const void *payload,
                       size_t size)
{
    struct base_error error = {0};
    check(connection, wire_link_send(connection->link, header, payload, size, &error), &error);
}

static void send_buffer(struct connection *connection, const struct wire_header *header,
                        const struct base_buffer *payload)
{
    struct base_error error = {0};
    check(connection, wire_link_send_buffer(connection->link, header, payload, &error), &error);
}

void worker_answer_fail(struct connection *connection, uint64_t request, uint32_t handle, enum base_code code,
                        const char *text)
{
    struct wire_header header = {
        .type = WIRE_FAIL, .request = request, .handle = handle, .status = (uint16_t)code};
    send_small(connection, &header, text, strlen(text));
}

static struct wire_header header_of(const struct worker_action *action, uint8_t type)
{
    return (struct wire_header){
        .type = type, .request = action->request, .handle = action->handle, .plan = action->plan};
}

static void send_opened(struct connection *connection, const struct worker_action *action)
{
    const struct worker_kit *kit = action->stream;
    const struct scheduler_pipeline *pipeline = &kit->stream.pipeline;
    const struct connection_handle *handle = worker_connection_handle(connection, action->handle);
    struct wire_opened opened = {.requests_max = connection->serve->options.requests_max,
                                 .block_rows = pipeline->block_rows,
                                 .field_count = pipeline->field_count,
                                 .wanted = handle->wanted};
    memcpy(opened.fields, pipeline->fields, (size_t)pipeline->field_count * sizeof opened.fields[0]);
    struct base_buffer payload;
    base_buffer_init(&payload);
    wire_opened_write(&opened, &payload);
    struct wire_header header = header_of(action, WIRE_OPEN);
    header.flags = WIRE_FLAG_REPLY;
    send_buffer(connection, &header, &payload);
    base_buffer_fini(&payload);
}

void worker_answer_sent(struct connection *connection, uint64_t token, bool done)
{
    struct sending *sending = (struct sending *)(uintptr_t)token;
    if (sending->send != 0)
        worker_core_sent(connection->serve->options.core, base_clock_now_ns(), sending->send, done);
    else
        connection->pages--;
    free(sending);
}

enum base_code worker_answer_page(struct connection *connection, const struct wire_header *asked,
                                  const uint8_t *bytes, size_t size, struct base_error *error)
{
    struct sending *sending = malloc(sizeof *sending + size);
    if (!sending)
        return base_error_set(error, BASE_NO_MEMORY, "PAGE: no memory for a copy");
    sending->send = 0;
    memcpy(sending->scratch, bytes, size);
    connection->pages++;
    struct wire_header header = {
        .type = WIRE_PAGE, .flags = WIRE_FLAG_REPLY, .request = asked->request, .block = asked->block};
    struct iovec part = {sending->scratch, size};
    enum base_code code =
        wire_link_send_parts(connection->link, &header, &part, 1, (uint64_t)(uintptr_t)sending, error);
    if (code != BASE_OK)
        worker_answer_sent(connection, (uint64_t)(uintptr_t)sending, false);
    return code;
}

/* ---- staging that is lent ---- */

static bool add_loan(struct connection *connection, uint64_t send)
{
    if (!base_grow(&connection->loans, connection->loan_count, sizeof *connection->loans))
        return false;
    if (connection->loan_count == 0)
        connection->loan_ns = base_clock_now_ns();
    connection->loans[connection->loan_count++] = send;
    return true;
}

enum base_code worker_answer_done(struct connection *connection, uint64_t loan, struct base_error *error)
{
    uint32_t at = 0; /* they are done in order: mostly the first */
    while (at < connection->loan_count && connection->loans[at] != loan)
        at++;
    if (at == connection->loan_count)
        return base_error_set(error, BASE_INVALID, "DONE of something that was not lent");
    connection->loan_count--;
    memmove(connection->loans + at, connection->loans + at + 1,
            (connection->loan_count - at) * sizeof *connection->loans);
    connection->loan_ns = base_clock_now_ns();
    worker_core_sent(connection->serve->options.core, connection->loan_ns, loan, true);
    return BASE_OK;
}

void worker_answer_forget_loans(struct connection *connection)
{
    for (uint32_t i = 0; i < connection->loan_count; i++)
        worker_core_sent(connection->serve->options.core, base_clock_now_ns(), connection->loans[i], false);
    connection->loan_count = 0;
    free(connection->loans);
    connection->loans = NULL;
}

static void lend(struct connection *connection, const struct worker_action *action,
                 const struct wire_header *data, const struct iovec *iov, int count)
{
    struct worker_serve *serve = connection->serve;
    struct wire_local_part part = {
        .loan = action->send, .head = iov[0].iov_base, .head_bytes = iov[0].iov_len};
    struct wire_header header = *data;
    int64_t bytes = (int64_t)iov[0].iov_len;
    for (int i = 1; i < count; i++) {
        uint64_t offset = (uint64_t)((uint8_t *)iov[i].iov_base - serve->options.staging);
        part.runs[part.run_count++] = (struct wire_local_run){offset, iov[i].iov_len};
        bytes += (int64_t)iov[i].iov_len;
    }
    header.flags = WIRE_FLAG_LOCAL;
    base_buffer_clear(&serve->payload);
    wire_local_write(&part, &serve->payload);
    if (!add_loan(connection, action->send)) {
        worker_core_sent(serve->options.core, base_clock_now_ns(), action->send, false);
        serve->payload.failed = true; /* and the connection goes */
    }
    send_buffer(connection, &header, &serve->payload);
    base_metric_add(&connection->serve->metrics[WORKER_METRIC_BYTES_LENT], bytes);
}

/* ---- DATA ---- */

static void send_parts(struct connection *connection, const struct wire_header *header,
                       const struct iovec *iov, int count, struct sending *sending)
{
    struct base_error error = {0};
    enum base_code code =
        wire_link_send_parts(connection->link, header, iov, count, (uint64_t)(uintptr_t)sending, &error);
    if (code != BASE_OK)
        worker_answer_sent(connection, (uint64_t)(uintptr_t)sending, false);
    check(connection, code, &error);
}

static void send_data(struct connection *connection, const struct worker_action *action)
{
    struct worker_serve *serve = connection->serve;
    const struct worker_kit *kit = action->stream;
    uint8_t wanted = worker_connection_handle(connection, action->handle)->wanted;
    uint32_t rows = (uint32_t)(action->to - action->from);
    struct sending *sending = malloc(sizeof *sending + wire_part_scratch_bytes(&kit->layout, wanted, rows));
    if (!sending) {
        worker_core_sent(serve->options.core, base_clock_now_ns(), action->send, false);
        worker_connection_kill(connection, WORKER_METRIC_DROPPED_STALL, "no memory for a DATA frame");
        return;
    }
    sending->send = action->send;
    struct iovec iov[WIRE_PART_IOVECS];
    uint64_t length;
    int count = wire_part_gather(&kit->layout, serve->options.staging + action->offset,
                                 &(struct wire_cut){wanted, action->from, action->to}, sending->scratch, iov,
                                 &length);
    struct wire_header header = header_of(action, WIRE_DATA);
    header.epoch = action->epoch;
    header.block = action->number;
    header.from = action->from;
    header.to = action->to;
    if (!connection->local) {
        send_parts(connection, &header, iov, count, sending);
        return;
    }
    lend(connection, action, &header, iov, count);
    free(sending);
}

static void send_status(struct connection *connection, const struct worker_action *action)
{
    struct wire_header header = header_of(action, WIRE_FAIL);
    header.status = (uint16_t)action->code;
    if (action->kind == WORKER_SEND_RETRY) {
        header.type = WIRE_RETRY;
        header.time_ms = action->time_ms;
    }
    const char *text = action->text ? action->text : "";
    send_small(connection, &header, text, strlen(text));
}

static void send_wait(struct connection *connection, const struct worker_action *action)
{
    struct wire_header header = header_of(action, WIRE_WAIT);
    header.status = action->making ? WIRE_WAIT_MAKING : WIRE_WAIT_QUEUED;
    header.queue = action->queue < UINT16_MAX ? (uint16_t)action->queue : UINT16_MAX;
    header.time_ms = action->time_ms;
    send_small(connection, &header, NULL, 0);
}

static void send_moved(struct connection *connection, const struct worker_action *action)
{
    struct wire_header header = header_of(action, WIRE_MOVED);
    struct base_buffer payload;
    base_buffer_init(&payload);
    wire_moved_write(action->home, &payload);
    send_buffer(connection, &header, &payload);
    base_buffer_fini(&payload);
}

static void drop(struct connection *connection)
{
    base_metric_add(&connection->serve->metrics[WORKER_METRIC_DROPPED_RULES], 1);
    base_log(BASE_LOG_WARN, "connection_dropped", "peer=%s cause=\"it broke the rules of a handle\"",
             connection->peer);
    worker_connection_linger(connection);
}

static void answer(struct connection *connection, const struct worker_action *action)
{
    switch (action->kind) {
    case WORKER_SEND_OPENED:
        send_opened(connection, action);
        break;
    case WORKER_SEND_DATA:
        send_data(connection, action);
        break;
    case WORKER_SEND_WAIT:
        send_wait(connection, action);
        break;
    case WORKER_SEND_MOVED:
        send_moved(connection, action);
        break;
    case WORKER_SEND_RETRY:
    case WORKER_SEND_FAIL:
        send_status(connection, action);
        break;
    case WORKER_SEND_PING:
        send_small(connection, &(struct wire_header){.type = WIRE_PING}, NULL, 0);
        break;
    default:
        drop(connection);
    }
}

void worker_answer_act(struct worker_serve *serve, const struct worker_action *action)
{
    const struct worker_serve_options *options = &serve->options;
    struct connection *connection;
    switch (action->kind) {
    case WORKER_MAKE:
        worker_make_begin(options->make, action);
        break;
    case WORKER_HASTEN:
        worker_make_hasten(options->make, action->block, action->deadline_ns);
        break;
    case WORKER_WANT_SYNC:
        options->hooks->want_sync(options->context);
        break;
    case WORKER_STREAM_GONE:
        options->hooks->stream_gone(options->context, action->stream);
        break;
    default:
        connection = worker_connection_find(serve, action->connection);
        if (connection)
            answer(connection, action);
        else if (action->kind == WORKER_SEND_DATA)
            worker_core_sent(options->core, base_clock_now_ns(), action->send, false);
    }
}
