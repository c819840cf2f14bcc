/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection of the data port, either end: frames over a non-blocking socket, received straight into
 * place and sent straight from the block. No loop of its own: the owner polls the descriptor and calls read
 * and write. One thread.
 *
 *   read:   header -> sink(offset 0) -> bytes into the sink -> sink(next offset) ... -> frame
 *   write:  frames queue; small payloads are copied, large ones stay the caller's until `sent`
 *
 * The first frame that comes must be HELLO (or FAIL), and only the first: the link sees to that. A frame that is not
 * understood is answered by FAIL here, as well as it can be; then read says so, and the owner drops the connection.
 */
#ifndef PROTO_WIRE_LINK_H
#define PROTO_WIRE_LINK_H

#include "base/buffer.h"
#include "base/error.h"
#include "proto/wire/header.h"

#include <sys/uio.h>

struct wire_link;

struct wire_link_events {
    /* Where payload bytes from `offset` on go: fill *into (size > 0, at most length - offset). Called only for DATA and
     * PAGE replies, as soon as the bytes before `offset` are in place; other payloads are collected by the link
     * (<= WIRE_SMALL_MAX_BYTES). A code other than BASE_OK drops the connection. NULL: this end takes no such frames. */
    enum base_code (*sink)(void *context, const struct wire_header *header, uint64_t offset,
                           struct iovec *into, struct base_error *error);
    /* The bytes before `offset` of a DATA or PAGE payload are in place: after each read that put some there, so that rows can be
     * verified while they are warm in the cache; `frame` tells of the last ones. A code other than BASE_OK drops the connection.
     * NULL: nobody wants to know. */
    enum base_code (*placed)(void *context, const struct wire_header *header, uint64_t offset,
                             struct base_error *error);
    /* A frame is complete. `payload` is NULL for DATA and PAGE replies. A code other than BASE_OK drops the
     * connection. */
    enum base_code (*frame)(void *context, const struct wire_header *header, const uint8_t *payload,
                            struct base_error *error);
    /* A frame sent by wire_link_send_parts has left (done) or never will (the link closes): its memory may go. Once each,
     * perhaps before wire_link_send_parts returns. May send more. NULL when send_parts is not used. */
    void (*sent)(void *context, uint64_t token, bool done);
};

struct wire_link_options {
    int fd; /* owned from here on */
    const struct wire_link_events *events;
    void *context;
    uint64_t
        queue_max_bytes; /* of unsent frames; more: the peer does not read, BASE_TOO_LARGE. One frame always fits */
    bool
        holds; /* small frames wait for wire_link_write, and leave in one system call; not those worth one by themselves */
};

/* On failure the descriptor stays the caller's. */
enum base_code wire_link_create(struct wire_link **link, const struct wire_link_options *options,
                                struct base_error *error);
/* Calls `sent` (false) for what is queued, closes the descriptor. NULL is fine. Not from inside an event of
 * this link. */
void wire_link_destroy(struct wire_link *link);

int wire_link_fd(const struct wire_link *link);
bool wire_link_wants_write(const struct wire_link *link);
uint32_t wire_link_queued(const struct wire_link *link); /* frames that have not left */

/* Reads until it would block or about `budget_bytes` came (fairness); poll level-triggered. BASE_CLOSED: the peer ended cleanly
 * between frames; BASE_UNAVAILABLE: reset or cut inside a frame; CORRUPT, UNSUPPORTED, TOO_LARGE or an
 * event's code: drop it. */
enum base_code wire_link_read(struct wire_link *link, uint64_t budget_bytes, struct base_error *error);
/* Writes until it would block or nothing is left. UNAVAILABLE: the peer is gone. */
enum base_code wire_link_write(struct wire_link *link, struct base_error *error);

/* Queues a frame and writes at once what the socket takes (inside `frame`: when the read ends). The length is set here.
 * The payload is copied. BASE_OK: it is queued; that the peer is gone is told by read and write only. Other codes (INVALID: over
 * the type's limit or too many parts; TOO_LARGE: queue_max_bytes; NO_MEMORY; CLOSED: the link failed before): it was not taken,
 * and `sent` will not come. */
enum base_code wire_link_send(struct wire_link *link, const struct wire_header *header, const void *payload,
                              size_t size, struct base_error *error);
/* The same with a payload that was written to a buffer, perhaps NULL; NO_MEMORY, too, when the buffer has failed. */
enum base_code wire_link_send_buffer(struct wire_link *link, const struct wire_header *header,
                                     const struct base_buffer *payload, struct base_error *error);
/* The same with a payload that stays the caller's until `sent(token)`; the iovec array itself is copied. */
#define WIRE_LINK_PARTS_MAX 24
enum base_code wire_link_send_parts(struct wire_link *link, const struct wire_header *header,
                                    const struct iovec *iov, int count, uint64_t token,
                                    struct base_error *error);

uint64_t wire_link_bytes_in(const struct wire_link *link);
uint64_t wire_link_bytes_out(const struct wire_link *link); /* rises when progress is made: stall detection */

#endif
