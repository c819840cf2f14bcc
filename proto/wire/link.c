/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire/link.h"

#include "proto/wire/receive.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    INLINE_BYTES = 1024,        /* payloads up to this are kept in the frame itself */
    IOVECS_MAX = 64,            /* a sendmsg */
    POOL_MAX = 64,              /* frames kept for reuse */
    HOLD_MAX_BYTES = 64 * 1024, /* worth a system call by itself */
};

/* A frame being sent. */
struct outgoing {
    struct outgoing *next;
    uint64_t bytes; /* all of it */
    uint64_t token;
    bool has_token;
    uint8_t *copied;  /* owned; a payload over INLINE_BYTES */
    int first, count; /* parts not yet sent */
    struct iovec parts[1 + WIRE_LINK_PARTS_MAX];
    uint8_t head[WIRE_HEADER_BYTES + INLINE_BYTES];
};

struct wire_link {
    int fd;
    const struct wire_link_events *events;
    void *context;
    uint64_t queue_max_bytes, queued_bytes, bytes_in, bytes_out;
    struct outgoing *queue, **queue_end, *pool;
    int pooled;
    uint32_t queued;
    bool holds, reading, writing;
    struct base_error failure; /* code BASE_OK: none yet */
    struct wire_receive receive;
};

enum base_code wire_link_create(struct wire_link **link, const struct wire_link_options *options,
                                struct base_error *error)
{
    struct wire_link *made = calloc(1, sizeof *made);
    if (!made)
        return base_error_set(error, BASE_NO_MEMORY, "no memory for a connection");
    made->fd = options->fd;
    made->events = options->events;
    made->context = options->context;
    made->queue_max_bytes = options->queue_max_bytes;
    made->holds = options->holds;
    made->queue_end = &made->queue;
    wire_receive_init(&made->receive, options->events, options->context);
    /* A frame is one sendmsg, so waiting for more helps nobody. Not every socket is TCP: that may fail. */
    (void)setsockopt(made->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    *link = made;
    return BASE_OK;
}

static struct outgoing *outgoing_get(struct wire_link *link)
{
    struct outgoing *frame = link->pool;
    if (!frame)
        return malloc(sizeof *frame);
    link->pool = frame->next;
    link->pooled--;
    return frame;
}

static void outgoing_put(struct wire_link *link, struct outgoing *frame)
{
    free(frame->copied);
    if (link->pooled >= POOL_MAX) {
        free(frame);
        return;
    }
    frame->copied = NULL;
    frame->next = link->pool;
    link->pool = frame;
    link->pooled++;
}

/* Takes the first frame off the queue, then tells its owner. */
static void finish_first(struct wire_link *link, bool done)
{
    struct outgoing *frame = link->queue;
    link->queue = frame->next;
    if (!link->queue)
        link->queue_end = &link->queue;
    link->queued_bytes -= frame->bytes;
    link->queued--;
    bool has_token = frame->has_token;
    uint64_t token = frame->token;
    outgoing_put(link, frame);
    if (has_token)
        link->events->sent(link->context, token, done);
}

void wire_link_destroy(struct wire_link *link)
{
    if (!link)
        return;
    if (link->failure.code == BASE_OK)
        base_error_set(&link->failure, BASE_CLOSED, "closed here"); /* so that `sent` cannot queue more */
    while (link->queue)
        finish_first(link, false);
    while (link->pool) {
        struct outgoing *frame = link->pool;
        link->pool = frame->next;
        free(frame);
    }
    wire_receive_fini(&link->receive);
    close(link->fd);
    free(link);
}

int wire_link_fd(const struct wire_link *link)
{
    return link->fd;
}

bool wire_link_wants_write(const struct wire_link *link)
{
    return link->queue != NULL;
}

uint32_t wire_link_queued(const struct wire_link *link)
{
    return link->queued;
}

uint64_t wire_link_bytes_in(const struct wire_link *link)
{
    return link->bytes_in;
}

uint64_t wire_link_bytes_out(const struct wire_link *link)
{
    return link->bytes_out;
}

static enum base_code tell(const struct wire_link *link, struct base_error *error)
{
    if (error)
        *error = link->failure;
    return link->failure.code;
}

static void fail_errno(struct wire_link *link, const char *doing)
{
    base_error_errno(&link->failure, errno, "%s", doing);
    link->failure.code = BASE_UNAVAILABLE;
}

/* ---- writing ---- */

static int gather(const struct wire_link *link, struct iovec iov[IOVECS_MAX], size_t *size)
{
    int count = 0;
    *size = 0;
    for (const struct outgoing *frame = link->queue; frame; frame = frame->next)
        for (int i = frame->first; i < frame->count; i++) {
            if (count == IOVECS_MAX)
                return count;
            iov[count++] = frame->parts[i];
            *size += frame->parts[i].iov_len;
        }
    return count;
}

static void consume(struct wire_link *link, size_t size)
{
    link->bytes_out += size;
    while (size) {
        struct outgoing *frame = link->queue;
        struct iovec *part = &frame->parts[frame->first];
        size_t taken = size < part->iov_len ? size : part->iov_len;
        part->iov_base = (uint8_t *)part->iov_base + taken;
        part->iov_len -= taken;
        size -= taken;
        if (!part->iov_len && ++frame->first == frame->count)
            finish_first(link, true);
    }
}

static void flush(struct wire_link *link)
{
    if (link->writing)
        return; /* called from `sent`: the loop below goes on */
    link->writing = true;
    bool full = false;
    while (link->queue && !full && link->failure.code == BASE_OK) {
        struct iovec iov[IOVECS_MAX];
        size_t size;
        struct msghdr message = {.msg_iov = iov, .msg_iovlen = (size_t)gather(link, iov, &size)};
        ssize_t sent = sendmsg(link->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0)
            consume(link, (size_t)sent);
        else if (errno != EAGAIN && errno != EINTR)
            fail_errno(link, "sending");
        full = sent >= 0 ? (size_t)sent < size : errno == EAGAIN;
    }
    link->writing = false;
}

enum base_code wire_link_write(struct wire_link *link, struct base_error *error)
{
    flush(link);
    return tell(link, error);
}

static enum base_code check_send(const struct wire_link *link, const struct wire_header *header,
                                 struct base_error *error)
{
    const char *name = wire_type_name(header->type);
    unsigned long long size = header->length;
    if (link->failure.code != BASE_OK)
        return base_error_set(error, BASE_CLOSED, "%s frame on a connection that failed: %s", name,
                              link->failure.text);
    if (header->length > wire_header_length_max(header))
        return base_error_set(error, BASE_INVALID, "%s frame of %llu bytes, over the limit", name, size);
    if (link->queue && link->queued_bytes + WIRE_HEADER_BYTES + size > link->queue_max_bytes)
        return base_error_set(error, BASE_TOO_LARGE,
                              "%s frame of %llu bytes: the peer does not read, %llu bytes wait", name, size,
                              (unsigned long long)link->queued_bytes);
    return BASE_OK;
}

/* An empty frame for this header, its first part; NULL when `error` says why not. */
static struct outgoing *make_frame(struct wire_link *link, const struct wire_header *header, uint64_t size,
                                   enum base_code *code, struct base_error *error)
{
    struct wire_header sized = *header;
    sized.length = size;
    *code = check_send(link, &sized, error);
    if (*code != BASE_OK)
        return NULL;
    struct outgoing *frame = outgoing_get(link);
    if (!frame) {
        *code =
            base_error_set(error, BASE_NO_MEMORY, "no memory for a %s frame", wire_type_name(header->type));
        return NULL;
    }
    frame->next = NULL;
    frame->bytes = WIRE_HEADER_BYTES + size;
    frame->has_token = false;
    frame->copied = NULL;
    frame->first = 0;
    frame->count = 1;
    frame->parts[0] = (struct iovec){.iov_base = frame->head, .iov_len = WIRE_HEADER_BYTES};
    wire_header_write(&sized, frame->head);
    return frame;
}

static void enqueue(struct wire_link *link, struct outgoing *frame)
{
    *link->queue_end = frame;
    link->queue_end = &frame->next;
    link->queued_bytes += frame->bytes;
    link->queued++;
    if (!link->reading && (!link->holds || link->queued_bytes >= HOLD_MAX_BYTES))
        flush(link);
}

enum base_code wire_link_send(struct wire_link *link, const struct wire_header *header, const void *payload,
                              size_t size, struct base_error *error)
{
    enum base_code code;
    struct outgoing *frame = make_frame(link, header, size, &code, error);
    if (!frame)
        return code;
    if (size > INLINE_BYTES) {
        frame->copied = malloc(size);
        if (!frame->copied) {
            outgoing_put(link, frame);
            return base_error_set(error, BASE_NO_MEMORY, "no memory for a %s frame of %zu bytes",
                                  wire_type_name(header->type), size);
        }
        memcpy(frame->copied, payload, size);
        frame->parts[frame->count++] = (struct iovec){.iov_base = frame->copied, .iov_len = size};
    } else if (size) {
        memcpy(frame->head + WIRE_HEADER_BYTES, payload, size);
        frame->parts[0].iov_len += size;
    }
    enqueue(link, frame);
    return BASE_OK;
}

enum base_code wire_link_send_buffer(struct wire_link *link, const struct wire_header *header,
                                     const struct base_buffer *payload, struct base_error *error)
{
    if (payload && payload->failed)
        return base_error_set(error, BASE_NO_MEMORY, "no memory for the payload of a %s frame",
                              wire_type_name(header->type));
    return wire_link_send(link, header, payload ? payload->bytes : NULL, payload ? payload->size : 0, error);
}

enum base_code wire_link_send_parts(struct wire_link *link, const struct wire_header *header,
                                    const struct iovec *iov, int count, uint64_t token,
                                    struct base_error *error)
{
    if (count < 0 || count > WIRE_LINK_PARTS_MAX)
        return base_error_set(error, BASE_INVALID, "%s frame of %d parts, at most %d",
                              wire_type_name(header->type), count, WIRE_LINK_PARTS_MAX);
    uint64_t size = 0;
    for (int i = 0; i < count; i++)
        size += iov[i].iov_len;
    enum base_code code;
    struct outgoing *frame = make_frame(link, header, size, &code, error);
    if (!frame)
        return code;
    frame->token = token;
    frame->has_token = true;
    for (int i = 0; i < count; i++)
        if (iov[i].iov_len)
            frame->parts[frame->count++] = iov[i];
    enqueue(link, frame);
    return BASE_OK;
}

/* ---- reading ---- */

/* One system call. *drained: the socket has no more for now. Returns how many bytes came; failure says the rest. */
static size_t read_once(struct wire_link *link, uint64_t wanted_bytes, bool *drained)
{
    struct iovec iov[2];
    struct msghdr message = {.msg_iov = iov};
    message.msg_iovlen = (size_t)wire_receive_room(&link->receive, wanted_bytes, iov);
    size_t room = iov[0].iov_len + (message.msg_iovlen > 1 ? iov[1].iov_len : 0);
    ssize_t came = message.msg_iovlen > 1 ? recvmsg(link->fd, &message, MSG_DONTWAIT)
                                          : recv(link->fd, iov[0].iov_base, iov[0].iov_len, MSG_DONTWAIT);
    if (came < 0) {
        *drained = errno == EAGAIN;
        if (errno != EAGAIN && errno != EINTR)
            fail_errno(link, "receiving");
        return 0;
    }
    *drained = (size_t)came < room;
    link->bytes_in += (uint64_t)came;
    struct base_error error = {.code = BASE_OK};
    enum base_code code = came ? wire_receive_advance(&link->receive, (size_t)came, &error)
                               : wire_receive_end(&link->receive, &error);
    if (code != BASE_OK) {
        link->failure = error;
        link->failure.code = code;
    }
    return (size_t)came;
}

/* Tells the peer what is wrong with its frame, if the socket takes it at once. */
static void refuse(struct wire_link *link)
{
    const struct wire_header *blamed = &link->receive.header;
    struct base_error failure = link->failure;
    struct wire_header header = {
        .type = WIRE_FAIL, .request = blamed->request, .status = (uint16_t)failure.code};
    if (blamed->type == WIRE_FAIL)
        return; /* or two peers would go on for ever */
    link->failure.code = BASE_OK;
    (void)wire_link_send(link, &header, failure.text, strlen(failure.text), NULL);
    flush(link);
    link->failure = failure;
}

enum base_code wire_link_read(struct wire_link *link, uint64_t budget_bytes, struct base_error *error)
{
    if (link->failure.code != BASE_OK)
        return tell(link, error);
    link->reading = true;
    bool drained = false;
    for (uint64_t came = 0; came < budget_bytes && !drained && link->failure.code == BASE_OK;)
        came += read_once(link, budget_bytes - came, &drained);
    link->reading = false;
    if (link->receive.refused)
        refuse(link);
    else if (!link->holds)
        flush(link);
    return tell(link, error);
}
