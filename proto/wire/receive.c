/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire/receive.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

void wire_receive_init(struct wire_receive *receive, const struct wire_link_events *events, void *context)
{
    memset(receive, 0, offsetof(struct wire_receive, ahead));
    receive->events = events;
    receive->context = context;
}

void wire_receive_fini(struct wire_receive *receive)
{
    free(receive->collected);
    receive->collected = NULL;
}

static size_t available(const struct wire_receive *receive)
{
    return receive->end - receive->begin;
}

int wire_receive_room(struct wire_receive *receive, uint64_t wanted_bytes, struct iovec iov[2])
{
    int count = 0;
    bool many = !receive->place.iov_len && wanted_bytes >= WIRE_RECEIVE_BETWEEN_BYTES;
    uint32_t ahead_bytes = many ? WIRE_RECEIVE_BETWEEN_BYTES : WIRE_RECEIVE_AHEAD_BYTES;
    if (receive->place.iov_len > WIRE_RECEIVE_STRIDE_BYTES && receive->events->placed) {
        iov[0] = (struct iovec){receive->place.iov_base, WIRE_RECEIVE_STRIDE_BYTES};
        return 1;
    }
    if (receive->place.iov_len)
        iov[count++] = receive->place;
    if (receive->begin) {
        memmove(receive->ahead, receive->ahead + receive->begin, available(receive));
        receive->end -= receive->begin;
        receive->begin = 0;
    }
    iov[count++] =
        (struct iovec){.iov_base = receive->ahead + receive->end, .iov_len = ahead_bytes - receive->end};
    return count;
}

/* Small frames stay in the read-ahead when they fit: no copy. */
static bool is_placed(const struct wire_header *header)
{
    return wire_header_is_bulk(header) || header->length > WIRE_RECEIVE_AHEAD_BYTES;
}

static enum base_code check_order(const struct wire_receive *receive, struct base_error *error)
{
    const struct wire_header *header = &receive->header;
    if (!receive->frames && header->type != WIRE_HELLO && header->type != WIRE_FAIL)
        return base_error_set(error, BASE_CORRUPT, "%s frame before HELLO", wire_type_name(header->type));
    if (receive->frames && header->type == WIRE_HELLO)
        return base_error_set(error, BASE_CORRUPT, "second HELLO frame");
    if (wire_header_is_bulk(header) && !receive->events->sink)
        return base_error_set(error, BASE_CORRUPT, "%s frame of bytes that this end does not take",
                              wire_type_name(header->type));
    return BASE_OK;
}

static enum base_code begin_frame(struct wire_receive *receive, struct base_error *error)
{
    enum base_code code = wire_header_read(receive->ahead + receive->begin, &receive->header, error);
    if (code == BASE_OK)
        code = check_order(receive, error);
    receive->refused = code != BASE_OK;
    if (code != BASE_OK)
        return code;
    receive->begin += WIRE_HEADER_BYTES;
    receive->offset = 0;
    receive->in_frame = true;
    if (!wire_header_is_bulk(&receive->header) && is_placed(&receive->header) && !receive->collected) {
        receive->collected = malloc(WIRE_SMALL_MAX_BYTES);
        if (!receive->collected)
            return base_error_set(error, BASE_NO_MEMORY, "%s frame: no memory for its payload",
                                  wire_type_name(receive->header.type));
    }
    return BASE_OK;
}

/* Where the payload's bytes from `offset` on go. */
static enum base_code next_place(struct wire_receive *receive, struct base_error *error)
{
    const struct wire_header *header = &receive->header;
    uint64_t left = header->length - receive->offset;
    if (!wire_header_is_bulk(header)) {
        receive->place = (struct iovec){.iov_base = receive->collected, .iov_len = left};
        return BASE_OK;
    }
    struct iovec place = {0};
    enum base_code code = receive->events->sink(receive->context, header, receive->offset, &place, error);
    if (code != BASE_OK)
        return code;
    if (!place.iov_base || !place.iov_len || place.iov_len > left)
        return base_error_set(error, BASE_INTERNAL, "%s frame: a sink of %zu bytes for the %llu left",
                              wire_type_name(header->type), place.iov_len, (unsigned long long)left);
    receive->place = place;
    return BASE_OK;
}

static void placed(struct wire_receive *receive, size_t size)
{
    if (!size)
        return;
    receive->place.iov_base = (uint8_t *)receive->place.iov_base + size;
    receive->place.iov_len -= size;
    receive->offset += size;
}

/* Moves what the read-ahead holds into place, until the payload is complete or bytes are wanted. */
static enum base_code fill(struct wire_receive *receive, struct base_error *error)
{
    while (receive->offset < receive->header.length) {
        if (!receive->place.iov_len) {
            enum base_code code = next_place(receive, error);
            if (code != BASE_OK)
                return code;
        }
        size_t size =
            available(receive) < receive->place.iov_len ? available(receive) : receive->place.iov_len;
        if (!size)
            return BASE_OK;
        memcpy(receive->place.iov_base, receive->ahead + receive->begin, size);
        receive->begin += (uint32_t)size;
        placed(receive, size);
    }
    return BASE_OK;
}

static enum base_code end_frame(struct wire_receive *receive, const uint8_t *payload,
                                struct base_error *error)
{
    receive->in_frame = false;
    receive->frames++;
    if (!wire_type_known(receive->header.type))
        return BASE_OK; /* of a later version, and not critical */
    return receive->events->frame(receive->context, &receive->header, payload, error);
}

/* One frame, if it is complete: *more says so. */
static enum base_code take_frame(struct wire_receive *receive, bool *more, struct base_error *error)
{
    enum base_code code = BASE_OK;
    *more = false;
    if (!receive->in_frame) {
        if (available(receive) < WIRE_HEADER_BYTES)
            return BASE_OK;
        code = begin_frame(receive, error);
        if (code != BASE_OK)
            return code;
    }
    const uint8_t *payload = receive->ahead + receive->begin;
    if (is_placed(&receive->header)) {
        code = fill(receive, error);
        if (code != BASE_OK || receive->offset < receive->header.length)
            return code;
        payload = wire_header_is_bulk(&receive->header) ? NULL : receive->collected;
    } else if (available(receive) < receive->header.length) {
        return BASE_OK;
    } else {
        receive->begin += (uint32_t)receive->header.length;
    }
    *more = true;
    return end_frame(receive, payload, error);
}

enum base_code wire_receive_advance(struct wire_receive *receive, size_t size, struct base_error *error)
{
    size_t direct = size < receive->place.iov_len ? size : receive->place.iov_len;
    placed(receive, direct);
    receive->end += (uint32_t)(size - direct);
    enum base_code code = BASE_OK;
    if (direct && receive->events->placed && wire_header_is_bulk(&receive->header))
        code = receive->events->placed(receive->context, &receive->header, receive->offset, error);
    for (bool more = true; more && code == BASE_OK;)
        code = take_frame(receive, &more, error);
    return code;
}

enum base_code wire_receive_end(const struct wire_receive *receive, struct base_error *error)
{
    if (receive->in_frame)
        return base_error_set(error, BASE_UNAVAILABLE, "cut inside a %s frame, after %llu of %llu bytes",
                              wire_type_name(receive->header.type),
                              (unsigned long long)(receive->offset + available(receive)),
                              (unsigned long long)receive->header.length);
    if (available(receive))
        return base_error_set(error, BASE_UNAVAILABLE, "cut inside a frame header, after %zu bytes",
                              available(receive));
    return base_error_set(error, BASE_CLOSED, "closed by the peer");
}
