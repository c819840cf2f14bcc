/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving half of a link without a socket: it says where the next bytes go, and is told how many came. Bytes of
 * DATA go straight into the owner's sink; a small read-ahead behind the sink takes what follows, so that the end of one
 * frame and the header (or several small frames) after it cost one system call. The read-ahead's share of a payload is the
 * only part that is copied.
 *
 *   header --64 bytes--> small: whole in the read-ahead, or collected -> frame
 *                        bulk:  sink -> bytes -> sink ... -> frame
 */
#ifndef PROTO_WIRE_RECEIVE_H
#define PROTO_WIRE_RECEIVE_H

#include "proto/wire/link.h"

#define WIRE_RECEIVE_AHEAD_BYTES 4096
/* Between small frames, of which many may come at once: what is not of a payload that has a place. */
#define WIRE_RECEIVE_BETWEEN_BYTES 16384
/* Of a payload that is verified as it comes, the most that one read takes: little enough to lie in the cache still. */
#define WIRE_RECEIVE_STRIDE_BYTES (256 * 1024)

struct wire_receive {
    const struct wire_link_events *events;
    void *context;
    struct wire_header header; /* of the frame begun */
    uint64_t frames;           /* complete ones */
    uint64_t offset;           /* of the payload: bytes in place */
    struct iovec place;        /* what is left of the present sink */
    uint8_t *collected;        /* owned; for small frames over the read-ahead's size */
    uint32_t begin, end;       /* of what lies in `ahead` */
    bool in_frame, refused;    /* refused: the header itself was; else an event failed */
    uint8_t ahead[WIRE_RECEIVE_BETWEEN_BYTES];
};

void wire_receive_init(struct wire_receive *receive, const struct wire_link_events *events, void *context);
void wire_receive_fini(struct wire_receive *receive);

/* Where the next bytes go, in order; never empty. `wanted_bytes`: how many may come, but for the read-ahead's first few kilobytes.
 * Returns how many of `iov` are used. */
int wire_receive_room(struct wire_receive *receive, uint64_t wanted_bytes, struct iovec iov[2]);
/* `size` bytes were put there: runs the events of what they complete. After a code other than BASE_OK the stream makes no sense
 * any more; `header` is then that of the frame to blame, when it was read. */
enum base_code wire_receive_advance(struct wire_receive *receive, size_t size, struct base_error *error);
/* No more bytes come: BASE_CLOSED between frames, UNAVAILABLE inside one, saying where. */
enum base_code wire_receive_end(const struct wire_receive *receive, struct base_error *error);

#endif
