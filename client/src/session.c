/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/session.h"

#include "base/clock.h"
#include "base/log.h"
#include "client/src/job.h"
#include "client/src/local.h"
#include "client/src/part.h"
#include "client/src/resolve.h"
#include "proto/rpc/token.h"
#include "proto/wire/link.h"
#include "proto/wire/messages.h"

#include <event2/event.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_BUDGET_BYTES (1 << 20)
#define LARGE_PART_BYTES                                                                                     \
    (64 << 10)                 /* small frames tell of them, and each is to be copied: one read at a time */
#define DONE_NS BASE_NS_PER_MS /* while a trainer waits: it takes, releases, and GETs leave with it */
#define DONE_BYTES 4096        /* of loans in one frame */
#define QUEUE_MAX_BYTES (4 << 20)      /* small frames only: a worker that reads none of them is gone */
#define OWN_NUMBER (UINT64_C(1) << 63) /* of OPEN and PAGE: the machine's numbers have it clear */

enum session_state { RESOLVING, DIALLING, GREETING, READY };

struct client_session {
    struct client_session *next;
    struct mr_job *job;
    uint64_t worker;
    enum session_state state;
    bool open; /* OPEN was answered */
    int tries; /* addresses tried */
    char address[BASE_ADDRESS_CHARS];
    struct client_resolve *resolve;
    int fd; /* while DIALLING, else -1 */
    struct wire_link *link;
    struct event *readable, *writable, *timer;
    uint64_t serial, open_number;
    uint32_t handle;
    int64_t now_ns;
    int64_t write_ns;           /* what waits in the link may leave then; 0: at once */
    uint64_t bytes_in;          /* as told to the machine */
    uint64_t part_bytes;        /* of the last one that was copied from memory */
    struct base_buffer page;    /* being received: of the session alone, for the job's waiter may have gone */
    struct base_buffer payload; /* of a GET or MARK being made */
    struct base_buffer done;    /* likewise, of DONE: loans copied since the last one */
    struct client_part part;
    struct client_local local;
};

static void try_address(struct client_session *session);

/* ---- ends ---- */

static struct client_session *find(struct mr_job *job, uint64_t worker)
{
    struct client_session *session = job->sessions;
    while (session && session->worker != worker)
        session = session->next;
    return session;
}

static void drop_events(struct client_session *session)
{
    if (session->readable)
        event_free(session->readable);
    if (session->writable)
        event_free(session->writable);
    session->readable = session->writable = NULL;
}

static void destroy(struct client_session *session)
{
    struct mr_job *job = session->job;
    struct client_session **at = &job->sessions;
    while (*at && *at != session)
        at = &(*at)->next;
    if (*at)
        *at = session->next;
    drop_events(session);
    if (session->timer)
        event_free(session->timer);
    wire_link_destroy(session->link);
    if (session->fd >= 0)
        close(session->fd);
    client_resolve_end(session->resolve);
    client_local_fini(&session->local);
    client_part_fini(&session->part);
    base_buffer_fini(&session->page);
    base_buffer_fini(&session->payload);
    base_buffer_fini(&session->done);
    free(session);
}

/* A page that was asked of it will not come. */
static void lose_page(struct client_session *session, const char *why)
{
    struct client_page *page = &session->job->page;
    if (!page->wanted || page->number == 0 || page->worker != session->worker)
        return;
    page->number = 0;
    page->here = true;
    page->code = base_error_set(&page->error, BASE_UNAVAILABLE, "worker %llu: %s",
                                (unsigned long long)session->worker, why);
    session->job->news = true;
}

/* It ends by itself. */
static void end(struct client_session *session, enum base_code code, const char *why)
{
    struct mr_job *job = session->job;
    uint64_t worker = session->worker;
    char quoted[320], text[BASE_ERROR_TEXT_BYTES];
    bool bad = code == BASE_CORRUPT || code == BASE_TOO_LARGE;
    snprintf(text, sizeof text, "%s", why);
    base_log(bad ? BASE_LOG_WARN : BASE_LOG_DEBUG, bad ? "bad_frame" : "worker_lost",
             "job=%s rank=%u worker=%llu address=%s cause=%s", job->name, job->rank,
             (unsigned long long)worker, session->address, base_log_quote(text, quoted, sizeof quoted));
    job->bad_frames += bad;
    lose_page(session, text);
    destroy(session);
    client_core_lost(job->core, base_clock_now_ns(), worker, text);
}

void client_session_close(struct mr_job *job, uint64_t worker)
{
    struct client_session *session = find(job, worker);
    if (!session)
        return;
    lose_page(session, "closed");
    destroy(session);
}

void client_session_close_all(struct mr_job *job)
{
    while (job->sessions)
        destroy(job->sessions);
}

/* ---- sending ---- */

static bool has_frames(const struct client_session *session)
{
    return session->link && wire_link_wants_write(session->link);
}

bool client_session_frames_wait(const struct mr_job *job, int64_t *wake_ns)
{
    bool any = false;
    int64_t now_ns = 0;
    for (const struct client_session *session = job->sessions; session; session = session->next) {
        if (!has_frames(session))
            continue;
        now_ns = now_ns == 0 && session->write_ns != 0 ? base_clock_now_ns() : now_ns;
        if (session->write_ns > now_ns)
            *wake_ns = base_clock_earlier(*wake_ns, session->write_ns);
        else
            any = true;
    }
    return any;
}

void client_session_write_all(struct mr_job *job)
{
    for (struct client_session *session = job->sessions; session; session = session->next)
        if (has_frames(session))
            (void)wire_link_write(session->link, NULL); /* the next read tells of a failure */
}

void client_session_flush_all(struct mr_job *job)
{
    client_session_write_all(job);
    for (struct client_session *session = job->sessions; session; session = session->next)
        if (has_frames(session))
            event_add(session->writable, NULL);
}

/* What the link does not take, the connection does not survive, or whoever waits for the answer would wait for ever: the next
 * read meets its end. */
static void send_frame(struct client_session *session, struct wire_header *header,
                       const struct base_buffer *payload)
{
    struct base_error error;
    header->version = WIRE_VERSION_MAX;
    if (header->type != WIRE_DONE)
        session->write_ns = 0;
    else if (!wire_link_wants_write(session->link) &&
             (session->job->waiting > 0 || client_core_is_brisk(session->job->core)))
        session->write_ns = session->now_ns + DONE_NS;
    enum base_code code = wire_link_send_buffer(session->link, header, payload, &error);
    if (code == BASE_OK)
        return;
    base_log(BASE_LOG_DEBUG, "send_failed", "worker=%llu code=%s", (unsigned long long)session->worker,
             base_error_name(code));
    shutdown(wire_link_fd(session->link), SHUT_RDWR);
}

static void send_hello(struct client_session *session)
{
    struct mr_job *job = session->job;
    struct wire_hello hello = {.version_min = WIRE_VERSION_MIN, .version_max = WIRE_VERSION_MAX};
    struct wire_header header = {.type = WIRE_HELLO};
    struct base_buffer payload;
    hello.features = job->sockets_only ? 0 : WIRE_FEATURE_LOCAL;
    char subject[RPC_TOKEN_SUBJECT_CHARS];
    rpc_token_subject(job->name, subject);
    if (job->client->key[0])
        rpc_token_issue(job->client->key, subject, base_clock_wall_ns() / BASE_NS_PER_S, hello.token, NULL);
    snprintf(hello.name, sizeof hello.name, "libmillrace " MILLRACE_VERSION " pid %d", (int)getpid());
    base_buffer_init(&payload);
    wire_hello_write(&hello, &payload);
    send_frame(session, &header, &payload);
    base_buffer_fini(&payload);
}

static void send_open(struct client_session *session)
{
    struct mr_job *job = session->job;
    struct client_fields *fields = &job->slots.fields;
    struct wire_open open = {.rank = job->rank, .field_count = fields->count};
    struct base_buffer payload;
    memcpy(open.stream, job->stream.hash, sizeof open.stream);
    memcpy(open.fingerprint, job->stream.fingerprint, sizeof open.fingerprint);
    snprintf(open.job, sizeof open.job, "%s", job->name);
    for (int i = 0; i < fields->count; i++)
        snprintf(open.fields[i], sizeof open.fields[i], "%s", fields->sent[i].name);
    session->open_number = OWN_NUMBER | ++session->serial;
    struct wire_header header = {.type = WIRE_OPEN,
                                 .request = session->open_number,
                                 .handle = ++session->handle,
                                 .plan = client_core_plan_version(job->core)};
    base_buffer_init(&payload);
    wire_open_write(&open, &payload);
    send_frame(session, &header, &payload);
    base_buffer_fini(&payload);
}

/* GET, MARK and CANCEL. */
static void send_action(struct client_session *session, const struct client_action *action)
{
    struct wire_header header = {.handle = session->handle, .request = action->request};
    struct wire_mark mark = {action->mark.epoch, action->mark.position};
    base_buffer_clear(&session->payload);
    header.plan = client_core_plan_version(session->job->core);
    switch (action->kind) {
    case CLIENT_ACTION_GET:
        header.type = WIRE_GET;
        header.flags =
            (uint16_t)((action->insist ? WIRE_FLAG_INSIST : 0) | (action->death ? WIRE_FLAG_DEATH : 0) |
                       (action->hedge ? WIRE_FLAG_HEDGE : 0));
        header.epoch = action->epoch;
        header.block = action->block;
        header.from = (uint16_t)action->from;
        header.to = (uint16_t)action->to;
        header.time_ms = action->slack_ms;
        wire_mark_write(&mark, &session->payload);
        break;
    case CLIENT_ACTION_MARK:
        header.type = WIRE_MARK;
        wire_mark_write(&mark, &session->payload);
        break;
    default:
        header.type = WIRE_CANCEL;
        break;
    }
    send_frame(session, &header, &session->payload);
}

void client_session_send(struct mr_job *job, const struct client_action *action)
{
    struct client_session *session = find(job, action->worker);
    if (!session || session->state != READY)
        return;
    if (action->kind == CLIENT_ACTION_OPEN)
        send_open(session);
    else
        send_action(session, action);
}

static struct client_session *first_open(struct client_session *session)
{
    while (session && !session->open)
        session = session->next;
    return session;
}

/* Whoever gave one before, else the next of those that are open, round and round. */
static struct client_session *choose_for_page(struct mr_job *job)
{
    struct client_session *session = find(job, job->page.worker);
    if (session && job->page.elsewhere)
        session = session->next;
    session = first_open(session);
    return session ? session : first_open(job->sessions);
}

bool client_session_ask_page(struct mr_job *job, uint64_t index)
{
    struct base_buffer payload;
    struct client_session *session = choose_for_page(job);
    if (!session)
        return false;
    job->page.elsewhere = false;
    job->page.worker = session->worker;
    job->page.number = OWN_NUMBER | ++session->serial;
    struct wire_header header = {
        .type = WIRE_PAGE, .request = job->page.number, .handle = session->handle, .block = index};
    base_buffer_init(&payload);
    base_buffer_put(&payload, job->stream.dataset_version, BASE_SHA256_BYTES);
    send_frame(session, &header, &payload);
    base_buffer_fini(&payload);
    return true;
}

/* ---- frames that come ---- */

static enum base_code on_hello(struct client_session *session, const struct wire_header *header,
                               const uint8_t *payload, struct base_error *error)
{
    struct wire_hello theirs, mine = {.version_min = WIRE_VERSION_MIN, .version_max = WIRE_VERSION_MAX};
    enum base_code code = wire_hello_read(payload, header->length, &theirs, error);
    if (code != BASE_OK)
        return code;
    if (wire_hello_agree(&mine, &theirs) == 0)
        return base_error_set(error, BASE_UNSUPPORTED,
                              "worker speaks versions %u to %u, this client %u to %u", theirs.version_min,
                              theirs.version_max, mine.version_min, mine.version_max);
    session->state = READY;
    client_core_connected(session->job->core, session->now_ns, session->worker);
    return BASE_OK;
}

static bool same_fields(const struct scheduler_pipeline *pipeline, const struct wire_opened *opened)
{
    bool same = opened->block_rows == pipeline->block_rows && opened->field_count == pipeline->field_count;
    for (int i = 0; i < opened->field_count && same; i++) {
        const struct scheduler_field *a = &pipeline->fields[i], *b = &opened->fields[i];
        same = strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->ragged == b->ragged &&
               a->max_bytes == b->max_bytes && a->rank == b->rank;
    }
    return same;
}

static enum base_code on_opened(struct client_session *session, const struct wire_header *header,
                                const uint8_t *payload, struct base_error *error)
{
    struct mr_job *job = session->job;
    struct wire_opened opened;
    if (header->request != session->open_number)
        return BASE_OK; /* an earlier one */
    enum base_code code = wire_opened_read(payload, header->length, &opened, error);
    if (code != BASE_OK)
        return code;
    if (!same_fields(&job->stream.pipeline, &opened) || opened.wanted != job->slots.fields.wanted)
        return base_error_set(error, BASE_CONFLICT, "worker lays out rows of this stream in another way");
    session->open = true;
    client_core_opened(job->core, session->now_ns, session->worker, opened.requests_max);
    return BASE_OK;
}

static void text_of(const struct wire_header *header, const uint8_t *payload, struct base_error *cause)
{
    int shown = header->length < BASE_ERROR_TEXT_BYTES - 1 ? (int)header->length : BASE_ERROR_TEXT_BYTES - 1;
    base_error_set(cause, (enum base_code)header->status, "%.*s", shown,
                   payload ? (const char *)payload : "");
}

static enum base_code on_retry(struct client_session *session, const struct wire_header *header,
                               const uint8_t *payload)
{
    struct client_core *core = session->job->core;
    struct base_error cause;
    text_of(header, payload, &cause);
    if (header->request & OWN_NUMBER && header->request == session->open_number)
        client_core_not_opened(core, session->now_ns, session->worker, header->time_ms);
    else if (header->request & OWN_NUMBER)
        lose_page(session, cause.text);
    else
        client_core_retry(core, session->now_ns, session->worker, header->request, header->time_ms, &cause);
    return BASE_OK;
}

static enum base_code on_fail(struct client_session *session, const struct wire_header *header,
                              const uint8_t *payload, struct base_error *error)
{
    struct base_error cause;
    text_of(header, payload, &cause);
    if (header->request == 0 || header->request == session->open_number) /* of the connection, of all of it */
        return base_error_set(error, BASE_UNAVAILABLE, "worker says %s: %s", base_error_name(cause.code),
                              cause.text);
    if (header->request & OWN_NUMBER)
        lose_page(session, cause.text);
    else
        client_core_fail(session->job->core, session->now_ns, session->worker, header->request, &cause);
    return BASE_OK;
}

static bool is_for(const struct client_page *page, const struct client_session *session,
                   const struct wire_header *header)
{
    return page->wanted && page->worker == session->worker && page->number == header->request;
}

static enum base_code on_page(struct client_session *session, const struct wire_header *header)
{
    struct client_page *page = &session->job->page;
    if (is_for(page, session, header)) {
        page->number = 0;
        page->here = true;
        page->code = session->page.failed ? BASE_NO_MEMORY : BASE_OK;
        struct base_buffer received = session->page;
        session->page = page->bytes;
        page->bytes = received;
        session->job->news = true;
    }
    return BASE_OK;
}

static enum base_code on_moved(struct client_session *session, const struct wire_header *header,
                               const uint8_t *payload, struct base_error *error)
{
    uint64_t home;
    enum base_code code = wire_moved_read(payload, header->length, &home, error);
    if (code == BASE_OK)
        client_core_moved(session->job->core, session->now_ns, session->worker, header->request, home);
    return code;
}

/* ---- rows in a worker's memory ---- */

/* A worker of this host lets us map its memory. */
static enum base_code on_local(struct client_session *session, const struct wire_header *header,
                               const uint8_t *payload, struct base_error *error)
{
    if (header->length != WIRE_LOCAL_NAME_BYTES)
        return base_error_set(error, BASE_CORRUPT, "LOCAL frame of %llu bytes",
                              (unsigned long long)header->length);
    if (!session->job->sockets_only)
        client_local_ask(&session->local, client_loop_base(session->job->client->loop), payload);
    return BASE_OK;
}

static void on_mapped(void *context)
{
    struct client_session *session = context;
    struct mr_job *job = session->job;
    struct wire_header header = {.type = WIRE_LOCAL};
    pthread_mutex_lock(&job->mutex);
    send_frame(session, &header, NULL);
    client_job_unlock(job);
}

static void send_done(struct client_session *session)
{
    struct wire_header header = {.type = WIRE_DONE, .handle = session->handle};
    if (session->done.size > 0 || session->done.failed)
        send_frame(session, &header, &session->done);
    base_buffer_clear(&session->done);
}

/* One frame tells of all that a read brings: it could not leave before its end anyway. */
static void add_done(struct client_session *session, uint64_t loan)
{
    wire_done_write(loan, &session->done);
    if (session->done.size >= DONE_BYTES)
        send_done(session);
}

/* The worker has ended the connection, after what we are still reading of it. */
static bool is_over(const struct client_session *session)
{
    struct pollfd state = {wire_link_fd(session->link), POLLRDHUP, 0};
    return poll(&state, 1, 0) == 1;
}

static enum base_code on_data(struct client_session *session, const struct wire_header *header,
                              const uint8_t *payload, struct base_error *error)
{
    struct wire_local_part lent;
    if (!(header->flags & WIRE_FLAG_LOCAL)) {
        session->job->socket_bytes += header->length;
        return client_part_done(&session->part, session->now_ns, header, error);
    }
    enum base_code code = client_local_read(&session->local, header, payload, &lent, error);
    session->job->memory_bytes += lent.length;
    session->part_bytes = lent.length;
    if (code == BASE_OK)
        code = client_local_take(&session->local, &session->part, session->now_ns, header, &lent, error);
    if (code == BASE_CORRUPT && is_over(session)) /* stopped too long: other rows lie there by now */
        code = base_error_set(error, BASE_UNAVAILABLE, "took its memory back before it was copied");
    if (code == BASE_OK)
        add_done(session, lent.loan);
    return code;
}

static enum base_code on_frame(void *context, const struct wire_header *header, const uint8_t *payload,
                               struct base_error *error)
{
    struct client_session *session = context;
    struct client_core *core = session->job->core;
    bool reply = header->flags & WIRE_FLAG_REPLY;
    if (session->state == GREETING && header->type != WIRE_HELLO && header->type != WIRE_FAIL)
        return base_error_set(error, BASE_CORRUPT, "%s before HELLO", wire_type_name(header->type));
    client_core_heard(core, session->now_ns, session->worker, header->plan);
    switch (header->type) {
    case WIRE_HELLO:
        return on_hello(session, header, payload, error);
    case WIRE_OPEN:
        return reply ? on_opened(session, header, payload, error) : BASE_OK;
    case WIRE_WAIT:
        client_core_wait(core, session->now_ns, session->worker, header->request,
                         header->status == WIRE_WAIT_MAKING, header->queue);
        return BASE_OK;
    case WIRE_DATA:
        return on_data(session, header, payload, error);
    case WIRE_LOCAL:
        return on_local(session, header, payload, error);
    case WIRE_MOVED:
        return on_moved(session, header, payload, error);
    case WIRE_RETRY:
        return on_retry(session, header, payload);
    case WIRE_FAIL:
        return on_fail(session, header, payload, error);
    case WIRE_PAGE:
        return on_page(session, header);
    case WIRE_PING:
        return BASE_OK;
    default:
        return base_error_set(error, BASE_CORRUPT, "a worker does not send %s", wire_type_name(header->type));
    }
}

static enum base_code page_sink(struct client_session *session, const struct wire_header *header,
                                uint64_t offset, struct iovec *into)
{
    if (offset == 0) {
        base_buffer_clear(&session->page);
        if (is_for(&session->job->page, session, header))
            base_buffer_extend(&session->page, header->length);
    }
    uint8_t *bytes = session->page.size == header->length ? session->page.bytes : NULL;
    uint64_t left = header->length - offset;
    if (bytes)
        *into = (struct iovec){bytes + offset, left};
    else
        *into = (struct iovec){session->part.discard,
                               left < CLIENT_PART_DISCARD_BYTES ? left : CLIENT_PART_DISCARD_BYTES};
    return BASE_OK;
}

static enum base_code on_sink(void *context, const struct wire_header *header, uint64_t offset,
                              struct iovec *into, struct base_error *error)
{
    struct client_session *session = context;
    client_core_heard(session->job->core, session->now_ns, session->worker, header->plan);
    if (header->type == WIRE_PAGE)
        return page_sink(session, header, offset, into);
    if (session->state != READY)
        return base_error_set(error, BASE_CORRUPT, "DATA before HELLO");
    return client_part_sink(&session->part, session->now_ns, header, offset, into, error);
}

static enum base_code on_placed(void *context, const struct wire_header *header, uint64_t offset,
                                struct base_error *error)
{
    struct client_session *session = context;
    return header->type == WIRE_DATA ? client_part_placed(&session->part, offset, error) : BASE_OK;
}

static const struct wire_link_events link_events = {.sink = on_sink, .placed = on_placed, .frame = on_frame};

/* ---- the socket ---- */

/* Bytes in the middle of a long run are progress, too: a slow line is not a silent worker. */
static void note_bytes(struct client_session *session)
{
    uint64_t bytes_in = wire_link_bytes_in(session->link);
    if (bytes_in != session->bytes_in)
        client_core_heard(session->job->core, session->now_ns, session->worker, 0);
    session->bytes_in = bytes_in;
}

static void go_on(struct client_session *session)
{
    note_bytes(session);
    send_done(session);
}

static void on_ready(evutil_socket_t fd, short what, void *context)
{
    struct client_session *session = context;
    struct mr_job *job = session->job;
    struct base_error error;
    enum base_code code = BASE_OK;
    (void)fd;
    pthread_mutex_lock(&job->mutex);
    session->now_ns = base_clock_now_ns();
    if (what & EV_READ)
        code = wire_link_read(session->link, session->part_bytes > LARGE_PART_BYTES ? 1 : READ_BUDGET_BYTES,
                              &error);
    if (code != BASE_OK)
        end(session, code, error.text);
    else
        go_on(session);
    client_job_drive(job);
    client_job_unlock(job);
}

static bool start_link(struct client_session *session, struct base_error *error)
{
    struct event_base *base = client_loop_base(session->job->client->loop);
    struct wire_link_options options = {.fd = session->fd,
                                        .events = &link_events,
                                        .context = session,
                                        .holds = true,
                                        .queue_max_bytes = QUEUE_MAX_BYTES};
    if (wire_link_create(&session->link, &options, error) != BASE_OK)
        return false;
    drop_events(session);
    session->readable = event_new(base, session->fd, EV_READ | EV_PERSIST, on_ready, session);
    session->writable = event_new(base, session->fd, EV_WRITE, on_ready, session);
    session->fd = -1;
    if (!session->readable || !session->writable || event_add(session->readable, NULL) != 0) {
        base_error_set(error, BASE_NO_MEMORY, "no memory for a connection");
        return false;
    }
    session->state = GREETING;
    send_hello(session);
    return true;
}

static void on_dialled(evutil_socket_t fd, short what, void *context)
{
    struct client_session *session = context;
    struct mr_job *job = session->job;
    struct base_error error;
    (void)fd;
    (void)what;
    pthread_mutex_lock(&job->mutex);
    if (base_address_connected(session->fd, session->address, &error) != BASE_OK)
        try_address(session);
    else if (!start_link(session, &error))
        end(session, error.code, error.text);
    client_job_drive(job);
    client_job_unlock(job);
}

/* ---- addresses ---- */

static bool dial(struct client_session *session, const char *numeric, struct base_error *error)
{
    struct event_base *base = client_loop_base(session->job->client->loop);
    drop_events(session);
    if (session->fd >= 0)
        close(session->fd);
    session->fd = -1;
    if (base_address_dial(numeric, &session->fd, error) != BASE_OK)
        return false;
    session->writable = event_new(base, session->fd, EV_WRITE, on_dialled, session);
    session->state = DIALLING;
    return session->writable && event_add(session->writable, NULL) == 0;
}

static void poll_again(struct client_session *session)
{
    struct timeval soon = {0, CLIENT_RESOLVE_POLL_MS * 1000};
    event_add(session->timer, &soon);
}

static void on_resolve_timer(evutil_socket_t fd, short what, void *context)
{
    struct client_session *session = context;
    struct mr_job *job = session->job;
    char numeric[BASE_ADDRESS_CHARS];
    struct base_error error;
    (void)fd;
    (void)what;
    pthread_mutex_lock(&job->mutex);
    enum base_code code = client_resolve_poll(session->resolve, numeric, &error);
    if (code == BASE_BUSY) {
        poll_again(session);
    } else {
        client_resolve_end(session->resolve);
        session->resolve = NULL;
        if (code != BASE_OK || !dial(session, numeric, &error))
            try_address(session);
        client_job_drive(job);
    }
    client_job_unlock(job);
}

static bool begin_address(struct client_session *session, struct base_error *error)
{
    if (client_resolve_literal(session->address))
        return dial(session, session->address, error);
    if (client_resolve_start(&session->resolve, session->address, error) != BASE_OK)
        return false;
    session->state = RESOLVING;
    poll_again(session);
    return true;
}

static struct client_endpoint *endpoint_of(struct mr_job *job, uint64_t worker)
{
    for (int i = 0; i < job->endpoint_count; i++)
        if (job->endpoints[i].worker == worker)
            return &job->endpoints[i];
    return NULL;
}

/* The next address that can be begun with; ends the session when there is none. */
static void try_address(struct client_session *session)
{
    struct client_endpoint *endpoint = endpoint_of(session->job, session->worker);
    struct base_error error;
    base_error_set(&error, BASE_UNAVAILABLE, "worker %llu at %s: no connection",
                   (unsigned long long)session->worker,
                   session->address[0] ? session->address : "no address");
    while (endpoint && session->tries < endpoint->count) {
        snprintf(session->address, sizeof session->address, "%s",
                 endpoint->addresses[endpoint->next++ % (unsigned)endpoint->count]);
        session->tries++;
        if (begin_address(session, &error))
            return;
    }
    end(session, BASE_UNAVAILABLE, error.text);
}

void client_session_start(struct mr_job *job, uint64_t worker)
{
    struct client_session *session = find(job, worker) ? NULL : calloc(1, sizeof *session);
    if (!session) {
        client_core_lost(job->core, base_clock_now_ns(), worker, "no memory for a connection");
        return;
    }
    session->job = job;
    session->worker = worker;
    session->fd = -1;
    base_buffer_init(&session->page);
    base_buffer_init(&session->payload);
    base_buffer_init(&session->done);
    client_local_init(&session->local, on_mapped, session);
    session->next = job->sessions;
    job->sessions = session;
    session->part =
        (struct client_part){.slots = &job->slots, .core = job->core, .items = &job->items, .worker = worker};
    session->timer = evtimer_new(client_loop_base(job->client->loop), on_resolve_timer, session);
    enum base_code code =
        client_part_init(&session->part, job->stream.pipeline.block_rows, job->slots.fields.count, NULL);
    if (code != BASE_OK || !session->timer)
        end(session, BASE_NO_MEMORY, "no memory for a connection");
    else
        try_address(session);
}
