/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/pull.h"

#include "base/address.h"
#include "base/clock.h"
#include "proto/manifest/manifest.h"
#include "proto/rpc/token.h"
#include "proto/wire/link.h"
#include "proto/wire/messages.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONNECT_MS = 2000, ANSWER_MS = 5000, POLL_MS = 100, READ_BYTES = 1 << 20 };

struct session {
    const struct worker_pull *pull;
    struct wire_link *link;
    uint8_t *page; /* WIRE_PAGE_MAX_BYTES; owned */
    size_t page_bytes;
    uint64_t asked; /* page */
    bool greeted, answered;
};

static enum base_code on_sink(void *context, const struct wire_header *header, uint64_t offset,
                              struct iovec *into, struct base_error *error)
{
    struct session *session = context;
    if (header->type != WIRE_PAGE || header->block != session->asked || session->answered)
        return base_error_set(error, BASE_INVALID, "%s frame that was not asked for",
                              wire_type_name(header->type));
    *into = (struct iovec){session->page + offset, header->length - offset};
    return BASE_OK;
}

static enum base_code on_frame(void *context, const struct wire_header *header, const uint8_t *payload,
                               struct base_error *error)
{
    struct session *session = context;
    int text = header->length < 200 ? (int)header->length : 200;
    switch (header->type) {
    case WIRE_HELLO:
        session->greeted = true;
        return BASE_OK;
    case WIRE_PAGE:
        session->page_bytes = header->length;
        session->answered = true;
        return BASE_OK;
    case WIRE_FAIL:
        return base_error_set(error, BASE_UNAVAILABLE, "it says: %.*s", text,
                              payload ? (const char *)payload : "");
    default:
        return BASE_OK;
    }
}

static const struct wire_link_events link_events = {.sink = on_sink, .frame = on_frame};

/* Until *flag, or an error, or the deadline. */
static enum base_code wait_for(struct session *session, const bool *flag, const char *what,
                               struct base_error *error)
{
    int64_t deadline_ns = base_clock_deadline_ns(ANSWER_MS);
    while (!*flag) {
        if (atomic_load(session->pull->cancel))
            return base_error_set(error, BASE_CANCELLED, "this worker is ending");
        if (base_clock_now_ns() > deadline_ns)
            return base_error_set(error, BASE_TIMEOUT, "no %s for %d ms", what, ANSWER_MS);
        struct pollfd polled = {.fd = wire_link_fd(session->link), .events = POLLIN};
        if (wire_link_wants_write(session->link))
            polled.events |= POLLOUT;
        poll(&polled, 1, POLL_MS);
        enum base_code code = wire_link_write(session->link, error);
        if (code == BASE_OK)
            code = wire_link_read(session->link, READ_BYTES, error);
        if (code != BASE_OK)
            return code;
    }
    return BASE_OK;
}

static enum base_code connect_to(struct session *session, const char *address, struct base_error *error)
{
    int fd = -1;
    enum base_code code = base_address_dial(address, &fd, error);
    if (code != BASE_OK)
        return code;
    struct pollfd polled = {.fd = fd, .events = POLLOUT};
    if (poll(&polled, 1, CONNECT_MS) == 1)
        code = base_address_connected(fd, address, error);
    else
        code = base_error_set(error, BASE_TIMEOUT, "no connection within %d ms", CONNECT_MS);
    struct wire_link_options options = {
        .fd = fd, .events = &link_events, .context = session, .queue_max_bytes = READ_BYTES};
    if (code == BASE_OK)
        code = wire_link_create(&session->link, &options, error);
    if (code != BASE_OK)
        close(fd);
    return code;
}

static enum base_code greet(struct session *session, struct base_error *error)
{
    struct wire_hello hello = {.version_min = WIRE_VERSION_MIN, .version_max = WIRE_VERSION_MAX};
    snprintf(hello.name, sizeof hello.name, "%s", session->pull->name);
    if (session->pull->token_key) {
        enum base_code code = rpc_token_issue(session->pull->token_key, "worker",
                                              base_clock_wall_ns() / BASE_NS_PER_S, hello.token, error);
        if (code != BASE_OK)
            return code;
    }
    struct base_buffer payload;
    base_buffer_init(&payload);
    wire_hello_write(&hello, &payload);
    enum base_code code =
        wire_link_send_buffer(session->link, &(struct wire_header){.type = WIRE_HELLO}, &payload, error);
    base_buffer_fini(&payload);
    return code == BASE_OK ? wait_for(session, &session->greeted, "HELLO", error) : code;
}

static enum base_code ask_page(struct session *session, uint64_t index, struct base_error *error)
{
    struct wire_header header = {.type = WIRE_PAGE, .request = 1, .block = index};
    session->asked = index;
    session->answered = false;
    enum base_code code =
        wire_link_send(session->link, &header, session->pull->version, BASE_SHA256_BYTES, error);
    return code == BASE_OK ? wait_for(session, &session->answered, "page", error) : code;
}

static enum base_code pull_from(struct session *session, const char *address, struct manifest_pull *into,
                                struct base_error *error)
{
    uint64_t index;
    session->greeted = false;
    enum base_code code = connect_to(session, address, error);
    if (code == BASE_OK)
        code = greet(session, error);
    while (code == BASE_OK && manifest_pull_next(into, &index)) {
        code = ask_page(session, index, error);
        if (code == BASE_OK)
            code = manifest_pull_page(into, index, session->page, session->page_bytes, error);
    }
    wire_link_destroy(session->link);
    session->link = NULL;
    return code;
}

enum base_code worker_pull_manifest(const struct worker_pull *pull, struct base_error *error)
{
    struct manifest_pull *into = NULL;
    struct session session = {.pull = pull, .page = malloc(WIRE_PAGE_MAX_BYTES)};
    enum base_code code = session.page ? manifest_pull_create(&into, pull->path, pull->version, error)
                                       : base_error_set(error, BASE_NO_MEMORY, "a manifest's page");
    bool whole = false;
    if (code == BASE_OK && pull->address_count == 0)
        code = base_error_set(error, BASE_UNAVAILABLE, "no worker holds the manifest");
    for (int i = 0; i < pull->address_count && into && !whole && code != BASE_CANCELLED; i++) {
        code = pull_from(&session, pull->addresses[i], into, error);
        whole = code == BASE_OK;
        if (!whole)
            base_error_prefix(error, code, "manifest from %s", pull->addresses[i]);
    }
    if (whole)
        code = manifest_pull_finish(into, error);
    manifest_pull_destroy(into);
    free(session.page);
    return code;
}
