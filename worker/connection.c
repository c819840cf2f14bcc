/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/connection.h"

#include "base/clock.h"
#include "base/grow.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_BUDGET_BYTES (256 * 1024) /* of one turn: fairness */

/* ---- ends ---- */

static void log_drop(const struct connection *connection, const char *text)
{
    char quoted[2 * BASE_ERROR_TEXT_BYTES];
    base_log(BASE_LOG_WARN, "connection_dropped", "peer=%s cause=%s", connection->peer,
             base_log_quote(text, quoted, sizeof quoted));
}

/* The machine forgets it; what is being sent ends when the link goes. */
static void leave_core(struct connection *connection)
{
    if (!connection->core)
        return;
    worker_core_closed(connection->serve->options.core, base_clock_now_ns(), connection->core);
    connection->serve->by_index[(uint32_t)connection->core] = NULL;
    connection->core = 0;
}

void worker_connection_kill(struct connection *connection, int metric, const char *text)
{
    if (connection->dead)
        return;
    if (text) {
        base_metric_add(&connection->serve->metrics[metric], 1);
        log_drop(connection, text);
    }
    connection->dead = true;
    leave_core(connection);
    event_del(connection->readable);
    event_del(connection->writable);
    event_active(connection->serve->reap, EV_TIMEOUT, 0);
}

void worker_connection_linger(struct connection *connection)
{
    if (connection->lingering || connection->dead)
        return;
    connection->lingering = true;
    connection->since_ns = base_clock_now_ns();
    leave_core(connection);
    worker_connection_update(connection);
}

void worker_connection_refuse(struct connection *connection, int metric, enum base_code code,
                              const char *text)
{
    if (connection->lingering || connection->dead)
        return;
    base_metric_add(&connection->serve->metrics[metric], 1);
    log_drop(connection, text);
    worker_answer_fail(connection, 0, 0, code, text);
    worker_connection_linger(connection);
}

void worker_connection_free(struct connection *connection)
{
    leave_core(connection);
    worker_answer_forget_loans(connection);
    wire_link_destroy(connection->link);
    if (connection->readable)
        event_free(connection->readable);
    if (connection->writable)
        event_free(connection->writable);
    free(connection->handles);
    free(connection);
}

static void count_bytes(struct connection *connection)
{
    struct base_metric *metrics = connection->serve->metrics;
    uint64_t in = wire_link_bytes_in(connection->link), out = wire_link_bytes_out(connection->link);
    base_metric_add(&metrics[WORKER_METRIC_BYTES_IN], (int64_t)(in - connection->bytes_in));
    base_metric_add(&metrics[WORKER_METRIC_BYTES_OUT], (int64_t)(out - connection->bytes_out));
    if (out != connection->bytes_out || !wire_link_wants_write(connection->link))
        connection->progress_ns = base_clock_now_ns();
    connection->bytes_in = in;
    connection->bytes_out = out;
}

void worker_connection_touch(struct connection *connection)
{
    if (connection->touched)
        return;
    connection->touched = true;
    connection->touched_next = connection->serve->touched;
    connection->serve->touched = connection;
}

/* Polls for what it needs. */
static void settle(struct connection *connection)
{
    count_bytes(connection);
    bool writes = wire_link_wants_write(connection->link) && !connection->mute;
    bool deaf = wire_link_queued(connection->link) > WORKER_QUEUED_FRAMES_MAX && !connection->lingering;
    if (deaf && !connection->deaf)
        event_del(connection->readable);
    else if (!deaf && connection->deaf)
        event_add(connection->readable, NULL);
    connection->deaf = deaf;
    if (writes)
        event_add(connection->writable, NULL);
    else
        event_del(connection->writable);
    if (connection->lingering && !writes && !connection->shut) {
        connection->shut = true;
        shutdown(wire_link_fd(connection->link), SHUT_WR);
    }
}

void worker_connection_update(struct connection *connection)
{
    if (connection->dead)
        return;
    (void)wire_link_write(connection->link, NULL); /* the next read tells of a failure */
    settle(connection);
}

void worker_connection_sweep(struct connection *connection, int64_t now_ns)
{
    count_bytes(connection);
    int64_t age_ns = now_ns - connection->since_ns, still_ns = now_ns - connection->progress_ns;
    if (connection->lingering && age_ns > WORKER_LINGER_MS * BASE_NS_PER_MS)
        worker_connection_kill(connection, 0, NULL);
    else if (!connection->greeted && age_ns > WORKER_HELLO_MS * BASE_NS_PER_MS)
        worker_connection_kill(connection, WORKER_METRIC_DROPPED_HELLO, "no HELLO came");
    else if (wire_link_wants_write(connection->link) && still_ns > WORKER_STALL_MS * BASE_NS_PER_MS)
        worker_connection_kill(connection, WORKER_METRIC_DROPPED_STALL, "a send made no progress for 1 s");
    else if (connection->loan_count > 0 && now_ns - connection->loan_ns > WORKER_STALL_MS * BASE_NS_PER_MS)
        worker_connection_kill(connection, WORKER_METRIC_DROPPED_STALL, "it copied nothing for 1 s");
}

/* ---- handles ---- */

const struct connection_handle *worker_connection_handle(const struct connection *connection, uint32_t number)
{
    for (uint32_t i = 0; i < connection->handle_count; i++)
        if (connection->handles[i].number == number)
            return &connection->handles[i];
    return NULL;
}

static bool set_handle(struct connection *connection, uint32_t number, uint8_t wanted)
{
    for (uint32_t i = 0; i < connection->handle_count; i++)
        if (connection->handles[i].number == number) {
            connection->handles[i].wanted = wanted;
            return true;
        }
    if (connection->handle_count >= WORKER_HANDLES_MAX ||
        !base_grow(&connection->handles, connection->handle_count, sizeof *connection->handles))
        return false;
    connection->handles[connection->handle_count++] = (struct connection_handle){number, wanted};
    return true;
}

/* ---- frames ---- */

static enum base_code offer_staging(struct connection *connection, struct base_error *error)
{
    struct wire_header header = {.type = WIRE_LOCAL};
    connection->offered = true;
    return wire_link_send(connection->link, &header, worker_local_name(connection->serve->options.local),
                          WIRE_LOCAL_NAME_BYTES, error);
}

static enum base_code on_hello(struct connection *connection, const uint8_t *payload, size_t size,
                               struct base_error *error)
{
    const struct worker_serve *serve = connection->serve;
    struct wire_hello theirs, mine = {.version_min = WIRE_VERSION_MIN, .version_max = WIRE_VERSION_MAX};
    enum base_code code = wire_hello_read(payload, size, &theirs, error);
    if (code != BASE_OK)
        return code;
    if (wire_hello_agree(&mine, &theirs) == 0)
        return base_error_set(error, BASE_UNSUPPORTED, "protocol versions %u..%u; this worker speaks %d..%d",
                              theirs.version_min, theirs.version_max, WIRE_VERSION_MIN, WIRE_VERSION_MAX);
    if (serve->options.token_key) {
        code = rpc_token_check(serve->options.token_key, theirs.token, base_clock_wall_ns() / BASE_NS_PER_S,
                               error);
        if (code != BASE_OK)
            return base_error_prefix(error, BASE_REFUSED, "HELLO");
        snprintf(connection->token, sizeof connection->token, "%s", theirs.token);
    }
    snprintf(mine.name, sizeof mine.name, "%s", serve->options.name);
    bool offers = serve->options.local && theirs.features & WIRE_FEATURE_LOCAL;
    mine.features = offers ? WIRE_FEATURE_LOCAL : 0;
    struct base_buffer reply;
    base_buffer_init(&reply);
    wire_hello_write(&mine, &reply);
    struct wire_header header = {.type = WIRE_HELLO, .flags = WIRE_FLAG_REPLY};
    code = wire_link_send_buffer(connection->link, &header, &reply, error);
    base_buffer_fini(&reply);
    connection->greeted = code == BASE_OK;
    return code == BASE_OK && offers ? offer_staging(connection, error) : code;
}

/* The trainer has mapped staging. */
static enum base_code on_local(struct connection *connection, struct base_error *error)
{
    if (!connection->offered || connection->local)
        return base_error_set(error, BASE_INVALID, "LOCAL, but nothing was offered, or again");
    connection->local = true;
    base_metric_add(&connection->serve->metrics[WORKER_METRIC_CONNECTIONS_LOCAL], 1);
    return BASE_OK;
}

static enum base_code on_done(struct connection *connection, const struct wire_header *header,
                              const uint8_t *payload, struct base_error *error)
{
    uint32_t count;
    enum base_code code = wire_done_read(header->length, &count, error);
    for (uint32_t i = 0; i < count && code == BASE_OK; i++)
        code = worker_answer_done(connection, wire_done_loan(payload, i), error);
    return code;
}

/* A token is one job's: it opens no other's streams. */
static bool may_open(const struct connection *connection, const char *job)
{
    char subject[RPC_TOKEN_SUBJECT_CHARS];
    rpc_token_subject(job, subject);
    return !connection->serve->options.token_key || rpc_token_is_for(connection->token, subject);
}

static enum base_code on_open(struct connection *connection, const struct wire_header *header,
                              const uint8_t *payload, struct base_error *error)
{
    const struct worker_serve_options *options = &connection->serve->options;
    struct wire_open open;
    enum base_code code = wire_open_read(payload, header->length, &open, error);
    if (code != BASE_OK)
        return code;
    if (!may_open(connection, open.job))
        return base_error_set(error, BASE_REFUSED, "OPEN: the token of HELLO was not issued for job %s",
                              open.job);
    const struct worker_kit *kit = options->hooks->find_kit(options->context, open.stream);
    const char *missing = "";
    uint8_t wanted = kit ? worker_kit_wanted(kit, open.fields, open.field_count, &missing) : 0;
    if (kit && wanted == 0) {
        char text[96];
        snprintf(text, sizeof text, "the stream has no field \"%.24s\"", missing);
        worker_answer_fail(connection, header->request, header->handle, BASE_INVALID, text);
        return BASE_OK;
    }
    if (kit && !set_handle(connection, header->handle, wanted))
        return base_error_set(error, BASE_TOO_LARGE, "OPEN: more than %d handles, or no memory",
                              WORKER_HANDLES_MAX);
    struct worker_open event = {.request = header->request,
                                .handle = header->handle,
                                .rank = open.rank,
                                .stream = open.stream,
                                .fingerprint = open.fingerprint,
                                .job = open.job};
    worker_core_open(options->core, base_clock_now_ns(), connection->core, &event);
    return BASE_OK;
}

static enum base_code on_get(struct connection *connection, const struct wire_header *header,
                             const uint8_t *payload, struct base_error *error)
{
    struct wire_mark mark;
    enum base_code code = wire_mark_read(payload, header->length, &mark, error);
    if (code != BASE_OK)
        return code;
    struct worker_get get = {.request = header->request,
                             .block = header->block,
                             .handle = header->handle,
                             .epoch = header->epoch,
                             .plan = header->plan,
                             .slack_ms = header->time_ms,
                             .from = header->from,
                             .to = header->to,
                             .insist = header->flags & WIRE_FLAG_INSIST,
                             .death = header->flags & WIRE_FLAG_DEATH,
                             .hedge = header->flags & WIRE_FLAG_HEDGE,
                             .mark_epoch = mark.epoch,
                             .mark_position = mark.position};
    worker_core_get(connection->serve->options.core, base_clock_now_ns(), connection->core, &get);
    return BASE_OK;
}

static enum base_code on_mark(struct connection *connection, const struct wire_header *header,
                              const uint8_t *payload, struct base_error *error)
{
    struct wire_mark mark;
    enum base_code code = wire_mark_read(payload, header->length, &mark, error);
    if (code == BASE_OK)
        worker_core_mark(connection->serve->options.core, base_clock_now_ns(), connection->core,
                         header->handle, mark.epoch, mark.position);
    return code;
}

static enum base_code on_page(struct connection *connection, const struct wire_header *header,
                              const uint8_t *payload, struct base_error *error)
{
    struct worker_serve *serve = connection->serve;
    if (header->length != BASE_SHA256_BYTES)
        return base_error_set(error, BASE_CORRUPT, "PAGE frame of %llu bytes",
                              (unsigned long long)header->length);
    if (connection->pages >= WORKER_PAGES_MAX)
        return base_error_set(error, BASE_TOO_LARGE, "more than %d pages of manifests at once",
                              WORKER_PAGES_MAX);
    const struct worker_dataset *dataset =
        serve->options.hooks->find_dataset(serve->options.context, payload);
    const uint8_t *bytes = NULL;
    size_t size = 0;
    struct base_error why = {0};
    enum base_code code =
        dataset ? manifest_page(dataset->manifest, header->block, &bytes, &size, &why)
                : base_error_set(&why, BASE_NOT_FOUND, "this worker does not hold that manifest");
    if (code != BASE_OK) {
        worker_answer_fail(connection, header->request, 0, code, why.text);
        return BASE_OK;
    }
    base_metric_add(&serve->metrics[WORKER_METRIC_PAGES], 1);
    return worker_answer_page(connection, header, bytes, size, error);
}

static enum base_code take_frame(struct connection *connection, const struct wire_header *header,
                                 const uint8_t *payload, struct base_error *error)
{
    bool reply = header->flags & WIRE_FLAG_REPLY;
    switch (reply ? 0 : header->type) {
    case WIRE_HELLO:
        return on_hello(connection, payload, header->length, error);
    case WIRE_OPEN:
        return on_open(connection, header, payload, error);
    case WIRE_GET:
        return on_get(connection, header, payload, error);
    case WIRE_MARK:
        return on_mark(connection, header, payload, error);
    case WIRE_CANCEL:
        worker_core_cancel(connection->serve->options.core, base_clock_now_ns(), connection->core,
                           header->request);
        return BASE_OK;
    case WIRE_PAGE:
        return on_page(connection, header, payload, error);
    case WIRE_LOCAL:
        return on_local(connection, error);
    case WIRE_DONE:
        return on_done(connection, header, payload, error);
    case WIRE_PING:
        return BASE_OK;
    case WIRE_FAIL:
        return base_error_set(error, BASE_CLOSED, "the peer says: %.*s",
                              header->length < 200 ? (int)header->length : 200,
                              payload ? (const char *)payload : "");
    default:
        return base_error_set(error, BASE_INVALID, "a worker takes no %s%s frame",
                              wire_type_name(header->type), reply ? " reply" : "");
    }
}

/* The link must go on, so that a FAIL leaves: what is wrong ends the connection from here, not through the code. */
static enum base_code on_frame(void *context, const struct wire_header *header, const uint8_t *payload,
                               struct base_error *unused)
{
    (void)unused;
    struct connection *connection = context;
    struct base_error error = {0};
    if (connection->lingering || connection->dead)
        return BASE_OK;
    enum base_code code = take_frame(connection, header, payload, &error);
    if (code == BASE_OK)
        return BASE_OK;
    int metric = code == BASE_REFUSED ? WORKER_METRIC_DROPPED_TOKEN : WORKER_METRIC_DROPPED_RULES;
    worker_connection_refuse(connection, metric, code, error.text);
    return BASE_OK;
}

static void on_sent(void *context, uint64_t token, bool done)
{
    worker_answer_sent(context, token, done);
}

static const struct wire_link_events link_events = {.frame = on_frame, .sent = on_sent};

/* ---- readiness ---- */

static void read_away(struct connection *connection)
{
    uint8_t trash[16384];
    for (int i = 0; i < 16; i++) {
        ssize_t came = recv(wire_link_fd(connection->link), trash, sizeof trash, MSG_DONTWAIT);
        if (came > 0)
            continue;
        if (came == 0 || (errno != EAGAIN && errno != EINTR))
            worker_connection_kill(connection, 0, NULL);
        return;
    }
}

static void read_frames(struct connection *connection)
{
    struct base_error error = {0};
    enum base_code code = wire_link_read(connection->link, READ_BUDGET_BYTES, &error);
    if (code == BASE_OK || connection->lingering || connection->dead)
        return;
    if (code == BASE_CLOSED) {
        worker_connection_kill(connection, 0, NULL);
    } else if (code == BASE_UNAVAILABLE) {
        base_metric_add(&connection->serve->metrics[WORKER_METRIC_DROPPED_CUT], 1);
        base_log(BASE_LOG_INFO, "connection_lost", "peer=%s error=\"%s\"", connection->peer, error.text);
        worker_connection_kill(connection, 0, NULL);
    } else { /* the link has answered FAIL */
        base_metric_add(&connection->serve->metrics[WORKER_METRIC_DROPPED_FRAME], 1);
        log_drop(connection, error.text);
        connection->mute = true; /* or its socket would call for ever to be written to */
        worker_connection_linger(connection);
    }
}

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    struct connection *connection = context;
    if (connection->lingering)
        read_away(connection);
    else
        read_frames(connection);
    worker_connection_touch(connection);
    worker_serve_pump(connection->serve);
}

static void on_writable(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    struct connection *connection = context;
    if (wire_link_write(connection->link, NULL) != BASE_OK)
        worker_connection_kill(connection, 0, NULL);
    else
        settle(connection);
    worker_serve_pump(connection->serve);
}

/* ---- beginning ---- */

static bool enter_index(struct worker_serve *serve, struct connection *connection)
{
    uint32_t index = (uint32_t)connection->core;
    if (index >= serve->index_capacity) {
        uint32_t capacity = (index + 1) * 2;
        struct connection **table = realloc(serve->by_index, capacity * sizeof *table);
        if (!table)
            return false;
        memset(table + serve->index_capacity, 0, (capacity - serve->index_capacity) * sizeof *table);
        serve->by_index = table;
        serve->index_capacity = capacity;
    }
    serve->by_index[index] = connection;
    return true;
}

struct connection *worker_connection_find(struct worker_serve *serve, uint64_t core)
{
    uint32_t index = (uint32_t)core;
    struct connection *connection = index < serve->index_capacity ? serve->by_index[index] : NULL;
    return connection && connection->core == core ? connection : NULL;
}

static bool begin(struct worker_serve *serve, struct connection *connection, int fd)
{
    struct wire_link_options options = {.fd = fd,
                                        .events = &link_events,
                                        .context = connection,
                                        .holds = true,
                                        .queue_max_bytes = serve->options.queue_max_bytes};
    if (wire_link_create(&connection->link, &options, NULL) != BASE_OK) {
        close(fd);
        return false;
    }
    connection->readable = event_new(serve->options.loop, fd, EV_READ | EV_PERSIST, on_readable, connection);
    connection->writable = event_new(serve->options.loop, fd, EV_WRITE | EV_PERSIST, on_writable, connection);
    connection->core = worker_core_connected(serve->options.core);
    return connection->readable && connection->writable && connection->core &&
           enter_index(serve, connection) && event_add(connection->readable, NULL) == 0;
}

void worker_connection_accept(struct worker_serve *serve, int fd, const char *peer)
{
    struct connection *connection = calloc(1, sizeof *connection);
    if (!connection) {
        close(fd);
        return;
    }
    connection->serve = serve;
    connection->since_ns = connection->progress_ns = base_clock_now_ns();
    snprintf(connection->peer, sizeof connection->peer, "%s", peer);
    if (!begin(serve, connection, fd)) {
        base_log(BASE_LOG_ERROR, "accept_failed", "peer=%s error=\"no memory\"", peer);
        if (connection->core && worker_connection_find(serve, connection->core) != connection)
            connection->core = 0; /* the machine is broken: the next pump ends the process */
        worker_connection_free(connection);
        return;
    }
    connection->next = serve->first;
    serve->first = connection;
    serve->count++;
}
