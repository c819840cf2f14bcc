/* SPDX-License-Identifier: Apache-2.0 */
/* One DATA frame on its way in: fixed fields straight into the batch slot, the head into scratch, everything verified
 * before it counts. Nobody waits for it any more: all of it into scratch. */
#ifndef CLIENT_PART_H
#define CLIENT_PART_H

#include "client/src/core.h"
#include "client/src/items.h"
#include "client/src/slots.h"
#include "proto/wire/header.h"

#include <sys/uio.h>

#define CLIENT_PART_DISCARD_BYTES 65536

struct client_part {
    struct client_slots *slots;
    struct client_core *core;
    struct client_items *items;
    uint64_t worker;
    uint32_t block_rows;
    bool active, scratch, headed; /* headed: the head is whole and makes sense */
    struct client_place place;
    uint32_t rows;
    size_t head_bytes;
    struct wire_part_run runs[WIRE_PART_RUNS];
    int run_count;
    uint64_t request;
    uint32_t verified[CLIENT_FIELDS]; /* rows of each sent field whose hashes were right */
    uint8_t *head;                    /* owned: of the largest part */
    uint8_t *discard;                 /* owned */
};

enum base_code client_part_init(struct client_part *part, uint32_t block_rows, int fields_sent,
                                struct base_error *error);
void client_part_fini(struct client_part *part);

/* As wire_link_events.sink, .placed and .frame, for DATA. The core is told where rows go and when they are there. */
enum base_code client_part_sink(struct client_part *part, int64_t now_ns, const struct wire_header *header,
                                uint64_t offset, struct iovec *into, struct base_error *error);
enum base_code client_part_placed(struct client_part *part, uint64_t offset, struct base_error *error);
enum base_code client_part_done(struct client_part *part, int64_t now_ns, const struct wire_header *header,
                                struct base_error *error);

#endif
